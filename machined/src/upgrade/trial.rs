//! The trial of a version: which generation has to prove that it works, and what follows from its success or failure. A state machine
//! without side effects: the boot gathers facts, asks here, and carries out the answer.
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
//! The facts come in two steps:
//!
//! 1. Before there is a disk, which may be slow or silent: init's reason for the start, the hand-over and the loader's word. They decide
//!    whether init's deadline judges this generation ([`EarlyStanding`]). A generation without a deadline is healthy as soon as it can be
//!    asked, and gives way to a forced reboot from then on.
//! 2. With STATE: the record of the upgrade ([`RecordedUpgrade`]), and the entry on the disk ([`is_counted`]). They decide the [`Standing`].
//!
//! A version can be on trial without a deadline: on firmware without a loader's variables only the record knows of the trial, and a
//! machined that restarts after it was healthy, but before its entry was blessed, waits at the gate again.

use super::handover::{Handover, PendingUpgrade};
use super::record::UpgradeRecord;
use crate::init_link::StartReason;

/// The upgrade that the hand-over names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandedOver {
    /// There is no hand-over: only a healthy generation leaves one, and none has been healthy since the kernel started.
    Nothing,
    /// No upgrade is under way.
    NoUpgrade,
    /// An upgrade to the version that runs. A generation replaces the hand-over when it is committed, so it has not been.
    ThisVersion,
    /// An upgrade to another version.
    OtherVersion,
}

impl HandedOver {
    /// From the hand-over and the version that runs.
    pub fn of(handover: Option<&Handover>, running: &str) -> Self {
        match handover.map(|handover| &handover.upgrade) {
            None => Self::Nothing,
            Some(None) => Self::NoUpgrade,
            Some(Some(upgrade)) if upgrade.to == running => Self::ThisVersion,
            Some(Some(_)) => Self::OtherVersion,
        }
    }
}

/// The boot loader's word on the start of this kernel. Reading it needs no disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counter {
    /// The start was not counted, or there is no loader that could say so.
    NotCounted,
    /// The start took one of the entry's tries.
    Counted,
    /// The firmware's variables cannot be read.
    Unknown,
}

/// What is known of a generation before there is a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EarlyStanding {
    /// Nothing to prove.
    NotOnTrial,
    /// Started by `next` and not committed: init holds the generation before it.
    SoftTrial,
    /// The loader counts the start, or nobody knows whether it does; no generation was healthy since.
    CountedTrial,
    /// The generation before is back: the upgrade was rolled back by init, which says why.
    RolledBack,
    /// machined died over an upgrade, and runs as the version before: that upgrade is given up.
    Interrupted,
}

/// What a start does with the record of the last upgrade on STATE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordStep {
    /// Find out what has become of the upgrade.
    Load,
    /// Its upgrade is given up: the record goes, with the version that it names.
    GiveUp,
    /// It stays as it is.
    Leave,
}

/// Whether the loader's word makes a difference, so that it has to be read.
pub fn depends_on_loader(start: StartReason, handed_over: HandedOver) -> bool {
    is_from_the_loader(start) && handed_over == HandedOver::Nothing
}

/// Whether the version is one that the loader started, at once or after machined has died.
pub fn is_from_the_loader(start: StartReason) -> bool {
    matches!(
        start,
        StartReason::Boot | StartReason::Restart | StartReason::Fresh
    )
}

impl EarlyStanding {
    /// Decides it. `counter` counts only where [`depends_on_loader`] says so.
    pub fn of(start: StartReason, handed_over: HandedOver, counter: Counter) -> Self {
        use StartReason::{Boot, Fresh, Next, Restart, Rollback};
        match (start, handed_over, counter) {
            (Next, _, _) | (Restart | Fresh, HandedOver::ThisVersion, _) => Self::SoftTrial,
            (Rollback, _, _) => Self::RolledBack,
            (Restart | Fresh, HandedOver::OtherVersion, _) => Self::Interrupted,
            // Cautious: a version that nobody would take back could lock everybody out.
            (Boot | Restart | Fresh, HandedOver::Nothing, Counter::Counted | Counter::Unknown) => {
                Self::CountedTrial
            }
            (Boot | Restart | Fresh, _, _) => Self::NotOnTrial,
        }
    }

    /// Whether init's deadline judges this generation. Every other one is healthy once it can be asked: a slow disk or network, which
    /// starting again would not make faster, ends nothing.
    pub fn has_deadline(self) -> bool {
        matches!(self, Self::SoftTrial | Self::CountedTrial)
    }

    /// What it is once the generation is kept, in maintenance mode: the config that ends the waiting may come after init's deadline.
    #[must_use]
    pub fn once_kept(self) -> Self {
        match self {
            Self::NotOnTrial | Self::SoftTrial | Self::CountedTrial => Self::NotOnTrial,
            Self::RolledBack | Self::Interrupted => self,
        }
    }

    /// What this start does with the record.
    pub fn record_step(self, start: StartReason) -> RecordStep {
        match (start, self) {
            (StartReason::Boot, _) => RecordStep::Load,
            // The caller has been told why already.
            (_, Self::RolledBack | Self::Interrupted) => RecordStep::GiveUp,
            _ => RecordStep::Leave,
        }
    }
}

/// The entry that a record names, as it is on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordedEntry {
    /// The record names none, or the machine does not boot from its disk.
    NotNamed,
    /// There is no such entry.
    Gone,
    /// Its tries are counted.
    Counting,
    /// Its counter was taken off.
    Blessed,
}

