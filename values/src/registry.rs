//! Settings of image registries.

use std::fmt;
use std::str::FromStr;

use crate::Secret;

/// Returns the host that serves a registry's images. Docker's, `docker.io`, is the one registry whose name is not its address.
#[must_use]
pub fn server_of(registry: &str) -> &str {
    match registry {
        "docker.io" => "registry-1.docker.io",
        registry => registry,
    }
}

/// The mirrors of a registry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mirror {
    /// The endpoints in the order of trying.
    pub endpoints: Vec<MirrorEndpoint>,
    /// Whether the registry itself is never asked.
    pub skip_fallback: bool,
}

/// One mirror.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MirrorEndpoint {
    /// Its URL.
    pub url: EndpointUrl,
    /// Whether the URL is the whole prefix: `/v2` is not added to it then.
    pub override_path: bool,
}

/// Credentials for a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RegistryAuth {
    /// User and password.
    Password {
        /// User.
        username: String,
        /// Password or access token.
        password: Secret,
    },
    /// An OAuth2 refresh token that is exchanged for an access token.
    IdentityToken(Secret),
}

/// `http://HOST[:PORT][/PATH]` or the same with https.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointUrl {
    /// Whether it is https.
    pub https: bool,
    /// `HOST[:PORT]`.
    pub authority: String,
    /// The path: empty, or with a slash at its begin and none at its end.
    pub path: String,
}

/// Why a text is not the URL of a registry.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not the URL of a registry: http://HOST[:PORT][/PATH] or https://… is expected")]
pub struct EndpointUrlError(String);

impl EndpointUrl {
    /// The host without its port, and an IPv6 address without its brackets.
    #[must_use]
    pub fn host(&self) -> Option<&str> {
        let host = match self.authority.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
            _ => &self.authority,
        };
        let host = host.trim_matches(['[', ']']);
        (!host.is_empty()).then_some(host)
    }
}

impl FromStr for EndpointUrl {
    type Err = EndpointUrlError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || EndpointUrlError(text.chars().take(100).collect());
        let uri: http::Uri = text.parse().map_err(|_| bad())?;
        let https = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(bad()),
        };
        let authority = uri.authority().ok_or_else(bad)?.as_str();
        if authority.contains('@')
            || uri.host().is_none_or(str::is_empty)
            || uri.query().is_some()
            || text.contains('#')
        {
            return Err(bad());
        }
        let path = uri.path().trim_end_matches('/').to_owned();
        Ok(EndpointUrl {
            https,
            authority: authority.to_owned(),
            path,
        })
    }
}

impl fmt::Display for EndpointUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "http{}://{}{}",
            if self.https { "s" } else { "" },
            self.authority,
            self.path
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_that_are_not_registries_are_refused() {
        for bad in [
            "",
            "10.0.2.2:5000",
            "ftp://a",
            "http://",
            "http://u:p@a",
            "https://a?x=y",
            "http://a/#x",
            "/v2",
            "http://a b",
        ] {
            assert!(bad.parse::<EndpointUrl>().is_err(), "{bad}");
        }
    }

    #[test]
    fn secrets_are_not_printed() {
        let auth = RegistryAuth::Password {
            username: "bob".into(),
            password: Secret::new("hunter2"),
        };
        assert!(!format!("{auth:?}").contains("hunter2"));
    }
}
