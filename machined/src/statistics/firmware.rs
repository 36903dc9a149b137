//! What the firmware says that the machine is (`/sys/class/dmi/id`).

use std::path::Path;

const DMI: &str = "class/dmi/id";

/// Whether the firmware says anything.
pub fn is_known(sysfs: &Path) -> bool {
    sysfs.join(DMI).exists()
}

/// One thing that it says, such as `product_uuid`; empty where it says nothing of it.
pub fn said(sysfs: &Path, file: &str) -> String {
    let bytes = std::fs::read(sysfs.join(DMI).join(file)).unwrap_or_default();
    // Whatever a vendor put there: no control characters.
    let text = String::from_utf8_lossy(&bytes);
    text.trim()
        .chars()
        .filter(|letter| !letter.is_control())
        .collect()
}
