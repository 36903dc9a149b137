//! The identity by which a machine draws its delays and is known to the server of the fleet's lock. It is made once, with the record, which keeps
//! it: a card that is replaced makes no other machine. A machine without a disk makes it anew after a reboot, from the same: so it is made once the
//! machine has its name, and the fleet's lock that it may have from before is known by it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use tokio::time::timeout;

use crate::machine::Machine;
use crate::statistics::firmware;
use crate::values::Digest;

/// Limit on the wait for a lease that may name the machine.
const LEASE: Duration = Duration::from_secs(60);

/// Returns the hostname once no lease that is to come may give another one.
pub(super) async fn settled_hostname(machine: &Machine) -> String {
    let mut network = machine.network.status();
    // After the limit the name counts that there is.
    let _ = timeout(LEASE, network.wait_for(|status| status.is_named())).await;
    machine.hostname()
}

/// Makes the identity. It says nothing about the machine.
///
/// A vendor may give all its boards one UUID, from which their hostnames are made, too. The server of the lock would take them for one machine, and
/// let all of them switch at once; no two cards have one address.
pub(super) fn identity(sysfs: &Path, hostname: &str) -> String {
    let uuid = firmware::said(sysfs, "product_uuid");
    let mut named = format!("instar.dev/follow {uuid} {hostname}");
    for mac in permanent_macs(sysfs) {
        named.push(' ');
        named.push_str(&mac);
    }
    Digest::of(named.as_bytes()).hex()[..32].to_owned()
}

/// Returns the addresses that the machine's network cards have from their makers.
fn permanent_macs(sysfs: &Path) -> BTreeSet<String> {
    let links = fs::read_dir(sysfs.join("class/net")).into_iter().flatten();
    let links = links.filter_map(|link| Some(link.ok()?.path()));
    links.filter_map(|link| permanent_mac(&link)).collect()
}

/// Returns the permanent address of a link; `None` for one that is made by software, or whose address was drawn at random or set.
fn permanent_mac(link: &Path) -> Option<String> {
    let said = |file: &str| {
        let text = fs::read_to_string(link.join(file)).ok()?;
        Some(text.trim().to_ascii_lowercase()).filter(|text| !text.is_empty())
    };
    if !link.join("device").exists() {
        return None;
    }
    // All cards of a bond show the address of one of them.
    said("bonding_slave/perm_hwaddr").or_else(|| {
        let is_permanent = said("addr_assign_type").as_deref() == Some("0");
        said("address").filter(|_| is_permanent)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A machine with the UUID of all boards of its vendor, and these files of its links.
    fn identity_with(files: &[(&str, &str)]) -> String {
        let sysfs = tempfile::tempdir().unwrap();
        let of_links = files
            .iter()
            .map(|(path, text)| (format!("class/net/{path}"), *text));
        let uuid = ("class/dmi/id/product_uuid".to_owned(), "03000200-0400\n");
        for (path, text) in of_links.chain([uuid]) {
            let path = sysfs.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        identity(sysfs.path(), "instar-bcdfgh")
    }

    /// The files of a card with an address of this origin.
    fn card<'a>(address: &'a str, origin: &'a str) -> [(&'static str, &'a str); 3] {
        [
            ("eth0/device/vendor", "0x1af4\n"),
            ("eth0/address", address),
            ("eth0/addr_assign_type", origin),
        ]
    }

    #[test]
    fn machines_whose_maker_has_not_numbered_them_are_two() {
        let a = identity_with(&card("52:54:00:00:00:01\n", "0\n"));
        assert_eq!(a.len(), 32);
        assert_eq!(a, identity_with(&card("52:54:00:00:00:01\n", "0\n")));
        assert_ne!(a, identity_with(&card("52:54:00:00:00:02\n", "0\n")));
        assert_ne!(a, identity_with(&[]));
    }

    #[test]
    fn addresses_that_may_change_do_not_count() {
        let none = identity_with(&[]);
        for origin in ["1\n", "2\n", "3\n"] {
            assert_eq!(none, identity_with(&card("52:54:00:00:00:01\n", origin)));
        }
        // Made by software.
        let bridge = [
            ("br0/address", "52:54:00:00:00:01\n"),
            ("br0/addr_assign_type", "0\n"),
        ];
        assert_eq!(none, identity_with(&bridge));
        // A card of a bond has another one's address.
        let mut bonded = card("52:54:00:00:00:09\n", "3\n").to_vec();
        bonded.push(("eth0/bonding_slave/perm_hwaddr", "52:54:00:00:00:01\n"));
        let alone = card("52:54:00:00:00:01\n", "0\n");
        assert_eq!(identity_with(&bonded), identity_with(&alone));
    }
}
