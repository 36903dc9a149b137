//! Formats sizes in bytes for people, in powers of 1024.
//!
//! The decision: a size has one of two formats, by its place. Figures in a column or on a changing display keep their width, so they always
//! have a decimal. In a sentence a partition of 128 MiB is not written as 128.0 MiB.

const UNITS: [(u64, &str); 5] = [
    (1 << 50, "PiB"),
    (1 << 40, "TiB"),
    (1 << 30, "GiB"),
    (1 << 20, "MiB"),
    (1 << 10, "KiB"),
];

/// For tables and figures that change: `5.0 MiB`, `5.1 MiB`.
pub fn human(bytes: u64) -> String {
    match unit_of(bytes) {
        Some((unit, name)) => format!("{:.1} {name}", bytes as f64 / unit as f64),
        None => format!("{bytes} B"),
    }
}

/// For sentences: `5 MiB`, `5.1 MiB`. Further digits are cut off: a size is never shown larger than it is.
pub fn human_short(bytes: u64) -> String {
    match unit_of(bytes) {
        Some((unit, name)) if bytes.is_multiple_of(unit) => format!("{} {name}", bytes / unit),
        Some((unit, name)) => format!("{}.{} {name}", bytes / unit, bytes % unit * 10 / unit),
        None => format!("{bytes} B"),
    }
}

/// The largest unit that fits at least once.
fn unit_of(bytes: u64) -> Option<(u64, &'static str)> {
    UNITS.into_iter().find(|(unit, _)| bytes >= *unit)
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
            ((1 << 20) - 1, "1024.0 KiB"),
            (5 << 20, "5.0 MiB"),
            (u64::MAX, "16384.0 PiB"),
        ] {
            assert_eq!(human(bytes), shown);
        }
    }

    #[test]
    fn sizes_are_readable() {
        assert_eq!(human_short(32 << 30), "32 GiB");
        assert_eq!(human_short(3 << 29), "1.5 GiB");
        assert_eq!(human_short((1 << 30) - 1), "1023.9 MiB");
        assert_eq!(human_short(512), "512 B");
    }
}
