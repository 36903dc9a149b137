//! Kinds that tell how far the machine can trust its boot, and which images it lets in.

use std::path::Path;
use std::time::SystemTime;

use super::{Item, Kind, Namespace, Record, Sensitivity, Source, Value};
use crate::intent::{CertificateStanding, certificate_standing};
use crate::values::{ImageRule, RuleEffect};

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

/// The rules for images of the config in force. The first one that matches an image decides about it.
pub(super) const IMAGE_VERIFICATION_RULES: Kind = Kind {
    name: "ImageVerificationRules.security.talos.dev",
    singular: "ImageVerificationRule",
    namespace: Namespace::Security,
    aliases: &[],
    columns: &[
        ("Pattern", "{.imagePattern}"),
        ("Skip", "{.skip}"),
        ("Deny", "{.deny}"),
    ],
    sensitivity: Sensitivity::Open,
    sources: &[Source::Config],
    read: |machine| {
        let configured = machine.config();
        let rules = configured.map(|configured| rules(&configured.config.image_rules));
        Ok(rules.unwrap_or_default())
    },
};

/// The certificate that the API shows, and when it ends.
pub(super) const NODE_CERTIFICATES: Kind = Kind {
    name: "NodeCertificates.instar.dev",
    singular: "NodeCertificate",
    namespace: Namespace::Security,
    aliases: &["certificates"],
    columns: &[
        ("Issued by", "{.issuedBy}"),
        ("Ends", "{.ends}"),
        ("Days left", "{.daysLeft}"),
        ("Warning", "{.warning}"),
    ],
    sensitivity: Sensitivity::Open,
    sources: &[Source::Unannounced],
    read: |machine| Ok(vec![certificate(certificate_standing(machine))]),
};

fn certificate(standing: CertificateStanding) -> Item {
    let mut spec = Record::default().with("issuedBy", 1, standing.issued_by);
    if let Some(ends) = standing.ends {
        let left = ends.duration_since(SystemTime::now()).unwrap_or_default();
        spec = spec.with("ends", 2, Value::Time(ends)).with(
            "daysLeft",
            3,
            left.as_secs() / (24 * 3600),
        );
    }
    Item::new(
        "api",
        spec.with("warning", 4, standing.warning.unwrap_or_default()),
    )
}

fn rules(rules: &[ImageRule]) -> Vec<Item> {
    let numbered = rules.iter().enumerate();
    let items = numbered.map(|(number, rule)| {
        let spec = Record::default()
            .with("imagePattern", 1, rule.pattern.as_str())
            .with("skip", 2, rule.effect == RuleEffect::Skip)
            .with("deny", 3, rule.effect == RuleEffect::Deny);
        let spec = match &rule.effect {
            RuleEffect::SignedBy(key) => {
                let key = Record::default().with("certificate", 1, key.pem());
                spec.with("publicKeyVerifier", 5, key)
            }
            RuleEffect::Skip | RuleEffect::Deny => spec,
        };
        Item::new(format!("{number:04}"), spec)
    });
    items.collect()
}

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
    use instar_api::definitions::security::ImageVerificationRuleSpec;
    use prost::Message as _;

    use super::*;

    const CONFIG: &str = include_str!("../../../../../config/tests/data/served-1.14.yaml");

    #[test]
    fn rules_have_their_numbers_and_both_encodings() {
        let config = crate::config::parse(CONFIG.as_bytes()).unwrap().config;
        let items = rules(&config.image_rules);
        let ids: Vec<_> = items.iter().map(|item| item.id.as_str()).collect();
        assert_eq!(ids, ["0000", "0001", "0002"]);
        let decoded = items.iter().map(|item| {
            ImageVerificationRuleSpec::decode(item.spec.protobuf().as_slice()).unwrap()
        });
        let [skip, key, deny] = decoded.collect::<Vec<_>>().try_into().unwrap();
        assert!(skip.skip && !skip.deny && skip.public_key_verifier.is_none());
        assert!(!key.skip && !key.deny);
        let pem = key.public_key_verifier.unwrap().certificate;
        assert!(pem.starts_with("-----BEGIN PUBLIC KEY-----"), "{pem}");
        assert!(deny.deny);
        assert_eq!(deny.image_pattern, "*");
        let yaml: serde_json::Value = serde_saphyr::from_str(&items[1].spec.yaml()).unwrap();
        assert_eq!(yaml["publicKeyVerifier"]["certificate"], pem);
    }

    #[test]
    fn a_certificate_tells_the_days_that_are_left() {
        let days = std::time::Duration::from_secs(20 * 24 * 3600 + 3600);
        let item = certificate(CertificateStanding {
            issued_by: "person",
            ends: Some(SystemTime::now() + days),
            warning: Some("sign".to_owned()),
        });
        let decoded = instar_api::definitions::instar::NodeCertificateSpec::decode(
            item.spec.protobuf().as_slice(),
        );
        let decoded = decoded.unwrap();
        assert_eq!(
            (decoded.issued_by.as_str(), decoded.days_left),
            ("person", 20)
        );
        assert_eq!(decoded.warning, "sign");
        let yaml: serde_json::Value = serde_saphyr::from_str(&item.spec.yaml()).unwrap();
        assert_eq!(yaml["daysLeft"], 20);
    }

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
