//! Another node, as a caller names it.

use std::fmt;
use std::net::IpAddr;

use rustls_pki_types::{DnsName, ServerName};

/// The name or address that a caller uses for another node. The node's certificate must be valid for exactly this.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Other {
    /// An IP address.
    Address(IpAddr),
    /// A host name, which has to be looked up.
    Name(DnsName<'static>),
}

impl Other {
    /// Reads an address or a host name, without a port; `None` where it is neither.
    pub(super) fn parse(text: &str) -> Option<Self> {
        if let Ok(address) = text.parse() {
            return Some(Other::Address(address));
        }
        let name = DnsName::try_from(text.to_owned());
        name.ok().map(Other::Name)
    }

    /// The name that the node's certificate must be valid for.
    pub(super) fn server_name(&self) -> ServerName<'static> {
        match self {
            Other::Address(address) => ServerName::from(*address),
            Other::Name(name) => ServerName::from(name.clone()),
        }
    }

    /// Host and port, as URLs have them.
    pub(super) fn authority(&self) -> String {
        match self {
            Other::Address(address) => {
                std::net::SocketAddr::new(*address, instar_api::PORT).to_string()
            }
            Other::Name(name) => format!("{}:{}", name.as_ref(), instar_api::PORT),
        }
    }
}

impl fmt::Display for Other {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Other::Address(address) => address.fmt(f),
            Other::Name(name) => f.write_str(name.as_ref()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn addresses_and_names_are_told_apart() {
        for (text, authority) in [
            ("10.0.0.2", "10.0.0.2:50000"),
            ("fd00::2", "[fd00::2]:50000"),
        ] {
            let other = Other::parse(text).unwrap();
            assert!(matches!(other, Other::Address(_)), "{text}");
            assert_eq!(
                (other.to_string(), other.authority()),
                (text.into(), authority.into())
            );
        }
        let name = Other::parse("node-2.Example.org").unwrap();
        assert!(matches!(name, Other::Name(_)));
        assert_eq!(name.authority(), "node-2.Example.org:50000");
        assert_eq!(name.server_name().to_str(), "node-2.Example.org");
    }

    #[test]
    fn what_is_neither_is_nothing() {
        // Some of these would be addresses to a resolver: 10.2 is 10.0.0.2 to it.
        for text in [
            "",
            "node-2:50000",
            "10.0.0.2:50000",
            "[fd00::2]",
            "[::1",
            "10.2",
            "10.0.0.300",
            "a..b",
            "-a",
            "a b",
            "ü",
            "\u{fffd}",
        ] {
            assert_eq!(Other::parse(text), None, "{text:?}");
        }
    }
}
