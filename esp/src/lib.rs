//! The EFI system partition: versions in slots, boot entries, and changes to them that survive a power cut.
//!
//! ```text
//! EFI/BOOT/BOOTX64.EFI                      systemd-boot, where every firmware looks
//! EFI/instar/a.efi  b.efi  c.efi            slots: one unified kernel image (UKI) each
//! EFI/instar/image.json                     what the installer image of a medium's version says of itself
//! loader/loader.conf
//! loader/entries/instar-7-v0.2.0+3.conf     order 7, version v0.2.0, three tries left: names its slot and that UKI's digest
//! loader/entries/instar-6-v0.1.0.conf       no counter: a blessed version, which was healthy once
//! ```
//!
//! systemd-boot takes the entry with the highest order that has tries left, and takes one try off its name before it starts it. UKIs are
//! not in `EFI/Linux`, where it would find them without an entry, and so without a counter. No entry has a sort key: the file's name alone
//! decides, and a file whose content was lost is no entry.
//!
//! Reading gives a [`State`]; a change is a [`Plan`], computed from the state as a value (it can be shown as a dry run) and carried out
//! step by step on a [`Volume`]. An invariant holds for every plan, at every step and with every write since the last flush lost: the entry
//! that the loader takes has a whole UKI. Linux's vfat loses files in a rename to a new name, so no plan renames to one.
//!
//! The decision: a change is a value before the first write. Functions that write as they go were the other choice: their state after a
//! power cut is known only for the cuts that were tried, while a plan's tests cut it after each of its steps.

#![forbid(unsafe_code)]

pub mod boot_order;
mod description;
mod entry;
pub mod loader;
mod lost_clusters;
mod mounted;
mod name;
mod plan;
mod plans;
mod slot;
mod state;
mod volume;

pub use description::{describe, description};
pub use entry::{Entry, FileDigest, NotAnEntry};
pub use lost_clusters::{NotFreed, free_lost_clusters};
pub use mounted::Mounted;
pub use name::{EntryName, NotAnEntryName, TRIES, Tries};
pub use plan::{Asset, Cause, Content, Failed, Plan, Step, perform};
pub use plans::{
    NewSystem, NewVersion, Refused, add, bless, enrols_everywhere, forget, install, offer_loader,
    prefer, take_loader, tidy,
};
pub use slot::{DEFAULT_SLOTS, Slot, Slots};
pub use state::{Found, State};
pub use volume::{Volume, paths};

/// The partition's name in the GPT.
pub const LABEL: &str = "EFI";

/// The default size of the partition: three UKIs of the 40 MiB that a kernel and its initramfs may have.
pub const DEFAULT_BYTES: u64 = 128 << 20;
