//! One machine, explored whole within bounds: upgrades of both kinds to versions that work and that do not, under power cuts and crashes of
//! machined at every step.
//!
//! The machine of the model asks the product's own functions, on the product's own types: `upgrade::trial` decides, `instar_esp` plans each
//! change of the boot entries and says which one the loader takes. Made up are the disk, which forgets what was not flushed, the loader's
//! counting, init's way back, and the order of the steps, which is that of `sequences/upgrade.rs` and `sequences/boot.rs`.
//!
//! ```text
//!  machine  Step: the next write, flush or decision of what it does        person   Upgrade(version, way), Configure
//!  world    Cut(what was not flushed is lost, or is not), On, Crash
//! ```
//!
//! Everything but a step has a budget, so the graph has no circles, and "everything ends" can say that a state in which nothing more can
//! happen is a machine that works.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::io::{self, Cursor, Read};
use std::time::{Duration, Instant};

use instar_esp::{
    Asset, DEFAULT_SLOTS, EntryName, FileDigest, NewSystem, NewVersion, State as Esp, Volume,
    perform,
};
use machined::init_link::StartReason;
use machined::upgrade::trial::{
    self, Bless, BootedEntry, Counter, EarlyStanding, EntryNow, HandedOver, Next, RecordStep,
    RecordedEntry, RecordedUpgrade, Standing,
};
use machined::upgrade::{Handover, PendingUpgrade, UpgradeRecord};
use stateright::{Checker, Model, Property};

/// The quality of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Quality {
    Good,
    /// Its gate never opens.
    Bad,
    /// Its kernel, or its machined, hangs. A watchdog ends it.
    Dead,
}

/// How an upgrade switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Way {
    Soft,
    Reboot,
}

/// A machine that is wrong, to see that the model finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Mistake {
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
struct Budgets {
    upgrades: u8,
    cuts: u8,
    crashes: u8,
    configs: u8,
}

/// Versions by their number: v0.1.0 is 1.
type Number = u8;

fn version(number: Number) -> String {
    format!("v0.{number}.0")
}

fn number(version: &str) -> Number {
    version.split('.').nth(1).unwrap().parse().unwrap()
}

/// The files of both partitions, as programs see them and as a power cut leaves them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Disk {
    seen: BTreeMap<String, Vec<u8>>,
    /// What was flushed: of a file whose name alone was flushed, no content.
    stored: BTreeMap<String, Vec<u8>>,
    /// Files whose content was flushed.
    flushed: BTreeMap<String, Vec<u8>>,
}

const RECORD: &str = "state/upgrade.json";
const CONFIG: &str = "state/config.yaml";

fn folder(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

impl Disk {
    fn after_a_cut(&self, is_lost: bool) -> Self {
        let left = if is_lost { &self.stored } else { &self.seen };
        Self {
            seen: left.clone(),
            stored: left.clone(),
            flushed: left.clone(),
        }
    }

    fn rename(&mut self, from: &str, to: &str) {
        for files in [&mut self.seen, &mut self.flushed] {
            if let Some(content) = files.remove(from) {
                files.insert(to.to_owned(), content);
            }
        }
    }

    fn record(&self) -> Option<UpgradeRecord> {
        // A record that cannot be read is told, and nothing else comes of it.
        serde_json::from_slice(self.seen.get(RECORD)?).ok()
    }

    fn esp(&self) -> Esp {
        Esp::read(self).unwrap()
    }
}

impl Volume for Disk {
    fn list(&self, of: &str) -> io::Result<Vec<(String, u64)>> {
        let files = self.seen.iter().filter(|(path, _)| folder(path) == of);
        let name = |path: &str| path.rsplit('/').next().unwrap().to_owned();
        Ok(files
            .map(|(path, bytes)| (name(path), bytes.len() as u64))
            .collect())
    }

    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        let content = self.seen.get(path).cloned();
        content.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn read_back(&self, path: &str) -> io::Result<Box<dyn Read + '_>> {
        Ok(Box::new(Cursor::new(self.read(path)?)))
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(1 << 30)
    }

    fn make_folder(&mut self, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn create(&mut self, path: &str, content: &mut dyn Read) -> io::Result<()> {
        let mut bytes = Vec::new();
        content.read_to_end(&mut bytes)?;
        self.flushed.remove(path);
        self.seen.insert(path.to_owned(), bytes);
        Ok(())
    }

    fn sync_file(&mut self, path: &str) -> io::Result<()> {
        let content = self.read(path)?;
        if let Some(stored) = self.stored.get_mut(path) {
            stored.clone_from(&content);
        }
        self.flushed.insert(path.to_owned(), content);
        Ok(())
    }

    fn sync_folder(&mut self, of: &str) -> io::Result<()> {
        self.stored.retain(|path, _| folder(path) != of);
        for path in self.seen.keys().filter(|path| folder(path) == of) {
            let content = self.flushed.get(path).cloned().unwrap_or_default();
            self.stored.insert(path.clone(), content);
        }
        Ok(())
    }

    fn remove(&mut self, path: &str) -> io::Result<()> {
        self.seen.remove(path);
        self.flushed.remove(path);
        Ok(())
    }

    fn replace(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.rename(from, to);
        Ok(())
    }
}

/// A step of a change: `instar_esp`'s, with the contents that it takes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Write {
    Create(String, Vec<u8>),
    SyncFile(String),
    SyncFolder(String),
    Remove(String),
    Rename(String, String),
}

