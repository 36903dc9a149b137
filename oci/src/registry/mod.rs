//! The registry client: resolves the name of an image, and downloads its layers.
//!
//! Written on hyper and rustls rather than on a registry crate: client certificates, mirrors with a path of their
//! own, bounded documents and resumed downloads are all needed here, and it is 2 MB less in the root filesystem.

pub(crate) mod challenge;
mod download;
mod pace;
mod round;
mod token_bucket;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, LINK, RANGE, WWW_AUTHENTICATE,
};
use http::{StatusCode, Uri};
use serde::Deserialize;
use tokio::time::{Instant, timeout};

use instar_values::RegistryAuth;

use crate::manifest::{self, ImageConfig, Layer, MANIFEST_MEDIA_TYPES, Manifest, ManifestError};
use crate::registries::{Endpoint, Patience, Registries};
use challenge::Challenge;
pub(super) use download::{Download, Upstream};
use instar_base::back_off::BackOff;
use instar_base::error_chain::chain;
use instar_base::lock::Lock as _;
use instar_http_client::{Answer, Body, Client, HttpError, Place, Request};
use instar_values::Digest;
use instar_values::ImageReference;
pub use pace::Pace;
pub(crate) use pace::Waiting;
use round::{Away, Round};

/// Size limit of manifests and configs. Registries accept no manifest above 4 MiB; real ones have a few KiB.
pub(crate) const LARGEST_DOCUMENT: u64 = 1 << 20;
/// Timeout for manifest, config and tokens of one image, redirections and retries included.
pub(crate) const RESOLVE: Duration = Duration::from_secs(300);
/// Time for the head of an answer, and for further tries, at an endpoint that has others behind it. The callers with the least patience wait 10 s.
const BRIEF: Duration = Duration::from_secs(3);
/// Limit on redirections: a registry redirects to a blob store, which may redirect again.
const MOST_REDIRECTIONS: usize = 5;
/// Size limit of tokens and error messages.
const LARGEST_ANSWER: usize = 256 * 1024;
/// Limit on the length of the query for the next page of a list.
const LONGEST_QUERY: usize = 1024;

/// The retries of a request that failed for a reason that may pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retries {
    /// Number of attempts, including the first.
    pub attempts: u32,
    /// The pauses between them.
    pub pauses: BackOff,
}

impl Default for Retries {
    fn default() -> Self {
        Retries {
            attempts: 4,
            pauses: BackOff {
                first: Duration::from_millis(500),
                longest: Duration::from_secs(128),
            },
        }
    }
}

impl Retries {
    /// The pause after this many failed attempts; `None` to give up.
    fn delay(&self, failed: u32) -> Option<Duration> {
        (failed < self.attempts).then(|| self.pauses.after(failed))
    }
}

/// A resolved image: everything about it but the content of its layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedImage {
    /// The name.
    pub reference: ImageReference,
    /// The digest of the image's manifest for this platform.
    pub digest: Digest,
    /// The digest of the document that the name points to: the index where there is one. People pin and sign this one.
    pub named_digest: Digest,
    /// The settings for running it, and its labels.
    pub config: ImageConfig,
    /// The layers, lowest first.
    pub layers: Vec<Layer>,
    /// The index that the name points to, as the registry serves it: where the index is signed, it leads from the signature to the image.
    pub index: Option<Vec<u8>>,
    /// The image's manifest, as the registry serves it.
    pub manifest: Vec<u8>,
    /// The image's config, as the registry serves it.
    pub config_document: Vec<u8>,
}

impl ResolvedImage {
    /// The digest of the image's manifest for this platform: the key in the store.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// The image's labels.
    pub fn labels(&self) -> &BTreeMap<String, String> {
        &self.config.labels
    }

    /// The blobs that the image is made from: its layers and its documents.
    pub fn blobs(&self) -> Vec<Digest> {
        let layers = self.layers.iter().map(|layer| layer.digest);
        let config = Digest::of(&self.config_document);
        layers
            .chain([self.digest, self.named_digest, config])
            .collect()
    }

