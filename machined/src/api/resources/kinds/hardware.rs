//! The kind that describes the hardware by the firmware's tables (`/sys/class/dmi/id`).

use std::path::Path;

use super::{Item, Kind, Namespace, Record, Sensitivity};
use crate::statistics::firmware;

/// Manufacturer, product, serial number.
pub(super) const SYSTEM: Kind = Kind {
    name: "SystemInformations.hardware.talos.dev",
    singular: "SystemInformation",
    namespace: Namespace::Hardware,
    aliases: &["systeminformation"],
    columns: &[
        ("Manufacturer", "{.manufacturer}"),
        ("ProductName", "{.productName}"),
        ("SerialNumber", "{.serialnumber}"),
        ("UUID", "{.uuid}"),
    ],
    sensitivity: Sensitivity::Open,
    sources: &[],
    read: |_| Ok(system(Path::new("/sys"))),
};

/// Builds the item; none if the firmware reports nothing.
fn system(sysfs: &Path) -> Vec<Item> {
    if !firmware::is_known(sysfs) {
        return Vec::new();
    }
    let said = |file| firmware::said(sysfs, file);
    let spec = Record::default()
        .with("manufacturer", 1, said("sys_vendor"))
        .with("productName", 2, said("product_name"))
        .with("version", 3, said("product_version"))
        .with("serialnumber", 4, said("product_serial"))
        .with("uuid", 5, uuid(sysfs))
        .with("skuNumber", 7, said("product_sku"))
        .with("biosVersion", 8, said("bios_version"));
    vec![Item::new("systeminformation", spec)]
}

/// Returns the UUID that identifies this machine; empty if the firmware has none.
pub(super) fn uuid(sysfs: &Path) -> String {
    firmware::said(sysfs, "product_uuid")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use instar_api::definitions::hardware as wire;
    use prost::Message as _;

    use super::*;

    #[test]
    fn firmware_is_quoted() {
        let sysfs = tempfile::tempdir().unwrap();
        assert!(system(sysfs.path()).is_empty());
        let dmi = sysfs.path().join("class/dmi/id");
        std::fs::create_dir_all(&dmi).unwrap();
        std::fs::write(dmi.join("sys_vendor"), "QEMU\n").unwrap();
        std::fs::write(dmi.join("product_name"), b"a\xff\x01b \n").unwrap();
        let item = system(sysfs.path()).remove(0);
        let bytes = item.spec.protobuf();
        let spec = wire::SystemInformationSpec::decode(bytes.as_slice()).unwrap();
        assert_eq!(
            (spec.manufacturer.as_str(), spec.product_name.as_str()),
            ("QEMU", "a\u{fffd}b")
        );
        assert_eq!(spec.uuid, "");
    }
}
