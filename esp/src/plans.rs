//! The plans: each change is computed from the state of the partition.

use std::collections::BTreeSet;

use instar_values::Version;
use thiserror::Error;

use crate::{
    entry::{Entry, FileDigest},
    name::{EntryName, Tries},
    plan::{Asset, Content, Plan},
    slot::{Slot, Slots},
    state::State,
    volume::paths,
};

/// The loader's configuration. Only the order may choose an entry: with `default` the loader takes exhausted ones too.
const LOADER_CONFIG: &str = "timeout 0\neditor no\nauto-entries no\nauto-firmware no\n";
/// The setting for keys, if there are any (loader.conf(5)): enrol them on every machine in setup mode,
const ENROL_EVERYWHERE: &str = "secure-boot-enroll force";
/// or in virtual machines alone.
const ENROL_WHERE_SAFE: &str = "secure-boot-enroll if-safe";

/// A version to add to the partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewVersion {
    /// The version.
    pub version: Version,
    /// The digest and size of its UKI.
    pub uki: FileDigest,
}

/// The content for an empty partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSystem {
    /// The first version.
    pub version: NewVersion,
    /// systemd-boot.
    pub loader: FileDigest,
    /// Signed variables (`PK.auth` and so on) that the loader enrols where the machine is in setup mode: file name and content.
    pub keys: Vec<(String, Vec<u8>)>,
    /// Whether the loader enrols them on real machines as well, without being asked. On some, firmware that no longer trusts its maker's
    /// keys does not start its own devices.
    pub enrol_everywhere: bool,
}

/// The value of [`NewSystem::enrol_everywhere`] that a loader's configuration was made with.
#[must_use]
pub fn enrols_everywhere(loader_config: &str) -> bool {
    loader_config.lines().any(|line| line == ENROL_EVERYWHERE)
}

/// Why there is no plan.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Refused {
    /// The partition is not empty.
    #[error("the EFI system partition is in use by {0}: upgrade it, or make it anew")]
    InUse(String),
    /// Every slot holds a version that is needed.
    #[error(
        "no slot is free: all {0} hold the version that runs or the last known good one; wait until the running one is healthy"
    )]
    NoSlot(u8),
    /// The partition is too small for the new version.
    #[error(
        "the EFI system partition has room for {has} bytes, {needs} are needed: install with a larger one, or with fewer versions"
    )]
    NoRoom {
        /// Size of the UKI and its entry, in bytes.
        needs: u64,
        /// Free space once the slot is empty, in bytes.
        has: u64,
    },
    /// No entry has this order.
    #[error("there is no boot entry of order {0}")]
    NoEntry(u32),
    /// The entry is the last known good one: without it there would be no fallback.
    #[error("{0} is the last known good version")]
    LastKnownGood(EntryName),
    /// There is no loader to replace, or no new one.
    #[error(
        "the EFI system partition lacks {} or {}",
        paths::LOADER,
        paths::NEW_LOADER
    )]
    NoLoader,
    /// The highest possible order is in use.
    #[error("boot entries are numbered up to their limit: install anew")]
    OrdersUsedUp,
}

/// Fills an empty partition. The version is blessed: there is no other to fall back to. The loader comes last: one without an entry would
/// keep the firmware from the installation medium. So would half a loader, which the firmware may well start: it replaces an empty file
/// once it is whole.
///
/// # Errors
/// There are entries or UKIs, or a loader.
pub fn install(state: &State, system: &NewSystem) -> Result<Plan, Refused> {
    if let Some(found) = state.entries.first() {
        return Err(Refused::InUse(found.name.to_string()));
    }
    if let Some(slot) = state.ukis.keys().next() {
        return Err(Refused::InUse(slot.uki_path()));
    }
    if state.has_loader {
        return Err(Refused::InUse(paths::LOADER.to_owned()));
    }
    let mut plan = Plan::default();
    for folder in ["EFI", paths::BOOT, paths::UKIS, "loader", paths::ENTRIES] {
        plan.make_folder(folder);
    }
    let mut config = LOADER_CONFIG.to_owned();
    if !system.keys.is_empty() {
        plan.make_folder("loader/keys");
        plan.make_folder(paths::KEYS);
        for (name, content) in &system.keys {
            plan.create(
                &format!("{}/{name}", paths::KEYS),
                Content::Bytes(content.clone()),
            );
        }
        config += match system.enrol_everywhere {
            true => ENROL_EVERYWHERE,
            false => ENROL_WHERE_SAFE,
        };
        config.push('\n');
    }
    plan.create(paths::LOADER_CONFIG, Content::Bytes(config.into_bytes()));
    let new = &system.version;
    write_uki(&mut plan, Slot::FIRST, new.uki);
    let entry = Entry {
        name: EntryName {
            order: 1,
            version: new.version.clone(),
            tries: None,
        },
        slot: Slot::FIRST,
        uki: new.uki,
    };
    write_entry(&mut plan, &entry);
    plan.create(paths::LOADER, Content::Bytes(Vec::new()));
    write_loader(&mut plan, system.loader);
    Ok(plan)
}

