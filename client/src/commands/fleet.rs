//! `fleet`: rollouts over many nodes, their certificates and their authority, without a server. The rules of rollouts are in the crate
//! `instar-rollout`; this is one of its drivers.
//!
//! ```text
//!  roll, apply ── members, plan ─► store ◄── pause, resume, abort, rollback, approve, hold
//!                            │ ▲
//!                            ▼ │  one lock for each change, one for as long as a driver runs
//!                          drive: look ─ observe ─ decide ─ intend ─ save ─ act
//!                            │
//!                            └ seen.json ─► serve ─► a browser
//! ```
//!
//! The decision: commands of people change the record in the folder, and the driver reads it again before each step. A socket of the driver
//! was the other choice. It would work only while a driver runs, and a pause has to count for the next driver as well.

mod act;
mod apply;
mod authority_file;
mod conditions;
mod config_change;
mod configure;
mod drive;
mod followers;
mod limits;
mod look;
mod members;
mod node_configs;
mod note;
mod plan;
mod rotate;
mod serve;
mod show;
mod sign;
mod store;
mod support;

use std::collections::BTreeMap;

use instar_client::{Failure, FailureKind};
use instar_rollout::{Command, MachineName};

use self::store::{Folder, Rollout, Subject};
use crate::cli::{Fleet, FleetOver, FleetRoll, FleetState, Global};

pub(super) async fn run(global: &Global, fleet: &Fleet) -> Result<(), Failure> {
    match fleet {
        Fleet::Plan(arguments) => plan::run(global, arguments).await,
        Fleet::Roll(arguments) => roll(global, arguments).await,
        Fleet::Apply(arguments) => apply::run(global, arguments).await,
        Fleet::Sign(arguments) => sign::run(global, arguments).await,
        Fleet::Rotate(arguments) => rotate::run(global, arguments).await,
        Fleet::Support(arguments) => support::run(global, arguments).await,
        Fleet::Status(state) => status(global, state).await,
        Fleet::Serve {
            followers,
            nodes,
            listen,
            state,
        } => {
            let ways = match followers {
                true => members::ways(global, nodes).await?,
                false if nodes.fleet.is_some() || nodes.members => {
                    let why =
                        "--fleet and --members of `fleet serve` name the nodes of --followers";
                    return Err(Failure::new(FailureKind::Usage, why).advise("add --followers"));
                }
                false => BTreeMap::new(),
            };
            serve::run(global, *listen, state, ways).await
        }
        Fleet::Pause { reason, state } => {
            let command = Command::Pause(reason.clone());
            tell(global, state, command)
        }
        Fleet::Retry(state) => tell_and_drive(global, state, Command::Retry).await,
        Fleet::Resume(state) => tell_and_drive(global, state, Command::Resume).await,
        Fleet::Abort(state) => tell(global, state, Command::Abort),
        Fleet::Rollback { reason, state } => {
            let command = Command::Rollback(reason.clone());
            tell_and_drive(global, state, command).await
        }
        Fleet::Approve(state) => tell(global, state, Command::Approve(None)),
        Fleet::Hold {
            node,
            reason,
            state,
        } => {
            let command = Command::Hold(MachineName::from(node), reason.clone());
            tell(global, state, command)
        }
        Fleet::Release { node, state } => {
            tell(global, state, Command::Release(MachineName::from(node)))
        }
    }
}

/// Begins a rollout, or goes on with the one in the folder.
async fn roll(global: &Global, arguments: &FleetRoll) -> Result<(), Failure> {
    let subject = Subject::Image {
        image: arguments.image.clone(),
    };
    let begin = async || plan::rollout(global, arguments).await;
    begin_or_go_on(global, &arguments.over, &subject, begin).await
}

/// Drives a new rollout of this subject, or the one in the folder if that is of this subject and has not ended.
async fn begin_or_go_on(
    global: &Global,
    over: &FleetOver,
    subject: &Subject,
    begin: impl AsyncFnOnce() -> Result<Rollout, Failure>,
) -> Result<(), Failure> {
    let folder = Folder::of(global, &over.state)?;
    let lock = folder
        .lock_driver()
        .await?
        .ok_or_else(|| folder.is_driven())?;
    match folder.read()? {
        Some(rollout) if !rollout.record.has_ended() => {
            if rollout.subject != *subject {
                return Err(Failure::new(
                    FailureKind::Refused,
                    format!("the rollout of {} has not ended", rollout.subject),
                )
                .advise("end it with `instarctl fleet abort` or `instarctl fleet rollback`"));
            }
            note::note(&format!(
                "goes on with the rollout of {subject}, with the policies that it began with; `instarctl fleet abort` first to change them"
            ));
        }
        _ => {
            let rollout = begin().await?;
            node_configs::forget(&folder)?;
            folder.begin(&rollout)?;
        }
    }
    drive::run(global, &folder, lock, over.trace.as_deref()).await
}

async fn status(global: &Global, state: &FleetState) -> Result<(), Failure> {
    let rollout = Folder::of(global, state)?.existing()?;
    let told = conditions::ask(global, &rollout.ways).await;
    show::status(global.output, &rollout, Some(&told))
}

/// Changes the record; a driver that runs takes it in with its next step.
fn tell(global: &Global, state: &FleetState, command: Command) -> Result<(), Failure> {
    let folder = Folder::of(global, state)?;
    let rollout = folder.change(|rollout| rollout.record.command(command))?;
    let refused = |error| Failure::new(FailureKind::Refused, "nothing has changed").because(error);
    rollout.0.map_err(refused)?;
    show::status(global.output, &rollout.1, None)
}

/// The same, and drives the rollout to its end unless another driver does.
async fn tell_and_drive(
    global: &Global,
    state: &FleetState,
    command: Command,
) -> Result<(), Failure> {
    tell(global, state, command)?;
    let folder = Folder::of(global, state)?;
    match folder.lock_driver().await? {
        Some(lock) => drive::run(global, &folder, lock, None).await,
        None => {
            note::note("another command drives it");
            Ok(())
        }
    }
}
