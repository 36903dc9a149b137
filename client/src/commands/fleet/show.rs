//! The output about a rollout: its status, and each change while it is driven.

use std::collections::BTreeMap;

use instar_client::Failure;
use instar_rollout::{Decision, Entry, Fact, MachineName, Reason, Record, Step};
use serde_json::{Value, json};

use super::conditions::{self, Told};
use super::store::{Rollout, Subject};
use crate::output::{Output, table};

/// The version that a node was seen with.
pub(super) fn version(fact: Option<&Fact>) -> String {
    let running = fact.and_then(|fact| fact.running.as_ref());
    running.map_or_else(|| "-".to_owned(), ToString::to_string)
}

/// Shows the rollout as it is stored, and what the nodes say is wrong with them, if they were asked.
pub(super) fn status(
    output: Output,
    rollout: &Rollout,
    told: Option<&BTreeMap<MachineName, Told>>,
) -> Result<(), Failure> {
    let record = &rollout.record;
    let image = match &rollout.subject {
        Subject::Image { image } => Some(image),
        Subject::Config { .. } => None,
    };
    output.show(
        || {
            let rows = record.machines.iter();
            let rows: Vec<_> = rows
                .map(|(name, entry)| {
                    let said = told.map(|told| conditions::cell(told.get(name)));
                    cells(name, entry).into_iter().chain(said).collect()
                })
                .collect();
            let mut columns = vec!["NODE", "POOL", "BEFORE", "STEP", "REASON"];
            columns.extend(told.map(|_| "CONDITIONS"));
            let table = table(&columns, &rows);
            format!("{}: {}\n{table}", rollout.subject, phase(record))
        },
        || {
            let nodes = record.machines.iter().map(|(name, entry)| {
                let mut node = node(name, entry);
                if let Some(told) = told {
                    node["conditions"] = conditions::in_full(told.get(name));
                }
                node
            });
            json!({
                "image": image,
                "version": record.target.version,
                "digest": record.target.digest.map(|digest| digest.to_string()),
                "phase": phase(record),
                "ended": record.has_ended(),
                "nodes": nodes.collect::<Vec<Value>>(),
            })
        },
    )
}

/// A node's row, without its conditions.
fn cells(name: &MachineName, entry: &Entry) -> [String; 5] {
    let before = entry.before.as_ref().map(ToString::to_string);
    [
        name.to_string(),
        entry.pool.clone(),
        before.unwrap_or_else(|| "-".to_owned()),
        entry.step.word().to_owned(),
        why(&entry.step, entry.hold.as_deref()),
    ]
}

/// A node as JSON, without its conditions.
fn node(name: &MachineName, entry: &Entry) -> Value {
    json!({
        "node": name.as_str(),
        "pool": entry.pool,
        "before": entry.before.as_ref().map(|before| before.version.clone()),
        "step": entry.step.word(),
        "reason": why(&entry.step, entry.hold.as_deref()),
        "hold": entry.hold,
    })
}

/// The rollout's phase in words.
fn phase(record: &Record) -> String {
    let phase = match record.phase.why() {
        Some(why) => format!("{}: {why}", record.phase.word()),
        None => record.phase.word().to_owned(),
    };
    match &record.paused {
        Some(why) => format!("{phase}, paused: {why}"),
        None => phase,
    }
}

fn why(step: &Step, hold: Option<&str>) -> String {
    match step.why() {
        Some(why) => why.to_owned(),
        None => hold.map(|why| format!("held: {why}")).unwrap_or_default(),
    }
}

/// Shows what changes: a line for each node whose reason is another one than before, and one for the rollout.
pub(super) struct Changes {
    output: Output,
    reasons: BTreeMap<MachineName, Reason>,
    phase: String,
}

impl Changes {
    pub(super) fn new(output: Output) -> Self {
        Self {
            output,
            reasons: BTreeMap::new(),
            phase: String::new(),
        }
    }

    pub(super) fn show(&mut self, record: &Record, decision: &Decision) -> Result<(), Failure> {
        for (name, reason) in &decision.reasons {
            let before = self.reasons.insert(name.clone(), reason.clone());
            if before.as_ref().map(ToString::to_string) == Some(reason.to_string()) {
                continue;
            }
            self.output.show(
                || format!("{name}: {reason}"),
                || json!({ "node": name.as_str(), "reason": reason.to_string() }),
            )?;
        }
        let phase = phase(record);
        if phase != self.phase {
            self.output.show(
                || format!("rollout: {phase}"),
                || json!({ "rollout": phase, "ended": record.has_ended() }),
            )?;
            self.phase = phase;
        }
        Ok(())
    }
}
