//! From facts to conditions.

use std::time::Duration;

use super::facts::{Approval, Facts, NodeTrouble, Room, Signer, StateDisk, Unbootable};
use super::{Condition, Trouble, Type};
use crate::base::byte_size::human_short;

/// Shares of /var, and of the memory, in percent: less than that is a pressure. The first two are kubelet's.
const FEW_BYTES: u64 = 10;
const FEW_FILES: u64 = 5;
const LITTLE_MEMORY: u64 = 5;
/// Time that servers have to answer after machined's start.
const FIRST_ANSWER: Duration = Duration::from_secs(120);
/// A clock whose servers have been silent for this long drifts; between two answers there are 17 minutes at most.
const SILENT: Duration = Duration::from_secs(3 * 3600);
/// Certificates that are renewed by themselves are, with more time left than this.
const RENEWED: Duration = Duration::from_secs(6 * 3600);
/// Time that a node has to get ready after machined's start.
const NODE_STARTS: Duration = Duration::from_secs(120);
/// Limit on the parts of a message about several services or problems.
const MOST_NAMED: usize = 5;

/// Returns one condition of each type, in the order of [`Type::ALL`].
pub fn judge(facts: &Facts) -> Vec<Condition> {
    let condition = |kind| Condition {
        kind,
        trouble: trouble(kind, facts),
    };
    Type::ALL.into_iter().map(condition).collect()
}

fn trouble(kind: Type, facts: &Facts) -> Option<Trouble> {
    match kind {
        Type::UpgradeFailed => upgrade_failed(facts),
        Type::ReleaseHeld => release_held(facts),
        Type::ChannelUnreachable => channel_unreachable(facts),
        Type::ApprovalNeeded => approval_needed(facts),
        Type::RebootNeeded => reboot_needed(facts),
        Type::VersionUnbootable => version_unbootable(&facts.unbootable),
        Type::DiskPressure => facts.var.and_then(disk_pressure),
        Type::MemoryPressure => memory_pressure(facts),
        Type::OutOfMemory => out_of_memory(facts),
        Type::CrashLoop => crash_loop(facts),
        Type::ServiceUnhealthy => service_unhealthy(facts),
        Type::ClockNotSynchronized => clock_not_synchronized(facts),
        Type::CertificateEnds => certificate_ends(facts),
        Type::KubernetesNotReady => kubernetes_not_ready(facts),
        Type::Degraded => degraded(facts),
        Type::StateNotWritable => state_not_writable(&facts.state),
    }
}

fn now(reason: &'static str, message: String) -> Trouble {
    Trouble {
        reason,
        message,
        since: None,
    }
}

/// Joins parts to one text; says how many are left out.
fn joined(parts: impl ExactSizeIterator<Item = String>) -> String {
    let more = parts.len().saturating_sub(MOST_NAMED);
    let mut text = parts.take(MOST_NAMED).collect::<Vec<_>>().join("; ");
    if more > 0 {
        text.push_str(&format!("; and {more} more"));
    }
    text
}

fn upgrade_failed(facts: &Facts) -> Option<Trouble> {
    let failure = facts.failed_upgrade.as_ref()?;
    let message = format!(
        "{} runs on, because the last upgrade failed: {}; repair the image or the machine and upgrade again (`get upgrades` has the history)",
        facts.running, failure.reason
    );
    Some(Trouble {
        since: Some(failure.at),
        ..now("PreviousVersionRuns", message)
    })
}

fn release_held(facts: &Facts) -> Option<Trouble> {
    let held = facts.held.iter();
    let held = joined(held.map(|release| format!("{}: {}", release.version, release.why)));
    (!facts.held.is_empty()).then(|| {
        let message = format!(
            "a release of the channel has failed here and is not tried again: {held}; publish a newer one, or `instarctl follow release VERSION` has it tried once more"
        );
        now("ReleaseFailed", message)
    })
}

fn channel_unreachable(facts: &Facts) -> Option<Trouble> {
    let look = facts.failed_look.as_ref()?;
    let message = format!(
        "the list of {} cannot be read, so no new release is seen: {}; check its server and the network, or bring the list by `instarctl follow bring`",
        look.channel, look.error
    );
    Some(now("ListNotRead", message))
}

