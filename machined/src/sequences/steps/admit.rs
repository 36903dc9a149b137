//! Admits the root filesystem of a version that is to start: a key that this machine trusts has signed it, if the machine demands that.

use anyhow::Context as _;

use crate::base::blocking_io::{self, ANSWER};
use crate::machine::Machine;
use crate::oci::ImageConfig;
use crate::upgrade::{
    Candidate, InstallerOutput, RootfsTrust, Starts, TrustedRootfs, UpgradeError,
};

/// Returns whose root filesystems this machine starts now: its config may have changed since the last time.
async fn trust(machine: &Machine) -> anyhow::Result<RootfsTrust> {
    let configured = machine.config();
    let keys = configured.map_or_else(Vec::new, |it| it.config.upgrade_keys.clone());
    // The firmware is asked.
    let trust = blocking_io::within(ANSWER, move || RootfsTrust::of_this_machine(&keys));
    trust
        .await
        .context("ask the firmware")?
        .context("learn whose root filesystems this machine starts")
}

/// Checks an image before it is pulled and its installer runs: its labels name the root filesystem and the signatures, and its config the
/// layers. Returns how its version may start.
pub(in crate::sequences) async fn check_offer(
    machine: &Machine,
    candidate: &Candidate,
    config: &ImageConfig,
) -> Result<Starts, UpgradeError> {
    let trust = trust(machine).await.map_err(UpgradeError::Machine)?;
    let (version, signature) = (
        candidate.version.to_string(),
        candidate.rootfs_signature.as_deref(),
    );
    trust.check(&version, &candidate.rootfs, signature)?;
    Ok(trust.check_image(&version, config)?)
}

/// Admits the root filesystem that an installer delivered.
///
/// # Errors
/// The machine does not trust it.
pub(in crate::sequences) async fn admit(
    machine: &Machine,
    delivery: InstallerOutput,
    version: &str,
) -> anyhow::Result<TrustedRootfs> {
    let admitted = trust(machine).await?.admit(delivery, version);
    admitted.with_context(|| format!("{version} is not started"))
}