    /// Size of all layers as they are transferred, in bytes.
    pub fn download_bytes(&self) -> u64 {
        self.layers
            .iter()
            .fold(0, |sum, layer| sum.saturating_add(layer.size))
    }
}

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

/// The registry's message about an error, formatted to follow a sentence.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Said(Option<String>);

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(words) => write!(f, " ({words})"),
            None => Ok(()),
        }
    }
}

impl RequestError {
    fn is_transient(&self) -> bool {
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
    fn may_pass(&self) -> bool {
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
}

impl RegistryError {
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

/// A manifest, its digest, and its bytes.
pub(crate) struct NamedManifest {
    pub(crate) manifest: Manifest,
    digest: Digest,
    pub(crate) bytes: Vec<u8>,
}

/// A small response, read to its end.
pub(crate) struct Document {
    content_type: Option<String>,
    /// The query for the next page, if it is a list with further ones.
    pub(crate) next_page: Option<String>,
    pub(crate) bytes: Vec<u8>,
}

impl Document {
    /// Checks the document against its descriptor, and returns its digest.
    pub(crate) fn check(
        &self,
        what: &'static str,
        digest: Option<Digest>,
        size: Option<u64>,
    ) -> Result<Digest, RequestError> {
        let actual = self.bytes.len() as u64;
        if let Some(expected) = size.filter(|&size| size != actual) {
            return Err(RequestError::Size {
                what,
                expected,
                actual,
            });
        }
        let actual = Digest::of(&self.bytes);
        match digest {
            Some(expected) if expected != actual => Err(RequestError::Digest {
                what,
                expected,
                actual,
            }),
            _ => Ok(actual),
        }
    }
}

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

    /// Resolves a name. Only manifest and config are transferred.
    pub async fn resolve(
        &self,
        reference: &ImageReference,
    ) -> Result<ResolvedImage, RegistryError> {
        let mut round = self.round(reference);
        while let Some(turn) = round.turn() {
            let resolved = timeout(RESOLVE, self.resolve_at(&turn.endpoint, reference)).await;
            match resolved.unwrap_or(Err(RequestError::Late)) {
                Ok(image) => return Ok(image),
                Err(error) => _ = round.failed(turn, error),
            }
        }
        Err(RegistryError {
            reference: reference.clone(),
            tried: round.into_tried(),
        })
    }

    async fn resolve_at(
        &self,
        endpoint: &Endpoint,
        reference: &ImageReference,
    ) -> Result<ResolvedImage, RequestError> {
        let selector = reference.selector();
        let named = self
            .manifest(endpoint, reference, &selector, reference.digest(), None)
            .await?;
        let named_digest = named.digest;
        let (ours, index) = match named.manifest {
            Manifest::Image { .. } => (named, None),
            Manifest::Index(manifests) => {
                let ours = manifest::select(manifests)?;
                let (digest, size) = (Some(ours.digest), Some(ours.size));
                let ours = self
                    .manifest(endpoint, reference, &ours.digest.to_string(), digest, size)
                    .await?;
                (ours, Some(named.bytes))
            }
        };
        let NamedManifest {
            manifest,
            digest,
            bytes,
        } = ours;
        let Manifest::Image { config, layers } = manifest else {
            return Err(RequestError::Nested);
        };
        if config.size > LARGEST_DOCUMENT {
            return Err(RequestError::TooLarge {
                what: "config",
                size: config.size,
            });
        }
        let path = format!("{}/blobs/{}", reference.repository(), config.digest);
        let document = self.document(endpoint, reference, &path, "*/*").await?;
        document.check("a config", Some(config.digest), Some(config.size))?;
        let (config, layers) = manifest::image(&document.bytes, &layers)?;
        Ok(ResolvedImage {
            reference: reference.clone(),
            digest,
            named_digest,
            config,
            layers,
            index,
            manifest: bytes,
            config_document: document.bytes,
        })
    }

    /// Gets a manifest by tag or digest.
    pub(crate) async fn manifest(
        &self,
        endpoint: &Endpoint,
        reference: &ImageReference,
        selector: &str,
        digest: Option<Digest>,
        size: Option<u64>,
    ) -> Result<NamedManifest, RequestError> {
        let path = format!("{}/manifests/{selector}", reference.repository());
        let document = self
            .document(endpoint, reference, &path, MANIFEST_MEDIA_TYPES)
            .await?;
        let digest = document.check("a manifest", digest, size)?;
        let manifest = Manifest::parse(&document.bytes, document.content_type.as_deref())?;
        Ok(NamedManifest {
            manifest,
            digest,
            bytes: document.bytes,
        })
    }

    /// Gets a small document, with retries while they may help.
    async fn document(
        &self,
        endpoint: &Endpoint,
        reference: &ImageReference,
        path: &str,
        accept: &'static str,
    ) -> Result<Document, RequestError> {
        self.bounded_document(endpoint, reference, path, accept, LARGEST_DOCUMENT)
            .await
    }

    /// The same, with a limit on its size in bytes.
    pub(crate) async fn bounded_document(
        &self,
        endpoint: &Endpoint,
        reference: &ImageReference,
        path: &str,
        accept: &'static str,
        limit: u64,
    ) -> Result<Document, RequestError> {
        let (mut failed, began) = (0, Instant::now());
        loop {
            let once = self.document_once(endpoint, reference, path, accept, limit);
            let error = match once.await {
                Ok(document) => return Ok(document),
                Err(error) => error,
            };
            failed += 1;
            match self.delay(endpoint, failed, began.elapsed()) {
                Some(delay) if error.is_transient() => tokio::time::sleep(delay).await,
                _ => return Err(self.noted(endpoint, error)),
            }
        }
    }

    /// The pause before an endpoint is tried again, after this many failed attempts within this time; `None` to give up.
    fn delay(&self, endpoint: &Endpoint, failed: u32, within: Duration) -> Option<Duration> {
        let delay = self.retries.delay(failed)?;
        let is_soon = within.saturating_add(delay) < BRIEF;
        (is_soon || endpoint.patience == Patience::Full).then_some(delay)
    }

    /// Notes an endpoint that gave no answer: the next request goes to others first.
    fn noted(&self, endpoint: &Endpoint, error: RequestError) -> RequestError {
        if error.is_silence() {
            self.away.note(endpoint);
        }
        error
    }

    async fn document_once(
        &self,
        endpoint: &Endpoint,
        reference: &ImageReference,
        path: &str,
        accept: &'static str,
        limit: u64,
    ) -> Result<Document, RequestError> {
        let mut answer = self.get(endpoint, reference, path, accept, 0).await?;
        let content_type = answer.headers.get(CONTENT_TYPE);
        let link = answer.headers.get(LINK);
        Ok(Document {
            content_type: content_type
                .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()),
            next_page: link.and_then(|link| next_query(link.to_str().ok()?)),
            bytes: answer.document(limit as usize).await?,
        })
    }

    /// Makes one GET request below an endpoint's root, from an offset on, with the credentials that it asks for. The path may have a query.
    async fn get(
        &self,
        endpoint: &Endpoint,
        reference: &ImageReference,
        path: &str,
        accept: &'static str,
        offset: u64,
    ) -> Result<Answer, RequestError> {
        let separator = if path.contains('?') { '&' } else { '?' };
        let namespace = endpoint
            .mirrors
            .as_deref()
            .map(|registry| format!("{separator}ns={}", challenge::escaped(registry)));
        let uri: Uri = format!("{}/{path}{}", endpoint.root, namespace.unwrap_or_default())
            .parse()
            .map_err(|error: http::uri::InvalidUri| HttpError::Request(error.into()))?;
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        if offset > 0 {
            let range = HeaderValue::try_from(format!("bytes={offset}-"));
            headers.insert(
                RANGE,
                range.map_err(|error| HttpError::Request(error.into()))?,
            );
        }
        let key = format!("{} {}", endpoint.root, reference.repository());
        let known = self.authorizations().get(&key).cloned();
        if let Some(known) = &known {
            headers.insert(AUTHORIZATION, known.clone());
        }
        let mut answer = self
            .send(endpoint, &uri, &headers, Body::None, None)
            .await?;
        self.away.forget(endpoint);
        let is_its_own = |answer: &Answer| answer.authority == endpoint.root.authority;
        // A server that the endpoint redirects to may neither ask for the endpoint's credentials nor name the service that gets them.
        if answer.status == StatusCode::UNAUTHORIZED
            && is_its_own(&answer)
            && let Some(authorization) = self.authorize(endpoint, reference, &answer).await?
        {
            self.authorizations().insert(key, authorization.clone());
            headers.insert(AUTHORIZATION, authorization);
            answer = self
                .send(endpoint, &uri, &headers, Body::None, None)
                .await?;
        }
        if is_denial(answer.status) && !is_its_own(&answer) {
            return Err(RequestError::DeniedElsewhere {
                authority: answer.authority.clone(),
                said: explanation(&mut answer).await,
            });
        }
        checked(answer).await
    }

    /// Sends a request to an endpoint, or to the service that gives tokens for it.
    async fn send(
        &self,
        endpoint: &Endpoint,
        uri: &Uri,
        headers: &HeaderMap,
        body: Body<'_>,
        origin: Option<Place>,
    ) -> Result<Answer, RequestError> {
        let sending = self.http.send(Request {
            uri,
            headers,
            body,
            origin,
            redirections: MOST_REDIRECTIONS,
        });
        match endpoint.patience {
            Patience::Full => Ok(sending.await?),
            Patience::Brief => match timeout(BRIEF, sending).await {
                Ok(sent) => Ok(sent?),
                Err(_) => Err(RequestError::Hesitates),
            },
        }
    }

    fn authorizations(&self) -> std::sync::MutexGuard<'_, HashMap<String, HeaderValue>> {
        self.authorizations.locked()
    }