/// The entry that this kernel was booted from, as the record sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BootedEntry {
    /// Nobody knows, or it is none of this machine's.
    Unknown,
    /// The one that the record names.
    Recorded,
    /// Another one.
    Other,
}

impl BootedEntry {
    /// From the order of the booted entry and that which the record names.
    pub fn of(booted: Option<u32>, recorded: Option<u32>) -> Self {
        match booted {
            None => Self::Unknown,
            Some(_) if booted == recorded => Self::Recorded,
            Some(_) => Self::Other,
        }
    }
}

/// What a boot finds to have become of the upgrade that the record names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordedUpgrade {
    /// Its version was taken off the disk; the power went before the record was removed, too.
    TakenBack,
    /// Its version was blessed; the power went before the record was removed, too. Nothing counts this start, and nothing would end
    /// its trial.
    Kept,
    /// Its version runs, and is on trial.
    OnTrial,
    /// Another version runs: it has failed.
    Failed,
}

impl RecordedUpgrade {
    /// Decides it. `names_running`: the record names the version that runs.
    pub fn of(entry: RecordedEntry, booted: BootedEntry, names_running: bool) -> Self {
        match (entry, booted) {
            (RecordedEntry::Gone, _) => Self::TakenBack,
            (RecordedEntry::Blessed, BootedEntry::Recorded) => Self::Kept,
            (_, BootedEntry::Recorded | BootedEntry::Unknown) if names_running => Self::OnTrial,
            _ => Self::Failed,
        }
    }
}

/// The entry that the loader counted, as it is on the disk now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryNow {
    /// It need not be looked up: the kernel has started just now, and the loader's word is no older than the entry.
    AsBooted,
    /// Its tries are counted still.
    Counting,
    /// Its counter was taken off since: the version was kept.
    Blessed,
    /// There is no such entry any more.
    Gone,
    /// It is of another version than the one that runs, which came after it without a reboot, and was kept.
    OfAnotherVersion,
    /// The disk does not say.
    Unknown,
}

/// Whether the version that runs is on trial because the loader counts its start, with or without a record of who asked for it: the
/// power may have gone before that was written, a rollback leaves none, and a version that fails may not find STATE.
///
/// Without the loader's word there is no entry that a reboot would try again, so here it is not on trial, whatever its deadline.
pub fn is_counted(counter: Counter, now: EntryNow) -> bool {
    let tries_what_runs = matches!(
        now,
        EntryNow::AsBooted | EntryNow::Counting | EntryNow::Gone
    );
    counter == Counter::Counted && tries_what_runs
}

/// What a generation has to prove, when its steps have run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// Nothing.
    NotOnTrial,
    /// It came without a reboot: init holds the generation before it.
    Soft {
        /// The upgrade that brought it, where the hand-over could be read.
        upgrade: Option<PendingUpgrade>,
        /// Services that were up before.
        services_up: Vec<String>,
    },
    /// A boot started it, and a reboot would try it again.
    Counted {
        /// What is known of its upgrade.
        record: UpgradeRecord,
        /// It came without a reboot, too, on top of a booted version that was not blessed. The rules of the boot hold.
        is_soft: bool,
    },
}

/// How a generation goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// It is kept.
    Commit(Commit),
    /// It is kept, as there is nothing to go back to: the API tells the problem.
    StayUp {
        /// Why the boot failed.
        problem: String,
    },
    /// init goes back to the generation before.
    GiveUp {
        /// Why.
        reason: String,
    },
    /// The machine reboots: the loader has counted this try, and starts the version before when none is left.
    TryAgain {
        /// What the next boot finds, once the reason is added.
        record: UpgradeRecord,
        /// Why.
        reason: String,
    },
}

/// How a generation is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// The upgrade that has passed its gate.
    pub upgrade: Option<PendingUpgrade>,
    /// What becomes of the boot entries.
    pub bless: Bless,
}

/// Which boot entry loses its counter, so that the loader starts it from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bless {
    /// The booted one; but none while a record says that an upgrade is under way. This generation has not passed that upgrade's gate
    /// (machined restarted meanwhile, or there is no config): the next boot tries it again, and judges.
    BootedUnlessUnderWay,
    /// The booted one.
    Booted,
    /// The one of this order: that of an upgrade without a reboot.
    Order(u32),
}

impl Commit {
    /// Keeps a generation that had nothing to prove.
    pub const NOT_ON_TRIAL: Self = Commit {
        upgrade: None,
        bless: Bless::BootedUnlessUnderWay,
    };
}

impl Standing {
    /// Decides it. `record` is that of a version that a boot has on trial: see [`RecordedUpgrade::OnTrial`] and [`is_counted`].
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

    /// The services that were up before the upgrade, for the gate of a version on trial; none where there is no gate to pass.
    pub fn services_at_gate(&self) -> Option<&[String]> {
        match self {
            Self::NotOnTrial => None,
            Self::Soft { services_up, .. } => Some(services_up),
            Self::Counted { record, .. } => Some(&record.services_up),
        }
    }

    /// How the generation goes on after its steps and, on trial, its gate.
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

/// How a generation goes on that can be asked and has no machine config. One that a boot has on trial would have found it; every other
/// one has nothing else to prove, is kept, and waits in maintenance mode. What comes with a config later is not judged by its upgrade
/// any more ([`EarlyStanding::once_kept`]).
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

    /// The order of the entry, given that of the booted one; none where the boot came another way.
    pub fn order(self, booted: Option<u32>) -> Option<u32> {
        match self {
            Self::BootedUnlessUnderWay | Self::Booted => booted,
            Self::Order(order) => Some(order),
        }
    }
}

#[cfg(test)]
mod tests;
