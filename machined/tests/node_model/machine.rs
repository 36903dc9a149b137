//! The machine of the model: what it does next, step by step, as `sequences/upgrade.rs` and `sequences/boot.rs` do.

use instar_esp::{DEFAULT_SLOTS, EntryName, FileDigest, NewVersion, Volume as _};
use machined::init_link::StartReason;
use machined::upgrade::trial::{
    self, Bless, BootedEntry, Counter, EarlyStanding, EntryNow, HandedOver, Next, RecordStep,
    RecordedEntry, RecordedUpgrade, Standing,
};
use machined::upgrade::{Handover, PendingUpgrade, UpgradeRecord};

use crate::disk::{
    CONFIG, Disk, Number, RECORD, Write, folder, number, replace, uki, version, writes,
};

/// The quality of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Quality {
    Good,
    /// Its gate never opens.
    Bad,
    /// Its kernel, or its machined, hangs. A watchdog ends it.
    Dead,
}

/// How an upgrade switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Way {
    Soft,
    Reboot,
}

/// A machine that is wrong, to see that the model finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Mistake {
    /// A boot entry is there before its UKI.
    EntryFirst,
    /// Contents are not flushed before names are.
    NoFlush,
    /// A version is blessed whatever its gate says.
    NoGate,
    /// The newest entry is blessed, not the one that proved itself.
    BlessesNewest,
    /// The config is written in its place.
    ConfigInPlace,
}

/// How many times something may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Budgets {
    pub(crate) upgrades: u8,
    pub(crate) cuts: u8,
    pub(crate) crashes: u8,
    pub(crate) configs: u8,
}

/// A step that the machine takes next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Todo {
    Write(Write),
    /// Removes a version that waits for its first boot.
    Unstage,
    /// Has the installer write a version.
    Add(Number),
    /// Keeps the record, as JSON: the entry that was written last, if it has no entry yet.
    SaveRecord(String),
    RemoveRecord,
    Reboot,
    /// Leaves the hand-over with init.
    HandOver(Number),
    /// Asks init for the next generation.
    Next(Number),
    TakeUpRecord,
    Decide,
    TellHealthy,
    /// Replaces the hand-over by that of a generation without an upgrade.
    KeepHandover,
    /// Blesses the booted entry, none if there is a record; or the entry of this order.
    Finish {
        gives_way: bool,
        order: Option<u32>,
    },
    Bless(u32),
    Forget(u32),
    GiveUp,
    /// The config that was kept last counts from here on.
    Acknowledge(u8),
}

/// A generation, and the kernel below it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Generation {
    pub(crate) version: Number,
    /// The order of the entry that the kernel was booted from, and whether the loader counts the start.
    pub(crate) booted: u32,
    pub(crate) is_counted: bool,
    pub(crate) start: Start,
    /// The hand-over at init; within, the version of an upgrade under way.
    pub(crate) handover: Option<Option<Number>>,
    /// The version that init goes back to.
    pub(crate) held: Option<Number>,
    /// The record of an upgrade that this boot finishes, as JSON.
    pub(crate) tried: Option<String>,
    pub(crate) todo: Vec<Todo>,
    pub(crate) is_kept: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Start {
    Boot,
    Next,
    Rollback,
    Restart,
}

