//! One HTTP request to a registry and its answer: connection, TLS, redirections, time limits.
//!
//! A connection serves one request. Nothing is ever read without a bound on its size and on the time between two
//! pieces, and nothing goes over plain http that was asked for over https.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, HOST, HeaderMap, HeaderValue, LOCATION, USER_AGENT};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::tls::{self, TlsError};
use crate::containers::registries::Registries;

/// Connecting, and the TLS handshake.
const CONNECT: Duration = Duration::from_secs(10);
/// Until the head of the answer, and between two pieces of it.
const SILENCE: Duration = Duration::from_secs(30);
const MOST_REDIRECTIONS: usize = 5;
/// What hyper keeps of a connection: enough for a full pipe, little enough for a small node.
const CONNECTION_BUFFER: usize = 64 * 1024;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
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
    /// Where it sends us.
    #[error("{authority} redirects to {location:?}, where we don't go")]
    Redirection {
        /// Host and port.
        authority: String,
        /// The other place.
        location: String,
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

impl TransportError {
    /// Whether the same request may well succeed a moment later.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            TransportError::Resolve { .. }
            | TransportError::Connect { .. }
            | TransportError::Broken { .. }
            | TransportError::Silent { .. } => true,
            // A connection that ends within the handshake is a restart; a refused certificate stays refused.
            TransportError::Handshake { source, .. } => source.kind() != io::ErrorKind::InvalidData,
            _ => false,
        }
    }

    /// Whether nobody answered: no name, no way, no listener, silence. An answer that is no HTTP, a refused certificate or
    /// a refused redirection is somebody's.
    pub(super) fn is_unreachable(&self) -> bool {
        match self {
            TransportError::Broken { source, .. } => !source.is_parse(),
            _ => self.is_transient(),
        }
    }
}

/// An answer and who gave it.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    body: Incoming,
    authority: String,
}

impl Answer {
    /// The next piece of the body; `None` at its end.
    pub(super) async fn piece(&mut self) -> Result<Option<Bytes>, TransportError> {
        loop {
            let Ok(frame) = timeout(SILENCE, self.body.frame()).await else {
                return Err(TransportError::Silent {
                    authority: self.authority.clone(),
                });
            };
            match frame {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
                Some(Err(source)) => {
                    return Err(TransportError::Broken {
                        authority: self.authority.clone(),
                        source,
                    });
                }
            }
        }
    }

