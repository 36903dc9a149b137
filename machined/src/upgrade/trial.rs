//! The trial of a version: which generation has to prove that it works, and how the machine goes on after its success or failure. A state
//! machine without side effects: the boot gathers facts, asks here, and carries out the answer.
//!
//! ```text
//!  start                  standing            how the boot ends      next
//!
//!  `next` of init ──────► Soft ───────────┬── gate passed ─────────► Commit: bless the upgrade's entry
//!                         │ ▲             └── failed or late ──────► GiveUp: init goes back, and starts Rollback
//!                         └─┘ machined restarts before the commit
//!
//!  the loader counts ───► Counted ────────┬── gate passed ─────────► Commit: bless the booted entry
//!  this start             │ ▲ ▲           └── failed or late ──────► TryAgain: reason into the record, reboot
//!                         └─┘ │                                        │
//!         machined restarts   └─────────── a try is left ──────────────┤
//!         before the commit                                            ▼ none is left
//!                                             the loader starts the version before; it finds the record: Failed
//!
//!  anything else ───────► NotOnTrial ─────┬── ok ──────────────────► Commit: bless the booted entry, unless a record
//!                           ▲             │                          says that an upgrade is under way
//!                           │             └── failed ──────────────► StayUp: the same, and the API tells the problem
//!  Soft, without a config ──┘ at once: Commit, as with its gate passed
//! ```
//!
//! A start by `next` that cannot read its hand-over does not come that far ([`with_unreadable_handover`]).
//!
//! The facts come in two steps:
//!
//! 1. Before there is a disk, which may be slow or not answer: init's reason for the start, the hand-over and the loader's report. They
//!    decide whether init's deadline applies to this generation ([`EarlyStanding`]). A generation without a deadline is healthy as soon
//!    as its API answers, and gives way to a forced reboot from then on.
//! 2. With STATE: the record of the upgrade ([`RecordedUpgrade`]), and the entry on the disk ([`is_counted`]). They decide the
//!    [`Standing`].
//!
//! A version can be on trial without a deadline: on firmware without a loader's variables only the record knows of the trial, and a
//! machined that restarts after it was healthy, but before its entry was blessed, waits at the gate again.

use super::handover::{Handover, PendingUpgrade};
use super::origin::ReleaseOrigin;
use super::record::UpgradeRecord;
use crate::init_link::StartReason;

/// The upgrade that the hand-over names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandedOver {
    /// There is no hand-over: only a healthy generation leaves one, and none has been healthy since the kernel started.
    Nothing,
    /// No upgrade is under way.
    NoUpgrade,
    /// An upgrade to the running version. A generation replaces the hand-over when it is committed, so this one was not.
    ThisVersion,
    /// An upgrade to another version.
    OtherVersion,
    /// The upgrade was rolled back, and its caller was told.
    RolledBack,
}

impl HandedOver {
    /// Derives it from the hand-over and the running version.
    pub fn of(handover: Option<&Handover>, running: &str) -> Self {
        if handover.is_some_and(|handover| handover.rolled_back) {
            return Self::RolledBack;
        }
        match handover.map(|handover| &handover.upgrade) {
            None => Self::Nothing,
            Some(None) => Self::NoUpgrade,
            Some(Some(upgrade)) if upgrade.to == running => Self::ThisVersion,
            Some(Some(_)) => Self::OtherVersion,
        }
    }
}

/// The boot loader's report on the start of this kernel. Reading it needs no disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counter {
    /// The start was not counted, or there is no loader that could report it.
    NotCounted,
    /// The start took one of the entry's tries.
    Counted,
    /// The firmware's variables cannot be read.
    Unknown,
}

/// The standing of a generation before there is a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EarlyStanding {
    /// Nothing to prove.
    NotOnTrial,
    /// Started by `next` and not committed: init holds the generation before it.
    SoftTrial,
    /// The loader counts the start, or it is unknown whether it does; no generation was healthy since.
    CountedTrial,
    /// The generation before is back: init rolled the upgrade back, and says why.
    RolledBack,
    /// machined died during an upgrade, and the version before it runs: the upgrade is given up.
    Interrupted,
}