    /// The Authorization header for a challenge; `None` if we have no credentials.
    async fn authorize(
        &self,
        endpoint: &Endpoint,
        reference: &ImageReference,
        refusal: &Answer,
    ) -> Result<Option<HeaderValue>, RequestError> {
        let auth = self.registries.auth.get(&endpoint.root.authority);
        let headers = refusal.headers.get_all(WWW_AUTHENTICATE).iter();
        let value = match (
            Challenge::find(headers.filter_map(|value| value.to_str().ok())),
            auth,
        ) {
            (Some(Challenge::Basic), Some(RegistryAuth::Password { username, password })) => {
                challenge::basic(username, password.expose())
            }
            (
                Some(Challenge::Bearer {
                    realm,
                    service,
                    scope,
                }),
                auth,
            ) => {
                let scope =
                    scope.unwrap_or_else(|| format!("repository:{}:pull", reference.repository()));
                let (url, form) =
                    challenge::token_request(&realm, service.as_deref(), &scope, auth);
                let token = self
                    .token(
                        endpoint,
                        &realm,
                        &url,
                        form.as_deref(),
                        auth,
                        refusal.origin,
                    )
                    .await?;
                format!("Bearer {token}")
            }
            _ => return Ok(None),
        };
        let mut value = HeaderValue::try_from(value).map_err(|_| RequestError::Token)?;
        value.set_sensitive(true);
        Ok(Some(value))
    }

