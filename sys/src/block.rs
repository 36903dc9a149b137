//! Requests to the kernel about block devices.
//!
//! The kernel is told about partitions one by one (`BLKPG` of linux/blkpg.h): `BLKRRPART`, which makes the kernel read the whole table,
//! fails while any partition is in use, and needs a kernel that knows the kind of table.

use std::{ffi::c_void, fs::File, io, os::fd::AsRawFd};

use libc::{c_int, c_longlong};

const BLKPG: libc::c_ulong = 0x1269;
/// `_IO(0x12, 104)` of linux/fs.h
const BLKSSZGET: libc::c_ulong = 0x1268;
/// `_IO(0x12, 127)` of linux/fs.h
const BLKZEROOUT: libc::c_ulong = 0x127f;

/// The operations of BLKPG, by the numbers of linux/blkpg.h.
#[derive(Debug, Clone, Copy)]
enum Operation {
    Add = 1,
    Delete = 2,
    Resize = 3,
}

/// `struct blkpg_partition`
#[repr(C)]
struct Partition {
    start: c_longlong,
    length: c_longlong,
    number: c_int,
    names: [u8; 128],
}

/// `struct blkpg_ioctl_arg`
#[repr(C)]
struct Argument {
    operation: c_int,
    flags: c_int,
    length: c_int,
    data: *mut c_void,
}

/// Adds a partition; `start` and `length` in bytes.
pub fn add_partition(disk: &File, number: u32, start: u64, length: u64) -> io::Result<()> {
    change(disk, Operation::Add, number, start, length)
}

/// Removes a partition. Fails with EBUSY while it is in use.
pub fn delete_partition(disk: &File, number: u32) -> io::Result<()> {
    change(disk, Operation::Delete, number, 0, 0)
}

/// Changes the length of a partition, even if it is in use. `start` must be its present start.
pub fn resize_partition(disk: &File, number: u32, start: u64, length: u64) -> io::Result<()> {
    change(disk, Operation::Resize, number, start, length)
}

fn change(
    disk: &File,
    operation: Operation,
    number: u32,
    start: u64,
    length: u64,
) -> io::Result<()> {
    let invalid = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let mut partition = Partition {
        start: start.try_into().map_err(invalid)?,
        length: length.try_into().map_err(invalid)?,
        number: number.try_into().map_err(invalid)?,
        names: [0; 128],
    };
    let mut argument = Argument {
        operation: operation as c_int,
        flags: 0,
        length: size_of::<Partition>() as c_int,
        data: (&raw mut partition).cast(),
    };
    // SAFETY: BLKPG reads one blkpg_ioctl_arg and the blkpg_partition that it points to; both outlive the call, and have
    // the layout of the kernel's header.
    #[allow(unsafe_code)]
    let done = unsafe { libc::ioctl(disk.as_raw_fd(), BLKPG as _, &raw mut argument) };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Zeroes bytes of a block device, by the device itself if it can; `start` and `length` are multiples of its logical sectors. The old
/// content cannot be read any more.
pub fn zero_out(device: &File, start: u64, length: u64) -> io::Result<()> {
    let range = [start, length];
    // SAFETY: BLKZEROOUT reads two u64, which outlive the call.
    #[allow(unsafe_code)]
    let done = unsafe { libc::ioctl(device.as_raw_fd(), BLKZEROOUT as _, range.as_ptr()) };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The size of a block device's logical sectors, in bytes.
pub fn logical_sector(device: &File) -> io::Result<u64> {
    let mut bytes: c_int = 0;
    // SAFETY: BLKSSZGET writes one int, which outlives the call.
    #[allow(unsafe_code)]
    let done = unsafe { libc::ioctl(device.as_raw_fd(), BLKSSZGET as _, &raw mut bytes) };
    if done == 0 {
        u64::try_from(bytes).map_err(io::Error::other)
    } else {
        Err(io::Error::last_os_error())
    }
}