/// The action of a start on the record of the last upgrade, which is on STATE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordStep {
    /// Find out how the upgrade went.
    Load,
    /// The upgrade is given up: its record is removed, and the version that the record names.
    GiveUp,
    /// The record stays as it is.
    Leave,
}

/// Whether the decision depends on the loader's report, so that it has to be read.
pub fn depends_on_loader(start: StartReason, handed_over: HandedOver) -> bool {
    is_from_the_loader(start) && handed_over == HandedOver::Nothing
}

/// Whether the loader started the version: this start, or the one before machined died.
pub fn is_from_the_loader(start: StartReason) -> bool {
    matches!(
        start,
        StartReason::Boot | StartReason::Restart | StartReason::Fresh
    )
}

impl EarlyStanding {
    /// Decides the standing. `counter` matters only if [`depends_on_loader`] says so.
    pub fn of(start: StartReason, handed_over: HandedOver, counter: Counter) -> Self {
        use StartReason::{Boot, Fresh, Next, Restart, Rollback};
        match (start, handed_over, counter) {
            (Next, _, _) | (Restart | Fresh, HandedOver::ThisVersion, _) => Self::SoftTrial,
            (Rollback, _, _) | (Restart | Fresh, HandedOver::RolledBack, _) => Self::RolledBack,
            (Restart | Fresh, HandedOver::OtherVersion, _) => Self::Interrupted,
            // Cautious: a version on trial that nothing would take back could lock every caller out.
            (Boot | Restart | Fresh, HandedOver::Nothing, Counter::Counted | Counter::Unknown) => {
                Self::CountedTrial
            }
            (Boot | Restart | Fresh, _, _) => Self::NotOnTrial,
        }
    }

    /// Whether init's deadline applies to this generation. Any other one is healthy once its API answers: a restart would not speed up a
    /// slow disk or network, so neither of them ends the generation.
    pub fn has_deadline(self) -> bool {
        matches!(self, Self::SoftTrial | Self::CountedTrial)
    }

    /// Returns the standing after the commit in maintenance mode: the config that ends the wait may come after init's deadline.
    #[must_use]
    pub fn once_kept(self) -> Self {
        match self {
            Self::NotOnTrial | Self::SoftTrial | Self::CountedTrial => Self::NotOnTrial,
            Self::RolledBack | Self::Interrupted => self,
        }
    }

    /// Returns the action of this start on the record.
    pub fn record_step(self, start: StartReason) -> RecordStep {
        match (start, self) {
            (StartReason::Boot, _) => RecordStep::Load,
            // The caller of the upgrade has been told the reason already.
            (_, Self::RolledBack | Self::Interrupted) => RecordStep::GiveUp,
            _ => RecordStep::Leave,
        }
    }
}

/// The state of the entry that a record names, on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordedEntry {
    /// The record names no entry, or the machine does not boot from its disk.
    NotNamed,
    /// The entry does not exist.
    Gone,
    /// Its tries are counted.
    Counting,
    /// Its counter was removed.
    Blessed,
}

/// The entry that this kernel was booted from, compared with the record's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BootedEntry {
    /// Unknown, or not an entry of this machine's disk.
    Unknown,
    /// The entry that the record names.
    Recorded,
    /// Another entry.
    Other,
}

impl BootedEntry {
    /// Compares the order of the booted entry with that of the recorded one.
    pub fn of(booted: Option<u32>, recorded: Option<u32>) -> Self {
        match booted {
            None => Self::Unknown,
            Some(_) if booted == recorded => Self::Recorded,
            Some(_) => Self::Other,
        }
    }
}

/// The outcome of the recorded upgrade, as a boot finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordedUpgrade {
    /// Its version was removed from the disk; the power failed before the record was removed, too.
    TakenBack,
    /// Its version was blessed; the power failed before the record was removed, too. The loader does not count this start, so a trial would
    /// never end.
    Kept,
    /// Its version runs and is on trial.
    OnTrial,
    /// Another version runs: the upgrade has failed.
    Failed,
}

