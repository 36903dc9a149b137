//! The boot of an installed machine: the versions on the EFI system partition, and the firmware's entries for the loader.
//!
//! The partition is mounted only for the time of a change. Every change is a plan of the crate `esp`, which survives a power cut at any
//! of its writes.

mod boot_order;
mod booted;
mod efi_variables;
mod kept_versions;
mod kexec;
mod medium;
mod next_loader;
mod partition;
mod secure_boot;

pub use boot_order::{When, keep_boot_entries};
pub use booted::{Booted, booted, started_from};
pub use efi_variables::{EfiError, is_uefi};
pub use kept_versions::{KeptVersion, Unbootable, check_version, kept_versions};
pub use kexec::{KexecError, load_next};
pub use medium::{Medium, MediumError};
pub use next_loader::{
    forget_next_loader, start_next_loader_once, take_next_loader, was_started_by_next_loader,
};
pub use partition::{
    EspError, MountedEsp, RefusedEntry, bless, description, forget, free_lost_clusters,
    is_installed, other, prefer_other, state,
};
pub use secure_boot::{Revocations, SecureBoot, SecureBootError, secure_boot};