    async fn token(
        &self,
        endpoint: &Endpoint,
        realm: &str,
        url: &str,
        form: Option<&str>,
        auth: Option<&RegistryAuth>,
        origin: Place,
    ) -> Result<String, RequestError> {
        #[derive(Deserialize)]
        struct Token {
            token: Option<String>,
            access_token: Option<String>,
        }
        let refuse = || RequestError::Realm {
            realm: realm.chars().take(200).collect(),
        };
        // Our password is sent there: only a registry that uses plain http itself may name a plain http service.
        if !(realm.starts_with("https://") || realm.starts_with("http://") && !endpoint.root.https)
        {
            return Err(refuse());
        }
        let uri: Uri = url.parse().map_err(|_| refuse())?;
        let mut headers = HeaderMap::new();
        if let Some(RegistryAuth::Password { username, password }) = auth {
            let basic = HeaderValue::try_from(challenge::basic(username, password.expose()));
            headers.insert(AUTHORIZATION, basic.map_err(|_| RequestError::Token)?);
        }
        let body = form.map_or(Body::None, Body::Form);
        let answer = self.send(endpoint, &uri, &headers, body, Some(origin));
        let mut answer = checked(answer.await?).await?;
        let document = answer.document(LARGEST_ANSWER).await?;
        let token: Token = serde_json::from_slice(&document).map_err(|_| RequestError::Token)?;
        token
            .token
            .or(token.access_token)
            .filter(|token| !token.is_empty())
            .ok_or(RequestError::Token)
    }
}