impl Write {
    fn path(&self) -> &str {
        match self {
            Self::Create(path, _)
            | Self::SyncFile(path)
            | Self::SyncFolder(path)
            | Self::Remove(path)
            | Self::Rename(_, path) => path,
        }
    }

    fn carry_out(&self, disk: &mut Disk) {
        let done = match self {
            Self::Create(path, bytes) => disk.create(path, &mut Cursor::new(bytes)),
            Self::SyncFile(path) => disk.sync_file(path),
            Self::SyncFolder(path) => disk.sync_folder(path),
            Self::Remove(path) => disk.remove(path),
            Self::Rename(from, to) => disk.replace(from, to),
        };
        done.unwrap();
    }
}

/// The writes of a plan. `version`: the one whose UKI it may write.
fn writes(plan: &instar_esp::Plan, version: Number) -> Vec<Write> {
    use instar_esp::{Content, Step};
    let write = |step: &Step| match step {
        Step::MakeFolder(_) | Step::Verify(..) => None,
        Step::Create(path, Content::Bytes(bytes)) => {
            Some(Write::Create(path.clone(), bytes.clone()))
        }
        Step::Create(path, Content::Asset(..)) => Some(Write::Create(path.clone(), uki(version))),
        Step::SyncFile(path) => Some(Write::SyncFile(path.clone())),
        Step::SyncFolder(path) => Some(Write::SyncFolder(path.clone())),
        Step::Remove(path) => Some(Write::Remove(path.clone())),
        Step::Replace { from, to } => Some(Write::Rename(from.clone(), to.clone())),
    };
    plan.steps.iter().filter_map(write).collect()
}

fn uki(number: Number) -> Vec<u8> {
    version(number).into_bytes()
}

/// As `base::whole_file` does it.
fn replace(path: &str, content: Vec<u8>) -> Vec<Write> {
    let temporary = format!("{path}.new");
    vec![
        Write::Create(temporary.clone(), content),
        Write::SyncFile(temporary.clone()),
        Write::Rename(temporary, path.to_owned()),
        Write::SyncFolder(folder(path).to_owned()),
    ]
}

