//! A client that sees an upgrade or a reboot through as `talosctl upgrade --wait` and `talosctl reboot` do, quirks included: what
//! satisfies this one satisfies that one.
//!
//! ```text
//! Version ─ Events, from now on ─ Read boot id ─ Upgrade or Reboot
//!              │
//!              ├ own sequence has an error ───────────────────────────► failed
//!              ├ own stopAllServices or own reboot: leave the stream, 1 s later Events from now on
//!              ├ stream or link broken: 1 s later Events with the whole history
//!              └ RUNNING and ready ─ Read boot id every second ─ differs ─► done
//! ```
//!
//! The first message of every stream is passed over, whatever it is.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use instar_api::events::EventPayload;
use instar_api::machine::machine_status_event::MachineStage;
use instar_api::machine::{Event, EventsRequest};
use tonic::{Code, Status, Streaming};

use crate::node::{Machine, Node};
use crate::node_facts::{ask_for_reboot, ask_for_upgrade, boot_id};

/// Between two subscriptions, and between two looks at the boot id.
const PAUSE: Duration = Duration::from_secs(1);
/// A silent call is given up.
const CALL: Duration = Duration::from_secs(15);

/// What it came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// The node runs in another boot or generation, and is ready.
    Done,
    /// The node said why not.
    Failed(String),
}

/// What is asked for.
#[derive(Debug, Clone, Copy)]
enum Action<'a> {
    /// The upgrade to the version in this image.
    Upgrade(&'a str),
    /// The reboot, in the way that the node chooses.
    Reboot,
}

/// One action as seen by the client.
#[derive(Debug, Clone)]
pub struct Followed {
    /// How it ended.
    pub ending: Ending,
    /// From the call to the end.
    pub took: Duration,
    /// What was told on the way, one line per event.
    pub told: Vec<String>,
}

/// Asks for an upgrade and follows it; an error is a refusal, or that the end was not seen in time.
pub async fn upgrade_and_follow(node: &Node, image: &str, within: Duration) -> Result<Followed> {
    act_and_follow(node, Action::Upgrade(image), within).await
}

/// Asks for a reboot and follows it; an error is a refusal, or that the end was not seen in time.
pub async fn reboot_and_follow(node: &Node, within: Duration) -> Result<Followed> {
    act_and_follow(node, Action::Reboot, within).await
}

async fn act_and_follow(node: &Node, action: Action<'_>, within: Duration) -> Result<Followed> {
    let mut told = Vec::new();
    let followed = tokio::time::timeout(within, follow(node, action, &mut told)).await;
    let Ok(followed) = followed else {
        anyhow::bail!(
            "the client still waits after {} s; it was told: {told:#?}{}",
            within.as_secs(),
            node.vm().evidence()
        );
    };
    let (ending, took) = followed?;
    Ok(Followed { ending, took, told })
}

async fn follow(
    node: &Node,
    action: Action<'_>,
    told: &mut Vec<String>,
) -> Result<(Ending, Duration)> {
    let mut machine = node.machine().await?;
    machine.version(()).await.context("Version failed")?;
    let stream = subscribe(&mut machine, 0).await.context("Events failed")?;
    let before = boot_id(&mut machine)
        .await
        .context("cannot read the boot id")?;
    let asked = Instant::now();
    let actor = match action {
        Action::Upgrade(image) => ask_for_upgrade(&mut machine, image).await,
        Action::Reboot => ask_for_reboot(&mut machine).await,
    };
    let actor = actor.with_context(|| format!("{action:?} was refused"))?;

    let mut watch = Watch { actor, told };
    let mut stream = Some(stream);
    // From now on, unless the link is lost.
    let mut tail = 0;
    loop {
        let Some(mut open) = stream.take() else {
            tokio::time::sleep(PAUSE).await;
            match reconnect(node, tail).await {
                Ok(open) => stream = Some(open),
                Err(why) => {
                    watch.told.push(format!("no events: {why}"));
                    tail = -1;
                }
            }
            continue;
        };
        match watch.read(&mut open).await {
            Seen::Failure(text) => return Ok((Ending::Failed(text), asked.elapsed())),
            Seen::Goal => break,
            Seen::OnItsWayDown => {}
            Seen::LinkLost(why) => {
                watch.told.push(format!("the link is down: {why}"));
                tail = -1;
            }
        }
    }
    // The goal was seen: only the boot id is asked for from here on, and no event is read any more.
    loop {
        let now = tokio::time::timeout(CALL, async {
            let mut machine = node.machine().await?;
            anyhow::Ok(boot_id(&mut machine).await?)
        });
        if let Ok(Ok(now)) = now.await
            && now != before
        {
            return Ok((Ending::Done, asked.elapsed()));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn reconnect(node: &Node, tail: i32) -> Result<Streaming<Event>> {
    // A machine that reboots leaves connections to it hanging.
    let machine = tokio::time::timeout(CALL, node.machine()).await;
    let mut machine = machine.context("no connection")??;
    Ok(subscribe(&mut machine, tail).await?)
}

async fn subscribe(machine: &mut Machine, tail: i32) -> Result<Streaming<Event>, Status> {
    let request = EventsRequest {
        tail_events: tail,
        ..EventsRequest::default()
    };
    let silent = |_| Status::new(Code::DeadlineExceeded, "no answer");
    let mut stream = tokio::time::timeout(CALL, machine.events(request))
        .await
        .map_err(silent)??
        .into_inner();
    tokio::time::timeout(CALL, stream.message())
        .await
        .map_err(silent)??;
    Ok(stream)
}

/// Why a stream is not read any further.
enum Seen {
    Goal,
    Failure(String),
    OnItsWayDown,
    LinkLost(String),
}

struct Watch<'a> {
    actor: String,
    told: &'a mut Vec<String>,
}

impl Watch<'_> {
    async fn read(&mut self, stream: &mut Streaming<Event>) -> Seen {
        loop {
            let event = match stream.message().await {
                Ok(Some(event)) => event,
                Ok(None) => return Seen::LinkLost("the stream ended".to_owned()),
                Err(status) => return Seen::LinkLost(status.to_string()),
            };
            let own = event.actor_id == self.actor;
            let payload = match event.data.as_ref().map(EventPayload::unpack) {
                Some(Ok(Some(payload))) => payload,
                Some(Ok(None)) | None => continue,
                Some(Err(error)) => return Seen::Failure(format!("unreadable event: {error}")),
            };
            self.told.push(format!("{own} {payload:?}"));
            match payload {
                EventPayload::Sequence(sequence) if own => match sequence.error {
                    Some(_) if sequence.sequence == "reboot" => return Seen::OnItsWayDown,
                    Some(error) => return Seen::Failure(error.message),
                    None if sequence.sequence == "reboot" => return Seen::OnItsWayDown,
                    None => {}
                },
                EventPayload::Task(task) if own && task.task == "stopAllServices" => {
                    return Seen::OnItsWayDown;
                }
                EventPayload::MachineStatus(status) => {
                    let ready = status.status.as_ref().is_some_and(|status| status.ready);
                    if ready && status.stage() == MachineStage::Running {
                        return Seen::Goal;
                    }
                }
                _ => {}
            }
        }
    }
}