/// Turns an unsuccessful response into an error.
async fn checked(mut answer: Answer) -> Result<Answer, RequestError> {
    let status = answer.status;
    if status.is_success() {
        return Ok(answer);
    }
    let said = explanation(&mut answer).await;
    Err(match status {
        StatusCode::NOT_FOUND => RequestError::NotFound { said },
        status if is_denial(status) => RequestError::Denied { said },
        _ => RequestError::Status { status, said },
    })
}

fn is_denial(status: StatusCode) -> bool {
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
}

/// The query for the next page of a list, by the answer's `Link` (RFC 8288). Of the address only the query counts: all pages of a list are at one
/// place, and no registry sends us to another one.
fn next_query(link: &str) -> Option<String> {
    let (address, parameters) = link.trim().strip_prefix('<')?.split_once('>')?;
    let is_next = |parameter: &str| matches!(parameter.trim(), "rel=\"next\"" | "rel=next");
    if !parameters.split(';').any(is_next) {
        return None;
    }
    let (_, query) = address.split_once('?')?;
    // A mirror gets this part with every request.
    let pairs = query.split('&').filter(|pair| !pair.starts_with("ns="));
    let query = pairs.collect::<Vec<_>>().join("&");
    (1..=LONGEST_QUERY).contains(&query.len()).then_some(query)
}

/// The message of an error response. If it cannot be read, the status is enough.
async fn explanation(answer: &mut Answer) -> Said {
    said(&answer.document(LARGEST_ANSWER).await.unwrap_or_default())
}

