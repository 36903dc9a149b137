//! Admits the version that is to start: a key that this machine trusts has signed its root filesystem and its image, if the machine demands
//! that.

use std::sync::Arc;

use anyhow::{Context as _, bail};

use crate::base::blocking_io::{self, ANSWER};
use crate::machine::{Configured, Machine};
use crate::oci::ImageConfig;
use crate::upgrade::{
    Candidate, InstallerOutput, PendingUpgrade, RootfsTrust, Route, Starts, TrustedRootfs,
    UpgradeError,
};

/// Returns whose versions a machine with this config starts now.
pub(in crate::sequences) async fn trust(
    configured: Option<&Configured>,
) -> anyhow::Result<RootfsTrust> {
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
    let trust = trust(machine.config().as_deref()).await;
    let trust = trust.map_err(UpgradeError::Machine)?;
    let (version, signature) = (
        candidate.version.to_string(),
        candidate.rootfs_signature.as_deref(),
    );
    trust.check(&version, &candidate.rootfs, signature)?;
    Ok(trust.check_image(&version, config)?)
}

/// Admits the root filesystem that an installer delivered, by this config.
///
/// # Errors
/// The machine does not trust it.
pub(in crate::sequences) async fn admit(
    configured: Option<&Configured>,
    delivery: InstallerOutput,
    version: &str,
) -> anyhow::Result<TrustedRootfs> {
    let admitted = trust(configured).await?.admit(delivery, version);
    admitted.with_context(|| format!("{version} is not started"))
}

/// Admits a version that is to start in this way: by the config in force, and by the one with which it starts. Its commit makes the whole image
/// good, with what the installer wrote to the disk, so that is judged as well.
///
/// # Errors
/// The machine does not trust its root filesystem or its image, or it may not start in this way.
pub(in crate::sequences) async fn admit_as(
    [in_force, next]: [Option<Arc<Configured>>; 2],
    delivery: InstallerOutput,
    upgrade: &PendingUpgrade,
    route: Route,
) -> anyhow::Result<TrustedRootfs> {
    let refused = || format!("{} is not started", upgrade.to);
    let signature = delivery.signature.clone();
    for configured in [&in_force, &next] {
        let trust = trust(configured.as_deref()).await?;
        let signature = signature.as_deref();
        let checked = trust.check(&upgrade.to, &delivery.blake3, signature);
        checked.with_context(refused)?;
        let starts = trust
            .check_written(&upgrade.to, upgrade.evidence.written.as_ref())
            .with_context(refused)?;
        if let Route::Reboot(why) = starts.route(route)
            && route == Route::Soft
        {
            bail!("{} is not started without a reboot: {why}", upgrade.to);
        }
    }
    admit(next.as_deref(), delivery, &upgrade.to).await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::sequences::image_pins::machine_for_tests::{configured, trusting_key};

    /// A root filesystem that nobody has signed.
    fn delivered() -> InstallerOutput {
        InstallerOutput {
            memfd: rustix::fs::memfd_create("t", rustix::fs::MemfdFlags::CLOEXEC).unwrap(),
            blake3: blake3::hash(b"r"),
            boot_entry: None,
            takes_sockets: false,
            signature: None,
        }
    }

    #[tokio::test]
    async fn the_config_in_force_and_the_next_one_have_to_admit_a_version() {
        let (free, strict) = (configured(&[]), configured(&[&trusting_key()]));
        let upgrade = PendingUpgrade::default();
        for (in_force, next, is_admitted) in [
            (&free, &free, true),
            (&strict, &free, false),
            (&free, &strict, false),
            (&strict, &strict, false),
        ] {
            let configs = [Some(in_force.clone()), Some(next.clone())];
            let admitted = admit_as(configs, delivered(), &upgrade, Route::Soft).await;
            assert_eq!(admitted.is_ok(), is_admitted, "{admitted:?}");
        }
    }
}
