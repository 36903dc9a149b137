//! The credentials for a registry: a password, or a token of the service that its challenge names.

use std::collections::HashMap;
use std::sync::MutexGuard;

use http::Uri;
use http::header::{AUTHORIZATION, HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use serde::Deserialize;

use instar_base::lock::Lock as _;
use instar_http_client::{Answer, Body, Place};
use instar_values::ImageReference;
use instar_values::RegistryAuth;

use super::RegistryClient;
use super::challenge::{self, Challenge};
use super::error::RequestError;
use super::request::checked;
use super::said::LARGEST_ANSWER;
use crate::registries::Endpoint;

impl RegistryClient {
    pub(super) fn authorizations(&self) -> MutexGuard<'_, HashMap<String, HeaderValue>> {
        self.authorizations.locked()
    }

    /// The Authorization header for a challenge; `None` if we have no credentials.
    pub(super) async fn authorize(
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
