//! The fleet's lock: a slot at the FleetLock server that the config names, asked for with the trust and the proxies of the config. A lock at a
//! server or in a group that the config names no more is given back there.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use instar_fleet_lock::Slot;
use instar_http_client::Client;
use tokio::time::{Instant, sleep_until};

use crate::base::back_off::BackOff;
use crate::config::FleetLock;
use crate::follow::{LockPlace, Owes};
use crate::machine::Machine;
use crate::sequences::owners_servers;

/// The pauses after a server that has not taken back a lock that is owed there.
const OWED_AGAIN: BackOff = BackOff {
    first: Duration::from_secs(30),
    longest: Duration::from_secs(3600),
};

/// The place of the lock that a config names.
pub(super) fn place(lock: &FleetLock) -> LockPlace {
    LockPlace {
        url: lock.url.to_string(),
        group: lock.group.to_string(),
    }
}

/// Takes the lock.
///
/// # Errors
/// The server gives it to nobody now, or not to this machine; or there is no answer.
pub(super) async fn pre_reboot(machine: &Machine, at: &LockPlace, id: &str) -> anyhow::Result<()> {
    Ok(slot(&client(machine)?, at, id).take().await?)
}

/// Gives the lock back.
///
/// # Errors
/// The server refuses it, or there is no answer.
pub(super) async fn steady_state(
    machine: &Machine,
    at: &LockPlace,
    id: &str,
) -> anyhow::Result<()> {
    Ok(slot(&client(machine)?, at, id).give_back().await?)
}

/// Gives locks back where the machine owes them, for as long as it runs. Beside the sequence that follows a channel: a server that does not answer
/// holds up nothing.
pub(super) async fn give_back_owed(machine: Arc<Machine>) {
    let mut news = machine.follow.watch();
    // Locks that were not taken back, and when they are tried again.
    let mut later: Vec<(LockPlace, Instant)> = Vec::new();
    loop {
        let owed = machine.follow.due_back();
        later.retain(|(at, _)| owed.iter().any(|owed| owed.at == *at));
        let now = Instant::now();
        let waits = |at: &LockPlace| later.iter().any(|(it, due)| it == at && now < *due);
        let Some(owed) = owed.iter().find(|owed| !waits(&owed.at)) else {
            let due = later.iter().map(|(_, due)| *due).min();
            let due = due.unwrap_or(now + OWED_AGAIN.longest);
            tokio::select! {
                _ = news.changed() => {}
                () = sleep_until(due) => {}
            }
            continue;
        };
        later.retain(|(at, _)| *at != owed.at);
        // In memory of its own, which is there only while a lock is owed.
        if Box::pin(give_back(&machine, &owed.at)).await == Owes::Still {
            let pause = OWED_AGAIN.after(owed.failures + 1);
            later.push((owed.at.clone(), Instant::now() + pause));
        }
    }
}

/// Gives one lock back where it is owed.
async fn give_back(machine: &Machine, at: &LockPlace) -> Owes {
    let Some(record) = machine.follow.record() else {
        return Owes::Nothing;
    };
    if !machine.follow.begin_to_give_back(at) {
        return Owes::Nothing;
    }
    let answer = steady_state(machine, at, &record.identity).await;
    let owes = machine
        .follow
        .gave_back(at, answer.is_ok(), &machine.init)
        .await;
    let LockPlace { url, group } = at;
    match (answer, owes) {
        (Ok(()), _) => tracing::info!(
            "the fleet's lock of the group {group} at {url}, which the config names no more, is given back"
        ),
        (Err(error), Owes::GivenUp) => tracing::error!(
            "the fleet's lock of the group {group} at {url}, which the config names no more, is not given back, and that is tried no more; \
             give it back at the server, for the id {}: {error:#}",
            record.identity
        ),
        (Err(error), _) => tracing::warn!(
            "the fleet's lock of the group {group} at {url}, which the config names no more, is not given back yet: {error:#}"
        ),
    }
    owes
}

fn client(machine: &Machine) -> anyhow::Result<Client> {
    let configured = machine.config().context("there is no config")?;
    Ok(owners_servers::client(&configured.config))
}

fn slot<'a>(client: &'a Client, at: &'a LockPlace, id: &'a str) -> Slot<'a> {
    Slot {
        client,
        server: at.url.clone(),
        group: &at.group,
        id,
    }
}
