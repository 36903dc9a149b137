//! Why a request failed.

use std::io;

use http::StatusCode;

use crate::answer::{DOCUMENT, SILENCE, SLOWEST};
use crate::proxies::BadProxy;
use crate::tls::TlsError;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The name could not be resolved.
    #[error("resolving {host} failed")]
    Resolve {
        /// The name.
        host: String,
        /// The resolver's error.
        source: io::Error,
    },
    /// No address accepted the connection.
    #[error("connecting to {authority} failed")]
    Connect {
        /// Host and port.
        authority: String,
        /// The error of the last address.
        source: io::Error,
    },
    /// The TLS settings cannot be used.
    #[error("TLS with {authority} is not possible")]
    TlsSettings {
        /// Host and port.
        authority: String,
        /// The cause.
        source: TlsError,
    },
    /// The TLS handshake failed, by certificate or protocol.
    #[error("the TLS handshake with {authority} failed")]
    Handshake {
        /// Host and port.
        authority: String,
        /// rustls' error.
        source: io::Error,
    },
    /// The connection broke during the request or the response.
    #[error("the connection to {authority} broke")]
    Broken {
        /// Host and port.
        authority: String,
        /// hyper's error.
        source: hyper::Error,
    },
    /// The server was silent for longer than the timeout.
    #[error("{authority} did not answer for {} seconds", SILENCE.as_secs())]
    Silent {
        /// Host and port.
        authority: String,
    },
    /// The response was slower than the limit.
    #[error("{authority} sends less than {SLOWEST} bytes a second")]
    TooSlow {
        /// Host and port.
        authority: String,
    },
    /// A document was not complete within the timeout.
    #[error("{authority} did not send a whole document within {} seconds", DOCUMENT.as_secs())]
    Late {
        /// Host and port.
        authority: String,
    },
    /// A server elsewhere sends us to this machine or its link.
    #[error(
        "{authority} is at {address}: a server that is not there itself may not send this machine there"
    )]
    Place {
        /// Host and port.
        authority: String,
        /// Its address.
        address: String,
    },
    /// The target of a redirection is not a URL, or leads from https to http.
    #[error(
        "{authority} redirects to {location:?}: that is no address of http or https, or one without TLS after one with it"
    )]
    Redirection {
        /// Host and port.
        authority: String,
        /// The header, shortened.
        location: String,
    },
    /// There were more redirections than the limit.
    #[error("{authority} redirects once too often")]
    TooManyRedirections {
        /// Host and port of the last server.
        authority: String,
    },
    /// The proxy setting is not valid.
    #[error(transparent)]
    BadProxy(#[from] BadProxy),
    /// The proxy refused to connect.
    #[error("the proxy {proxy} does not connect to {target}: it answers {status}")]
    Proxy {
        /// Host and port of the proxy.
        proxy: String,
        /// Host and port of the server.
        target: String,
        /// The proxy's status.
        status: StatusCode,
    },
    /// A document is longer than the limit.
    #[error("{authority} sends more than {limit} bytes")]
    TooLong {
        /// Host and port.
        authority: String,
        /// The limit in bytes.
        limit: usize,
    },
    /// The URL or a header is not valid.
    #[error("the request cannot be written")]
    Request(#[source] http::Error),
}

impl HttpError {
    /// Whether the same request may well succeed a moment later.
    pub fn is_transient(&self) -> bool {
        match self {
            HttpError::Resolve { .. }
            | HttpError::Connect { .. }
            | HttpError::Broken { .. }
            | HttpError::Silent { .. } => true,
            // A connection that ends within the handshake is a restart; a refused certificate stays refused.
            HttpError::Handshake { source, .. } => source.kind() != io::ErrorKind::InvalidData,
            _ => false,
        }
    }

    /// Whether no server answered: no name, no route, no listener, silence. A response that is not HTTP, a refused certificate or a refused
    /// redirection is an answer.
    pub fn is_unreachable(&self) -> bool {
        match self {
            HttpError::Broken { source, .. } => !source.is_parse(),
            HttpError::TooSlow { .. } | HttpError::Late { .. } => true,
            _ => self.is_transient(),
        }
    }
}
