//! Fetches a config over HTTP.
//!
//! The server may not be up yet, and a provisioning server may not know the machine yet: every failure is tried again until
//! the time for all tries is over, and each try tells the console what happened. Limits hold for every try: time, size,
//! redirects.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use rustls_pki_types::{CertificateDer, InvalidDnsNameError, ServerName, pem::PemObject};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::Instant,
};

use super::source::{GunzipError, gunzip, parse_url, shown};
use crate::base::error_chain::chain;
use crate::config::MAX_CONFIG_BYTES;

/// How hard to try.
#[derive(Debug, Clone)]
pub struct FetchPolicy {
    /// Time for all tries; one that is under way at its end is cut off.
    pub within: Duration,
    /// Pause after the first failure. It doubles with each further one.
    pub first_pause: Duration,
    /// The longest pause.
    pub longest_pause: Duration,
    /// Time of one try, from the name to the last byte.
    pub timeout: Duration,
    /// Redirects followed in one try.
    pub redirects: u32,
    /// Certificates to trust for https, PEM.
    pub ca_bundle: PathBuf,
}

impl Default for FetchPolicy {
    fn default() -> Self {
        Self {
            within: Duration::from_secs(20),
            first_pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(5),
            timeout: Duration::from_secs(30),
            redirects: 5,
            ca_bundle: "/etc/ssl/certs/ca-certificates.crt".into(),
        }
    }
}

impl FetchPolicy {
    fn pause(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        self.first_pause
            .saturating_mul(1 << doublings)
            .min(self.longest_pause)
    }
}

/// What happens, for the console.
#[derive(Debug)]
pub enum FetchStatus<'a> {
    /// A try begins.
    Trying {
        /// The address, without secrets.
        url: String,
        /// Which try, from 1.
        attempt: u32,
    },
    /// A try failed and there will be another.
    Failed {
        /// Why.
        error: &'a FetchError,
        /// When the next one begins.
        again_in: Duration,
    },
    /// It is here.
    Received {
        /// Its length, unpacked.
        bytes: usize,
    },
}

impl fmt::Display for FetchStatus<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Trying {
                url, attempt: 1, ..
            } => write!(f, "fetching the machine config from {url}"),
            Self::Trying { url, attempt } => {
                write!(f, "fetching the machine config from {url}, try {attempt}")
            }
            Self::Failed { error, again_in } => {
                let (why, seconds) = (chain(error), again_in.as_secs_f32());
                write!(f, "{why}; trying again in {seconds} s")
            }
            Self::Received { bytes } => write!(f, "received the machine config, {bytes} bytes"),
        }
    }
}

/// Why a config could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The name has no address, or nobody listens there.
    #[error("cannot connect to {host}")]
    Connect {
        /// Host and port.
        host: String,
        /// Why.
        source: std::io::Error,
    },
    /// No certificates to trust.
    #[error("cannot read the certificates to trust from {}", path.display())]
    CaBundle {
        /// Where they should be.
        path: PathBuf,
        /// Why.
        source: rustls_pki_types::pem::Error,
    },
    /// There is no way to speak TLS with this bundle.
    #[error("cannot set up TLS")]
    TlsSetup(#[source] rustls::Error),
    /// The host can't be in a certificate.
    #[error("{host} is no name that a certificate can have")]
    ServerName {
        /// The host.
        host: String,
        /// Why.
        source: InvalidDnsNameError,
    },
    /// TLS failed: mostly a certificate that isn't trusted.
    #[error("TLS with {host} failed; its certificate may not be valid here")]
    Tls {
        /// Host and port.
        host: String,
        /// Why.
        source: std::io::Error,
    },
    /// It answers, but not in HTTP as we know it.
    #[error("{host} ended the conversation early")]
    Http {
        /// Host and port.
        host: String,
        /// Why.
        source: hyper::Error,
    },
    /// The URL can't be asked for.
    #[error("{url} cannot be asked for")]
    Request {
        /// The address, without secrets.
        url: String,
        /// Why.
        source: http::Error,
    },
    /// It answers, with something else.
    #[error("{url} answers {status}")]
    Status {
        /// The address, without secrets.
        url: String,
        /// What it says.
        status: StatusCode,
    },
    /// It sends us elsewhere, and that is nowhere.
    #[error("{url} redirects to something that is no URL of http or https")]
    BadRedirect {
        /// The address, without secrets.
        url: String,
    },
    /// It sends us from https to http, where anybody could answer.
    #[error("{url} redirects from https to http")]
    InsecureRedirect {
        /// The address, without secrets.
        url: String,
    },
    /// It sends us around.
    #[error("{url} is one redirect too many")]
    TooManyRedirects {
        /// The address, without secrets.
        url: String,
    },
    /// It is no config, or an attack.
    #[error("the answer of {url} is longer than {MAX_CONFIG_BYTES} bytes")]
    TooLong {
        /// The address, without secrets.
        url: String,
    },
    /// The compression is broken.
    #[error("the answer of {url} is gzip that cannot be decompressed")]
    Gzip {
        /// The address, without secrets.
        url: String,
        /// Why.
        source: std::io::Error,
    },
    /// It takes too long.
    #[error("{url} did not answer within {} s", after.as_secs())]
    Timeout {
        /// The address, without secrets.
        url: String,
        /// How long it had.
        after: Duration,
    },
}