fn approval_needed(facts: &Facts) -> Option<Trouble> {
    let waits = facts.approvals.iter().map(|approval| match approval {
        Approval::Release(version) => {
            format!("the release {version} (`instarctl follow approve {version}`)")
        }
        Approval::Image(container) => {
            format!("another image of the container {container} (`get updates`)")
        }
        Approval::Bundle(place) => format!("the bundle at {place} (a key at the machine)"),
    });
    let waits = joined(waits);
    (!facts.approvals.is_empty()).then(|| {
        now(
            "ApprovalNeeded",
            format!("it waits for a person's word: {waits}"),
        )
    })
}

fn reboot_needed(facts: &Facts) -> Option<Trouble> {
    let version = facts.prepared.as_ref()?;
    Some(now(
        "VersionPrepared",
        format!("{version} is prepared, and starts with the next `instarctl reboot`"),
    ))
}

fn version_unbootable(found: &[Unbootable]) -> Option<Trouble> {
    let first = found.first()?;
    let told = joined(found.iter().map(|it| format!("{}: {}", it.version, it.why)));
    let act = match (first.is_next, first.is_revoked) {
        (true, false) => {
            "the next boot would take it: upgrade before the machine reboots, to the same version or to another one, which is written anew"
        }
        (true, true) => {
            "the next boot would take it: upgrade to a newer version before the machine reboots"
        }
        (false, _) => {
            "nobody can go back to it, until an upgrade has written another version in its place"
        }
    };
    let reason = match first.is_revoked {
        true => "UkiRevoked",
        false => "UkiDamaged",
    };
    let message = format!("a version on the disk would not start: {told}; {act}");
    Some(now(reason, message))
}

/// Whether a part is less than this share of all, in percent.
fn is_below(part: u64, all: u64, percent: u64) -> bool {
    u128::from(part) * 100 < u128::from(all) * u128::from(percent)
}

fn disk_pressure(var: Room) -> Option<Trouble> {
    let act = "remove data or images that nothing needs (`instarctl usage /var`), or give the machine a larger disk";
    if is_below(var.available, var.size, FEW_BYTES) {
        let (left, all) = (human_short(var.available), human_short(var.size));
        let message = format!("{left} of {all} are left on /var: {act}");
        return Some(now("BytesNearlyUsedUp", message));
    }
    let (left, all) = (var.files_free, var.files);
    is_below(left, all, FEW_FILES).then(|| {
        let message = format!("{left} of {all} files can still be made on /var: {act}");
        now("FilesNearlyUsedUp", message)
    })
}

fn memory_pressure(facts: &Facts) -> Option<Trouble> {
    let (available, total) = facts.memory?;
    is_below(available, total, LITTLE_MEMORY).then(|| {
        let (left, all) = (human_short(available), human_short(total));
        let message = format!(
            "programs can get {left} of {all} memory: find the largest (`instarctl stats`, `instarctl processes`) and limit it, or give the machine more"
        );
        now("MemoryNearlyUsedUp", message)
    })
}

fn out_of_memory(facts: &Facts) -> Option<Trouble> {
    let names = joined(facts.killed.iter().map(|(name, _)| name.clone()));
    let since = facts.killed.iter().map(|(_, at)| *at).min()?;
    let message = format!(
        "the kernel has killed for lack of memory: {names}; raise the limit of its memory, or find out why it takes so much (`instarctl stats`)"
    );
    Some(Trouble {
        since: Some(since),
        ..now("ServiceKilled", message)
    })
}

fn crash_loop(facts: &Facts) -> Option<Trouble> {
    let since = facts.failing.iter().map(|service| service.since).min()?;
    let told = joined(facts.failing.iter().map(|service| {
        format!(
            "{} ({} times in a row; {})",
            service.name, service.failures, service.last
        )
    }));
    let message = format!("a service ends again and again: {told}; see `instarctl logs NAME`");
    Some(Trouble {
        since: Some(since),
        ..now("ServiceKeepsFailing", message)
    })
}

fn service_unhealthy(facts: &Facts) -> Option<Trouble> {
    let since = facts.unhealthy.iter().map(|service| service.since).min()?;
    let told = facts.unhealthy.iter();
    let told = joined(told.map(|service| format!("{} ({})", service.name, service.why)));
    let message = format!(
        "the health check of a service fails: {told}; see `instarctl logs NAME`, `instarctl restart NAME`"
    );
    Some(Trouble {
        since: Some(since),
        ..now("HealthCheckFails", message)
    })
}

