//! `fleet plan`, and the plan that a rollout begins with: each node says what it would do.

use std::collections::{BTreeMap, BTreeSet};

use instar_api::instar::UpgradePlanResponse;
use instar_client::{Failure, FailureKind, is_busy};
use instar_rollout::{Condition, Decision, Facts, MachineName, Record, Release, decide};
use instar_rollout_driver::{now, plan, target};
use serde_json::{Value, json};

use super::look::{Brings, Nodes, obstacle, refused};
use super::members;
use super::show;
use super::store::{Rollout, Subject};
use crate::cli::{FleetRoll, Global};
use crate::output::table;

/// Limit on the number of nodes that a failure names if none answers.
const MOST_REASONS: usize = 3;

/// The facts about the nodes, and their answers about the image.
struct Survey {
    facts: Facts,
    answers: BTreeMap<MachineName, Result<Option<UpgradePlanResponse>, Failure>>,
}

/// Shows what a rollout would do.
pub(super) async fn run(global: &Global, arguments: &FleetRoll) -> Result<(), Failure> {
    let local = tokio::task::LocalSet::new();
    local.run_until(show_plan(global, arguments)).await
}

async fn show_plan(global: &Global, arguments: &FleetRoll) -> Result<(), Failure> {
    let fleet = members::fleet(global, &arguments.over).await?;
    let survey = survey(global, arguments, &fleet).await;
    let target = survey.target(&arguments.image)?;
    let preview = Preview::of(&target, &fleet, &survey.facts)?;
    let reason = |name: &MachineName| match survey.answers.get(name) {
        Some(Err(failure)) => obstacle(failure),
        _ => preview.reason(name),
    };
    let nodes = preview.names().zip(preview.nodes(reason));
    let nodes = nodes.map(|(name, mut node)| {
        node["refused"] = refused(survey.answers.get(name)).into();
        node
    });
    global.output.show(
        || {
            let table = preview.table(reason);
            format!("would roll {target} out; nothing has changed\n{table}")
        },
        || {
            json!({
                "dry_run": true,
                "version": target.version,
                "digest": target.digest.map(|digest| digest.to_string()),
                "nodes": nodes.collect::<Vec<_>>(),
            })
        },
    )
}

/// The decision that the engine would make about a rollout that has not begun.
pub(super) struct Preview<'a> {
    facts: &'a Facts,
    record: Record,
    decision: Decision,
}

impl<'a> Preview<'a> {
    pub(super) fn of(
        target: &Release,
        fleet: &members::Fleet,
        facts: &'a Facts,
    ) -> Result<Self, Failure> {
        let mut record = record(target, fleet)?;
        let now = now();
        record.observe(facts, now);
        let decision = decide(&record, facts, now);
        Ok(Self {
            facts,
            record,
            decision,
        })
    }

    /// The names of the nodes.
    pub(super) fn names(&self) -> impl Iterator<Item = &MachineName> {
        self.record.machines.keys()
    }

    /// The engine's reason for a node.
    pub(super) fn reason(&self, name: &MachineName) -> String {
        let reason = self.decision.reasons.get(name);
        reason.map(ToString::to_string).unwrap_or_default()
    }

    /// A table of the nodes, each with a reason.
    pub(super) fn table(&self, reason: impl Fn(&MachineName) -> String) -> String {
        let rows = self.record.machines.iter().map(|(name, entry)| {
            let runs = show::version(self.facts.get(name));
            vec![name.to_string(), entry.pool.clone(), runs, reason(name)]
        });
        let rows: Vec<_> = rows.collect();
        table(&["NODE", "POOL", "RUNS", "REASON"], &rows)
    }

    /// The same as JSON.
    pub(super) fn nodes(
        &self,
        reason: impl Fn(&MachineName) -> String,
    ) -> impl Iterator<Item = Value> {
        self.names().map(move |name| {
            json!({
                "node": name.as_str(),
                "runs": show::version(self.facts.get(name)),
                "reason": reason(name),
            })
        })
    }
}

/// Plans a new rollout. It is refused if a node would refuse the image.
pub(super) async fn rollout(global: &Global, arguments: &FleetRoll) -> Result<Rollout, Failure> {
    let local = tokio::task::LocalSet::new();
    local.run_until(planned(global, arguments)).await
}

async fn planned(global: &Global, arguments: &FleetRoll) -> Result<Rollout, Failure> {
    let fleet = members::fleet(global, &arguments.over).await?;
    let survey = survey(global, arguments, &fleet).await;
    let target = survey.target(&arguments.image)?;
    let mut refusals = survey
        .answers
        .values()
        .filter_map(|answer| answer.as_ref().err());
    if let Some(refusal) = refusals.next() {
        return Err(Failure::new(
            FailureKind::Refused,
            format!("nothing was begun: {}", refusal.chain()),
        )
        .advise("`instarctl fleet plan` shows each node's answer"));
    }
    Ok(Rollout {
        subject: Subject::Image {
            image: arguments.image.clone(),
        },
        record: record(&target, &fleet)?,
        ways: fleet.ways,
    })
}

pub(super) fn record(target: &Release, fleet: &members::Fleet) -> Result<Record, Failure> {
    let record = Record::begin(
        target.clone(),
        fleet.policies.clone(),
        fleet.members.clone(),
    );
    record.map_err(|error| Failure::new(FailureKind::Usage, "no rollout").because(error))
}

/// The failure of a plan that no node has answered, with the reasons of some nodes.
fn no_answer(failure: &Failure, facts: &Facts) -> Failure {
    let reasons = facts
        .iter()
        .filter_map(|(name, fact)| match &fact.condition {
            Condition::Away(why) => Some(format!("; {name}: {why}")),
            _ => None,
        });
    let reasons: String = reasons.take(MOST_REASONS).collect();
    Failure::new(failure.kind(), format!("{failure}{reasons}"))
        .advise("ask one of them with `instarctl -e ADDRESS version`")
}

/// Asks every node that answers for its plan.
async fn survey(global: &Global, arguments: &FleetRoll, fleet: &members::Fleet) -> Survey {
    let mut nodes = Nodes::new(global, fleet.ways.clone(), Brings::Version);
    let facts = nodes.look(None, &BTreeSet::new()).await;
    let planned = nodes.survey(&arguments.image, |_, node| {
        let image = arguments.image.clone();
        async move {
            match plan(&node, &image).await {
                // It is asked again when its turn comes.
                Err(failure) if is_busy(&failure) => Ok(None),
                answer => answer,
            }
        }
    });
    let answers = planned.await;
    Survey { facts, answers }
}

impl Survey {
    fn target(&self, image: &str) -> Result<Release, Failure> {
        let found = target(image, self.answers.values());
        found.map_err(|failure| match self.answers.is_empty() {
            true => no_answer(&failure, &self.facts),
            false => failure,
        })
    }
}
