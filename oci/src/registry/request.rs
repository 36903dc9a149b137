//! One request to an endpoint, with the credentials that it asks for.

use http::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderValue, RANGE};
use http::{StatusCode, Uri};
use tokio::time::timeout;

use instar_http_client::{Answer, Body, HttpError, Place, Request};
use instar_values::ImageReference;

use super::error::RequestError;
use super::limits::BRIEF;
use super::said::explanation;
use super::{RegistryClient, challenge};
use crate::registries::{Endpoint, Patience};

/// Limit on redirections: a registry redirects to a blob store, which may redirect again.
const MOST_REDIRECTIONS: usize = 5;

impl RegistryClient {
    /// Makes one GET request below an endpoint's root, from an offset on, with the credentials that it asks for. The path may have a query.
    pub(super) async fn get(
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
    pub(super) async fn send(
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
}

/// Turns an unsuccessful response into an error.
pub(super) async fn checked(mut answer: Answer) -> Result<Answer, RequestError> {
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
