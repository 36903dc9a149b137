//! Sends a request: connection, proxy, TLS, redirections.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, LOCATION, PROXY_AUTHORIZATION,
    USER_AGENT,
};
use http::{Method, Response, StatusCode, Uri};
use http_body_util::{Empty, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

use instar_base::first_address::first_that_answers;
use instar_base::lock::Lock as _;

use crate::answer::SILENCE;
use crate::proxies::{Proxies, Proxy, Rules};
use crate::tls::{self, TlsError, Trust};
use crate::{Answer, HttpError, Place};

/// Timeout of each of name resolution, a connection attempt and the TLS handshake.
const CONNECT: Duration = Duration::from_secs(10);
/// Size of hyper's buffer per connection: enough for a full pipe, and small enough for a small node.
const CONNECTION_BUFFER: usize = 64 * 1024;
const AGENT: &str = concat!("instar/", env!("CARGO_PKG_VERSION"));

/// One request.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// `http://…` or `https://…`.
    pub uri: &'a Uri,
    /// More headers. `Authorization` goes to the first host only.
    pub headers: &'a HeaderMap,
    /// The body, which decides the method. Redirections are followed only if nothing is sent.
    pub body: Body<'a>,
    /// The place of the server that named this address; `None` if the machine's config named it.
    pub origin: Option<Place>,
    /// Limit on the redirections followed. With 0, a redirection is the response.
    pub redirections: usize,
}

impl<'a> Request<'a> {
    /// A GET of an address that the machine's config named; a redirection is the response.
    pub fn get(uri: &'a Uri, headers: &'a HeaderMap) -> Self {
        Request {
            uri,
            headers,
            body: Body::None,
            origin: None,
            redirections: 0,
        }
    }
}

