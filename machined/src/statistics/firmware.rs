//! The firmware's description of the machine (`/sys/class/dmi/id`).

use std::path::Path;

const DMI: &str = "class/dmi/id";

/// Returns whether the firmware has a description.
pub fn is_known(sysfs: &Path) -> bool {
    sysfs.join(DMI).exists()
}

/// Reads one field of it, for example `product_uuid`; empty if the firmware lacks it.
pub fn said(sysfs: &Path, file: &str) -> String {
    let bytes = std::fs::read(sysfs.join(DMI).join(file)).unwrap_or_default();
    // Control characters are removed: a vendor may have put any bytes there.
    let text = String::from_utf8_lossy(&bytes);
    text.trim()
        .chars()
        .filter(|letter| !letter.is_control())
        .collect()
}