impl From<Start> for StartReason {
    fn from(start: Start) -> Self {
        match start {
            Start::Boot => StartReason::Boot,
            Start::Next => StartReason::Next,
            Start::Rollback => StartReason::Rollback,
            Start::Restart => StartReason::Restart,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Power {
    Off,
    /// A dead version.
    Hangs,
    On(Generation),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) disk: Disk,
    pub(crate) power: Power,
    /// The qualities of the versions, from the first on.
    pub(crate) versions: Vec<Quality>,
    pub(crate) left: Budgets,
    /// The config whose caller was told that it is kept.
    pub(crate) config: u8,
    pub(crate) mistake: Option<Mistake>,
    /// A broken promise, noted when it happens.
    pub(crate) broken: Option<&'static str>,
}

impl State {
    pub(crate) fn quality(&self, version: Number) -> Quality {
        self.versions[usize::from(version) - 1]
    }

    fn breaks(&mut self, promise: &'static str) {
        self.broken = self.broken.or(Some(promise));
    }

    /// The disk that a power cut leaves boots: the entry that the loader takes has a whole UKI, and there is one that was healthy.
    pub(crate) fn can_boot(&self, is_lost: bool) -> Option<&'static str> {
        let disk = self.disk.after_a_cut(is_lost);
        let esp = disk.esp();
        let is_whole = |entry: &instar_esp::Entry| {
            let content = disk.seen.get(&entry.slot.uki_path());
            content.is_some_and(|content| FileDigest::of(content) == entry.uki)
        };
        let blessed: Vec<_> = esp
            .whole_entries()
            .filter(|it| it.name.is_blessed())
            .collect();
        let quality =
            |entry: &instar_esp::Entry| self.quality(number(&entry.name.version.to_string()));
        match esp.next_boot() {
            None => Some("no entry is left"),
            Some(next) if !is_whole(next) => Some("the loader takes half a version"),
            Some(next) if next.name.tries.is_some_and(|tries| tries.exhausted()) => {
                Some("the loader takes a version that has failed")
            }
            Some(_) if blessed.iter().any(|it| quality(it) != Quality::Good) => {
                Some("an unhealthy version is blessed")
            }
            Some(_) if !blessed.iter().any(|it| is_whole(it)) => {
                Some("no version is left that was healthy")
            }
            Some(_) => None,
        }
    }

    /// The config that a power cut leaves is the one whose caller was told, or the next one.
    pub(crate) fn has_config(&self, is_lost: bool) -> bool {
        let disk = self.disk.after_a_cut(is_lost);
        let config = disk.seen.get(CONFIG);
        config.is_some_and(|it| it == &[self.config] || it == &[self.config + 1])
    }

    pub(crate) fn power_on(&mut self) {
        let esp = self.disk.esp();
        let Some(entry) = esp.next_boot() else {
            return self.breaks("no entry is left");
        };
        let (name, version) = (entry.name.clone(), number(&entry.name.version.to_string()));
        if let Some(tries) = name.tries {
            let counted = EntryName {
                tries: Some(tries.after_a_start()),
                ..name.clone()
            };
            self.disk.rename(&name.path(), &counted.path());
            self.disk.sync_folder(folder(&name.path())).unwrap();
        }
        self.power = match self.quality(version) {
            Quality::Dead => Power::Hangs,
            Quality::Good | Quality::Bad => Power::On(Generation {
                version,
                booted: name.order,
                is_counted: name.tries.is_some(),
                start: Start::Boot,
                handover: None,
                held: None,
                tried: None,
                todo: Vec::new(),
                is_kept: false,
            }),
        };
        self.begin();
    }

    /// Gives a generation the steps that each start begins with.
    pub(crate) fn begin(&mut self) {
        if let Power::On(generation) = &mut self.power {
            generation.todo = vec![Todo::TakeUpRecord, Todo::Decide];
            generation.tried = None;
            generation.is_kept = false;
        }
    }

    pub(crate) fn upgrade(&mut self, quality: Quality, way: Way) {
        self.versions.push(quality);
        let to = Number::try_from(self.versions.len()).unwrap();
        let Power::On(generation) = &mut self.power else {
            return;
        };
        let record = UpgradeRecord {
            upgrade: PendingUpgrade {
                from: version(generation.version),
                to: version(to),
                ..PendingUpgrade::default()
            },
            ..UpgradeRecord::default()
        };
        let record = serde_json::to_string(&record).unwrap();
        generation.todo = vec![Todo::Unstage, Todo::Add(to), Todo::SaveRecord(record)];
        generation.todo.extend(match way {
            Way::Soft => vec![Todo::HandOver(to), Todo::Next(to)],
            Way::Reboot => vec![Todo::Reboot],
        });
    }

    pub(crate) fn step(&mut self) {
        let Power::On(mut generation) = self.power.clone() else {
            return;
        };
        let todo = generation.todo.remove(0);
        let first = self.carry_out(&mut generation, todo);
        // What ends this generation has put another one in its place, or nothing.
        if let Some(first) = first {
            generation.todo.splice(0..0, first);
            self.power = Power::On(generation);
        }
    }

    /// Carries one thing out. Returns what has to come before the rest; none if the generation has ended.
    fn carry_out(&mut self, generation: &mut Generation, todo: Todo) -> Option<Vec<Todo>> {
        Some(match todo {
            Todo::Write(write) => {
                write.carry_out(&mut self.disk);
                vec![]
            }
            Todo::Unstage => self.unstage(generation),
            Todo::Add(number) => self.add(generation, number),
            Todo::SaveRecord(text) => {
                let mut record: UpgradeRecord = serde_json::from_str(&text).unwrap();
                let newest = self.disk.esp().highest_order();
                let written = record.upgrade.boot_entry.or(Some(newest));
                record.upgrade.boot_entry = written;
                self.as_todo(replace(RECORD, serde_json::to_vec(&record).unwrap()))
            }
            Todo::RemoveRecord => self.as_todo(vec![
                Write::Remove(RECORD.to_owned()),
                Write::SyncFolder(folder(RECORD).to_owned()),
            ]),
            Todo::Reboot => {
                self.disk = self.disk.after_a_cut(false);
                self.power = Power::Off;
                return None;
            }
            Todo::HandOver(to) => {
                generation.handover = Some(Some(to));
                vec![]
            }
            Todo::Next(to) => return self.next_generation(generation, to),
            Todo::TakeUpRecord => self.take_up_record(generation),
            Todo::Decide => self.decide(generation),
            Todo::TellHealthy => {
                if self.quality(generation.version) != Quality::Good {
                    self.breaks("an unhealthy version is kept");
                }
                generation.held = None;
                generation.is_kept = true;
                vec![]
            }
            Todo::KeepHandover => {
                generation.handover = Some(None);
                vec![]
            }
            Todo::Finish { gives_way, .. } if gives_way && self.disk.record().is_some() => vec![],
            Todo::Finish { order, .. } => {
                let order = match self.mistake {
                    Some(Mistake::BlessesNewest) => Some(self.disk.esp().highest_order()),
                    _ => order,
                };
                let bless = order.map(Todo::Bless).into_iter();
                bless.chain([Todo::RemoveRecord]).collect()
            }
            Todo::Bless(order) => self.bless(generation, order),
            Todo::Forget(order) => self.forget(generation, order),
            Todo::GiveUp => return self.go_back(generation),
            Todo::Acknowledge(config) => {
                self.config = config;
                vec![]
            }
        })
    }

    fn as_todo(&self, writes: Vec<Write>) -> Vec<Todo> {
        with(self.mistake, writes)
    }

    fn unstage(&self, generation: &Generation) -> Vec<Todo> {
        match self.disk.record() {
            Some(record) if record.upgrade.boot_entry != Some(generation.booted) => {
                let forget = record.upgrade.boot_entry.map(Todo::Forget).into_iter();
                forget.chain([Todo::RemoveRecord]).collect()
            }
            _ => vec![],
        }
    }

    fn add(&self, generation: &mut Generation, number: Number) -> Vec<Todo> {
        let new = NewVersion {
            version: version(number).parse().unwrap(),
            uki: FileDigest::of(&uki(number)),
        };
        let running = Some(generation.booted);
        match instar_esp::add(&self.disk.esp(), &new, running, DEFAULT_SLOTS) {
            Ok(plan) => self.as_todo(writes(&plan, number)),
            Err(_) => {
                generation.todo.clear();
                vec![]
            }
        }
    }

    fn bless(&self, generation: &mut Generation, order: u32) -> Vec<Todo> {
        let (esp, runs) = (self.disk.esp(), version(generation.version));
        let is_other = |entry: &instar_esp::Entry| {
            !entry.name.is_blessed() && entry.name.version.to_string() != runs
        };
        let is_refused = esp.of_order(order).is_some_and(is_other)
            && self.mistake != Some(Mistake::BlessesNewest);
        match instar_esp::bless(&esp, order) {
            Ok(plan) if !is_refused => self.as_todo(writes(&plan, generation.version)),
            _ => {
                generation.todo.clear();
                vec![]
            }
        }
    }

    fn forget(&self, generation: &mut Generation, order: u32) -> Vec<Todo> {
        let esp = self.disk.esp();
        if esp.of_order(order).is_none() {
            return vec![];
        }
        match instar_esp::forget(&esp, order) {
            Ok(plan) => self.as_todo(writes(&plan, generation.version)),
            Err(_) => {
                // The error is told; a boot goes on, and anything else ends.
                let decide = generation.todo.iter().position(|it| *it == Todo::Decide);
                let end = decide.unwrap_or(generation.todo.len());
                generation.todo.drain(..end);
                vec![]
            }
        }
    }

    /// init holds the generation before until the next one is healthy.
    fn next_generation(&mut self, before: &Generation, to: Number) -> Option<Vec<Todo>> {
        let next = Generation {
            version: to,
            start: Start::Next,
            held: Some(before.version),
            ..before.clone()
        };
        if self.quality(to) == Quality::Dead {
            return self.go_back(&next);
        }
        self.power = Power::On(next);
        self.begin();
        None
    }

    fn go_back(&mut self, from: &Generation) -> Option<Vec<Todo>> {
        match from.held {
            Some(held) => {
                self.power = Power::On(Generation {
                    version: held,
                    start: Start::Rollback,
                    held: None,
                    ..from.clone()
                });
                self.begin();
            }
            None => self.breaks("there is no generation to go back to"),
        }
        None
    }

    fn early(generation: &Generation) -> EarlyStanding {
        let handover = generation.handover.map(|under_way| Handover {
            upgrade: under_way.map(|to| PendingUpgrade {
                to: version(to),
                ..PendingUpgrade::default()
            }),
            ..Handover::default()
        });
        let handed_over = HandedOver::of(handover.as_ref(), &version(generation.version));
        let counter = match trial::depends_on_loader(generation.start.into(), handed_over) {
            true => Self::counter(generation),
            false => Counter::NotCounted,
        };
        EarlyStanding::of(generation.start.into(), handed_over, counter)
    }

    fn counter(generation: &Generation) -> Counter {
        match generation.is_counted {
            true => Counter::Counted,
            false => Counter::NotCounted,
        }
    }

    fn take_up_record(&self, generation: &mut Generation) -> Vec<Todo> {
        let Some(record) = self.disk.record() else {
            return vec![];
        };
        let order = record.upgrade.boot_entry;
        let remove = vec![Todo::RemoveRecord];
        let give_up = order.map(Todo::Forget).into_iter().chain(remove.clone());
        match Self::early(generation).record_step(generation.start.into()) {
            RecordStep::Leave => vec![],
            RecordStep::GiveUp => give_up.collect(),
            RecordStep::Load => {
                let esp = self.disk.esp();
                let entry =
                    order.map_or(RecordedEntry::NotNamed, |order| match esp.of_order(order) {
                        None => RecordedEntry::Gone,
                        Some(entry) if entry.name.is_blessed() => RecordedEntry::Blessed,
                        Some(_) => RecordedEntry::Counting,
                    });
                let booted = BootedEntry::of(Some(generation.booted), order);
                let names_running = record.upgrade.to == version(generation.version);
                match RecordedUpgrade::of(entry, booted, names_running) {
                    RecordedUpgrade::OnTrial => {
                        generation.tried = Some(serde_json::to_string(&record).unwrap());
                        vec![]
                    }
                    RecordedUpgrade::TakenBack | RecordedUpgrade::Kept => remove,
                    RecordedUpgrade::Failed => give_up.collect(),
                }
            }
        }
    }

    /// The record of the running version if the loader counts its start.
    fn of_counted_start(&self, generation: &Generation) -> Option<UpgradeRecord> {
        let esp = self.disk.esp();
        let booted = esp.of_order(generation.booted);
        let runs = version(generation.version);
        let now = match booted {
            _ if generation.start == Start::Boot => EntryNow::AsBooted,
            None => EntryNow::Gone,
            Some(entry) if entry.name.version.to_string() != runs => EntryNow::OfAnotherVersion,
            Some(entry) if entry.name.is_blessed() => EntryNow::Blessed,
            Some(_) => EntryNow::Counting,
        };
        if !trial::is_counted(Self::counter(generation), now) {
            return None;
        }
        let order = Some(generation.booted);
        let recorded = self.disk.record();
        let recorded = recorded.filter(|record| record.upgrade.boot_entry == order);
        Some(recorded.unwrap_or_else(|| UpgradeRecord {
            upgrade: PendingUpgrade {
                to: runs,
                boot_entry: order,
                ..PendingUpgrade::default()
            },
            ..UpgradeRecord::default()
        }))
    }

    fn decide(&self, generation: &Generation) -> Vec<Todo> {
        let tried = generation.tried.as_ref();
        let record = match tried.map(|text| serde_json::from_str(text).unwrap()) {
            None if trial::is_from_the_loader(generation.start.into()) => {
                self.of_counted_start(generation)
            }
            record => record,
        };
        let handover = Handover {
            upgrade: generation.handover.flatten().map(|to| PendingUpgrade {
                to: version(to),
                boot_entry: Some(self.disk.esp().highest_order()),
                ..PendingUpgrade::default()
            }),
            ..Handover::default()
        };
        let standing = Standing::of(Self::early(generation), &handover, record);
        let outcome = match self.quality(generation.version) {
            Quality::Good => Ok(()),
            _ if self.mistake == Some(Mistake::NoGate) => Ok(()),
            Quality::Bad | Quality::Dead => Err("its gate did not open".to_owned()),
        };
        let keep = |bless: Bless| {
            let order = bless.order(Some(generation.booted));
            let gives_way = bless.gives_way_to_a_record();
            let finish = Todo::Finish { gives_way, order };
            vec![Todo::TellHealthy, Todo::KeepHandover, finish]
        };
        match standing.next(outcome) {
            Next::Commit(commit) => keep(commit.bless),
            Next::StayUp { .. } => keep(Bless::BootedUnlessUnderWay),
            Next::GiveUp { .. } => vec![Todo::GiveUp],
            Next::TryAgain { mut record, reason } => {
                record.failures.push(reason);
                let record = serde_json::to_string(&record).unwrap();
                vec![Todo::SaveRecord(record), Todo::Reboot]
            }
        }
    }

    pub(crate) fn is_at_rest(&self) -> bool {
        matches!(&self.power, Power::On(generation) if generation.todo.is_empty())
    }
}

/// The writes as things to do, with a mistake in them.
pub(crate) fn with(mistake: Option<Mistake>, mut writes: Vec<Write>) -> Vec<Todo> {
    match mistake {
        Some(Mistake::EntryFirst) => {
            let is_uki = |write: &Write| write.path().starts_with("EFI/instar");
            let (ukis, rest): (Vec<_>, Vec<_>) = writes.into_iter().partition(is_uki);
            writes = rest.into_iter().chain(ukis).collect();
        }
        Some(Mistake::NoFlush) => writes.retain(|write| !matches!(write, Write::SyncFile(_))),
        _ => {}
    }
    writes.into_iter().map(Todo::Write).collect()
}
