//! A disk with one failing write, and the choice of the write.

use std::path::Path;

use anyhow::{Context, Result};
use instar_qemu::{Bus, Drive, Vm, WriteFailure, WriteFault};
use instar_tests::{Node, Outcome, ServedDisk};
use serde_json::{Value, json};

/// The numbers of the writes that fail, one at a time: a count, `all`, or `FIRST-LAST`.
const WRITES: &str = "INSTAR_WRITES";
/// Number of failing writes without `INSTAR_WRITES`.
const USUAL_WRITES: u64 = 3;
/// The kernel's message about a filesystem that takes no more writes until it is mounted anew.
pub(super) const GIVEN_UP: &str = "EXT4-fs error";

/// The defect of a disk.
#[derive(Debug, Clone, Copy)]
pub(super) enum Defect {
    /// The write has no effect. A SCSI disk would be asked to try again; a virtio disk is not.
    Broken,
    /// The disk has no room. A virtio disk cannot report that.
    Full,
    /// Half of the write takes effect.
    Tearing,
}

/// A disk with one failing write.
pub(super) enum FailingDisk {
    OfQemu(Bus, WriteFailure),
    Tearing(ServedDisk),
}

impl FailingDisk {
    pub(super) fn of(file: &Path, defect: Defect) -> Result<Self> {
        Ok(match defect {
            Defect::Broken => Self::OfQemu(Bus::Virtio, WriteFailure::Io),
            Defect::Full => Self::OfQemu(Bus::Scsi, WriteFailure::NoRoom),
            Defect::Tearing => Self::Tearing(ServedDisk::serve(file)?),
        })
    }

    pub(super) fn drive(&self, file: &Path) -> Drive {
        match self {
            Self::OfQemu(bus, _) => Drive::raw(file).on(*bus).breakable(),
            Self::Tearing(disk) => Drive::raw(file).served(disk.port()),
        }
    }

    /// The node's name for the disk.
    pub(super) fn device(&self) -> &'static str {
        match self {
            Self::OfQemu(Bus::Scsi, _) => "/dev/sda",
            _ => "/dev/vda",
        }
    }

    /// Fails the write with this number, counted from now on and from 1; `None` takes back an earlier request.
    pub(super) fn fail(&self, vm: &Vm, number: Option<u64>) -> Outcome {
        match self {
            Self::OfQemu(_, failure) => {
                let nth = |number| anyhow::Ok(WriteFault::Nth(u32::try_from(number)?, *failure));
                vm.fail_write(0, &number.map_or(Ok(WriteFault::None), nth)?)?;
            }
            Self::Tearing(disk) => disk.tear(number),
        }
        Ok(())
    }
}

/// Returns the numbers of the writes to fail.
pub(super) fn which_writes(all: u64) -> Result<Vec<u64>> {
    let wanted = std::env::var(WRITES).unwrap_or_else(|_| USUAL_WRITES.to_string());
    if wanted == "all" {
        return Ok((1..=all).collect());
    }
    if let Some((first, last)) = wanted.split_once('-') {
        let (first, last): (u64, u64) = (first.parse()?, last.parse()?);
        return Ok((first..=last.min(all)).collect());
    }
    let many = wanted.parse::<u64>().context(WRITES)?.min(all);
    Ok((1..=many).map(|number| number * all / many).collect())
}

/// Number of writes to the node's disk so far.
pub(super) fn writes(node: &Node) -> Result<u64> {
    count(node, "wr_operations")
}

/// Number of failed writes so far.
pub(super) fn failures(node: &Node) -> Result<u64> {
    count(node, "failed_wr_operations")
}

fn count(node: &Node, what: &str) -> Result<u64> {
    let all = node.vm().qmp().execute("query-blockstats", json!({}))?;
    let of_disk = |entry: &Value| {
        entry["qdev"]
            .as_str()?
            .contains("disk0")
            .then(|| entry["stats"][what].as_u64())?
    };
    all.as_array()
        .and_then(|entries| entries.iter().find_map(of_disk))
        .with_context(|| format!("no {what} of disk0 in {all}"))
}
