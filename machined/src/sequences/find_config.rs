//! Looking for the machine config in its sources, in order.

use anyhow::Context as _;
use std::path::Path;

use super::disk;
use crate::config::fetch::{FetchPolicy, FetchStatus, fetch};
use crate::config::persisted;
use crate::config::source::{self, FW_CFG_PATH, Identity, Source};
use crate::machine::Machine;
use crate::modules::Class;

/// Reads the config from the first source that there is; none when there is no source: that is maintenance mode.
pub(super) async fn find_config(machine: &Machine) -> anyhow::Result<Option<Vec<u8>>> {
    let cmdline = std::fs::read_to_string("/proc/cmdline").context("read /proc/cmdline")?;
    let has_fw_cfg = look_for_fw_cfg(machine).await;
    let identity = identity(machine, &cmdline).await?;
    // The first source decides: it was named on purpose, and a config from elsewhere would be another machine's.
    let source = source::choose(&cmdline, &identity, has_fw_cfg)?;
    tracing::info!("machine config: from {source}");
    match &source {
        Source::FwCfg => Ok(Some(source::read(Path::new(FW_CFG_PATH))?)),
        Source::Url(url) => fetch_or_use_the_last(machine, url).await.map(Some),
        Source::State => read_state(machine).await,
    }
}

/// The source that decides over what is kept on STATE, if this machine has one.
pub(super) fn source_before_state() -> Option<&'static str> {
    let cmdline = std::fs::read_to_string("/proc/cmdline").ok()?;
    source::before_state(&cmdline, Path::new(FW_CFG_PATH).exists())
}

/// Fetches the config. A machine that has booted before does not need the server for it.
async fn fetch_or_use_the_last(machine: &Machine, url: &http::Uri) -> anyhow::Result<Vec<u8>> {
    network_is_up(machine).await?;
    let report = |status: FetchStatus<'_>| tracing::warn!("machine config: {status}");
    let error = match fetch(url, &FetchPolicy::default(), report).await {
        Ok(fetched) => return Ok(fetched),
        Err(error) => anyhow::Error::from(error),
    };
    match read_state(machine).await {
        Ok(Some(last)) => {
            tracing::error!(
                "machine config: {error:#}; the one that this machine booted with last is used"
            );
            Ok(last)
        }
        Ok(None) => Err(error),
        Err(state) => {
            tracing::error!("machine config: none on STATE either: {state:#}");
            Err(error)
        }
    }
}

/// The config on the STATE partition of the disk that carries Instar; none without disk, partition or config.
async fn read_state(machine: &Machine) -> anyhow::Result<Option<Vec<u8>>> {
    disk::find_state(machine).await?;
    let path = machine.disk.state().map(persisted::path);
    match path.filter(|path| path.exists()) {
        Some(path) => Ok(Some(source::read(&path)?)),
        None => Ok(None),
    }
}

/// Whether QEMU gave this machine a config. Its driver costs a tenth of a second, so other machines do without.
async fn look_for_fw_cfg(machine: &Machine) -> bool {
    let vendor = std::fs::read_to_string("/sys/class/dmi/id/sys_vendor").unwrap_or_default();
    if vendor.trim() != "QEMU" {
        return false;
    }
    let loaded = async { machine.drivers()?.load_named("qemu_fw_cfg").await };
    if let Err(error) = loaded.await {
        tracing::warn!("no config from QEMU: {:#}", anyhow::Error::from(error));
    }
    Path::new(FW_CFG_PATH).exists()
}

/// What a URL may ask for, as far as it does.
async fn identity(machine: &Machine, cmdline: &str) -> anyhow::Result<Identity> {
    let dmi = |file: &str| {
        let text = std::fs::read_to_string(Path::new("/sys/class/dmi/id").join(file)).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    let mut identity = Identity {
        uuid: dmi("product_uuid"),
        serial: dmi("product_serial"),
        ..Identity::default()
    };
    if source::asks_for(cmdline, "mac") || source::asks_for(cmdline, "hostname") {
        network_is_up(machine).await?;
        let status = machine.network.status();
        let status = status.borrow();
        identity.hostname = Some(status.hostname.clone()).filter(|name| !name.is_empty());
        // The link with the default route; without one, the first that is a device.
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
        identity.mac = link.map(|link| link.mac.clone());
    }
    Ok(identity)
}

async fn network_is_up(machine: &Machine) -> anyhow::Result<()> {
    // The config that says otherwise is still to be fetched.
    machine.network.set_default_wish();
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
