//! Writes to a disk that fail while the machine runs: QEMU's blkdebug is put between the disk and its file.

use serde_json::{Value, json};

use crate::qmp::{Qmp, QmpError};

/// The way in which a write fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteFailure {
    /// As on a broken disk. The write has no effect.
    Io,
    /// As on a host without room. The write has no effect. A SCSI disk reports that; a virtio disk reports the same as
    /// for [`Self::Io`].
    NoRoom,
}

/// The write that fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteFault {
    /// No write.
    None,
    /// The write with this number, counted from now on and from 1, and no other.
    Nth(u32, WriteFailure),
    /// The next write of this sector of 512 bytes: the part of the write before the sector is on the disk, the rest is
    /// not.
    Torn(u64),
    /// Every write of this sector of 512 bytes: the part of the write before the sector is on the disk.
    BadSector(u64),
}

/// QEMU's name of the disk's file.
pub(crate) fn whole_node(drive: usize) -> String {
    format!("whole{drive}")
}

/// QEMU's name of the disk.
pub(crate) fn device(drive: usize) -> String {
    format!("disk{drive}")
}

/// Puts a fault between the disk and its file, or takes one away.
pub(crate) fn set(qmp: &mut Qmp, drive: usize, fault: &WriteFault) -> Result<(), QmpError> {
    let path = format!("/machine/peripheral/{}", device(drive));
    let attach = |qmp: &mut Qmp, node: &str| {
        let arguments = json!({ "path": path, "property": "drive", "value": node });
        qmp.execute("qom-set", arguments).map(drop)
    };
    let (whole, faulty) = (whole_node(drive), format!("faulty{drive}"));
    // QEMU 7.2 crashes if the disk is attached to the same file again.
    let attached = qmp.execute("qom-get", json!({ "path": path, "property": "drive" }))?;
    if attached == faulty.as_str() {
        attach(qmp, &whole)?;
        qmp.execute("blockdev-del", json!({ "node-name": faulty }))?;
    }
    let Some(mut rules) = rules(*fault) else {
        return Ok(());
    };
    rules["driver"] = json!("blkdebug");
    rules["node-name"] = json!(faulty);
    rules["image"] = json!(whole);
    rules["discard"] = json!("unmap");
    qmp.execute("blockdev-add", rules)?;
    attach(qmp, &faulty)
}

/// Returns blkdebug's rules. It counts writes by its state, which begins with 1.
fn rules(fault: WriteFault) -> Option<Value> {
    // The smallest piece of a write that a disk writes whole.
    const SECTOR: u32 = 512;
    match fault {
        WriteFault::None => None,
        WriteFault::Nth(number, failure) => {
            let counted: Vec<Value> = (1..number)
                .map(|state| json!({ "event": "pwritev", "state": state, "new_state": state + 1 }))
                .collect();
            let errno = match failure {
                WriteFailure::Io => rustix::io::Errno::IO,
                WriteFailure::NoRoom => rustix::io::Errno::NOSPC,
            };
            let inject = json!({
                "event": "pwritev", "state": number.max(1), "iotype": "write",
                "errno": errno.raw_os_error(), "once": true,
            });
            let mut rules = json!({ "inject-error": [inject] });
            // QEMU refuses an empty list.
            if !counted.is_empty() {
                rules["set-state"] = json!(counted);
            }
            Some(rules)
        }
        WriteFault::Torn(sector) | WriteFault::BadSector(sector) => {
            let inject = json!({
                "event": "none", "iotype": "write", "sector": sector,
                "errno": rustix::io::Errno::IO.raw_os_error(),
                "once": matches!(fault, WriteFault::Torn(_)),
            });
            Some(json!({ "align": SECTOR, "max-transfer": SECTOR, "inject-error": [inject] }))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn writes_are_counted_up_to_the_one_that_fails() {
        let third = rules(WriteFault::Nth(3, WriteFailure::NoRoom)).unwrap();
        assert_eq!(third["set-state"].as_array().unwrap().len(), 2);
        assert_eq!(third["set-state"][1]["new_state"], 3);
        assert_eq!(third["inject-error"][0]["state"], 3);
        assert_eq!(third["inject-error"][0]["errno"], 28);
        let first = rules(WriteFault::Nth(1, WriteFailure::Io)).unwrap();
        assert_eq!(first.get("set-state"), None);
        assert_eq!(rules(WriteFault::None), None);
    }

    #[test]
    fn a_torn_write_goes_sector_by_sector() {
        let torn = rules(WriteFault::Torn(77)).unwrap();
        assert_eq!(torn["max-transfer"], 512);
        assert_eq!(torn["inject-error"][0]["sector"], 77);
        assert_eq!(torn["inject-error"][0]["once"], true);
        let bad = rules(WriteFault::BadSector(77)).unwrap();
        assert_eq!(bad["inject-error"][0]["once"], false);
    }
}