fn clock_not_synchronized(facts: &Facts) -> Option<Trouble> {
    let clock = facts.clock.as_ref()?;
    let is_silent = match clock.synced {
        true => clock.silent_for.is_some_and(|silent| silent > SILENT),
        false => facts.up_for > FIRST_ANSWER,
    };
    is_silent.then(|| {
        let why = clock.problem.as_deref().unwrap_or("none has answered");
        let message = format!(
            "no time server answers, and the clock drifts ({why}): name one that the machine reaches (machine.time.servers), and open UDP port 123 to it"
        );
        now("NoServerAnswers", message)
    })
}

fn certificate_ends(facts: &Facts) -> Option<Trouble> {
    let certificate = facts.certificate.as_ref()?;
    let warning = certificate.warning.clone();
    match certificate.signer {
        Signer::Person => warning.map(|warning| now("EndsSoon", warning)),
        Signer::Nobody => warning.map(|warning| now("NotSigned", warning)),
        Signer::Automatic => {
            let left = certificate.left.filter(|left| *left < RENEWED)?;
            let hours = left.as_secs() / 3600;
            let message = format!(
                "the API's certificate ends in {hours} h and was not renewed: check the machine's clock and its control plane (`instarctl logs machined`)"
            );
            Some(now("NotRenewed", message))
        }
    }
}

fn kubernetes_not_ready(facts: &Facts) -> Option<Trouble> {
    let (reason, why) = match facts.node.as_ref()? {
        NodeTrouble::ClusterNotBegun => {
            let message = "the cluster has not begun: `instarctl bootstrap` begins a new one, once, or brings a snapshot of etcd back (`--recover-from`)";
            return Some(now("ClusterNotBegun", message.to_owned()));
        }
        NodeTrouble::Incomplete(why) => ("Incomplete", why),
        _ if facts.up_for <= NODE_STARTS => return None,
        NodeTrouble::NotReady(why) => ("NodeNotReady", why),
        NodeTrouble::ClusterUnreachable(why) => ("ClusterUnreachable", why),
    };
    let message = format!(
        "the machine is no node of its cluster as its config asks for: {why}; see `instarctl get kubernetes`, `instarctl logs kubelet`"
    );
    Some(now(reason, message))
}

/// The reasons of `Degraded`, by the subject of the problem.
fn reason_of(subject: &str) -> &'static str {
    match subject {
        "config" => "ConfigUnusable",
        "boot" => "BootIncomplete",
        "boot entry" => "BootEntryNotBlessed",
        "upgrade" => "UpgradeNotSettled",
        "install" => "NotInstalled",
        "Kubernetes" => "KubernetesNotPrepared",
        volume if volume.starts_with("user volume") => "UserVolumeMissing",
        extensions if extensions.starts_with("extension") => "ExtensionNotInForce",
        _ => "SettingNotApplied",
    }
}

fn degraded(facts: &Facts) -> Option<Trouble> {
    if let Some((subject, ..)) = facts.problems.first() {
        let told = facts.problems.iter();
        let told = joined(told.map(|(subject, text, _)| format!("{subject}: {text}")));
        let message = format!(
            "{told}; repair the cause and apply the config again, or reboot (`get diagnostics`)"
        );
        return Some(Trouble {
            since: facts.problems.iter().map(|(.., at)| *at).min(),
            ..now(reason_of(subject), message)
        });
    }
    if !facts.has_config {
        let message = "there is no machine config, and the machine waits for one: `instarctl apply-config` brings it".to_owned();
        return Some(now("NoConfig", message));
    }
    let why = facts.stale_config.as_ref()?;
    let message = format!("{why}: repair the server and reboot, or apply the config");
    Some(now("ConfigServerUnreachable", message))
}

fn state_not_writable(state: &StateDisk) -> Option<Trouble> {
    let act = "records and configs are lost with the next reboot: replace the disk, or reboot to have it checked";
    match state {
        StateDisk::Absent | StateDisk::Writable => None,
        StateDisk::ReadOnly => Some(now("ReadOnly", format!("STATE is read-only; {act}"))),
        StateDisk::Failed(error) => Some(now(
            "WriteFailed",
            format!("a record could not be written ({error}); {act}"),
        )),
    }
}
