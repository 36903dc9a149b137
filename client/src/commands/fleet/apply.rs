//! `fleet apply`: a change of machine configs, rolled over the fleet.

use std::collections::{BTreeMap, BTreeSet};

use instar_api::machine::ApplyConfiguration;
use instar_client::{Failure, FailureKind};
use instar_rollout::{Facts, MachineName};
use instar_rollout_driver::{ConfigChange, Trial, asked};
use serde_json::json;
use tokio::task::LocalSet;

use super::look::{Brings, Nodes, obstacle, refused};
use super::plan::{self, Preview};
use super::store::{Folder, Rollout, Subject};
use super::{begin_or_go_on, config_change, members};
use crate::cli::{FleetApply, Global};

pub(super) async fn run(global: &Global, arguments: &FleetApply) -> Result<(), Failure> {
    let fleet = members::fleet(global, &arguments.over).await?;
    let change = match &arguments.configs {
        Some(folder) => config_change::of_files(folder, fleet.ways.keys())?,
        None => config_change::of_patches(&arguments.patches)?,
    };
    let folder = Folder::of(global, &arguments.over.state)?;
    if arguments.dry_run {
        let shown = show_plan(global, &change, &fleet, folder);
        return LocalSet::new().run_until(shown).await;
    }
    let how = trial(arguments)?;
    let subject = Subject::Config {
        config: change.clone(),
        how,
    };
    let begin = async || {
        let survey = Survey::of(global, &change, &fleet, folder.clone());
        let survey = LocalSet::new().run_until(survey).await;
        survey.allows(how)?;
        Ok(Rollout {
            record: plan::record(&change.release(), &fleet)?,
            subject: subject.clone(),
            ways: fleet.ways.clone(),
        })
    };
    begin_or_go_on(global, &arguments.over, &subject, begin).await
}

fn trial(arguments: &FleetApply) -> Result<Trial, Failure> {
    let trial = Trial {
        limit: arguments.try_for,
        steady: arguments.steady,
        may_reboot: !arguments.no_reboot,
    };
    let Trial { limit, steady, .. } = trial;
    match trial.can_be_passed() {
        true => Ok(trial),
        false => Err(Failure::new(
            FailureKind::Usage,
            format!("a node cannot be ready for {steady} within a trial of {limit}"),
        )
        .advise("give a shorter --steady, or a longer --try-for")),
    }
}

/// The facts about the nodes, and their answers about their changed configs.
struct Survey {
    facts: Facts,
    answers: BTreeMap<MachineName, Result<Option<ApplyConfiguration>, Failure>>,
}

impl Survey {
    /// Asks every node that answers.
    async fn of(
        global: &Global,
        change: &ConfigChange,
        fleet: &members::Fleet,
        folder: Folder,
    ) -> Self {
        let brings = Brings::Config(change.clone(), folder);
        let mut nodes = Nodes::new(global, fleet.ways.clone(), brings);
        let facts = nodes.look(None, &BTreeSet::new()).await;
        let named = change.release().to_string();
        let asked = nodes.survey(&named, |name, node| {
            let change = change.clone();
            async move { asked(&node, &name, &change).await }
        });
        let answers = asked.await;
        Self { facts, answers }
    }

    /// A change that one node refuses, or that takes a reboot which is not allowed, begins nowhere.
    fn allows(&self, trial: Trial) -> Result<(), Failure> {
        let why = |answer: &Result<Option<ApplyConfiguration>, Failure>| match answer {
            Err(refused) => Some(refused.chain()),
            Ok(Some(applied)) => trial.forbids(applied).map(|why| why.chain()),
            Ok(None) => None,
        };
        let answers = self.answers.iter();
        let mut obstacles = answers.filter_map(|(name, answer)| Some((name, why(answer)?)));
        match obstacles.next() {
            None => Ok(()),
            Some((name, why)) => Err(Failure::new(
                FailureKind::Refused,
                format!("nothing was begun: {name}: {why}"),
            )
            .advise("`instarctl fleet apply --dry-run` shows each node's answer")),
        }
    }

    /// The answer of a node, in words.
    fn words(&self, name: &MachineName) -> String {
        match self.answers.get(name) {
            Some(Ok(Some(applied))) => applied.mode_details.trim_end().to_owned(),
            Some(Ok(None)) => "has the change".to_owned(),
            Some(Err(failure)) => obstacle(failure),
            None => "does not answer".to_owned(),
        }
    }
}

async fn show_plan(
    global: &Global,
    change: &ConfigChange,
    fleet: &members::Fleet,
    folder: Folder,
) -> Result<(), Failure> {
    let survey = Survey::of(global, change, fleet, folder).await;
    let to = change.release();
    let preview = Preview::of(&to, fleet, &survey.facts)?;
    let reason = |name: &MachineName| preview.reason(name);
    global.output.show(
        || {
            let table = preview.table(reason);
            let words = preview
                .names()
                .map(|name| format!("\n{name}: {}", survey.words(name)));
            format!(
                "would roll {to} out; nothing has changed\n{table}{}",
                words.collect::<String>()
            )
        },
        || {
            let nodes = preview
                .nodes(reason)
                .zip(preview.names())
                .map(|(mut node, name)| {
                    node["would"] = survey.words(name).into();
                    node["refused"] = refused(survey.answers.get(name)).into();
                    node
                });
            json!({
                "dry_run": true,
                "version": to.version,
                "nodes": nodes.collect::<Vec<_>>(),
            })
        },
    )
}