/// Puts a new version into a slot that is neither that of the last known good version nor of the running one, to be tried at the next
/// boots. `running` is the order of the entry that was booted, if it is known.
///
/// # Errors
/// No slot is free, or it has too little room.
pub fn add(
    state: &State,
    new: &NewVersion,
    running: Option<u32>,
    slots: Slots,
) -> Result<Plan, Refused> {
    let needed = needed(state, running);
    let slot = slots
        .iter()
        .filter(|slot| !needed.contains(slot))
        .min_by_key(|slot| worth(state, *slot))
        .ok_or(Refused::NoSlot(slots.count()))?;

    // Room for the entry, and for the space that files take beyond their size.
    const MARGIN: u64 = 128 << 10;
    let needs = new.uki.bytes + MARGIN;
    let freed: u64 = orphans(state)
        .into_iter()
        .chain([slot])
        .filter_map(|slot| state.ukis.get(&slot))
        .sum();
    let has = state.free_bytes + freed;
    if needs > has {
        return Err(Refused::NoRoom { needs, has });
    }

    // Whoever removed an entry of this slot may have died before the removal was flushed: the entry would come back after a power cut, and
    // lead to the new version's half of a UKI.
    let mut plan = Plan::default();
    plan.sync_folder(paths::ENTRIES);
    plan.steps.extend(tidy(state).steps);
    let entries = state.whole_entries().filter(|entry| entry.slot == slot);
    let in_the_way: Vec<_> = entries.filter(|entry| !is_doubled(state, entry)).collect();
    for entry in &in_the_way {
        plan.remove(&entry.name.path());
    }
    if !in_the_way.is_empty() && state.ukis.contains_key(&slot) {
        plan.remove(&slot.uki_path());
    }
    write_uki(&mut plan, slot, new.uki);
    write_entry(
        &mut plan,
        &Entry {
            name: EntryName {
                order: next_order(state)?,
                version: new.version.clone(),
                tries: Some(Tries::NEW),
            },
            slot,
            uki: new.uki,
        },
    );
    Ok(plan)
}

/// Removes the counter of the entry with this order: it was healthy. An empty plan if it has none.
///
/// # Errors
/// There is no such entry.
pub fn bless(state: &State, order: u32) -> Result<Plan, Refused> {
    let entry = state.of_order(order).ok_or(Refused::NoEntry(order))?;
    let mut plan = tidy(state);
    if !entry.name.is_blessed() {
        let blessed = Entry {
            name: entry.name.blessed(),
            ..entry.clone()
        };
        write_entry(&mut plan, &blessed);
        // There may be two if the power went while the loader counted.
        for counted in state
            .whole_entries()
            .filter(|other| other.name.blessed() == blessed.name)
        {
            plan.remove(&counted.name.path());
        }
    }
    Ok(plan)
}

/// Makes the version of this order boot next, by an entry that comes before all others. It is tried like a new version, unless it is the
/// last known good one anyway.
///
/// # Errors
/// There is no such entry.
pub fn prefer(state: &State, order: u32) -> Result<Plan, Refused> {
    let entry = state.of_order(order).ok_or(Refused::NoEntry(order))?;
    let is_good = state.last_known_good() == Some(entry);
    let mut plan = tidy(state);
    let preferred = Entry {
        name: EntryName {
            order: next_order(state)?,
            version: entry.name.version.clone(),
            tries: (!is_good).then_some(Tries::NEW),
        },
        ..entry.clone()
    };
    write_entry(&mut plan, &preferred);
    for old in state.whole_entries().filter(|old| old.slot == entry.slot) {
        if !is_doubled(state, old) {
            plan.remove(&old.name.path());
        }
    }
    Ok(plan)
}

