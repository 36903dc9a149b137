//! One HTTP request to a registry and its answer: connection, TLS, redirections, time limits.
//!
//! A connection serves one request. Nothing is ever read without a bound on its size, on the time between two pieces and on how
//! slowly they may come. Nothing goes over plain http that was asked for over https, and nobody elsewhere can send us to this
//! machine itself or to the link that it is on.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
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
use tokio::time::{Instant, timeout};

use super::tls::{self, TlsError};
use crate::base::lock::Lock as _;
use crate::containers::registries::Registries;

/// Connecting, and the TLS handshake.
const CONNECT: Duration = Duration::from_secs(10);
/// Until the head of the answer, and between two pieces of it.
const SILENCE: Duration = Duration::from_secs(30);
/// For a whole document, which has some KiB.
const DOCUMENT: Duration = Duration::from_secs(120);
/// Bytes a second, and over how long they are counted: slower, an answer has no end.
const SLOWEST: u64 = 1024;
const COUNTED_OVER: Duration = Duration::from_secs(60);
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
        "{authority} is at {address}: a registry that is not there itself may not send us there"
    )]
    Place {
        /// Host and port.
        authority: String,
        /// Its address.
        address: IpAddr,
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
            TransportError::TooSlow { .. } | TransportError::Late { .. } => true,
            _ => self.is_transient(),
        }
    }
}

/// Where an address is, as far as being sent there goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    ThisMachine,
    /// Link-local: clouds have the credentials of their machines there.
    ThisLink,
    Elsewhere,
}

impl Place {
    fn of(address: IpAddr) -> Self {
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

    /// Whether somebody there may send us here.
    fn may_be_reached_from(self, origin: Place) -> bool {
        self == Place::Elsewhere || self == origin
    }
}

/// How fast an answer comes. Only the time is counted that we wait for it: unpacking may take as long as it likes.
#[derive(Debug, Default)]
struct Pace {
    bytes: u64,
    waited: Duration,
}

impl Pace {
    /// Counts a piece. `false` when the last minute's worth of waiting brought too little.
    fn holds_with(&mut self, bytes: usize, waited: Duration) -> bool {
        self.bytes += bytes as u64;
        self.waited += waited;
        if self.waited < COUNTED_OVER {
            return true;
        }
        let Pace { bytes, waited } = std::mem::take(self);
        bytes >= SLOWEST * waited.as_secs()
    }
}

/// An answer and who gave it.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// Host and port: after redirections, of the last one.
    pub(super) authority: String,
    /// Where the one is who was asked first.
    pub(super) origin: Place,
    body: Incoming,
    pace: Pace,
}

impl Answer {
    /// The next piece of the body; `None` at its end.
    pub(super) async fn piece(&mut self) -> Result<Option<Bytes>, TransportError> {
        loop {
            let asked = Instant::now();
            let Ok(frame) = timeout(SILENCE, self.body.frame()).await else {
                return Err(TransportError::Silent {
                    authority: self.authority.clone(),
                });
            };
            let Some(frame) = frame else { return Ok(None) };
            let frame = frame.map_err(|source| TransportError::Broken {
                authority: self.authority.clone(),
                source,
            })?;
            let data = frame.into_data().unwrap_or_default();
            if !self.pace.holds_with(data.len(), asked.elapsed()) {
                return Err(TransportError::TooSlow {
                    authority: self.authority.clone(),
                });
            }
            if !data.is_empty() {
                return Ok(Some(data));
            }
        }
    }

    /// The whole body, if it is no longer than that.
    pub(super) async fn document(&mut self, limit: usize) -> Result<Vec<u8>, TransportError> {
        let late = TransportError::Late {
            authority: self.authority.clone(),
        };
        timeout(DOCUMENT, self.all_pieces(limit))
            .await
            .unwrap_or(Err(late))
    }

