//! Numbers for people.

use std::time::Duration;

/// Bytes with a unit: `5.1 MiB`.
pub fn human(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut size = bytes as f64;
    let mut unit = None;
    for larger in units {
        if size < 1024.0 {
            break;
        }
        size /= 1024.0;
        unit = Some(larger);
    }
    match unit {
        Some(unit) => format!("{size:.1} {unit}"),
        None => format!("{bytes} B"),
    }
}

/// A time as a clock that counts days: `3 d 04:05:06`.
pub(super) fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    let (minutes, hours, days) = (seconds / 60 % 60, seconds / 3600 % 24, seconds / 86400);
    let clock = format!("{hours:02}:{minutes:02}:{:02}", seconds % 60);
    match days {
        0 => clock,
        days => format!("{days} d {clock}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (bytes, shown) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (5 << 20, "5.0 MiB"),
            (u64::MAX, "16384.0 PiB"),
        ] {
            assert_eq!(human(bytes), shown);
        }
    }

    #[test]
    fn days_are_counted() {
        assert_eq!(clock(Duration::from_secs(14706)), "04:05:06");
        assert_eq!(clock(Duration::from_secs(3 * 86400 + 5)), "3 d 00:00:05");
    }
}
