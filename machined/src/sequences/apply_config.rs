//! Applies a machine config that comes over the API.
//!
//! A node in maintenance mode goes on booting with it. A node that has a config compares the two, and applies the changes that it can make
//! while it runs; the rest needs a reboot, for which the config has to be kept on STATE.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use similar::TextDiff;

use super::pods_effect::{warning_of_joining, why_node_joins_anew, why_pods_end, why_pods_leave};
use super::steps::disk;
use super::steps::needs_uefi::refuse_without_uefi;
use super::steps::overlay::load_overlay;
use super::{ConfigChange, image_rules, settings, shutdown, waiting_version};
use crate::base::blocking_io::ANSWER;
use crate::config::{self, ConfigErrors};
use crate::config_source::persisted::Keep;
use crate::containers::Named;
use crate::intent::{self, next_config};
use crate::kubernetes::{KubernetesFact, changed_images};
use crate::machine::{Configured, Machine, TrialNumber};
use crate::operation_lock::{Busy, Operation, OperationLock};
use crate::services::Definition;
use crate::store::StaleConfig;

/// Time limit for the fine comparison: two texts with nothing in common are compared in a coarser way after it.
const DIFF_TIME: Duration = Duration::from_millis(500);

/// When the config takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApplyMode {
    /// Now, with a reboot if needed.
    Auto,
    /// Now, or not at all.
    NoReboot,
    /// By a reboot now.
    Reboot,
    /// By whichever reboot comes next.
    Staged,
    /// Now, and taken back after this time unless it is applied again.
    Try(Duration),
}

/// The result of a request.
#[derive(Debug)]
pub struct Applied {
    /// Warnings, such as about a setting that has no effect.
    pub warnings: Vec<String>,
    /// How the config was applied.
    pub mode: ApplyMode,
    /// One line for people.
    pub details: String,
    /// Why the pods of this node should have left before; none if they live through it.
    pub pods_leave: Option<String>,
}

