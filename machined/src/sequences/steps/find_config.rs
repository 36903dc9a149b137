//! Searches the sources for the machine config, in order.
//!
//! If the kernel's command line names a server, it is asked first, for a limited time: a dead server must not keep a machine from its API.
//! Next is the config on STATE, with which this machine booted last. A machine without either waits in maintenance mode, and asks the
//! server again in the background.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::disk;
use crate::command_line;
use crate::config;
use crate::config_source::fetch::{FetchPolicy, FetchStatus, fetch};
use crate::config_source::persisted;
use crate::config_source::source::{self, FW_CFG_PATH, Identity, NoSource, Source};
use crate::machine::{Configured, Machine};
use crate::modules::Class;
use crate::statistics::firmware;
use crate::status;
use crate::store::StaleConfig;

/// The kernel's description of the machine.
const SYSFS: &str = "/sys";

/// Time limit for one background request, and the pause between two.
const ROUND: Duration = Duration::from_secs(30);

/// The result of the search.
pub(in crate::sequences) enum Found {
    /// A usable config.
    Config(Box<Configured>),
    /// No source has one.
    Nothing,
    /// The server has not returned a usable config, and STATE has none either, for this reason.
    NotYet(anyhow::Error),
}

/// Reads the config from the first source that exists. `patience`: time limit for a server to be reached and to answer.
///
/// # Errors
/// The first source cannot be used, or its config cannot.
pub(in crate::sequences) async fn find_config(
    machine: &Machine,
    patience: Duration,
) -> anyhow::Result<Found> {
    let cmdline = command_line::read()?;
    let has_fw_cfg = look_for_fw_cfg(machine).await;
    // The named source decides: a config from elsewhere would be another machine's.
    if source::names_a_server(&cmdline) {
        let report = |status: FetchStatus<'_>| tracing::warn!("machine config: {status}");
        return match ask(machine, &cmdline, patience, report).await {
            Ok(configured) => Ok(Found::Config(Box::new(configured))),
            Err(error) if is_wrong_argument(&error) => Err(error),
            Err(error) => Ok(last_used(machine, error).await),
        };
    }
    let source = source::choose(&cmdline, &Identity::default(), has_fw_cfg)?;
    tracing::info!("machine config: from {source}");
    let bytes = match source {
        Source::FwCfg => Some(source::read(Path::new(FW_CFG_PATH))?),
        _ => read_state(machine).await?,
    };
    match bytes {
        Some(bytes) => Ok(Found::Config(Box::new(usable(bytes)?))),
        None => Ok(Found::Nothing),
    }
}

/// Whether the command line names a server for the config.
pub(in crate::sequences) fn has_server() -> bool {
    command_line::read().is_ok_and(|cmdline| source::names_a_server(&cmdline))
}

/// Asks the server, if one is named, until there is a config, from the server or from an administrator: either may have been fixed
/// meanwhile. Ends when the handle is dropped.
pub(in crate::sequences) fn keep_asking(machine: &Arc<Machine>) -> AbortOnDropHandle<()> {
    let machine = machine.clone();
    AbortOnDropHandle::new(crate::base::task::spawn(async move {
        let Ok(cmdline) = command_line::read() else {
            return;
        };
        if !source::names_a_server(&cmdline) {
            return;
        }
        let mut told = String::new();
        while machine.config().is_none() {
            // Limit: none overall, as a machine without a config has nothing else to do; each round is limited.
            tokio::time::sleep(ROUND).await;
            match ask(&machine, &cmdline, ROUND, |_| {}).await {
                Ok(configured) if machine.config().is_none() => {
                    tracing::info!("machine config: it is there now");
                    machine.set_config(Arc::new(configured));
                }
                Ok(_) => {}
                Err(error) if is_wrong_argument(&error) => return,
                Err(error) => {
                    let error = format!("{error:#}");
                    if error != told {
                        tracing::warn!("machine config: {error}; the server is asked on");
                        status::note_problem(&machine, "config", &error);
                        told = error;
                    }
                }
            }
        }
    }))
}

/// Whether no server can be asked, now or later.
fn is_wrong_argument(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<NoSource>()
        .is_some_and(NoSource::is_of_the_argument)
}

/// Parses a config as received.
pub(in crate::sequences) fn usable(bytes: Vec<u8>) -> anyhow::Result<Configured> {
    let text = String::from_utf8(bytes).context("the machine config is not UTF-8")?;
    let parsed = config::parse_taken(text.as_bytes()).context("the machine config is unusable")?;
    for warning in &parsed.warnings {
        tracing::warn!("machine config: {warning}");
    }
    Ok(Configured::new(text, parsed.config))
}

