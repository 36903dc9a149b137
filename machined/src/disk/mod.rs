//! The machine's disks: finds them, recognizes their contents, and mounts STATE and EPHEMERAL of the one that Instar owns.
//!
//! Discovery opens no disk, and probing opens disks for reading only. A config names at most one disk to own. The changes to it are
//! computed as a [`DiskPlan`] (its `Display` is the dry run), and only [`apply`](apply::apply) writes them, to that disk alone.
//! A disk that holds something else is refused unless the config says to wipe it.
//!
//! ```no_run
//! # async fn boot() -> Result<(), machined::disk::OwnedDiskError> {
//! use machined::disk::{DiskSpec, OwnedDisk, Paths, Takeover};
//! use machined::values::DiskSelector;
//! let disk = OwnedDisk::new(Paths::default());
//! let spec = DiskSpec { disk: Some(DiskSelector::Path("/dev/vda".into())), takeover: Takeover::Refuse };
//! disk.mount(&spec).await?;
//! # Ok(())
//! # }
//! ```

mod apply;
mod clean;
mod contents;
mod discover;
mod error;
mod find;
mod holders;
mod layout;
mod memory;
mod owned;
mod plan;
mod probe;
mod readers;
mod selector;
mod table;
mod tools;
mod user_volume;
mod volume;
mod wipe;
mod wipe_other;
mod write_table;

pub(crate) use apply::open_exclusively;
pub use apply::{ApplyError, apply, partition_path};
pub use discover::{DevPath, DiscoverError, Disk, discover};
pub use error::OwnedDiskError;
pub use holders::{Holder, holders};
pub use layout::{LAYOUT, Label, PartitionSize, PartitionSpec};
pub use owned::{
    DiskSpec, EPHEMERAL_RECORDS, EfiPartition, OwnedDisk, OwnedDiskStatus, Paths, STATE,
};
pub use plan::{Action, DiskPlan, PlanError, PlannedPartition, Takeover, plan};
pub use probe::{Content, ProbeError, Signature, probe, probe_file, probe_partition};
pub use readers::{Readers, Reading};
pub use selector::{SelectError, check as check_selector};
pub use table::{Partition, Table};
pub use tools::ToolError;
pub use user_volume::{UserVolumeError, make_user_volume};
pub use volume::Users;
pub use wipe::{Wipe, WipeError};
pub use wipe_other::{WipeMethod, WipeOrder, WipeOtherError, wipe_others};