    async fn all_pieces(&mut self, limit: usize) -> Result<Vec<u8>, TransportError> {
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

    /// Sends a GET, or a POST if there is a form, and follows redirections (without credentials to other hosts). `origin` is where
    /// the one is who told us to ask there; `None` if the config did.
    pub(super) async fn send(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
        form: Option<&str>,
        mut origin: Option<Place>,
    ) -> Result<Answer, TransportError> {
        let mut uri = uri.clone();
        let mut headers = headers.clone();
        for _ in 0..=MOST_REDIRECTIONS {
            let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
            let exchange = self.exchange(&uri, &authority, &headers, form, origin);
            let (answer, place) =
                timeout(SILENCE, exchange)
                    .await
                    .map_err(|_| TransportError::Silent {
                        authority: authority.clone(),
                    })??;
            let origin = *origin.get_or_insert(place);
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
                    authority,
                    origin,
                    body,
                    pace: Pace::default(),
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
        origin: Option<Place>,
    ) -> Result<(Response<Incoming>, Place), TransportError> {
        let (stream, place) = self.connect(uri, authority, origin).await?;
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
        let answer = sender.send_request(request).await.map_err(broken)?;
        Ok((answer, place))
    }

    async fn connect(
        &self,
        uri: &Uri,
        authority: &str,
        origin: Option<Place>,
    ) -> Result<(Box<dyn Stream>, Place), TransportError> {
        let https = uri.scheme_str() == Some("https");
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let port = uri.port_u16().unwrap_or(if https { 443 } else { 80 });
        let (tcp, place) = connect_tcp(host, port, authority, origin).await?;
        if !https {
            return Ok((Box::new(tcp), place));
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
            Ok(Ok(stream)) => Ok((Box::new(stream), place)),
            Ok(Err(source)) => Err(failed(source)),
            Err(_) => Err(failed(io::ErrorKind::TimedOut.into())),
        }
    }

    /// Whether the TLS settings of every host can be used.
    pub(super) fn check_settings(&self) -> Result<(), TransportError> {
        for authority in self.registries.tls.keys() {
            let made = self.tls_config(authority);
            made.map_err(|source| TransportError::TlsSettings {
                authority: authority.clone(),
                source,
            })?;
        }
        Ok(())
    }

    fn tls_config(&self, authority: &str) -> Result<Arc<rustls::ClientConfig>, TlsError> {
        let mut configs = self.configs.locked();
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

async fn connect_tcp(
    host: &str,
    port: u16,
    authority: &str,
    origin: Option<Place>,
) -> Result<(TcpStream, Place), TransportError> {
    let resolve = |source| TransportError::Resolve {
        host: host.to_owned(),
        source,
    };
    let addresses: Vec<_> = timeout(CONNECT, tokio::net::lookup_host((host, port)))
        .await
        .map_err(|_| resolve(io::ErrorKind::TimedOut.into()))?
        .map_err(resolve)?
        .collect();
    let failed = |source| TransportError::Connect {
        authority: authority.to_owned(),
        source,
    };
    let mut last = failed(io::Error::new(
        io::ErrorKind::NotFound,
        "the name has no address",
    ));
    for address in addresses {
        let place = Place::of(address.ip());
        if origin.is_some_and(|origin| !place.may_be_reached_from(origin)) {
            last = TransportError::Place {
                authority: authority.to_owned(),
                address: address.ip(),
            };
            continue;
        }
        match timeout(CONNECT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok((stream, place)),
            Ok(Err(error)) => last = failed(error),
            Err(_) => last = failed(io::ErrorKind::TimedOut.into()),
        }
    }
    Err(last)
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// An answer whose body comes as `pieces` of so many bytes, each after a pause. Time is the test's.
    async fn answer(pieces: Vec<(Duration, usize)>) -> Answer {
        let (client, mut server) = tokio::io::duplex(1 << 16);
        tokio::spawn(async move {
            let _ = server.read(&mut [0; 1024]).await;
            let _ = server
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
                .await;
            for (pause, bytes) in pieces {
                tokio::time::sleep(pause).await;
                if server.write_all(&vec![b'x'; bytes]).await.is_err() {
                    return;
                }
            }
            std::future::pending::<()>().await;
        });
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake::<_, Full<Bytes>>(TokioIo::new(client))
                .await
                .unwrap();
        tokio::spawn(connection);
        let answer = sender.send_request(Request::default()).await.unwrap();
        let (head, body) = answer.into_parts();
        Answer {
            status: head.status,
            headers: head.headers,
            authority: "r:5000".to_owned(),
            origin: Place::Elsewhere,
            body,
            pace: Pace::default(),
        }
    }

    /// How it ends, and after how long.
    async fn end(mut answer: Answer) -> (TransportError, u64) {
        let begun = Instant::now();
        loop {
            match answer.piece().await {
                Ok(piece) => assert!(piece.is_some()),
                Err(error) => return (error, begun.elapsed().as_secs()),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_only_drips_ends() {
        let seconds = Duration::from_secs;
        let (error, after) = end(answer(vec![(seconds(29), 1); 100]).await).await;
        assert!(matches!(error, TransportError::TooSlow { .. }), "{error}");
        assert!(error.is_unreachable() && !error.is_transient());
        assert_eq!(after, 87);
        // A minute of silence is shorter: it is the silence that ends it.
        let (error, after) = end(answer(vec![(seconds(1), 100_000)]).await).await;
        assert!(matches!(error, TransportError::Silent { .. }), "{error}");
        assert_eq!(after, 31);
        // Slow, but no slower than that, for ten minutes.
        let (error, after) = end(answer(vec![(seconds(20), 21_000); 30]).await).await;
        assert!(matches!(error, TransportError::Silent { .. }), "{error}");
        assert_eq!(after, 630);
    }

    #[tokio::test(start_paused = true)]
    async fn time_that_is_not_spent_waiting_does_not_count() {
        let seconds = Duration::from_secs;
        let mut answer = answer(vec![(seconds(1), 100), (seconds(20), 100)]).await;
        assert!(answer.piece().await.unwrap().is_some());
        // Whoever unpacks takes its time.
        tokio::time::sleep(seconds(200)).await;
        assert!(answer.piece().await.unwrap().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_document_has_a_time_limit() {
        let begun = Instant::now();
        let mut answer = answer(vec![(Duration::from_secs(1), 2000); 1000]).await;
        let error = answer.document(1 << 20).await.unwrap_err();
        assert!(matches!(error, TransportError::Late { .. }), "{error}");
        assert_eq!(begun.elapsed().as_secs(), 120);
    }

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

    #[tokio::test]
    async fn nobody_elsewhere_sends_us_to_this_machine() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let connect = async |origin| connect_tcp("localhost", port, "x", origin).await;
        for origin in [Place::Elsewhere, Place::ThisLink] {
            let error = connect(Some(origin)).await.unwrap_err();
            assert!(matches!(error, TransportError::Place { .. }), "{error}");
            assert!(!error.is_unreachable());
        }
        // A registry on this machine may, and so may the config.
        for origin in [Some(Place::ThisMachine), None] {
            assert_eq!(connect(origin).await.unwrap().1, Place::ThisMachine);
        }
    }

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
