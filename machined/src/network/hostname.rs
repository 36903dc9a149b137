//! The hostname: config over DHCP over a name made from the machine's identity.

use std::path::Path;

use serde::Serialize;

use crate::statistics::firmware;
use crate::values::HostnamePolicy;

/// The origin of a hostname.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HostnameOrigin {
    /// The machine config.
    Config,
    /// The DHCP lease.
    Dhcp,
    /// Generated from the machine's identity.
    Generated,
    /// The fixed fallback, if there is no other name.
    Fallback,
}

/// Returns the name to set and its origin. An invalid name counts as none: DHCP servers send arbitrary text.
pub(super) fn choose(
    policy: &HostnamePolicy,
    from_dhcp: Option<&str>,
    stable: &str,
) -> (String, HostnameOrigin) {
    let from_dhcp = from_dhcp.map(str::trim).filter(|name| is_valid(name));
    match (policy, from_dhcp) {
        (HostnamePolicy::Fixed(name), _) if is_valid(name.as_str()) => {
            (name.to_string(), HostnameOrigin::Config)
        }
        (_, Some(name)) => (name.to_owned(), HostnameOrigin::Dhcp),
        (HostnamePolicy::Off, None) => ("localhost".to_owned(), HostnameOrigin::Fallback),
        (_, None) => (stable.to_owned(), HostnameOrigin::Generated),
    }
}

/// Checks for labels of letters, digits and hyphens (RFC 1123), at most 64 bytes together: the kernel's `__NEW_UTS_LEN`.
pub(super) fn is_valid(name: &str) -> bool {
    let label_is_valid = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    name.len() <= 64 && name.split('.').all(label_is_valid)
}

/// Returns `instar-` and six characters of a hash of `identity`.
pub(super) fn stable_name(identity: &str) -> String {
    let digest = blake3::derive_key(
        "instar.dev 2026 stable hostname",
        identity.trim().to_ascii_lowercase().as_bytes(),
    );
    // Without vowels and look-alikes, no name spells a word or is misread.
    const LETTERS: &[u8; 24] = b"bcdfghjkmnpqrstvwxz23456";
    let tail: String = digest
        .iter()
        .take(6)
        .map(|byte| char::from(LETTERS[usize::from(byte % 24)]))
        .collect();
    format!("instar-{tail}")
}

/// Returns the identity of this machine: the firmware's UUID, else a MAC address, else nothing.
pub(super) fn machine_identity(sysfs: &Path, macs: &[String]) -> String {
    let uuid = firmware::said(sysfs, "product_uuid");
    // Cheap boards carry a UUID of one repeated digit; all of them would share a name.
    let is_filler = uuid
        .replace('-', "")
        .bytes()
        .collect::<std::collections::BTreeSet<_>>()
        .len()
        < 2;
    match (is_filler, macs.iter().min()) {
        (true, Some(mac)) => mac.clone(),
        (_, _) => uuid.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use super::*;

    #[test]
    fn config_beats_dhcp_beats_generated() {
        let fixed = HostnamePolicy::Fixed("node-1".parse().unwrap());
        let choose = |policy: &HostnamePolicy, dhcp| choose(policy, dhcp, "instar-bcdfgh");
        assert_eq!(
            choose(&fixed, Some("lease")),
            ("node-1".into(), HostnameOrigin::Config)
        );
        assert_eq!(
            choose(&HostnamePolicy::Stable, Some("lease")),
            ("lease".into(), HostnameOrigin::Dhcp)
        );
        assert_eq!(
            choose(&HostnamePolicy::Stable, None),
            ("instar-bcdfgh".into(), HostnameOrigin::Generated)
        );
        assert_eq!(
            choose(&HostnamePolicy::Off, Some("lease.example")).0,
            "lease.example"
        );
        assert_eq!(
            choose(&HostnamePolicy::Off, None),
            ("localhost".into(), HostnameOrigin::Fallback)
        );
        for hostile in ["", "a b", "x\ny", "../etc", "-x", "a..b", &"a".repeat(65)] {
            assert_eq!(
                choose(&HostnamePolicy::Stable, Some(hostile)).1,
                HostnameOrigin::Generated,
                "{hostile:?}"
            );
        }
    }

    #[test]
    fn stable_names_are_stable_and_valid() {
        let name = stable_name("4C4C4544-0042-3510-8034-B4C04F4E4D32");
        assert_eq!(
            name,
            stable_name("4c4c4544-0042-3510-8034-b4c04f4e4d32\n"),
            "spelling does not matter"
        );
        assert_ne!(name, stable_name("4c4c4544-0042-3510-8034-b4c04f4e4d33"));
        assert!(is_valid(&name) && name.len() == 13, "{name}");
    }

    #[test]
    fn identity_falls_back_to_a_mac() {
        let sys = tempfile::tempdir().unwrap();
        let macs = [
            "52:54:00:00:00:02".to_owned(),
            "52:54:00:00:00:01".to_owned(),
        ];
        assert_eq!(machine_identity(sys.path(), &macs), macs[1]);
        let dmi = sys.path().join("class/dmi/id");
        fs::create_dir_all(&dmi).unwrap();
        fs::write(
            dmi.join("product_uuid"),
            "00000000-0000-0000-0000-000000000000\n",
        )
        .unwrap();
        assert_eq!(machine_identity(sys.path(), &macs), macs[1]);
        fs::write(
            dmi.join("product_uuid"),
            "4c4c4544-0042-3510-8034-b4c04f4e4d32\n",
        )
        .unwrap();
        assert_eq!(
            machine_identity(sys.path(), &macs),
            "4c4c4544-0042-3510-8034-b4c04f4e4d32"
        );
    }
}
