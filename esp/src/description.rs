//! What the installer image of a version says of itself. A medium carries it beside the version, and an installation from the medium copies it: the
//! machine has no other record of that image.
//!
//! It is a text that nobody here reads. No boot depends on it.

use std::io;

use crate::{
    plan::{Content, Plan},
    volume::{Volume, paths},
};

/// Size limit, in bytes.
const LARGEST: u64 = 64 << 10;

/// Puts a description onto the partition, in place of another one. The folder of the UKIs must be there.
#[must_use]
pub fn describe(description: Vec<u8>) -> Plan {
    let mut plan = Plan::default();
    plan.remove(paths::DESCRIPTION);
    plan.create(paths::DESCRIPTION, Content::Bytes(description));
    plan
}

/// The description; `None` if there is none, or it is too large to be one.
///
/// # Errors
/// The partition cannot be read.
pub fn description(volume: &impl Volume) -> io::Result<Option<Vec<u8>>> {
    let files = volume.list(paths::UKIS)?;
    let is_it = |name: &str| format!("{}/{name}", paths::UKIS) == paths::DESCRIPTION;
    let found = files.iter().find(|(name, _)| is_it(name));
    match found {
        Some((_, bytes)) if *bytes <= LARGEST => volume.read(paths::DESCRIPTION).map(Some),
        _ => Ok(None),
    }
}
