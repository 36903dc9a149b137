//! Why requests to registries fail: the error of one endpoint, and those of all endpoints that were asked for an image.

use std::fmt;

use http::StatusCode;

use instar_base::error_chain::chain;
use instar_http_client::HttpError;
use instar_values::Digest;
use instar_values::ImageReference;

use super::limits::{BRIEF, LARGEST_DOCUMENT, RESOLVE};
use super::said::Said;
use crate::manifest::ManifestError;

/// Why a request to one endpoint failed.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// There is no HTTP response.
    #[error("there was no answer")]
    Http(#[from] HttpError),
    /// 404: the endpoint does not have it.
    #[error("it does not have it{said}")]
    NotFound {
        /// The registry's message.
        said: Said,
    },
    /// The endpoint did not answer as soon as one has to that has others behind it.
    #[error("it did not answer within {} seconds, and others could be asked", BRIEF.as_secs())]
    Hesitates,
    /// 401 or 403 from a server that the endpoint redirects to. Our credentials are for the endpoint only.
    #[error(
        "it redirects to {authority}, which refuses access{said}; credentials are for the registry itself and were not sent there: check that server \
         and this machine's clock, as such links are valid for minutes"
    )]
    DeniedElsewhere {
        /// Host and port of that server.
        authority: String,
        /// The server's message.
        said: Said,
    },
    /// 401 or 403.
    #[error("it refuses access{said}; check the credentials in RegistryAuthConfig")]
    Denied {
        /// The registry's message.
        said: Said,
    },
    /// The URL of the token service is refused: not valid, or not https (http only if the registry itself uses it).
    #[error("refused to ask {realm:?} for a token: token services must use https")]
    Realm {
        /// The URL of the service.
        realm: String,
    },
    /// The response holds no token.
    #[error("its token service gave no token")]
    Token,
    /// Any other status.
    #[error("it answered {status}{said}")]
    Status {
        /// The status.
        status: StatusCode,
        /// The registry's message.
        said: Said,
    },
    /// The content has another digest than requested.
    #[error("it sent {what} with the digest {actual}, not {expected}")]
    Digest {
        /// The kind of document: `a manifest` or `a config`.
        what: &'static str,
        /// The requested digest.
        expected: Digest,
        /// The digest of the response.
        actual: Digest,
    },
    /// The content has another size than its descriptor names.
    #[error("it sent {what} of {actual} bytes, where {expected} are announced")]
    Size {
        /// The kind of document: `a manifest` or `a config`.
        what: &'static str,
        /// The size in the descriptor.
        expected: u64,
        /// The size of the response.
        actual: u64,
    },
    /// The document is readable, but of no use.
    #[error("the image cannot be used")]
    Manifest(#[from] ManifestError),
    /// The document is larger than the limit: a bomb.
    #[error("its {what} has {size} bytes; at most {LARGEST_DOCUMENT} are taken")]
    TooLarge {
        /// The kind of document: `manifest` or `config`.
        what: &'static str,
        /// Size in bytes.
        size: u64,
    },
    /// The documents of an image took longer than the timeout.
    #[error("it did not say within {} seconds what the image is", RESOLVE.as_secs())]
    Late,
    /// An index refers to another index.
    #[error("the index points to another index")]
    Nested,
    /// A download was interrupted more often than the limit.
    #[error("the download broke off too often, last at {at} bytes")]
    Interrupted {
        /// The position in bytes.
        at: u64,
        /// The error of the last attempt.
        source: HttpError,
    },
}

impl RequestError {
    pub(super) fn is_transient(&self) -> bool {
        match self {
            RequestError::Http(error) => error.is_transient(),
            RequestError::Hesitates => true,
            RequestError::Status { status, .. } => {
                matches!(status.as_u16(), 408 | 429 | 500 | 502 | 503 | 504)
            }
            _ => false,
        }
    }

    /// Whether the endpoint may well do better when it is asked once more, with more patience.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            RequestError::Interrupted { source, .. } => source.is_transient(),
            error => error.is_transient(),
        }
    }

    /// Whether there was no answer: the endpoint is away, and says nothing to the next request either.
    pub(crate) fn is_silence(&self) -> bool {
        match self {
            RequestError::Http(error) => error.is_unreachable(),
            RequestError::Hesitates | RequestError::Late => true,
            _ => false,
        }
    }

    /// Whether the error says nothing about the image: the endpoint cannot be reached, or is unable to answer now.
    fn is_unreachable(&self) -> bool {
        match self {
            RequestError::Http(source) | RequestError::Interrupted { source, .. } => {
                source.is_unreachable()
            }
            RequestError::Late | RequestError::Hesitates => true,
            RequestError::Status { status, .. } => {
                status.is_server_error() || matches!(status.as_u16(), 408 | 429)
            }
            _ => false,
        }
    }
}

/// Why an image could not be resolved or read: the error of each endpoint.
#[derive(Debug, thiserror::Error)]
#[error("no registry gives {reference}")]
pub struct RegistryError {
    /// The image.
    pub reference: ImageReference,
    /// The errors by endpoint.
    #[source]
    pub tried: Tried,
}

impl RegistryError {
    /// Whether the image's registry cannot be reached: no answer, or a 5xx. A mirror that does not have the image says nothing about the
    /// registry behind it; any other answer (refused access, a wrong digest, a bad certificate) is another error.
    pub fn is_unreachable(&self) -> bool {
        let errors = || self.tried.0.iter().map(|(_, error)| error);
        errors().any(RequestError::is_unreachable)
            && errors().all(|error| {
                error.is_unreachable() || matches!(error, RequestError::NotFound { .. })
            })
    }

    /// Whether every endpoint has answered that it does not have the image.
    pub fn is_absence(&self) -> bool {
        let mut errors = self.tried.0.iter();
        !self.tried.0.is_empty()
            && errors.all(|(_, error)| matches!(error, RequestError::NotFound { .. }))
    }
}

/// Endpoints and their errors, in the order of asking.
#[derive(Debug)]
pub struct Tried(pub Vec<(String, RequestError)>);

impl std::error::Error for Tried {}

impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str(
                "its mirrors are empty and skipFallback is set: there is nobody to ask",
            );
        }
        for (index, (endpoint, error)) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{endpoint}: {}", chain(error))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