impl RecordedUpgrade {
    /// Decides the outcome. `names_running`: the record names the running version.
    pub fn of(entry: RecordedEntry, booted: BootedEntry, names_running: bool) -> Self {
        match (entry, booted) {
            (RecordedEntry::Gone, _) => Self::TakenBack,
            (RecordedEntry::Blessed, BootedEntry::Recorded) => Self::Kept,
            (_, BootedEntry::Recorded | BootedEntry::Unknown) if names_running => Self::OnTrial,
            _ => Self::Failed,
        }
    }
}

/// The version that the record names, as an operation finds it that follows the boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordedVersion {
    /// This kernel was booted from its entry.
    Booted,
    /// It runs since an upgrade without a reboot, and was kept, as operations follow the boot's verdict; the disk has not taken the blessing
    /// of its entry yet. A reboot finds it only by that entry.
    Running,
    /// It waits for its first start.
    Waiting,
}

impl RecordedVersion {
    /// Tells which it is. `booted`: the order of the entry that this kernel was booted from. `running`: the image that the running version
    /// came from; its name alone does not tell it, as a version may have been built more than once.
    pub fn of(
        recorded: &PendingUpgrade,
        booted: Option<u32>,
        running: Option<&ReleaseOrigin>,
    ) -> Self {
        let is_running = recorded.origin().zip(running).is_some_and(|(it, running)| {
            (&it.version, it.digest) == (&running.version, running.digest)
        });
        match recorded.boot_entry == booted {
            true => Self::Booted,
            false if is_running => Self::Running,
            false => Self::Waiting,
        }
    }
}

/// The state of the counted entry on the disk now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryNow {
    /// No look at the disk needed: the kernel has just started, so the loader's report is up to date.
    AsBooted,
    /// Its tries are still counted.
    Counting,
    /// Its counter was removed since: the version was kept.
    Blessed,
    /// The entry no longer exists.
    Gone,
    /// It belongs to another version than the running one, which came later without a reboot, and was kept.
    OfAnotherVersion,
    /// The disk cannot be read.
    Unknown,
}

/// Whether the running version is on trial because the loader counts its start, with or without a record of the upgrade: the power may have
/// failed before the record was written, a rollback leaves none, and a version that fails may not find STATE.
///
/// Without the loader's report there is no entry that a reboot would try again, so the version is not on trial, whatever its deadline.
pub fn is_counted(counter: Counter, now: EntryNow) -> bool {
    let tries_what_runs = matches!(
        now,
        EntryNow::AsBooted | EntryNow::Counting | EntryNow::Gone
    );
    counter == Counter::Counted && tries_what_runs
}

/// Whether a generation is on trial when its steps have run, and which rules apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It has nothing to prove.
    NotOnTrial,
    /// Started without a reboot: init holds the generation before it.
    Soft {
        /// The upgrade that started it; None if there is no hand-over.
        upgrade: Option<PendingUpgrade>,
        /// Services that were up before the upgrade.
        services_up: Vec<String>,
    },
    /// Started by a boot; a reboot would try it again.
    Counted {
        /// The record of its upgrade.
        record: UpgradeRecord,
        /// Whether it was then started without a reboot, over a booted version that was not blessed. The rules of the boot apply.
        is_soft: bool,
    },
}

/// How a generation goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// The generation is kept.
    Commit(Commit),
    /// The generation is kept because there is none to return to; the API reports the problem.
    StayUp {
        /// Why the boot failed.
        problem: String,
    },
    /// init returns to the generation before.
    GiveUp {
        /// The reason.
        reason: String,
    },
    /// The machine reboots: the loader has counted this try, and starts the version before when no try is left.
    TryAgain {
        /// The record that the next boot finds, once the reason is added.
        record: UpgradeRecord,
        /// The reason.
        reason: String,
    },
}

/// How a generation is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// The upgrade that has passed its gate.
    pub upgrade: Option<PendingUpgrade>,
    /// The change to the boot entries.
    pub bless: Bless,
}

/// Which boot entry loses its counter, so that the loader starts it from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bless {
    /// The booted one; none while a record says that an upgrade is under way. This generation has not passed that upgrade's gate (machined
    /// restarted meanwhile, or there is no config): the next boot tries it again, and decides.
    BootedUnlessUnderWay,
    /// The booted one.
    Booted,
    /// The entry of this order, written by an upgrade without a reboot.
    Order(u32),
}

