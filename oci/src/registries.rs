//! Where images come from: the settings of registries as plain data, and the plan of endpoints that follows from them.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use instar_http_client::{Proxies, Trust};

/// Everything the machine config says about registries. Keys are hosts as image names have them (`HOST[:PORT]`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Registries {
    /// Mirrors by registry; `*` is for every registry without an entry of its own.
    pub mirrors: BTreeMap<String, Mirror>,
    /// Credentials by the host that is spoken to.
    pub auth: BTreeMap<String, RegistryAuth>,
    /// Whom to trust, with TLS settings by the host that is spoken to (a mirror's are under the mirror's name).
    pub trust: Trust,
    /// What the machine's environment says about proxies.
    pub proxies: Proxies,
}

/// Other places that have a registry's images.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mirror {
    /// Tried in order.
    pub endpoints: Vec<MirrorEndpoint>,
    /// Never ask the registry itself.
    pub skip_fallback: bool,
}

/// One mirror.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MirrorEndpoint {
    /// Where it is.
    pub url: EndpointUrl,
    /// The URL is the whole prefix: `/v2` is not added to it.
    pub override_path: bool,
}

/// Credentials.
#[derive(Clone, PartialEq, Eq)]
pub enum RegistryAuth {
    /// User and password.
    Password {
        /// User.
        username: String,
        /// Password or access token.
        password: String,
    },
    /// An OAuth2 refresh token that is changed for an access token.
    IdentityToken(String),
}

/// Secrets don't belong into logs.
impl fmt::Debug for RegistryAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegistryAuth::Password { username, .. } => write!(f, "Password({username:?}, ..)"),
            RegistryAuth::IdentityToken(_) => f.write_str("IdentityToken(..)"),
        }
    }
}

/// `http://HOST[:PORT][/PATH]` or the same with https.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointUrl {
    pub(super) https: bool,
    /// `HOST[:PORT]`.
    pub(super) authority: String,
    /// Empty, or with a slash in front and none behind.
    pub(super) path: String,
}

/// Why a text is not the URL of a registry.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not the URL of a registry: http://HOST[:PORT][/PATH] or https://… is expected")]
pub struct EndpointUrlError(String);

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

/// One place to ask, in the order of asking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Endpoint {
    /// With `/v2` or what stands for it.
    pub(super) root: EndpointUrl,
    /// For a mirror: the registry that it stands for, told to it as `?ns=` (what containerd's mirrors expect).
    pub(super) mirrors: Option<String>,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.root.fmt(f)
    }
}

impl Registries {
    /// Where to ask for images of a registry. Plain http only where a mirror's URL says so.
    pub(super) fn endpoints(&self, registry: &str) -> Vec<Endpoint> {
        let mirror = self.mirrors.get(registry).or_else(|| self.mirrors.get("*"));
        let mut endpoints: Vec<Endpoint> = Vec::new();
        for MirrorEndpoint { url, override_path } in mirror
            .map(|mirror| mirror.endpoints.as_slice())
            .unwrap_or_default()
        {
            let mut root = url.clone();
            if !override_path {
                root.path.push_str("/v2");
            }
            endpoints.push(Endpoint {
                root,
                mirrors: Some(registry.to_owned()),
            });
        }
        if !mirror.is_some_and(|mirror| mirror.skip_fallback) {
            // The one registry whose name is not its address.
            let authority = if registry == "docker.io" {
                "registry-1.docker.io"
            } else {
                registry
            };
            let root = EndpointUrl {
                https: true,
                authority: authority.to_owned(),
                path: "/v2".to_owned(),
            };
            endpoints.push(Endpoint {
                root,
                mirrors: None,
            });
        }
        endpoints
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn mirror(urls: &[(&str, bool)], skip_fallback: bool) -> Mirror {
        let endpoint = |&(url, override_path): &(&str, bool)| MirrorEndpoint {
            url: url.parse().unwrap(),
            override_path,
        };
        Mirror {
            endpoints: urls.iter().map(endpoint).collect(),
            skip_fallback,
        }
    }

    fn plan(registries: &Registries, registry: &str) -> Vec<String> {
        registries
            .endpoints(registry)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn mirrors_come_first_and_only_they_may_be_plain() {
        let mut registries = Registries::default();
        assert_eq!(
            plan(&registries, "10.0.2.2:5000"),
            ["https://10.0.2.2:5000/v2"]
        );
        assert_eq!(
            plan(&registries, "docker.io"),
            ["https://registry-1.docker.io/v2"]
        );
        let own = mirror(
            &[
                ("http://10.0.2.2:5000", false),
                ("https://hub/v2/proxy/", true),
            ],
            false,
        );
        registries.mirrors.insert("docker.io".into(), own);
        registries.mirrors.insert(
            "*".into(),
            mirror(&[("https://cache.lan/all/", false)], true),
        );
        let expected = [
            "http://10.0.2.2:5000/v2",
            "https://hub/v2/proxy",
            "https://registry-1.docker.io/v2",
        ];
        assert_eq!(plan(&registries, "docker.io"), expected);
        assert_eq!(plan(&registries, "ghcr.io"), ["https://cache.lan/all/v2"]);
        registries
            .mirrors
            .insert("quay.io".into(), mirror(&[], true));
        assert!(plan(&registries, "quay.io").is_empty());
    }

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
            password: "hunter2".into(),
        };
        let registries = Registries {
            auth: [("r".to_owned(), auth)].into(),
            ..Registries::default()
        };
        assert!(!format!("{registries:?}").contains("hunter2"));
    }
}
