//! The link to capture, as described in sysfs (Documentation/ABI/testing/sysfs-class-net in the kernel's source).

use std::fs;
use std::path::Path;

use super::CaptureError;

/// Directory of the network interfaces in sysfs. It holds other files too, for example `bonding_masters`.
const LINKS: &str = "class/net";

/// A link that can be captured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) name: String,
    /// The kernel's index.
    pub(super) index: u32,
    pub(super) kind: Kind,
}

/// The header that the link's packets begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// An Ethernet header.
    Ethernet,
    /// An Ethernet header with empty addresses.
    Loopback,
    /// An IP header: WireGuard and other tunnels.
    Ip,
}

impl Kind {
    /// Converts the hardware type of linux/if_arp.h; none if captures of it are not supported.
    fn of(hardware: u16) -> Option<Self> {
        match hardware {
            libc::ARPHRD_ETHER => Some(Self::Ethernet),
            libc::ARPHRD_LOOPBACK => Some(Self::Loopback),
            libc::ARPHRD_NONE => Some(Self::Ip),
            _ => None,
        }
    }

    /// Returns its number in pcap files: LINKTYPE_ETHERNET or LINKTYPE_RAW of <https://www.tcpdump.org/linktypes.html>.
    pub(super) fn link_type(self) -> u32 {
        match self {
            Self::Ethernet | Self::Loopback => 1,
            Self::Ip => 101,
        }
    }
}

/// Finds the link of this name.
///
/// # Errors
/// [`CaptureError::UnknownLink`] and [`CaptureError::UnservedLink`].
pub(super) fn find(sysfs: &Path, name: &str) -> Result<Link, CaptureError> {
    let links = sysfs.join(LINKS);
    let known = names(&links);
    // The name is one of the list by now, so it cannot lead to another path.
    let read = |file| fs::read_to_string(links.join(name).join(file)).ok();
    let number = |file| read(file).and_then(|text| text.trim().parse::<u32>().ok());
    let found = known.iter().any(|link| link == name);
    let (Some(index), Some(hardware)) = (match found {
        true => (number("ifindex"), number("type")),
        false => (None, None),
    }) else {
        return Err(CaptureError::UnknownLink {
            name: name.to_owned(),
            known,
        });
    };
    // The kernel keeps it in an unsigned short.
    let hardware = u16::try_from(hardware).unwrap_or(u16::MAX);
    match Kind::of(hardware) {
        Some(kind) => Ok(Link {
            name: name.to_owned(),
            index,
            kind,
        }),
        None => Err(CaptureError::UnservedLink {
            name: name.to_owned(),
            hardware,
        }),
    }
}

/// Lists the names of all links, sorted.
fn names(links: &Path) -> Vec<String> {
    let entries = fs::read_dir(links).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter(|entry| entry.path().join("ifindex").exists())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn links_are_told_apart_by_their_hardware_type() {
        let sysfs = tempfile::tempdir().unwrap();
        for (index, name, hardware) in [
            (1, "lo", "772\n"),
            (2, "eth0", "1\n"),
            (3, "wg0", "65534\n"),
            (4, "ib0", "32\n"),
        ] {
            let link = sysfs.path().join(LINKS).join(name);
            fs::create_dir_all(&link).unwrap();
            fs::write(link.join("ifindex"), format!("{index}\n")).unwrap();
            fs::write(link.join("type"), hardware).unwrap();
        }
        fs::write(sysfs.path().join(LINKS).join("bonding_masters"), "").unwrap();

        let found = |name| find(sysfs.path(), name).unwrap();
        let (lo, eth0, wg0) = (found("lo"), found("eth0"), found("wg0"));
        assert_eq!((lo.index, lo.kind), (1, Kind::Loopback));
        assert_eq!((eth0.index, eth0.kind), (2, Kind::Ethernet));
        assert_eq!((wg0.index, wg0.kind), (3, Kind::Ip));
        let types = [lo, eth0, wg0].map(|link| link.kind.link_type());
        assert_eq!(types, [1, 1, 101]);

        let refused = |name| find(sysfs.path(), name).unwrap_err().to_string();
        assert!(refused("ib0").contains("ib0 is of the hardware type 32"));
        for name in ["eth1", "", ".", "../net/eth0", "bonding_masters"] {
            assert_eq!(
                refused(name),
                format!("there is no link {name:?}; the links are eth0, ib0, lo, wg0")
            );
        }
    }
}