impl Commit {
    /// Keeps a generation that was not on trial.
    pub const NOT_ON_TRIAL: Self = Commit {
        upgrade: None,
        bless: Bless::BootedUnlessUnderWay,
    };
}

impl Standing {
    /// Decides the standing. `record`: the record of a version that a boot has on trial, see [`RecordedUpgrade::OnTrial`] and
    /// [`is_counted`].
    pub fn of(early: EarlyStanding, handover: &Handover, record: Option<UpgradeRecord>) -> Self {
        let is_soft = early == EarlyStanding::SoftTrial;
        match record {
            Some(record) => Self::Counted { record, is_soft },
            None if is_soft => Self::Soft {
                upgrade: handover.upgrade.clone(),
                services_up: handover.services_up.clone(),
            },
            None => Self::NotOnTrial,
        }
    }

    /// Returns the services that were up before the upgrade, for the gate of a version on trial; None if there is no gate to pass.
    pub fn services_at_gate(&self) -> Option<&[String]> {
        match self {
            Self::NotOnTrial => None,
            Self::Soft { services_up, .. } => Some(services_up),
            Self::Counted { record, .. } => Some(&record.services_up),
        }
    }

    /// Decides how the generation goes on after its steps and, on trial, its gate.
    pub fn next(self, outcome: Result<(), String>) -> Next {
        match (self, outcome) {
            (Self::NotOnTrial, Ok(())) => Next::Commit(Commit::NOT_ON_TRIAL),
            (Self::NotOnTrial, Err(problem)) => Next::StayUp { problem },
            (Self::Soft { upgrade, .. }, Ok(())) => {
                let order = upgrade.as_ref().and_then(|upgrade| upgrade.boot_entry);
                let bless = order.map_or(Bless::Booted, Bless::Order);
                Next::Commit(Commit { upgrade, bless })
            }
            (Self::Soft { .. }, Err(reason)) => Next::GiveUp { reason },
            (Self::Counted { record, is_soft }, Ok(())) => {
                let order = record.upgrade.boot_entry.filter(|_| is_soft);
                let bless = order.map_or(Bless::Booted, Bless::Order);
                let upgrade = Some(record.upgrade);
                Next::Commit(Commit { upgrade, bless })
            }
            (Self::Counted { record, .. }, Err(reason)) => Next::TryAgain { record, reason },
        }
    }
}

/// Decides how a start goes on whose hand-over is there and cannot be read. None: as without one.
///
/// A version that `next` has started is on trial: without the hand-over its gate would judge no service, and on a machine without a disk it
/// would know no config, and be kept in maintenance mode. The version before wrote it, and can read it. At any other start the running
/// version wrote it itself, or there is no version to go back to.
pub fn with_unreadable_handover(start: StartReason, unreadable: &str) -> Option<Next> {
    let reason = || {
        format!(
            "it cannot read what the version before it left, and so knows neither its config nor its services: {unreadable}; upgrade by way of a version that can, or with a reboot"
        )
    };
    (start == StartReason::Next).then(|| Next::GiveUp { reason: reason() })
}

/// Decides how a generation goes on whose API answers and that has no machine config. A version that a boot has on trial would have found
/// its config; any other generation has nothing else to prove, is kept, and waits in maintenance mode. A config that comes later is not
/// part of the trial any more ([`EarlyStanding::once_kept`]).
pub fn without_config(standing: Standing, reason: String) -> Next {
    match standing {
        Standing::Counted { .. } => standing.next(Err(reason)),
        Standing::NotOnTrial | Standing::Soft { .. } => standing.next(Ok(())),
    }
}

impl Bless {
    /// Whether nothing is blessed, and the record stays, while an upgrade is under way.
    pub fn gives_way_to_a_record(self) -> bool {
        self == Self::BootedUnlessUnderWay
    }

    /// Returns the order of the entry, given that of the booted one; None if the boot came another way.
    pub fn order(self, booted: Option<u32>) -> Option<u32> {
        match self {
            Self::BootedUnlessUnderWay | Self::Booted => booted,
            Self::Order(order) => Some(order),
        }
    }
}

#[cfg(test)]
mod tests;