/// Fetches a config, trying again as the policy says. `report` is called with everything that happens.
///
/// # Errors
/// What the last try failed with.
pub async fn fetch(
    url: &Uri,
    policy: &FetchPolicy,
    mut report: impl FnMut(FetchStatus<'_>),
) -> Result<Vec<u8>, FetchError> {
    let until = Instant::now() + policy.within;
    let mut attempt = 1;
    let mut last = None;
    loop {
        report(FetchStatus::Trying {
            url: shown(url),
            attempt,
        });
        let limit = policy
            .timeout
            .min(until.saturating_duration_since(Instant::now()));
        let error = match tokio::time::timeout(limit, once(url, policy)).await {
            Ok(Ok(bytes)) => {
                report(FetchStatus::Received { bytes: bytes.len() });
                return Ok(bytes);
            }
            Ok(Err(error)) => error,
            Err(_) => {
                let late = FetchError::Timeout {
                    url: shown(url),
                    after: limit,
                };
                // One that the time for all cut off says less than the one before it.
                last.filter(|_| limit < policy.timeout).unwrap_or(late)
            }
        };
        let again_in = policy.pause(attempt);
        if Instant::now() + again_in >= until {
            return Err(error);
        }
        report(FetchStatus::Failed {
            error: &error,
            again_in,
        });
        last = Some(error);
        tokio::time::sleep(again_in).await;
        attempt += 1;
    }
}

/// One try, redirects followed.
async fn once(url: &Uri, policy: &FetchPolicy) -> Result<Vec<u8>, FetchError> {
    let mut url = url.clone();
    for _ in 0..=policy.redirects {
        match get(&url, policy).await? {
            Answer::Config(bytes) => return Ok(bytes),
            Answer::Elsewhere(next) => url = next,
        }
    }
    Err(FetchError::TooManyRedirects { url: shown(&url) })
}

enum Answer {
    Config(Vec<u8>),
    Elsewhere(Uri),
}

async fn get(url: &Uri, policy: &FetchPolicy) -> Result<Answer, FetchError> {
    let https = url.scheme_str() == Some("https");
    let name = url.host().unwrap_or_default();
    let port = url.port_u16().unwrap_or(if https { 443 } else { 80 });
    let host = format!("{name}:{port}");
    // An address of IPv6 is in brackets in a URL and in what connects, and without in a certificate.
    let tcp = TcpStream::connect(&host)
        .await
        .map_err(|source| FetchError::Connect {
            host: host.clone(),
            source,
        })?;
    if !https {
        return exchange(tcp, url, host).await;
    }
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    let server =
        ServerName::try_from(bare.to_owned()).map_err(|source| FetchError::ServerName {
            host: host.clone(),
            source,
        })?;
    let connector = tokio_rustls::TlsConnector::from(Arc::new(tls(policy)?));
    let stream = connector
        .connect(server, tcp)
        .await
        .map_err(|source| FetchError::Tls {
            host: host.clone(),
            source,
        })?;
    exchange(stream, url, host).await
}

fn tls(policy: &FetchPolicy) -> Result<rustls::ClientConfig, FetchError> {
    let bundle = |source| FetchError::CaBundle {
        path: policy.ca_bundle.clone(),
        source,
    };
    let mut roots = rustls::RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(&policy.ca_bundle).map_err(bundle)?;
    // A bundle may hold a certificate that the verifier doesn't know how to use; the others still count.
    let certificates = certificates
        .collect::<Result<Vec<_>, _>>()
        .map_err(bundle)?;
    roots.add_parsable_certificates(certificates);
    Ok(rustls::ClientConfig::builder_with_provider(Arc::new(
        rustls::crypto::ring::default_provider(),
    ))
    .with_safe_default_protocol_versions()
    .map_err(FetchError::TlsSetup)?
    .with_root_certificates(roots)
    .with_no_client_auth())
}

/// Asks on a connection that is there, and reads the answer.
async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    url: &Uri,
    host: String,
) -> Result<Answer, FetchError> {
    let failed = |source| FetchError::Http {
        host: host.clone(),
        source,
    };
    let authority = url
        .authority()
        .map_or(host.as_str(), |authority| authority.as_str());
    let asked = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    let path = url
        .path_and_query()
        .map_or("/", http::uri::PathAndQuery::as_str);
    let request = Request::get(path)
        .header(header::HOST, asked)
        .header(
            header::USER_AGENT,
            concat!("instar/", env!("CARGO_PKG_VERSION")),
        )
        .header(header::ACCEPT, "*/*")
        .body(Empty::<bytes::Bytes>::new())
        .map_err(|source| FetchError::Request {
            url: shown(url),
            source,
        })?;

    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(failed)?;
    // It ends with the sender, at the end of this function.
    let connection = tokio::spawn(connection);
    let answer = answer(
        sender.send_request(request).await.map_err(failed)?,
        url,
        &failed,
    )
    .await;
    connection.abort();
    answer
}

