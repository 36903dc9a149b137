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
pub(crate) struct Cordons(FollowedProgram);

impl Cordons {
    pub(crate) fn watch(kubectl: &Kubectl) -> anyhow::Result<Self> {
        Ok(Self(kubectl.follow(&WATCH)?))
    }

    /// Fails unless each of these nodes was cordoned, and never two at once.
    pub(crate) fn were_one_at_a_time(&mut self, names: &[&str]) -> Outcome {
        for name in names {
            self.wait_for(name)?;
        }
        let mut cordoned = BTreeSet::new();
        for line in self.0.heard() {
            let (name, is_cordoned) = line.split_once(' ').context("no line of the watch")?;
            match is_cordoned {
                "true" => cordoned.insert(name),
                _ => cordoned.remove(name),
            };
            ensure!(cordoned.len() < 2, "{:#?}", self.0.heard());
        }
        Ok(())
    }

    fn wait_for(&mut self, name: &str) -> Outcome {
        let cordoned = format!("{name} true");
        if self.0.heard().contains(&cordoned) {
            return Ok(());
        }
        let is_it = |line: &str| line == cordoned;
        let awaited = format!("the cordon of {name}");
        self.0.wait_for(&awaited, PATIENCE, is_it).map(drop)
    }
}
