//! The fleet's lock: a slot at the FleetLock server that the config names, asked for with the trust and the proxies of the config.

use anyhow::Context as _;
use instar_fleet_lock::Slot;
use instar_http_client::Client;

use crate::config::FleetLock;
use crate::machine::Machine;
use crate::sequences::owners_servers;

/// Takes the lock.
///
/// # Errors
/// The server gives it to nobody now, or not to this machine; or there is no answer.
pub(super) async fn pre_reboot(
    machine: &Machine,
    lock: &FleetLock,
    id: &str,
) -> anyhow::Result<()> {
    Ok(slot(&client(machine)?, lock, id).take().await?)
}

/// Gives the lock back.
///
/// # Errors
/// The server refuses it, or there is no answer.
pub(super) async fn steady_state(
    machine: &Machine,
    lock: &FleetLock,
    id: &str,
) -> anyhow::Result<()> {
    Ok(slot(&client(machine)?, lock, id).give_back().await?)
}

fn client(machine: &Machine) -> anyhow::Result<Client> {
    let configured = machine.config().context("there is no config")?;
    Ok(owners_servers::client(&configured.config))
}

fn slot<'a>(client: &'a Client, lock: &'a FleetLock, id: &'a str) -> Slot<'a> {
    Slot {
        client,
        server: lock.url.to_string(),
        group: lock.group.as_str(),
        id,
    }
}