async fn answer(
    response: http::Response<hyper::body::Incoming>,
    url: &Uri,
    failed: &impl Fn(hyper::Error) -> FetchError,
) -> Result<Answer, FetchError> {
    let status = response.status();
    if status.is_redirection() && status != StatusCode::NOT_MODIFIED {
        let location = response
            .headers()
            .get(header::LOCATION)
            .and_then(|value| value.to_str().ok());
        return redirect(url, location).map(Answer::Elsewhere);
    }
    if status != StatusCode::OK {
        return Err(FetchError::Status {
            url: shown(url),
            status,
        });
    }
    let mut bytes = Vec::new();
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        if let Some(data) = frame.map_err(failed)?.data_ref() {
            if bytes.len() + data.len() > MAX_CONFIG_BYTES {
                return Err(FetchError::TooLong { url: shown(url) });
            }
            bytes.extend_from_slice(data);
        }
    }
    match gunzip(bytes) {
        Ok(bytes) => Ok(Answer::Config(bytes)),
        Err(GunzipError::TooLong) => Err(FetchError::TooLong { url: shown(url) }),
        Err(GunzipError::Broken(source)) => Err(FetchError::Gzip {
            url: shown(url),
            source,
        }),
    }
}

/// Where a redirect leads: a whole URL, or a path on the same host.
fn redirect(from: &Uri, location: Option<&str>) -> Result<Uri, FetchError> {
    let location = location.unwrap_or_default();
    let next = if location.starts_with('/') && !location.starts_with("//") {
        let scheme = from.scheme_str().unwrap_or_default();
        let authority = from.authority().map_or("", http::uri::Authority::as_str);
        parse_url(&format!("{scheme}://{authority}{location}"))
    } else {
        parse_url(location)
    };
    let next = next.ok_or_else(|| FetchError::BadRedirect { url: shown(from) })?;
    if from.scheme_str() == Some("https") && next.scheme_str() != Some("https") {
        return Err(FetchError::InsecureRedirect { url: shown(from) });
    }
    Ok(next)
}
