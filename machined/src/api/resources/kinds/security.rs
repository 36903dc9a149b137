//! The kind that tells how far the machine can trust its boot.

use std::path::Path;

use super::{Item, Kind, Namespace, Record, Sensitivity, Source, Value};

/// Secure Boot, and the boot image that the firmware started.
pub(super) const SECURITY_STATES: Kind = Kind {
    name: "SecurityStates.talos.dev",
    singular: "SecurityState",
    namespace: Namespace::Runtime,
    aliases: &[],
    columns: &[
        ("SecureBoot", "{.secureBoot}"),
        ("BootedWithUKI", "{.bootedWithUKI}"),
    ],
    sensitivity: Sensitivity::Open,
    // The disk is a source, because EFI variables can be read only after the boot disk was examined.
    sources: &[Source::Disk],
    read: |_| Ok(state(Path::new("/sys/firmware/efi")).into_iter().collect()),
};

/// GUID of the firmware's own variables (UEFI specification).
const GLOBAL: &str = "8be4df61-93ca-11d2-aa0d-00e098032b8c";
/// GUID of systemd's variables, which the boot loader and the stub in a UKI set.
const LOADER: &str = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";

/// Returns none while the firmware cannot be asked: unknown does not mean "no".
fn state(efi: &Path) -> Option<Item> {
    let (secure_boot, uki) = if efi.exists() {
        let variable = |name: &str, vendor: &str| {
            std::fs::read(efi.join("efivars").join(format!("{name}-{vendor}"))).ok()
        };
        // The variable is four bytes of attributes, then the content.
        let secure_boot = variable("SecureBoot", GLOBAL)?.get(4) == Some(&1);
        (secure_boot, variable("StubInfo", LOADER).is_some())
    } else {
        // A BIOS has neither Secure Boot nor UKIs.
        (false, false)
    };
    let spec = Record::default()
        .with("secureBoot", 1, secure_boot)
        .with("selinuxState", 4, Value::Word(0, "disabled"))
        .with("bootedWithUKI", 5, uki)
        .with("fipsState", 6, Value::Word(0, "disabled"));
    Some(Item::new("securitystate", spec))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use instar_api::definitions::runtime::SecurityStateSpec;
    use prost::Message as _;

    use super::*;

    #[test]
    fn what_cannot_be_asked_is_not_answered() {
        let root = tempfile::tempdir().unwrap();
        let efi = root.path().join("efi");
        let decoded =
            |item: Item| SecurityStateSpec::decode(item.spec.protobuf().as_slice()).unwrap();
        assert!(!decoded(state(&efi).unwrap()).secure_boot);
        std::fs::create_dir_all(efi.join("efivars")).unwrap();
        assert!(state(&efi).is_none());
        std::fs::write(
            efi.join(format!("efivars/SecureBoot-{GLOBAL}")),
            [6, 0, 0, 0, 1],
        )
        .unwrap();
        let spec = decoded(state(&efi).unwrap());
        assert!(spec.secure_boot && !spec.booted_with_uki);
        std::fs::write(efi.join(format!("efivars/StubInfo-{LOADER}")), [6, 0, 0, 0]).unwrap();
        assert!(decoded(state(&efi).unwrap()).booted_with_uki);
    }
}
