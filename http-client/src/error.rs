//! Why there is no answer.

use std::io;

use http::StatusCode;

use crate::answer::{DOCUMENT, SILENCE, SLOWEST};
use crate::proxies::BadProxy;
use crate::tls::TlsError;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// Name resolution.
    #[error("resolving {host} failed")]
    Resolve {
        /// The name.
        host: String,
        /// The resolver's word.
        source: io::Error,
    },
    /// No address took the connection.
    #[error("connecting to {authority} failed")]
    Connect {
        /// Host and port.
        authority: String,
        /// Of the last address.
        source: io::Error,
    },
    /// Settings.
    #[error("TLS with {authority} is not possible")]
    TlsSettings {
        /// Host and port.
        authority: String,
        /// What is wrong.
        source: TlsError,
    },
    /// Certificate or protocol.
    #[error("the TLS handshake with {authority} failed")]
    Handshake {
        /// Host and port.
        authority: String,
        /// rustls' word.
        source: io::Error,
    },
    /// During the request or the answer.
    #[error("the connection to {authority} broke")]
    Broken {
        /// Host and port.
        authority: String,
        /// What happened.
        source: hyper::Error,
    },
    /// Silence.
    #[error("{authority} did not answer for {} seconds", SILENCE.as_secs())]
    Silent {
        /// Host and port.
        authority: String,
    },
    /// Drop by drop.
    #[error("{authority} sends less than {SLOWEST} bytes a second")]
    TooSlow {
        /// Host and port.
        authority: String,
    },
    /// A document that does not end.
    #[error("{authority} did not send a whole document within {} seconds", DOCUMENT.as_secs())]
    Late {
        /// Host and port.
        authority: String,
    },
    /// This machine or its link, from elsewhere.
    #[error(
        "{authority} is at {address}: a server that is not there itself may not send this machine there"
    )]
    Place {
        /// Host and port.
        authority: String,
        /// Its address.
        address: String,
    },
    /// A redirection to no address, or from https to http.
    #[error(
        "{authority} redirects to {location:?}: that is no address of http or https, or one without TLS after one with it"
    )]
    Redirection {
        /// Host and port.
        authority: String,
        /// The header, shortened.
        location: String,
    },
    /// One redirection after the other.
    #[error("{authority} redirects once too often")]
    TooManyRedirections {
        /// Host and port of the last server.
        authority: String,
    },
    /// The setting of the proxy.
    #[error(transparent)]
    BadProxy(#[from] BadProxy),
    /// The proxy's own answer.
    #[error("the proxy {proxy} does not connect to {target}: it answers {status}")]
    Proxy {
        /// Host and port of the proxy.
        proxy: String,
        /// Host and port of the server.
        target: String,
        /// Its answer.
        status: StatusCode,
    },
    /// A document, not a blob.
    #[error("{authority} sends more than {limit} bytes")]
    TooLong {
        /// Host and port.
        authority: String,
        /// Bytes.
        limit: usize,
    },
    /// Not a URL, not a header.
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

    /// Whether nobody answered: no name, no way, no listener, silence. An answer that is no HTTP, a refused certificate or
    /// a refused redirection is somebody's.
    pub fn is_unreachable(&self) -> bool {
        match self {
            HttpError::Broken { source, .. } => !source.is_parse(),
            HttpError::TooSlow { .. } | HttpError::Late { .. } => true,
            _ => self.is_transient(),
        }
    }
}