/// The body of a request.
#[derive(Debug, Clone, Copy)]
pub enum Body<'a> {
    /// Nothing: a GET.
    None,
    /// A form, encoded: a POST.
    Form(&'a str),
    /// A JSON document: a POST.
    Json(&'a str),
    /// Changes to a JSON document (RFC 7396): a PATCH.
    MergePatch(&'a str),
    /// An object of Kubernetes, as its server-side apply takes it: a PATCH.
    Apply(&'a str),
}

impl<'a> Body<'a> {
    fn is_none(self) -> bool {
        matches!(self, Body::None)
    }

    /// Returns the method, the type of what is sent, and the text itself.
    fn parts(self) -> (Method, Option<&'static str>, &'a str) {
        match self {
            Body::None => (Method::GET, None, ""),
            Body::Form(text) => (
                Method::POST,
                Some("application/x-www-form-urlencoded"),
                text,
            ),
            Body::Json(text) => (Method::POST, Some("application/json"), text),
            Body::MergePatch(text) => (Method::PATCH, Some("application/merge-patch+json"), text),
            Body::Apply(text) => (Method::PATCH, Some("application/apply-patch+yaml"), text),
        }
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// A connection for one request.
struct Connection {
    stream: Box<dyn Stream>,
    place: Place,
    /// The proxy to which the request is addressed. Through a tunnel it is addressed to the server.
    proxy: Option<Proxy>,
}

/// Sends requests with the TLS settings of each host, through the proxies in the machine's environment.
pub struct Client {
    trust: Trust,
    rules: Rules,
    configs: Mutex<HashMap<String, Arc<rustls::ClientConfig>>>,
}

impl Client {
    /// A client with these trust settings and proxies.
    pub fn new(trust: Trust, proxies: &Proxies) -> Self {
        Client {
            trust,
            rules: proxies.rules(),
            configs: Mutex::default(),
        }
    }

    /// Sends a request and follows its redirections.
    ///
    /// # Errors
    /// If no server gave the head of an answer within the limits, or a redirection leads where none may.
    pub async fn send(&self, request: Request<'_>) -> Result<Answer, HttpError> {
        let mut uri = request.uri.clone();
        let mut headers = request.headers.clone();
        let mut origin = request.origin;
        let mut followed = 0;
        loop {
            let authority = host_and_port(&uri);
            let exchange = self.exchange(&uri, &authority, &headers, request.body, origin);
            let (answer, place) =
                timeout(SILENCE, exchange)
                    .await
                    .map_err(|_| HttpError::Silent {
                        authority: authority.clone(),
                    })??;
            let first = *origin.get_or_insert(place);
            let Some(location) = redirection_of(&answer)
                .filter(|_| request.body.is_none() && request.redirections > 0)
            else {
                return Ok(Answer::new(answer, authority, first));
            };
            if followed == request.redirections {
                return Err(HttpError::TooManyRedirections { authority });
            }
            let next = redirection(&uri, location).ok_or_else(|| HttpError::Redirection {
                authority,
                location: printable(location),
            })?;
            if next.authority() != uri.authority() || next.scheme() != uri.scheme() {
                headers.remove(AUTHORIZATION);
            }
            uri = next;
            followed += 1;
        }
    }

    /// Checks that the TLS settings of every host can be used.
    ///
    /// # Errors
    /// The first setting that cannot.
    pub fn check_settings(&self) -> Result<(), HttpError> {
        for authority in self.trust.hosts.keys() {
            self.tls_config(authority)
                .map_err(|source| HttpError::TlsSettings {
                    authority: authority.clone(),
                    source,
                })?;
        }
        Ok(())
    }

    async fn exchange(
        &self,
        uri: &Uri,
        authority: &str,
        headers: &HeaderMap,
        body: Body<'_>,
        origin: Option<Place>,
    ) -> Result<(Response<Incoming>, Place), HttpError> {
        let connection = self.connect(uri, authority, origin).await?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        // A proxy gets the whole address, a server only the path.
        let target = match &connection.proxy {
            Some(_) => format!("http://{authority}{path}"),
            None => path.to_owned(),
        };
        let (method, content_type, text) = body.parts();
        let mut request = http::Request::builder()
            .method(method)
            .uri(target)
            .header(HOST, authority)
            .header(USER_AGENT, AGENT);
        if let Some(content_type) = content_type {
            request = request.header(CONTENT_TYPE, content_type);
        }
        if let Some(authorization) = connection.proxy.and_then(|proxy| proxy.authorization) {
            request = request.header(PROXY_AUTHORIZATION, authorization);
        }
        let body = Full::new(Bytes::from(text.to_owned()));
        let mut request = request.body(body).map_err(HttpError::Request)?;
        request.headers_mut().extend(headers.clone());
        let broken = |source| HttpError::Broken {
            authority: authority.to_owned(),
            source,
        };
        let (mut sender, driver) = hyper::client::conn::http1::Builder::new()
            .max_buf_size(CONNECTION_BUFFER)
            .handshake::<_, Full<Bytes>>(TokioIo::new(connection.stream))
            .await
            .map_err(broken)?;
        // The connection ends with the response, or when the response is dropped.
        instar_base::task::spawn(driver);
        let answer = sender.send_request(request).await.map_err(broken)?;
        Ok((answer, connection.place))
    }

    async fn connect(
        &self,
        uri: &Uri,
        authority: &str,
        origin: Option<Place>,
    ) -> Result<Connection, HttpError> {
        let https = uri.scheme_str() == Some("https");
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let port = uri.port_u16().unwrap_or(if https { 443 } else { 80 });
        let (stream, place, proxy) = match self.rules.proxy(uri) {
            None => {
                let (tcp, place) = connect_tcp(host, port, authority, origin).await?;
                (Box::new(tcp) as Box<dyn Stream>, place, None)
            }
            Some(proxy) => {
                let proxy = proxy?;
                // The proxy looks the name up. A literal address is checked here.
                let place = host.parse().map_or(Place::Elsewhere, Place::of);
                check_place(place, host, authority, origin)?;
                let (tcp, _) =
                    connect_tcp(&proxy.host, proxy.port, &proxy.authority(), None).await?;
                if https {
                    let stream = tunnel(tcp, &proxy, host, port).await?;
                    (Box::new(stream) as Box<dyn Stream>, place, None)
                } else {
                    (Box::new(tcp) as Box<dyn Stream>, place, Some(proxy))
                }
            }
        };
        let stream = if https {
            self.tls(stream, host, authority).await?
        } else {
            stream
        };
        Ok(Connection {
            stream,
            place,
            proxy,
        })
    }

    async fn tls(
        &self,
        stream: Box<dyn Stream>,
        host: &str,
        authority: &str,
    ) -> Result<Box<dyn Stream>, HttpError> {
        let config = self
            .tls_config(authority)
            .map_err(|source| HttpError::TlsSettings {
                authority: authority.to_owned(),
                source,
            })?;
        let failed = |source| HttpError::Handshake {
            authority: authority.to_owned(),
            source,
        };
        let name = ServerName::try_from(host.to_owned())
            .map_err(|error| failed(io::Error::other(error)))?;
        let handshake = tokio_rustls::TlsConnector::from(config).connect(name, stream);
        match timeout(CONNECT, handshake).await {
            Ok(Ok(stream)) => Ok(Box::new(stream)),
            Ok(Err(source)) => Err(failed(source)),
            Err(_) => Err(failed(io::ErrorKind::TimedOut.into())),
        }
    }

    fn tls_config(&self, authority: &str) -> Result<Arc<rustls::ClientConfig>, TlsError> {
        let mut configs = self.configs.locked();
        if let Some(config) = configs.get(authority) {
            return Ok(Arc::clone(config));
        }
        let config = Arc::new(tls::client_config(&self.trust, authority)?);
        configs.insert(authority.to_owned(), Arc::clone(&config));
        Ok(config)
    }
}

/// Makes a proxy connect to a server (`CONNECT`, RFC 9110 9.3.6) and returns the tunnel.
async fn tunnel(
    tcp: TcpStream,
    proxy: &Proxy,
    host: &str,
    port: u16,
) -> Result<TokioIo<hyper::upgrade::Upgraded>, HttpError> {
    let target = if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    };
    let mut request = http::Request::builder()
        .method(Method::CONNECT)
        .uri(&target)
        .header(HOST, &target)
        .header(USER_AGENT, AGENT);
    if let Some(authorization) = &proxy.authorization {
        request = request.header(PROXY_AUTHORIZATION, authorization);
    }
    let request = request
        .body(Empty::<Bytes>::new())
        .map_err(HttpError::Request)?;
    let broken = |source| HttpError::Broken {
        authority: proxy.authority(),
        source,
    };
    let (mut sender, driver) = hyper::client::conn::http1::handshake(TokioIo::new(tcp))
        .await
        .map_err(broken)?;
    instar_base::task::spawn(driver.with_upgrades());
    let answer = sender.send_request(request).await.map_err(broken)?;
    if answer.status() != StatusCode::OK {
        return Err(HttpError::Proxy {
            proxy: proxy.authority(),
            target,
            status: answer.status(),
        });
    }
    let tunnel = hyper::upgrade::on(answer).await.map_err(broken)?;
    Ok(TokioIo::new(tunnel))
}

fn check_place(
    place: Place,
    address: &str,
    authority: &str,
    origin: Option<Place>,
) -> Result<(), HttpError> {
    if origin.is_none_or(|origin| place.may_be_reached_from(origin)) {
        return Ok(());
    }
    Err(HttpError::Place {
        authority: authority.to_owned(),
        address: address.to_owned(),
    })
}

async fn connect_tcp(
    host: &str,
    port: u16,
    authority: &str,
    origin: Option<Place>,
) -> Result<(TcpStream, Place), HttpError> {
    let resolve = |source| HttpError::Resolve {
        host: host.to_owned(),
        source,
    };
    let found = timeout(CONNECT, tokio::net::lookup_host((host, port)))
        .await
        .map_err(|_| resolve(io::ErrorKind::TimedOut.into()))?
        .map_err(resolve)?;
    let mut addresses = Vec::new();
    let mut refused = None;
    for address in found {
        let ip = address.ip();
        match check_place(Place::of(ip), &ip.to_string(), authority, origin) {
            Ok(()) => addresses.push(address),
            Err(error) => refused = Some(error),
        }
    }
    if let Some(refused) = refused.filter(|_| addresses.is_empty()) {
        return Err(refused);
    }
    let connected = first_that_answers(addresses, CONNECT).await;
    let (stream, address) = connected.map_err(|source| HttpError::Connect {
        authority: authority.to_owned(),
        source,
    })?;
    Ok((stream, Place::of(address.ip())))
}

/// Host and port of the address, without user and password, so that it may be shown.
fn host_and_port(uri: &Uri) -> String {
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    let shown = authority
        .rsplit_once('@')
        .map_or(authority, |(_, shown)| shown);
    shown.to_owned()
}

fn redirection_of<B>(answer: &Response<B>) -> Option<&HeaderValue> {
    let redirected = matches!(answer.status().as_u16(), 301 | 302 | 303 | 307 | 308);
    answer.headers().get(LOCATION).filter(|_| redirected)
}

/// The first 200 characters of a header, escaped so that they do not affect a terminal.
fn printable(value: &HeaderValue) -> String {
    let escaped = value.as_bytes().escape_ascii();
    escaped.take(200).map(char::from).collect()
}

/// The target of a redirection; `None` if it is refused: from https to plain http, or not a URL.
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

    #[tokio::test]
    async fn nobody_elsewhere_sends_us_to_this_machine() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let connect = async |origin| connect_tcp("localhost", port, "x", origin).await;
        for origin in [Place::Elsewhere, Place::ThisLink] {
            let error = connect(Some(origin)).await.unwrap_err();
            assert!(matches!(error, HttpError::Place { .. }), "{error}");
            assert!(!error.is_unreachable());
        }
        // A registry on this machine may redirect to it, and the config may name it.
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
