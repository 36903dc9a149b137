//! Where logs are sent to.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use super::HostPort;

/// How lines travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogTransport {
    /// A stream of lines.
    Tcp,
    /// The same over TLS.
    Tls,
    /// A datagram for each line. Nobody notices if it is lost.
    Udp,
}

/// `tcp://HOST:PORT`, or the same with `tls` or `udp`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogEndpoint {
    /// How lines travel.
    pub transport: LogTransport,
    /// The receiver.
    pub address: HostPort,
}

/// Which lines a destination gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogContent {
    /// The logs of all services.
    Services,
    /// The kernel's log.
    Kernel,
    /// The machine's events.
    Events,
}

/// A receiver, and its lines.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogDestination {
    /// The receiver.
    pub endpoint: LogEndpoint,
    /// Which lines it gets.
    pub content: LogContent,
    /// Fields that are added to each line.
    pub tags: BTreeMap<String, String>,
}

/// Why a text names no receiver of logs.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "{0:?} names no receiver of logs: tcp://HOST:PORT, udp://HOST:PORT or tls://HOST:PORT is expected"
)]
pub struct NotALogEndpoint(String);

impl LogTransport {
    fn word(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Udp => "udp",
        }
    }
}

impl LogEndpoint {
    /// The host without its port, and an IPv6 address without its brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        let text = self.address.as_str();
        let host = text.rsplit_once(':').map_or(text, |(host, _)| host);
        host.trim_matches(['[', ']'])
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        let port = self.address.as_str().rsplit_once(':');
        // A HostPort has one.
        port.and_then(|(_, port)| port.parse().ok()).unwrap_or(0)
    }
}

impl FromStr for LogEndpoint {
    type Err = NotALogEndpoint;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || NotALogEndpoint(text.chars().take(100).collect());
        let (scheme, rest) = text.split_once("://").ok_or_else(bad)?;
        let transport = match scheme {
            "tcp" => LogTransport::Tcp,
            "tls" => LogTransport::Tls,
            "udp" => LogTransport::Udp,
            _ => return Err(bad()),
        };
        // Talos writes the URL with a slash at its end in its own examples.
        let address = rest.strip_suffix('/').unwrap_or(rest);
        let address = address.parse().map_err(|_| bad())?;
        Ok(LogEndpoint { transport, address })
    }
}

impl fmt::Display for LogEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.transport.word(), self.address)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn endpoints_have_a_transport_a_host_and_a_port() {
        for (text, host, port) in [
            ("tcp://192.0.2.1:12345/", "192.0.2.1", 12345),
            ("udp://[fd00::1]:514", "fd00::1", 514),
            ("tls://logs.example:6514", "logs.example", 6514),
        ] {
            let endpoint: LogEndpoint = text.parse().unwrap();
            assert_eq!((endpoint.host(), endpoint.port()), (host, port));
            assert_eq!(endpoint.to_string(), text.trim_end_matches('/'));
        }
        for bad in [
            "",
            "192.0.2.1:1",
            "http://a:1",
            "tcp://a",
            "tcp://a:0",
            "tcp://a:1/x",
        ] {
            bad.parse::<LogEndpoint>().unwrap_err();
        }
    }
}
