//! The registry client: resolves the name of an image, and downloads its layers.
//!
//! Written on hyper and rustls rather than on a registry crate: client certificates, mirrors with a path of their
//! own, bounded documents and resumed downloads are all needed here, and it is 2 MB less in the root filesystem.
//!
//! ```text
//! resolve ──► document ─┐
//!                       ├─► request ──► authorization ──► challenge
//! download ─────────────┘     the endpoints take turns (`round`), each with its tries (`retries`)
//! ```

mod authorization;
pub(crate) mod challenge;
mod document;
mod download;
mod error;
mod limits;
mod pace;
mod request;
mod resolve;
mod resolved_image;
mod retries;
mod round;
mod said;
mod token_bucket;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use http::header::HeaderValue;

use crate::registries::Registries;
pub(crate) use document::{Document, DocumentRequest};
pub(super) use download::{Download, Upstream};
pub use error::{RegistryError, RequestError, Tried};
use instar_http_client::{Client, HttpError};
use instar_values::ImageReference;
pub(crate) use limits::{LARGEST_DOCUMENT, RESOLVE};
pub use pace::Pace;
pub(crate) use pace::Waiting;
pub(crate) use resolved_image::ImageDocuments;
pub use resolved_image::ResolvedImage;
pub use retries::Retries;
use round::{Away, Round};
pub use said::Said;

/// A client for all registries. It keeps tokens and TLS settings: make one for a pull and drop it after.
pub struct RegistryClient {
    registries: Arc<Registries>,
    http: Client,
    retries: Retries,
    /// Values of the Authorization header by endpoint and repository.
    authorizations: Mutex<HashMap<String, HeaderValue>>,
    /// The endpoints that gave no answer a moment ago.
    away: Away,
    /// The bandwidth of downloads, if it is limited.
    pace: Option<Arc<Pace>>,
}

impl RegistryClient {
    /// A client with these settings.
    pub fn new(registries: Arc<Registries>, retries: Retries) -> Self {
        let http = Client::new(registries.trust.clone(), &registries.proxies);
        RegistryClient {
            registries,
            http,
            retries,
            authorizations: Mutex::default(),
            away: Away::default(),
            pace: None,
        }
    }

    /// The same client with a limit on the bandwidth of its downloads.
    pub(crate) fn at_pace(self, pace: Arc<Pace>) -> Self {
        RegistryClient {
            pace: Some(pace),
            ..self
        }
    }

    /// The bandwidth of its downloads, if it is limited.
    pub(crate) fn pace(&self) -> Option<Arc<Pace>> {
        self.pace.clone()
    }

    /// Checks that the TLS settings of every host can be used.
    pub fn check_settings(&self) -> Result<(), HttpError> {
        self.http.check_settings()
    }

    /// Begins to ask the endpoints for an image, each in its turn.
    pub(crate) fn round(&self, reference: &ImageReference) -> Round {
        let endpoints = self.registries.endpoints(reference.registry());
        Round::new(endpoints, |endpoint| self.away.has(endpoint))
    }
}
