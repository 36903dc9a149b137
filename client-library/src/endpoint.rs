//! The address to connect to: `host`, `host:port`, an IPv6 address with or without brackets, or `https://host[:port]`.

use std::fmt;
use std::str::FromStr;

use rustls::pki_types::ServerName;

/// A host and a port. The host is kept as typed: the server's certificate must have the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    host: String,
    port: u16,
}

/// The text is not an endpoint.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no endpoint; write it as host, host:port or [IPv6 address]:port")]
pub struct BadEndpoint(String);

impl Endpoint {
    /// The host as typed, an IPv6 address without its brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port: 50000 if none was typed, 443 for `https://`.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The name that the server's certificate must have.
    pub(crate) fn server_name(&self) -> Result<ServerName<'static>, BadEndpoint> {
        ServerName::try_from(self.host.clone()).map_err(|_| BadEndpoint(self.host.clone()))
    }

    fn parse(text: &str) -> Option<Self> {
        let (rest, default_port) = match text.split_once("://") {
            Some(("https", rest)) => (rest.trim_end_matches('/'), 443),
            Some(_) => return None,
            None => (text, instar_api::PORT),
        };
        let (host, port) = if let Some(bracketed) = rest.strip_prefix('[') {
            let (host, after) = bracketed.split_once(']')?;
            host.parse::<std::net::Ipv6Addr>().ok()?;
            match after.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if after.is_empty() => (host, None),
                None => return None,
            }
        } else if rest.parse::<std::net::Ipv6Addr>().is_ok() {
            (rest, None)
        } else {
            rest.split_once(':')
                .map_or((rest, None), |(host, port)| (host, Some(port)))
        };
        let port = match port {
            Some(port) => port.parse().ok().filter(|port| *port != 0)?,
            None => default_port,
        };
        let endpoint = Self {
            host: host.to_owned(),
            port,
        };
        endpoint.server_name().is_ok().then_some(endpoint)
    }
}

impl FromStr for Endpoint {
    type Err = BadEndpoint;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text.trim()).ok_or_else(|| BadEndpoint(text.to_owned()))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn every_way_to_write_one() {
        for (text, host, port) in [
            ("10.0.0.1", "10.0.0.1", 50000),
            ("127.0.0.1:5000", "127.0.0.1", 5000),
            ("node.example.org:1", "node.example.org", 1),
            ("::1", "::1", 50000),
            ("[fd00::1]:7", "fd00::1", 7),
            ("[fd00::1]", "fd00::1", 50000),
            ("https://node", "node", 443),
            ("https://node:50000/", "node", 50000),
        ] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!((endpoint.host(), endpoint.port()), (host, port), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "", ":50000", "a:b", "a:0", "a:70000", "[::1", "[a]:1", "http://a", "a b", "[::1]x",
        ] {
            assert!(text.parse::<Endpoint>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn shown_as_it_could_be_typed() {
        for text in ["10.0.0.1:50000", "[fd00::1]:7"] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
    }
}