    /// The whole body, if it is no longer than that.
    pub(super) async fn document(&mut self, limit: usize) -> Result<Vec<u8>, TransportError> {
        let mut document = Vec::new();
        while let Some(piece) = self.piece().await? {
            if document.len() + piece.len() > limit {
                return Err(TransportError::TooLong {
                    authority: self.authority.clone(),
                    limit,
                });
            }
            document.extend_from_slice(&piece);
        }
        Ok(document)
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// Sends requests with the TLS settings of each host.
pub(super) struct Transport {
    registries: Arc<Registries>,
    configs: Mutex<HashMap<String, Arc<rustls::ClientConfig>>>,
}

impl Transport {
    pub(super) fn new(registries: Arc<Registries>) -> Self {
        Transport {
            registries,
            configs: Mutex::default(),
        }
    }

    /// Sends a GET, or a POST if there is a form, and follows redirections (without credentials to other hosts).
    pub(super) async fn send(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
        form: Option<&str>,
    ) -> Result<Answer, TransportError> {
        let mut uri = uri.clone();
        let mut headers = headers.clone();
        for _ in 0..=MOST_REDIRECTIONS {
            let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
            let answer = timeout(SILENCE, self.exchange(&uri, &authority, &headers, form))
                .await
                .map_err(|_| TransportError::Silent {
                    authority: authority.clone(),
                })??;
            let redirected = matches!(answer.status().as_u16(), 301 | 302 | 303 | 307 | 308);
            let Some(location) = answer
                .headers()
                .get(LOCATION)
                .filter(|_| redirected && form.is_none())
            else {
                let (head, body) = answer.into_parts();
                return Ok(Answer {
                    status: head.status,
                    headers: head.headers,
                    body,
                    authority,
                });
            };
            let next = redirection(&uri, location).ok_or_else(|| TransportError::Redirection {
                authority: authority.clone(),
                location: location
                    .as_bytes()
                    .escape_ascii()
                    .take(200)
                    .map(char::from)
                    .collect(),
            })?;
            if next.authority() != uri.authority() || next.scheme() != uri.scheme() {
                headers.remove(AUTHORIZATION);
            }
            uri = next;
        }
        let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
        Err(TransportError::Redirection {
            authority,
            location: "one place after the other".to_owned(),
        })
    }

    async fn exchange(
        &self,
        uri: &Uri,
        authority: &str,
        headers: &HeaderMap,
        form: Option<&str>,
    ) -> Result<Response<Incoming>, TransportError> {
        let stream = self.connect(uri, authority).await?;
        let mut request = Request::builder()
            .method(if form.is_some() {
                Method::POST
            } else {
                Method::GET
            })
            .uri(uri.path_and_query().map_or("/", |path| path.as_str()))
            .header(HOST, authority)
            .header(USER_AGENT, concat!("instar/", env!("CARGO_PKG_VERSION")));
        if form.is_some() {
            request = request.header(
                http::header::CONTENT_TYPE,
                "application/x-www-form-urlencoded",
            );
        }
        let body = Full::new(Bytes::from(form.unwrap_or_default().to_owned()));
        let mut request = request.body(body).map_err(TransportError::Request)?;
        request.headers_mut().extend(headers.clone());
        let broken = |source| TransportError::Broken {
            authority: authority.to_owned(),
            source,
        };
        let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
            .max_buf_size(CONNECTION_BUFFER)
            .handshake::<_, Full<Bytes>>(TokioIo::new(stream))
            .await
            .map_err(broken)?;
        // It ends by itself with the answer, or when the answer is dropped.
        tokio::spawn(connection);
        sender.send_request(request).await.map_err(broken)
    }

    async fn connect(&self, uri: &Uri, authority: &str) -> Result<Box<dyn Stream>, TransportError> {
        let https = uri.scheme_str() == Some("https");
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let port = uri.port_u16().unwrap_or(if https { 443 } else { 80 });
        let tcp = connect_tcp(host, port, authority).await?;
        if !https {
            return Ok(Box::new(tcp));
        }
        let config = self
            .tls_config(authority)
            .map_err(|source| TransportError::TlsSettings {
                authority: authority.to_owned(),
                source,
            })?;
        let failed = |source| TransportError::Handshake {
            authority: authority.to_owned(),
            source,
        };
        let name = ServerName::try_from(host.to_owned())
            .map_err(|error| failed(io::Error::other(error)))?;
        let handshake = tokio_rustls::TlsConnector::from(config).connect(name, tcp);
        match timeout(CONNECT, handshake).await {
            Ok(Ok(stream)) => Ok(Box::new(stream)),
            Ok(Err(source)) => Err(failed(source)),
            Err(_) => Err(failed(io::ErrorKind::TimedOut.into())),
        }
    }

    fn tls_config(&self, authority: &str) -> Result<Arc<rustls::ClientConfig>, TlsError> {
        let mut configs = self
            .configs
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(config) = configs.get(authority) {
            return Ok(Arc::clone(config));
        }
        let roots = tls::roots(&self.registries.trusted_roots)?;
        let config = Arc::new(tls::client_config(
            &roots,
            self.registries.tls.get(authority),
        )?);
        configs.insert(authority.to_owned(), Arc::clone(&config));
        Ok(config)
    }
}

async fn connect_tcp(host: &str, port: u16, authority: &str) -> Result<TcpStream, TransportError> {
    let resolve = |source| TransportError::Resolve {
        host: host.to_owned(),
        source,
    };
    let addresses: Vec<_> = timeout(CONNECT, tokio::net::lookup_host((host, port)))
        .await
        .map_err(|_| resolve(io::ErrorKind::TimedOut.into()))?
        .map_err(resolve)?
        .collect();
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        match timeout(CONNECT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = error,
            Err(_) => last = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(TransportError::Connect {
        authority: authority.to_owned(),
        source: last,
    })
}

/// Where a redirection leads; `None` where it must not: from https to plain http, or to what is no URL.
fn redirection(from: &Uri, location: &HeaderValue) -> Option<Uri> {
    let location = location.to_str().ok()?;
    if location.starts_with('/') && !location.starts_with("//") {
        let mut parts = from.clone().into_parts();
        parts.path_and_query = Some(location.parse().ok()?);
        return Uri::from_parts(parts).ok();
    }
    let to: Uri = location.split('#').next()?.parse().ok()?;
    to.authority()?;
    match (from.scheme_str(), to.scheme_str()) {
        (_, Some("https")) | (Some("http"), Some("http")) => Some(to),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn redirections_never_lose_tls() {
        let redirect = |from: &str, to: &str| {
            let to = HeaderValue::from_str(to).unwrap();
            redirection(&from.parse().unwrap(), &to).map(|uri| uri.to_string())
        };
        assert_eq!(
            redirect("https://a:1/v2/x?y", "/z?w").as_deref(),
            Some("https://a:1/z?w")
        );
        assert_eq!(
            redirect("http://a/x", "https://b/y").as_deref(),
            Some("https://b/y")
        );
        assert_eq!(
            redirect("http://a/x", "http://b/y#z").as_deref(),
            Some("http://b/y")
        );
        assert_eq!(redirect("https://a/x", "http://a/x"), None);
        for bad in ["//b/x", "ftp://b/x", "file:///etc/passwd", "relative", ""] {
            assert_eq!(redirect("http://a/x", bad), None, "{bad}");
        }
    }
}