/// The message in `{"errors":[{"code":…,"message":…}]}`, the format of the distribution specification.
fn said(body: &[u8]) -> Said {
    #[derive(Deserialize)]
    struct Errors {
        errors: Vec<Message>,
    }
    #[derive(Deserialize)]
    struct Message {
        #[serde(default)]
        code: String,
        #[serde(default)]
        message: String,
    }
    let first = serde_json::from_slice::<Errors>(body)
        .ok()
        .and_then(|errors| errors.errors.into_iter().next());
    Said(first.map(|Message { code, message }| {
        format!("{code}: {message}")
            .chars()
            .filter(|c| !c.is_control())
            .take(200)
            .collect()
    }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::ErrorKind;

    use super::*;

    #[test]
    fn retries_back_off_and_end() {
        let retries = Retries {
            attempts: 4,
            pauses: BackOff {
                first: Duration::from_secs(1),
                longest: Duration::from_secs(60),
            },
        };
        let delays: Vec<_> = (1..=4)
            .map(|failed| retries.delay(failed).map(|delay| delay.as_secs()))
            .collect();
        assert_eq!(delays, [Some(1), Some(2), Some(4), None]);
    }

    const AUTHORITY: &str = "r:5000";

    fn connect(kind: ErrorKind) -> RequestError {
        RequestError::Http(HttpError::Connect {
            authority: AUTHORITY.to_owned(),
            source: kind.into(),
        })
    }

    fn handshake(kind: ErrorKind) -> RequestError {
        RequestError::Http(HttpError::Handshake {
            authority: AUTHORITY.to_owned(),
            source: kind.into(),
        })
    }

    fn nameless() -> RequestError {
        RequestError::Http(HttpError::Resolve {
            host: "r".into(),
            source: ErrorKind::Other.into(),
        })
    }

    fn silence() -> HttpError {
        HttpError::Silent {
            authority: AUTHORITY.to_owned(),
        }
    }

    fn silent() -> RequestError {
        RequestError::Http(silence())
    }

    fn broken_off() -> RequestError {
        RequestError::Interrupted {
            at: 7,
            source: silence(),
        }
    }

    fn elsewhere() -> RequestError {
        RequestError::Http(HttpError::Redirection {
            authority: AUTHORITY.to_owned(),
            location: "x".into(),
        })
    }

    fn status(code: u16) -> RequestError {
        RequestError::Status {
            status: StatusCode::from_u16(code).unwrap(),
            said: Said::default(),
        }
    }

    fn absent() -> RequestError {
        RequestError::NotFound {
            said: Said::default(),
        }
    }

    fn denied() -> RequestError {
        RequestError::Denied {
            said: Said::default(),
        }
    }

    fn digest() -> RequestError {
        RequestError::Digest {
            what: "a manifest",
            expected: Digest::of(b"a"),
            actual: Digest::of(b"b"),
        }
    }

    #[test]
    fn unreachable_is_told_from_every_answer() {
        let cases = [
            (vec![], false),
            (vec![nameless()], true),
            (vec![connect(ErrorKind::ConnectionRefused)], true),
            (vec![connect(ErrorKind::NetworkUnreachable)], true),
            (vec![connect(ErrorKind::TimedOut)], true),
            (vec![handshake(ErrorKind::TimedOut)], true),
            (vec![handshake(ErrorKind::InvalidData)], false),
            (vec![silent()], true),
            (vec![broken_off()], true),
            (vec![elsewhere()], false),
            (vec![status(500)], true),
            (vec![status(503)], true),
            (vec![status(429)], true),
            (vec![status(400)], false),
            (vec![absent()], false),
            (vec![denied()], false),
            (vec![RequestError::Late], true),
            (vec![RequestError::Hesitates], true),
            (vec![digest()], false),
            (vec![RequestError::Token], false),
            (vec![absent(), silent()], true),
            (vec![silent(), denied()], false),
            (vec![digest(), silent()], false),
        ];
        for (errors, expected) in cases {
            let tried = errors.into_iter();
            let tried = tried.map(|error| (AUTHORITY.to_owned(), error));
            let error = RegistryError {
                reference: "r:5000/a:v1".parse().unwrap(),
                tried: Tried(tried.collect()),
            };
            assert_eq!(error.is_unreachable(), expected, "{}", error.tried);
        }
    }

    #[test]
    fn the_next_page_of_a_list_is_told_by_its_query_alone() {
        let long = format!(
            "</v2/a/referrers/x?last={}>; rel=\"next\"",
            "x".repeat(2000)
        );
        for (link, expected) in [
            (
                "</v2/a/referrers/x?n=2&last=b>; rel=\"next\"",
                Some("n=2&last=b"),
            ),
            (
                "<https://elsewhere/y?last=b&ns=r.io>; rel=next",
                Some("last=b"),
            ),
            ("</v2/a?last=b>; title=x; rel=\"next\"", Some("last=b")),
            ("</v2/a?last=b>; rel=\"prev\"", None),
            ("</v2/a?ns=r.io>; rel=\"next\"", None),
            ("</v2/a>; rel=\"next\"", None),
            ("/v2/a?last=b", None),
            (&long, None),
        ] {
            assert_eq!(next_query(link).as_deref(), expected, "{link}");
        }
    }

    #[test]
    fn the_words_of_a_registry_are_kept_short() {
        let body = br#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest\nunknown","detail":{}}]}"#;
        assert_eq!(
            said(body).to_string(),
            " (MANIFEST_UNKNOWN: manifestunknown)"
        );
        assert_eq!(said(b"<html>").to_string(), "");
        assert_eq!(said(br#"{"errors":[]}"#).to_string(), "");
    }
}
