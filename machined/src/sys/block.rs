//! Telling the kernel about the partitions of a block device.

use std::{fs::File, io};

use rustix::ioctl::{NoArg, Opcode, ioctl, opcode};

/// `BLKRRPART` of linux/fs.h.
const BLKRRPART: Opcode = opcode::none(0x12, 95);
/// Makes the kernel read the partition table again. Fails with EBUSY while a partition is in use.
pub fn reread_partitions(disk: &File) -> io::Result<()> {
    // SAFETY: BLKRRPART takes no argument and touches no memory of ours.
    #[allow(unsafe_code)]
    let done = unsafe { ioctl(disk, NoArg::<BLKRRPART>::new()) };
    done.map_err(io::Error::from)
}