/// Removes the version of this order: its entry, then its UKI.
///
/// # Errors
/// There is no such entry, or it is the last known good one.
pub fn forget(state: &State, order: u32) -> Result<Plan, Refused> {
    let entry = state.of_order(order).ok_or(Refused::NoEntry(order))?;
    if state.last_known_good().map(|good| good.slot) == Some(entry.slot) {
        return Err(Refused::LastKnownGood(entry.name.clone()));
    }
    let mut plan = tidy(state);
    for old in state.whole_entries().filter(|old| old.slot == entry.slot) {
        if !is_doubled(state, old) {
            plan.remove(&old.name.path());
        }
    }
    if state.ukis.contains_key(&entry.slot) {
        plan.remove(&entry.slot.uki_path());
    }
    Ok(plan)
}

/// Puts another systemd-boot beside the present one, for the firmware to start once (see [`crate::boot_order::start_once`]). The next plan
/// but [`take_loader`] removes it.
///
/// # Errors
/// There is no loader: see [`install`].
pub fn offer_loader(state: &State, loader: FileDigest) -> Result<Plan, Refused> {
    if !state.has_loader {
        return Err(Refused::NoLoader);
    }
    let mut plan = tidy(state);
    plan.create(paths::NEW_LOADER, Content::Asset(Asset::Loader, loader));
    Ok(plan)
}

/// Replaces the loader by the offered one, which has started a machine.
///
/// # Errors
/// No loader was offered.
pub fn take_loader(state: &State) -> Result<Plan, Refused> {
    if !state.has_loader || !state.has_new_loader {
        return Err(Refused::NoLoader);
    }
    let mut plan = Plan::default();
    plan.replace(paths::NEW_LOADER, paths::LOADER);
    Ok(plan)
}

/// Removes the leftovers of interrupted plans: parts of entries, counted entries that were blessed, UKIs and a loader that nothing refers
/// to. Every other plan begins with it.
#[must_use]
pub fn tidy(state: &State) -> Plan {
    let mut plan = Plan::default();
    for found in &state.entries {
        let left_over = match &found.entry {
            Err(_) => true,
            Ok(entry) => is_doubled(state, entry),
        };
        if left_over {
            plan.remove(&found.name.path());
        }
    }
    for slot in orphans(state) {
        plan.remove(&slot.uki_path());
    }
    if state.has_new_loader {
        plan.remove(paths::NEW_LOADER);
    }
    plan
}

/// Whether this entry still has a counter while a blessed one of the same name exists.
fn is_doubled(state: &State, entry: &Entry) -> bool {
    !entry.name.is_blessed()
        && state
            .whole_entries()
            .any(|other| other.name == entry.name.blessed())
}

/// UKIs without an entry.
fn orphans(state: &State) -> Vec<Slot> {
    let named: BTreeSet<Slot> = state.whole_entries().map(|entry| entry.slot).collect();
    state
        .ukis
        .keys()
        .filter(|slot| !named.contains(slot))
        .copied()
        .collect()
}

/// The slots that must be kept: the last known good version's and the running one's; if neither is known, that of the version that would
/// boot next.
fn needed(state: &State, running: Option<u32>) -> BTreeSet<Slot> {
    let running = running.and_then(|order| state.of_order(order));
    let known: BTreeSet<Slot> = state
        .last_known_good()
        .into_iter()
        .chain(running)
        .map(|entry| entry.slot)
        .collect();
    if known.is_empty() {
        return state
            .next_boot()
            .map(|entry| entry.slot)
            .into_iter()
            .collect();
    }
    known
}

/// The loss if a slot is overwritten: nothing, a version that failed all its tries, or the version of this order.
fn worth(state: &State, slot: Slot) -> (bool, u32) {
    let entries = state.whole_entries().filter(|entry| entry.slot == slot);
    entries
        .map(|entry| {
            let failed = entry.name.tries.is_some_and(|tries| tries.exhausted());
            (!failed, entry.name.order)
        })
        .max()
        .unwrap_or((false, 0))
}

fn next_order(state: &State) -> Result<u32, Refused> {
    // The largest order that a name can have: see `EntryName`.
    state
        .highest_order()
        .checked_add(1)
        .filter(|order| i32::try_from(*order).is_ok())
        .ok_or(Refused::OrdersUsedUp)
}

fn write_uki(plan: &mut Plan, slot: Slot, uki: FileDigest) {
    plan.create(&slot.uki_path(), Content::Asset(Asset::Uki, uki));
}

/// Replaces the present loader.
fn write_loader(plan: &mut Plan, loader: FileDigest) {
    plan.create(paths::NEW_LOADER, Content::Asset(Asset::Loader, loader));
    plan.replace(paths::NEW_LOADER, paths::LOADER);
}

fn write_entry(plan: &mut Plan, entry: &Entry) {
    plan.create(
        &entry.name.path(),
        Content::Bytes(entry.text().into_bytes()),
    );
}