/// Why a request was refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The config is wrong; each problem with its place.
    #[error("{0}")]
    Invalid(ConfigErrors),
    /// The config is not text.
    #[error("the machine config is not UTF-8 text")]
    NotText,
    /// The trial time is out of range.
    #[error("the time of a trial must be from 1 s to 1 h")]
    TrialTime,
    /// There is no config to return to, or no boot to wait for.
    #[error(
        "this node has no machine config yet: apply one with the mode auto, no-reboot or reboot"
    )]
    Unconfigured,
    /// The config needs a reboot.
    #[error("this takes a reboot: {0}; use the mode auto, reboot or staged")]
    NeedsReboot(String),
    /// There is no place to keep the config.
    #[error(
        "this takes a reboot ({0}), and the node has no STATE partition to keep the config on; boot it with the new config instead"
    )]
    NowhereToKeep(String),
    /// The disk that the config gives to the machine cannot be used.
    #[error(transparent)]
    Disk(anyhow::Error),
    /// Another operation is running.
    #[error(transparent)]
    Busy(#[from] Busy),
    /// The config is valid, but a part of it cannot be carried out.
    #[error("the machine config cannot be carried out, and is not kept")]
    Unusable(#[source] anyhow::Error),
    /// The config could not be kept.
    #[error("the machine config is not kept")]
    Failed(#[source] anyhow::Error),
    /// The config is in force, but a part of it failed.
    #[error("the machine config is in force, but not all of it was done")]
    Incomplete(#[source] anyhow::Error),
}

/// Checks a config and, unless it is a dry run, applies it. To be run in a task of its own: dropped halfway, it would leave the machine
/// between two configs.
///
/// # Errors
/// Nothing of the config is kept or in force, except for [`ApplyError::Incomplete`].
pub async fn apply_config(
    machine: &Arc<Machine>,
    data: &[u8],
    mode: ApplyMode,
    dry_run: bool,
) -> Result<Applied, ApplyError> {
    let text = std::str::from_utf8(data).map_err(|_| ApplyError::NotText)?;
    let parsed = config::parse(data).map_err(ApplyError::Invalid)?;
    if matches!(mode, ApplyMode::Try(time) if time.is_zero() || time > Duration::from_secs(3600)) {
        return Err(ApplyError::TrialTime);
    }
    let warnings: Vec<String> = parsed.warnings.iter().map(ToString::to_string).collect();
    let configured = Arc::new(Configured::new(text.to_owned(), parsed.config));
    intent::check(&configured).map_err(ApplyError::Unusable)?;
    // The lock comes before the look at the config in force, so that the comparison is with the config that is replaced.
    let lock = match dry_run {
        true => None,
        false => Some(machine.lock_operation(Operation::ApplyConfig)?),
    };
    let mut applied = match machine.config() {
        None => begin(machine, configured, mode, lock).await?,
        Some(current) => {
            let mut change = Change::plan(machine, &current, configured, mode)?;
            change.warn_of_images(machine).await;
            change.warn_of_pods(&current);
            change.warn_of_staged(machine).await;
            match lock {
                None => change.told(&current),
                Some(lock) => change.carry_out(machine, lock).await?,
            }
        }
    };
    applied.warnings.splice(0..0, warnings);
    Ok(applied)
}

/// Takes the first config: the node in maintenance mode goes on booting. Without the lock it is a dry run.
async fn begin(
    machine: &Machine,
    configured: Arc<Configured>,
    mode: ApplyMode,
    lock: Option<OperationLock>,
) -> Result<Applied, ApplyError> {
    if matches!(mode, ApplyMode::Staged | ApplyMode::Try(_)) {
        return Err(ApplyError::Unconfigured);
    }
    refuse_without_uefi(&configured.config).map_err(ApplyError::Disk)?;
    let mut warnings = warnings_of_links(machine, &configured);
    if configured.config.install.is_none() && machine.disk.status().borrow().disk.is_none() {
        warnings.push("the config names no disk for the machine, so it is kept over upgrades without a reboot, not over a reboot".to_owned());
    }
    let details = match lock {
        None => {
            let plan = disk::dry_run(machine, &configured.config)
                .await
                .map_err(ApplyError::Disk)?;
            let disk = plan.map_or_else(String::new, |plan| format!(" Its disk:\n{plan}"));
            format!("The config is valid; nothing was changed.{disk}")
        }
        Some(lock) => {
            machine.set_config(configured);
            // The boot waits for the lock.
            drop(lock);
            "The config was taken; the node goes on booting with it.".to_owned()
        }
    };
    Ok(Applied {
        warnings,
        mode: ApplyMode::NoReboot,
        details,
        pods_leave: None,
    })
}

/// Returns warnings of a config that does not fit the machine's links.
fn warnings_of_links(machine: &Machine, configured: &Configured) -> Vec<String> {
    let network = machine.network.status();
    let now = network.borrow();
    intent::link_warnings(&intent::network(&configured.config), &now)
}

/// Returns the difference of two texts as a unified diff, three lines around each change; empty if they are equal.
fn lines_that_differ(old: &str, new: &str) -> String {
    TextDiff::configure()
        .timeout(DIFF_TIME)
        .diff_lines(old, new)
        .unified_diff()
        .header("the config in force", "the config that is applied")
        .to_string()
}

/// A new config for a node that has one, and the way to apply it.
struct Change {
    change: ConfigChange,
    configured: Arc<Configured>,
    mode: ApplyMode,
    /// The directory to keep it in, if it is kept.
    keep: Option<PathBuf>,
    warnings: Vec<String>,
    pods_leave: Option<String>,
}

impl Change {
    fn plan(
        machine: &Machine,
        current: &Configured,
        configured: Arc<Configured>,
        mode: ApplyMode,
    ) -> Result<Self, ApplyError> {
        if current.config.install != configured.config.install {
            refuse_without_uefi(&configured.config).map_err(ApplyError::Disk)?;
        }
        let change = ConfigChange::between(&current.config, &configured.config);
        let at_boot = change.names_at_boot();
        let state = machine.disk.state().map(Path::to_owned);
        let mode = match mode {
            ApplyMode::Auto if change.at_boot.is_empty() => ApplyMode::NoReboot,
            ApplyMode::Auto => ApplyMode::Reboot,
            ApplyMode::NoReboot | ApplyMode::Try(_) if !change.at_boot.is_empty() => {
                return Err(ApplyError::NeedsReboot(at_boot));
            }
            other => other,
        };
        if matches!(mode, ApplyMode::Reboot | ApplyMode::Staged) && state.is_none() {
            return Err(ApplyError::NowhereToKeep(change.to_string()));
        }
        let mut warnings = Vec::new();
        if let Some(source) = next_config::source_before_state() {
            warnings.push(format!(
                "at its next boot this node takes its config from {source} again, and not this one"
            ));
        }
        let keep = match mode {
            ApplyMode::Try(_) => None,
            _ => state,
        };
        let (old, new) = (&current.config, &configured.config);
        if intent::network(old) != intent::network(new) {
            warnings.extend(warnings_of_links(machine, &configured));
        }
        let node = machine.store.list::<KubernetesFact>().pop();
        let joins = why_node_joins_anew(old, new, node.as_ref().map(|(of, _)| of.id.as_str()));
        warnings.extend(joins.and_then(|why| warning_of_joining(why, new)));
        let pods_leave = match mode {
            // Not before the next boot, whatever that is for.
            ApplyMode::Staged => None,
            _ => why_pods_leave(old, new, &change, mode == ApplyMode::Reboot, joins),
        };
        Ok(Self {
            change,
            configured,
            mode,
            keep,
            warnings,
            pods_leave,
        })
    }

    /// Warns of the running containers whose images the new rules do not allow, and has the pods leave if that of Kubernetes is one.
    async fn warn_of_images(&mut self, machine: &Machine) {
        if self.change.changes_image_rules() {
            let refused = image_rules::not_allowed(machine, &self.configured).await;
            let warnings = refused.iter().map(image_rules::NotAllowed::warning);
            self.warnings.extend(warnings);
            // A staged config has no effect on pods before the next boot.
            if self.pods_leave.is_none() && self.mode != ApplyMode::Staged {
                let ending = refused.iter().map(image_rules::NotAllowed::container);
                self.pods_leave = why_pods_end(ending);
            }
        }
    }

    /// Warns of pods on all nodes of the machine's own cluster that start again.
    fn warn_of_pods(&mut self, current: &Configured) {
        let before = current.config.kubernetes.as_ref();
        let after = self.configured.config.kubernetes.as_ref();
        if let Some((before, after)) = before.zip(after) {
            self.warnings.extend(changed_images(before, after));
        }
    }

    /// Warns of a config that was staged, if this one takes its place on STATE.
    async fn warn_of_staged(&mut self, machine: &Machine) {
        let kept = next_config::planned(machine).await;
        if let Some((kept, settled)) = kept.zip(machine.settled_config())
            && self.keep.is_some()
        {
            let warning = warning_of_staged(&kept.text, &settled.text, &self.configured.text);
            self.warnings.extend(warning);
        }
    }

    fn applied(self, details: String) -> Applied {
        Applied {
            warnings: self.warnings,
            mode: self.mode,
            details,
            pods_leave: self.pods_leave,
        }
    }

    /// Describes the change, for a dry run.
    fn told(self, current: &Configured) -> Applied {
        let details = format!(
            "Dry run, nothing was changed: {}.\n{}",
            self.change,
            lines_that_differ(&current.text, &self.configured.text)
        );
        self.applied(details)
    }

    /// Judges the version that waits for its start by this config: whatever restarts the machine from here on starts it, also a power cut.
    async fn judge_waiting_version(&self, machine: &Machine, lock: &OperationLock) {
        let by = match self.mode {
            ApplyMode::Auto | ApplyMode::NoReboot => Some(self.configured.clone()),
            // The machine may take its config from elsewhere.
            ApplyMode::Staged => next_config::planned(machine).await,
            // The reboot judges it. A trial may be over in a minute; the version would be gone for good.
            ApplyMode::Reboot | ApplyMode::Try(_) => return,
        };
        waiting_version::still_allowed(machine, lock, by.as_deref()).await;
    }

    async fn carry_out(
        self,
        machine: &Arc<Machine>,
        lock: OperationLock,
    ) -> Result<Applied, ApplyError> {
        let (change, configured) = (&self.change, &self.configured);
        let is_taken_over = matches!(
            self.mode,
            ApplyMode::Auto | ApplyMode::NoReboot | ApplyMode::Try(_)
        );
        // All steps that can fail come before the config is kept: a refused config must not be the one that the next boot begins with.
        let definitions = match is_taken_over {
            true => definitions(machine, change, configured)
                .await
                .map_err(ApplyError::Failed)?,
            false => Vec::new(),
        };
        if let Some(state) = self.keep.clone() {
            let (text, keep) = (configured.text.clone(), Keep::InPlaceOfAny);
            let written = machine.kept_config.write(state, text, keep, ANSWER).await;
            written
                .context("keep the machine config on STATE")
                .map_err(ApplyError::Failed)?;
        }
        match self.mode {
            ApplyMode::Auto | ApplyMode::NoReboot => {
                machine.confirm_trial();
                // A config on trial leaves it: the stale one is back when the trial is over.
                machine.store.remove::<StaleConfig>(StaleConfig::ID);
            }
            // First, so that a failure after this point is taken back, too.
            ApplyMode::Try(time) => begin_trial(machine, time),
            ApplyMode::Staged | ApplyMode::Reboot => {}
        }
        self.judge_waiting_version(machine, &lock).await;
        let mut again = String::new();
        if is_taken_over {
            again = done_again(&settings::names_of_failed(&machine.store));
            let taken_over = take_over(machine, change, configured.clone(), definitions).await;
            if let ApplyMode::Try(time) = self.mode {
                // The trial time counts from now.
                begin_trial(machine, time);
            }
            taken_over.map_err(ApplyError::Incomplete)?;
        }
        let details = match self.mode {
            ApplyMode::Auto | ApplyMode::NoReboot => {
                format!("Applied without a reboot: {change}{again}.")
            }
            ApplyMode::Staged => format!("Kept for the next reboot: {change}."),
            ApplyMode::Reboot => {
                shutdown::reboot_next(machine, lock);
                format!("Kept, and the node reboots to take it over: {change}.")
            }
            ApplyMode::Try(time) => format!(
                "Applied for {} s, then taken back unless it is applied again: {change}{again}.",
                time.as_secs()
            ),
        };
        Ok(self.applied(details))
    }
}

/// Tells of the steps that had failed and were run again.
fn done_again(steps: &[&str]) -> String {
    match steps {
        [] => String::new(),
        steps => format!("; done again, as it had failed: {}", steps.join(", ")),
    }
}

/// Returns a warning if a config replaces one on STATE that was staged: that is neither the settled one nor the new one.
fn warning_of_staged(kept: &str, settled: &str, new: &str) -> Option<String> {
    let is_lost = kept != settled && kept != new;
    is_lost.then(|| "it replaces the config that was staged for the next reboot".to_owned())
}

/// Returns the images of a config's containers.
fn named(configured: &Configured) -> Named {
    let containers = configured.config.containers.iter();
    let named = containers.map(|it| (it.name.to_string(), it.image.clone()));
    named.collect()
}

/// Returns the definitions of the containers that a change starts; all problems with them are found here, and nothing is changed.
async fn definitions(
    machine: &Arc<Machine>,
    change: &ConfigChange,
    configured: &Arc<Configured>,
) -> anyhow::Result<Vec<Definition>> {
    let containers = configured.config.containers.iter();
    let starting =
        containers.filter(|container| change.started.contains(&container.name.to_string()));
    let definitions = starting
        .map(|container| intent::service(machine, configured, container))
        .collect::<anyhow::Result<Vec<_>>>()?;
    if !definitions.is_empty() {
        load_overlay(machine).await?;
    }
    Ok(definitions)
}

/// Applies a change while the machine runs.
///
/// # Errors
/// The config is in force, but the settings or containers that the error names do not match it.
async fn take_over(
    machine: &Arc<Machine>,
    change: &ConfigChange,
    configured: Arc<Configured>,
    definitions: Vec<Definition>,
) -> anyhow::Result<()> {
    machine.set_config(configured.clone());
    if change.changes_image_rules() {
        // Judged again: from here on nothing starts by the previous rules.
        let refused = image_rules::not_allowed(machine, &configured).await;
        image_rules::end(machine, &refused).await;
    }
    let applied = settings::apply_changed(machine, &change.live).await;
    let others = change.removed.iter().chain(&change.started);
    machine.services.remove_all(others).await;
    // A container that names the same image keeps the one in force: another image behind that name waits for its approval or its window.
    let lost = change.images_lost(&machine.images_in_force.all(), &configured.config);
    // During a trial this is the config to return to; its images stay known.
    let settled = machine.settled_config();
    let settled = settled.filter(|settled| !Arc::ptr_eq(settled, &configured));
    let (images, settled) = (named(&configured), settled.as_deref().map(named));
    let in_force = &machine.images_in_force;
    in_force.take_over(lost, &images, settled.as_ref()).await;
    let mut added: anyhow::Result<()> = Ok(());
    for definition in definitions {
        match machine.services.add(definition) {
            Ok(service) => service.start(),
            // The other containers are started all the same.
            Err(error) => added = Err(error),
        }
    }
    tracing::info!("machine config: {change}");
    applied.and(added)
}

/// Starts a trial: the config that is applied next is only tried.
fn begin_trial(machine: &Arc<Machine>, time: Duration) {
    machine.begin_trial(|number| {
        crate::base::task::spawn(take_back(machine.clone(), number, time)).abort_handle()
    });
}

/// Waits until a trial is over and returns to the config before it.
async fn take_back(machine: Arc<Machine>, trial: TrialNumber, time: Duration) {
    tokio::time::sleep(time).await;
    let operations = &machine.operations;
    let _lock = operations.lock_when_free(Operation::TakeBackConfig).await;
    // The previous holder of the lock may have applied another config, to stay or on trial.
    let (Some(settled), Some(current)) = (machine.expire_trial(trial), machine.config()) else {
        return;
    };
    tracing::warn!("machine config: the trial is over, the config before it is taken back");
    let change = ConfigChange::between(&current.config, &settled.config);
    let made = definitions(&machine, &change, &settled).await;
    // The rest of the config is needed even without its containers, above all the authorities that the API trusts.
    let made = made.unwrap_or_else(|error| {
        tracing::error!("machine config: containers of before the trial do not run: {error:#}");
        Vec::new()
    });
    if let Err(error) = take_over(&machine, &change, settled, made).await {
        tracing::error!("machine config: not all of the trial was taken back: {error:#}");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::containers::ImageDigests;
    use crate::sequences::image_pins::machine_for_tests::{configured as of, unbooted};
    use crate::values::Digest;

    fn with_web(tag: &str) -> Arc<Configured> {
        of(&[&format!(
            "apiVersion: v1alpha1\nkind: ContainerConfig\nname: web\nimage: r.io/web:{tag}\n"
        )])
    }

    /// Takes a config over, without the starts of its containers.
    async fn taken_over(machine: &Arc<Machine>, new: &Arc<Configured>) {
        let current = machine.config().unwrap();
        let change = ConfigChange::between(&current.config, &new.config);
        let done = take_over(machine, &change, new.clone(), Vec::new()).await;
        done.unwrap();
    }

    /// `next` is tried, and the trial ends: by its timer, or by a caller who applies the config of before.
    #[tokio::test]
    async fn the_end_of_a_trial_brings_no_image_that_waits_for_its_approval() {
        let approved = ImageDigests {
            digest: Digest::of(b"approved"),
            index: None,
        };
        for is_confirmed in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            let machine = unbooted(directory.path()).await;
            let (stable, next) = (with_web("stable"), with_web("next"));
            let [web] = &stable.config.containers[..] else {
                panic!("one container")
            };
            machine.set_config(stable.clone());
            let in_force = &machine.images_in_force;
            in_force.set("web", &web.image, approved).await;
            let mut trial = None;
            machine.begin_trial(|number| {
                trial = Some(number);
                crate::base::task::spawn(async {}).abort_handle()
            });
            taken_over(&machine, &next).await;
            assert_eq!(in_force.get("web", &web.image), None);
            match is_confirmed {
                false => drop(machine.expire_trial(trial.unwrap()).unwrap()),
                true => machine.confirm_trial(),
            }
            taken_over(&machine, &with_web("stable")).await;
            let found = in_force.get("web", &web.image);
            assert_eq!(found, Some(approved.digest), "{is_confirmed}");
        }
    }

    #[tokio::test]
    async fn only_a_config_that_stays_ends_a_stale_one() {
        let directory = tempfile::tempdir().unwrap();
        let machine = unbooted(directory.path()).await;
        let config = of(&[]);
        machine.set_config(config.clone());
        let reason = "its server does not answer".to_owned();
        machine.store.put(StaleConfig::ID, StaleConfig { reason });
        let is_stale = || machine.store.get::<StaleConfig>(StaleConfig::ID).is_some();
        let minute = Duration::from_secs(60);
        for (mode, expected) in [(ApplyMode::Try(minute), true), (ApplyMode::Auto, false)] {
            let text = config.text.as_bytes();
            apply_config(&machine, text, mode, false).await.unwrap();
            assert_eq!(is_stale(), expected, "{mode:?}");
        }
    }

    #[test]
    fn a_staged_config_is_not_lost_without_a_word() {
        // The config on STATE, the settled one, the new one → whether the staged one is lost.
        for (kept, settled, new, is_lost) in [
            ("a", "a", "b", false),
            ("staged", "a", "b", true),
            ("staged", "a", "a", true),
            ("staged", "a", "staged", false),
        ] {
            let warning = warning_of_staged(kept, settled, new);
            assert_eq!(warning.is_some(), is_lost, "{kept} {settled} {new}");
        }
    }

    #[test]
    fn what_is_done_again_is_told() {
        assert_eq!(done_again(&[]), "");
        let told = "; done again, as it had failed: kernel settings";
        assert_eq!(done_again(&["kernel settings"]), told);
    }

    #[test]
    fn only_what_differs_is_shown() {
        let old = "a: 1\nb: 2\nc: 3\nd: 4\ne: 5\nf: 6\n";
        assert_eq!(lines_that_differ(old, old), "");
        assert_eq!(
            lines_that_differ(old, &old.replace("a: 1", "a: 2")),
            "--- the config in force\n+++ the config that is applied\n@@ -1,4 +1,4 @@\n-a: 1\n+a: 2\n b: 2\n c: 3\n d: 4\n"
        );
    }
}
