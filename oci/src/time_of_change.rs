//! The time at which a file or directory was last changed, as it is put back.

use rustix::fs::{Stat, Timespec, Timestamps, UTIME_OMIT};

/// Returns this time, which leaves that of the last access as it is.
pub(crate) fn time_of_change(stat: &Stat) -> Timestamps {
    Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        },
        last_modification: Timespec {
            tv_sec: stat.st_mtime,
            tv_nsec: stat.st_mtime_nsec as _,
        },
    }
}
