//! The place of a server, seen from this machine: a response from elsewhere may not send the machine to itself.

use std::net::IpAddr;

/// The place of an address, by which redirections are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A loopback address, or the unspecified one.
    ThisMachine,
    /// Link-local: clouds serve the credentials of their machines there.
    ThisLink,
    /// Anywhere else.
    Elsewhere,
}

impl Place {
    pub(crate) fn of(address: IpAddr) -> Self {
        let address = address.to_canonical();
        // To the kernel, the unspecified address is the machine itself.
        if address.is_loopback() || address.is_unspecified() {
            return Place::ThisMachine;
        }
        let on_link = match address {
            IpAddr::V4(address) => address.is_link_local(),
            IpAddr::V6(address) => address.is_unicast_link_local(),
        };
        if on_link {
            Place::ThisLink
        } else {
            Place::Elsewhere
        }
    }

    /// Whether a server at `origin` may send us here.
    pub(crate) fn may_be_reached_from(self, origin: Place) -> bool {
        self == Place::Elsewhere || self == origin
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn places_of_addresses() {
        let place = |address: &str| Place::of(address.parse().unwrap());
        for here in [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "::1",
            "::",
            "::ffff:127.0.0.1",
        ] {
            assert_eq!(place(here), Place::ThisMachine, "{here}");
        }
        for link in ["169.254.169.254", "fe80::1", "::ffff:169.254.1.1"] {
            assert_eq!(place(link), Place::ThisLink, "{link}");
        }
        for elsewhere in [
            "10.0.2.2",
            "192.168.1.1",
            "8.8.8.8",
            "2001:db8::1",
            "fd00::1",
        ] {
            assert_eq!(place(elsewhere), Place::Elsewhere, "{elsewhere}");
        }
    }
}
