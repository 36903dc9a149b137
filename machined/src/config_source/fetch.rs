//! Fetches a config over HTTP.
//!
//! The server may not be up yet, and a provisioning server may not know the machine yet. So every failure is tried again until the time
//! for all tries is over, and each try reports its outcome to the console. Every try has its limits: time, size, redirects.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use http::header::{ACCEPT, HeaderMap, HeaderValue};
use http::{StatusCode, Uri};
use instar_http_client::{Client, Get, HttpError, Proxies, SYSTEM_BUNDLE, Trust};
use tokio::time::Instant;

use super::source::{GunzipError, gunzip, shown};
use crate::base::back_off::BackOff;
use crate::base::error_chain::chain;
use crate::config::MAX_CONFIG_BYTES;

/// Timeouts and limits for fetching a config.
#[derive(Debug, Clone)]
pub struct FetchPolicy {
    /// Timeout for all tries together; a try that runs at its end is cut off.
    pub within: Duration,
    /// The pauses between tries.
    pub pauses: BackOff,
    /// Timeout for one try, from the name to the last byte.
    pub timeout: Duration,
    /// Limit on redirects in one try.
    pub redirects: usize,
    /// Certificates to trust for https, PEM.
    pub ca_bundle: PathBuf,
}

impl Default for FetchPolicy {
    fn default() -> Self {
        Self {
            within: Duration::from_secs(20),
            pauses: BackOff {
                first: Duration::from_secs(1),
                longest: Duration::from_secs(5),
            },
            timeout: Duration::from_secs(30),
            redirects: 5,
            ca_bundle: SYSTEM_BUNDLE.into(),
        }
    }
}

/// Progress, for the console.
#[derive(Debug)]
pub enum FetchStatus<'a> {
    /// A try begins.
    Trying {
        /// The address, without secrets.
        url: String,
        /// Number of the try, from 1.
        attempt: u32,
    },
    /// A try failed, and there will be another.
    Failed {
        /// Why.
        error: &'a FetchError,
        /// Time until the next try begins.
        again_in: Duration,
    },
    /// The config has arrived.
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
    /// The server could not be reached or did not answer.
    #[error("{url} cannot be fetched")]
    Http {
        /// The address, without secrets.
        url: String,
        /// Why.
        source: HttpError,
    },
    /// The server answered with another status than success.
    #[error("{url} answers {status}")]
    Status {
        /// The address, without secrets.
        url: String,
        /// The status.
        status: StatusCode,
    },
    /// The answer is longer than a config may be.
    #[error("the answer of {url} is longer than {MAX_CONFIG_BYTES} bytes")]
    TooLong {
        /// The address, without secrets.
        url: String,
    },
    /// The answer is gzip, and damaged.
    #[error("the answer of {url} is gzip that cannot be decompressed")]
    Gzip {
        /// The address, without secrets.
        url: String,
        /// Why.
        source: std::io::Error,
    },
    /// The try ran into its timeout.
    #[error("{url} did not answer within {} s", after.as_secs())]
    Timeout {
        /// The address, without secrets.
        url: String,
        /// The timeout.
        after: Duration,
    },
}

/// Fetches a config, and tries again as the policy says. Calls `report` with all progress.
///
/// # Errors
/// The failure of the last try.
pub async fn fetch(
    url: &Uri,
    policy: &FetchPolicy,
    mut report: impl FnMut(FetchStatus<'_>),
) -> Result<Vec<u8>, FetchError> {
    let until = Instant::now() + policy.within;
    let trust = Trust {
        bundle: policy.ca_bundle.clone(),
        ..Trust::default()
    };
    // The config would name the proxies, and there is no config yet.
    let client = Client::new(trust, &Proxies::default());
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
        let error = match tokio::time::timeout(limit, once(&client, url, policy.redirects)).await {
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
                // A try that was cut off by the time for all tries tells less than the failure of the try before it.
                last.filter(|_| limit < policy.timeout).unwrap_or(late)
            }
        };
        let again_in = policy.pauses.after(attempt);
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

/// Makes one try, and follows redirects.
async fn once(client: &Client, url: &Uri, redirections: usize) -> Result<Vec<u8>, FetchError> {
    let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static("*/*"))]);
    let get = Get {
        uri: url,
        headers: &headers,
        body: None,
        origin: None,
        redirections,
    };
    let too_long = || FetchError::TooLong { url: shown(url) };
    let failed = |source| match source {
        HttpError::TooLong { .. } => too_long(),
        source => FetchError::Http {
            url: shown(url),
            source,
        },
    };
    let mut answer = client.send(get).await.map_err(failed)?;
    if answer.status != StatusCode::OK {
        return Err(FetchError::Status {
            url: shown(url),
            status: answer.status,
        });
    }
    let bytes = answer.document(MAX_CONFIG_BYTES).await.map_err(failed)?;
    gunzip(bytes).map_err(|error| match error {
        GunzipError::TooLong => too_long(),
        GunzipError::Broken(source) => FetchError::Gzip {
            url: shown(url),
            source,
        },
    })
}
