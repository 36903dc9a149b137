//! Which nodes are cordoned, as the cluster tells it.

use std::collections::BTreeSet;

use anyhow::{Context as _, ensure};
use instar_tests::{FollowedProgram, Kubectl, Outcome};

use crate::PATIENCE;

/// A line for each change: the name of a node, and whether it is cordoned.
const WATCH: [&str; 5] = [
    "get",
    "nodes",
    "--watch",
    "-o",
    r#"jsonpath={.metadata.name} {.spec.unschedulable}{"\n"}"#,
];

/// A watch of all nodes from its start on.
pub(crate) struct Cordons {
    watch: FollowedProgram,
    /// The lines of watches that ended with their API server.
    ended: Vec<Vec<String>>,
}

impl Cordons {
    pub(crate) fn watch(kubectl: &Kubectl) -> anyhow::Result<Self> {
        Ok(Self {
            watch: kubectl.follow(&WATCH)?,
            ended: Vec::new(),
        })
    }

    /// Watches on after a restart of the API server.
    pub(crate) fn watch_again(&mut self, kubectl: &Kubectl) -> Outcome {
        let ended = std::mem::replace(&mut self.watch, kubectl.follow(&WATCH)?);
        self.ended.push(ended.wait_for_end(PATIENCE)?);
        Ok(())
    }

    /// Fails unless each of these nodes was cordoned, and never two at once.
    pub(crate) fn were_one_at_a_time(&mut self, names: &[&str]) -> Outcome {
        for name in names {
            self.wait_for(name)?;
        }
        self.ended
            .iter()
            .try_for_each(|lines| one_at_a_time(lines))?;
        one_at_a_time(self.watch.heard())
    }

    fn wait_for(&mut self, name: &str) -> Outcome {
        let cordoned = format!("{name} true");
        let mut ended = self.ended.iter().flatten();
        if ended.any(|line| *line == cordoned) || self.watch.heard().contains(&cordoned) {
            return Ok(());
        }
        let is_it = |line: &str| line == cordoned;
        let awaited = format!("the cordon of {name}");
        self.watch.wait_for(&awaited, PATIENCE, is_it).map(drop)
    }
}

/// Fails if two nodes were cordoned at once, by the lines of a watch.
fn one_at_a_time(lines: &[String]) -> Outcome {
    let mut cordoned = BTreeSet::new();
    for line in lines {
        let (name, is_cordoned) = line.split_once(' ').context("no line of the watch")?;
        match is_cordoned {
            "true" => cordoned.insert(name),
            _ => cordoned.remove(name),
        };
        ensure!(cordoned.len() < 2, "{lines:#?}");
    }
    Ok(())
}