/// Requests the config from the server that the command line names.
async fn ask(
    machine: &Machine,
    cmdline: &str,
    patience: Duration,
    report: impl FnMut(FetchStatus<'_>),
) -> anyhow::Result<Configured> {
    let until = Instant::now() + patience;
    tokio::time::timeout_at(until, network_is_up(machine))
        .await
        .with_context(|| {
            format!(
                "the network is not up within {} s, and with it the config's server",
                patience.as_secs()
            )
        })??;
    let source = source::choose(cmdline, &identity(machine), false)?;
    let Source::Url(url) = &source else {
        anyhow::bail!("the kernel's command line names no server any more");
    };
    tracing::info!("machine config: from {source}");
    let policy = FetchPolicy {
        within: until.saturating_duration_since(Instant::now()),
        ..FetchPolicy::default()
    };
    let received = fetch(url, &policy, report).await?;
    usable_answer(&source, received)
}

/// Parses what a source has answered. A page is a sign of another server: a proxy, a login, or a web server's own page in place of a file.
fn usable_answer(source: &Source, received: Vec<u8>) -> anyhow::Result<Configured> {
    let is_page = received.trim_ascii_start().starts_with(b"<");
    usable(received).with_context(|| match is_page {
        true => format!(
            "{source} answers with a page of HTML or XML and not with a config; another server may have answered in its place"
        ),
        false => format!("the answer of {source}"),
    })
}

/// Returns the config with which this machine booted last, in place of the server's.
async fn last_used(machine: &Machine, error: anyhow::Error) -> Found {
    let last = async { read_state(machine).await?.map(usable).transpose() };
    match last.await {
        Ok(Some(last)) => {
            let reason =
                format!("{error:#}; the config that this machine booted with last is used");
            tracing::error!("machine config: {reason}");
            machine.store.put(StaleConfig::ID, StaleConfig { reason });
            Found::Config(Box::new(last))
        }
        Ok(None) => Found::NotYet(error),
        Err(state) => {
            tracing::error!("machine config: none on STATE either: {state:#}");
            Found::NotYet(error)
        }
    }
}

/// Returns the config on the STATE partition of the disk with Instar's partitions; None without disk, partition or config.
async fn read_state(machine: &Machine) -> anyhow::Result<Option<Vec<u8>>> {
    disk::find_state(machine).await?;
    let path = machine.disk.state().map(persisted::path);
    match path.filter(|path| path.exists()) {
        Some(path) => Ok(Some(source::read(&path)?)),
        None => Ok(None),
    }
}

/// Whether QEMU gave this machine a config. The driver costs a tenth of a second, so other machines skip it.
async fn look_for_fw_cfg(machine: &Machine) -> bool {
    if firmware::said(Path::new(SYSFS), "sys_vendor") != "QEMU" {
        return false;
    }
    let loaded = async { machine.drivers()?.load_named("qemu_fw_cfg").await };
    if let Err(error) = loaded.await {
        tracing::warn!("no config from QEMU: {:#}", anyhow::Error::from(error));
    }
    Path::new(FW_CFG_PATH).exists()
}

/// Returns the values that a URL may ask for, as far as this URL does. The network must be up.
fn identity(machine: &Machine) -> Identity {
    let dmi = |file: &str| {
        let text = firmware::said(Path::new(SYSFS), file);
        Some(text).filter(|text| !text.is_empty())
    };
    let status = machine.network.status();
    let status = status.borrow();
    // The link with the default route; without one, the first link that is a device.
    let main = status
        .routes
        .iter()
        .find(|route| route.destination.prefix() == 0)
        .map(|route| &route.link);
    let mut links = status.links.iter().filter(|link| link.name != "lo");
    let link = links
        .clone()
        .find(|link| Some(&link.name) == main)
        .or_else(|| links.next());
    Identity {
        uuid: dmi("product_uuid"),
        serial: dmi("product_serial"),
        hostname: Some(status.hostname.clone()).filter(|name| !name.is_empty()),
        mac: link.map(|link| link.mac.clone()),
    }
}

async fn network_is_up(machine: &Machine) -> anyhow::Result<()> {
    // The config that may set up the network differently has not been fetched yet.
    machine.network.set_default_spec();
    machine
        .drivers()?
        .load_for(Class::Network)
        .await
        .context("load the drivers of the network")?;
    tracing::info!("machine config: waiting for the network");
    machine
        .network
        .status()
        .wait_for(|status| status.ready)
        .await
        .context("the network task has ended")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_answer_that_is_no_config_names_who_gave_it() {
        let source = Source::Url("http://user:secret@10.0.2.2/c.yaml?t=1".parse().unwrap());
        let said = |answer: &str| {
            let refused = usable_answer(&source, answer.into()).err().unwrap();
            format!("{refused:#}")
        };
        let page = said("\n<!DOCTYPE html>\n<html><body>Log in</body></html>");
        assert!(
            page.contains("10.0.2.2/c.yaml answers with a page"),
            "{page}"
        );
        let other = said("machine: 7");
        assert!(
            other.contains("the answer of http://10.0.2.2/c.yaml"),
            "{other}"
        );
        assert!(!page.contains("secret") && !other.contains("secret"));
    }
}