/// What the machine does next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Todo {
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
struct Generation {
    version: Number,
    /// The order of the entry that the kernel was booted from, and whether the loader counts the start.
    booted: u32,
    is_counted: bool,
    start: Start,
    /// The hand-over at init; within, the version of an upgrade under way.
    handover: Option<Option<Number>>,
    /// The version that init goes back to.
    held: Option<Number>,
    /// The record of an upgrade that this boot finishes, as JSON.
    tried: Option<String>,
    todo: Vec<Todo>,
    is_kept: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Start {
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
enum Power {
    Off,
    /// A dead version.
    Hangs,
    On(Generation),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    disk: Disk,
    power: Power,
    /// The qualities of the versions, from the first on.
    versions: Vec<Quality>,
    left: Budgets,
    /// The config whose caller was told that it is kept.
    config: u8,
    mistake: Option<Mistake>,
    /// A broken promise, noted when it happens.
    broken: Option<&'static str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Event {
    Step,
    Upgrade(Quality, Way),
    Configure,
    Cut { is_lost: bool },
    On,
    Crash,
}

impl State {
    fn quality(&self, version: Number) -> Quality {
        self.versions[usize::from(version) - 1]
    }

    fn breaks(&mut self, promise: &'static str) {
        self.broken = self.broken.or(Some(promise));
    }

    /// What a power cut leaves boots: the entry that the loader takes has a whole UKI, and there is one that was healthy.
    fn can_boot(&self, is_lost: bool) -> Option<&'static str> {
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
    fn has_config(&self, is_lost: bool) -> bool {
        let disk = self.disk.after_a_cut(is_lost);
        let config = disk.seen.get(CONFIG);
        config.is_some_and(|it| it == &[self.config] || it == &[self.config + 1])
    }

    fn power_on(&mut self) {
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

    /// What a start begins with.
    fn begin(&mut self) {
        if let Power::On(generation) = &mut self.power {
            generation.todo = vec![Todo::TakeUpRecord, Todo::Decide];
            generation.tried = None;
            generation.is_kept = false;
        }
    }

    fn upgrade(&mut self, quality: Quality, way: Way) {
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

    fn step(&mut self) {
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

    fn is_at_rest(&self) -> bool {
        matches!(&self.power, Power::On(generation) if generation.todo.is_empty())
    }
}

/// The writes as things to do, with a mistake in them.
fn with(mistake: Option<Mistake>, mut writes: Vec<Write>) -> Vec<Todo> {
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

/// The bounds of one exploration.
#[derive(Clone, Copy)]
struct Machine {
    bounds: Budgets,
    mistake: Option<Mistake>,
}

impl Machine {
    fn installed(self) -> State {
        let first = NewSystem {
            version: NewVersion {
                version: version(1).parse().unwrap(),
                uki: FileDigest::of(&uki(1)),
            },
            loader: FileDigest::of(b"loader"),
            keys: Vec::new(),
            enrol_everywhere: false,
        };
        let mut disk = Disk::default();
        let plan = instar_esp::install(&disk.esp(), &first).unwrap();
        let asset = |asset| -> io::Result<Box<dyn Read>> {
            Ok(match asset {
                Asset::Uki => Box::new(Cursor::new(uki(1))),
                Asset::Loader => Box::new(Cursor::new(b"loader")),
            })
        };
        perform(&plan, &mut disk, asset).unwrap();
        disk.seen.insert(CONFIG.to_owned(), vec![0]);
        State {
            disk: disk.after_a_cut(false),
            power: Power::Off,
            versions: vec![Quality::Good],
            left: self.bounds,
            config: 0,
            mistake: self.mistake,
            broken: None,
        }
    }

    fn events(self, state: &State) -> Vec<Event> {
        let mut events = Vec::new();
        let left = state.left;
        match &state.power {
            Power::Off => return vec![Event::On],
            // The watchdog costs no budget: tries do.
            Power::Hangs => return vec![Event::Cut { is_lost: true }],
            Power::On(generation) if generation.todo.is_empty() => {
                if left.upgrades > 0 {
                    for quality in [Quality::Good, Quality::Bad, Quality::Dead] {
                        events.extend(
                            [Way::Soft, Way::Reboot].map(|way| Event::Upgrade(quality, way)),
                        );
                    }
                }
                if left.configs > 0 {
                    events.push(Event::Configure);
                }
            }
            Power::On(_) => events.push(Event::Step),
        }
        if left.cuts > 0 {
            events.extend([true, false].map(|is_lost| Event::Cut { is_lost }));
        }
        if left.crashes > 0 {
            events.push(Event::Crash);
        }
        events
    }
}

impl Model for Machine {
    type State = State;
    type Action = Event;

    fn init_states(&self) -> Vec<State> {
        vec![self.installed()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Event>) {
        actions.extend(self.events(state));
    }

    fn next_state(&self, state: &State, event: Event) -> Option<State> {
        let mut next = state.clone();
        match event {
            Event::Step => next.step(),
            Event::On => next.power_on(),
            Event::Upgrade(quality, way) => {
                next.left.upgrades -= 1;
                next.upgrade(quality, way);
            }
            Event::Configure => {
                next.left.configs -= 1;
                let config = next.config + 1;
                let writes = match self.mistake {
                    Some(Mistake::ConfigInPlace) => vec![
                        Write::Create(CONFIG.to_owned(), vec![]),
                        Write::SyncFile(CONFIG.to_owned()),
                        Write::Create(CONFIG.to_owned(), vec![config]),
                        Write::SyncFile(CONFIG.to_owned()),
                    ],
                    _ => replace(CONFIG, vec![config]),
                };
                if let Power::On(generation) = &mut next.power {
                    let writes = with(self.mistake, writes).into_iter();
                    generation.todo = writes.chain([Todo::Acknowledge(config)]).collect();
                }
            }
            Event::Cut { is_lost } => {
                if next.power != Power::Hangs {
                    next.left.cuts -= 1;
                }
                next.disk = next.disk.after_a_cut(is_lost);
                next.power = Power::Off;
            }
            Event::Crash => {
                next.left.crashes -= 1;
                if let Power::On(generation) = &mut next.power {
                    generation.start = Start::Restart;
                }
                next.begin();
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(BOOTS, |_, state: &State| {
                [true, false]
                    .iter()
                    .all(|lost| state.can_boot(*lost).is_none())
            }),
            Property::always(NONE_UNHEALTHY, |_, state: &State| state.broken.is_none()),
            Property::always(CONFIG_STAYS, |_, state: &State| {
                [true, false].iter().all(|lost| state.has_config(*lost))
            }),
            Property::always(ENDS, |_, state: &State| {
                let Power::On(generation) = &state.power else {
                    return true;
                };
                !state.is_at_rest()
                    || generation.is_kept && state.quality(generation.version) == Quality::Good
            }),
            Property::sometimes(LAST_IS_KEPT, |machine: &Self, state: &State| {
                let Power::On(generation) = &state.power else {
                    return false;
                };
                generation.is_kept && generation.version == 1 + machine.bounds.upgrades
            }),
        ]
    }
}

const BOOTS: &str = "a version that boots always exists";
const NONE_UNHEALTHY: &str = "an unhealthy version is never kept";
const CONFIG_STAYS: &str = "the config is never lost";
const ENDS: &str = "everything ends in a version that works";
const LAST_IS_KEPT: &str = "the last upgrade may be kept";

/// Limit on all explorations together.
const LIMIT: Duration = Duration::from_secs(120);

fn explore(bounds: Budgets) {
    let begin = Instant::now();
    let machine = Machine {
        bounds,
        mistake: None,
    };
    let checker = machine.checker().threads(2).spawn_bfs().join();
    println!(
        "{bounds:?}: {} states, {} of them distinct, at most {} steps deep, {:.1} s",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth(),
        begin.elapsed().as_secs_f64()
    );
    for (name, path) in checker.discoveries() {
        let actions = path.clone().into_actions();
        let last = path.last_state();
        let broken = [true, false].map(|lost| last.can_boot(lost));
        if name != LAST_IS_KEPT {
            println!(
                "{name}: {:?} {broken:?}\n{actions:#?}\n{:#?}",
                last.broken, last.power
            );
        }
    }
    checker.assert_properties();
    assert!(begin.elapsed() < LIMIT, "{:?}", begin.elapsed());
}

#[test]
fn a_machine_with_a_mistake_breaks_its_promises() {
    let bounds = |upgrades, crashes| Budgets {
        upgrades,
        cuts: 1,
        crashes,
        configs: 1,
    };
    for (mistake, promise, bounds) in [
        // Seen when a slot is written to again.
        (Mistake::EntryFirst, BOOTS, bounds(2, 1)),
        (Mistake::NoFlush, CONFIG_STAYS, bounds(1, 0)),
        (Mistake::NoGate, NONE_UNHEALTHY, bounds(1, 0)),
        (Mistake::BlessesNewest, BOOTS, bounds(1, 1)),
        (Mistake::ConfigInPlace, CONFIG_STAYS, bounds(0, 0)),
    ] {
        let mistake = Some(mistake);
        let checker = Machine { bounds, mistake }.checker().spawn_bfs().join();
        let found = checker.discoveries();
        println!("{mistake:?}: {:?}", found.keys().collect::<Vec<_>>());
        assert!(found.contains_key(promise), "{mistake:?} was not found");
    }
}

#[test]
fn two_upgrades_with_cuts_and_a_crash() {
    explore(Budgets {
        upgrades: 2,
        cuts: 2,
        crashes: 1,
        configs: 0,
    });
}

#[test]
fn three_upgrades_and_a_cut() {
    explore(Budgets {
        upgrades: 3,
        cuts: 1,
        crashes: 0,
        configs: 0,
    });
}

#[test]
fn an_upgrade_and_a_config_with_cuts_and_crashes() {
    explore(Budgets {
        upgrades: 1,
        cuts: 3,
        crashes: 2,
        configs: 1,
    });
}
