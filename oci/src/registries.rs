//! The settings of registries as plain data, and the endpoints that follow from them.

use std::collections::BTreeMap;
use std::fmt;

use instar_http_client::{Proxies, Trust};
use instar_values::{EndpointUrl, Mirror, MirrorEndpoint, RegistryAuth, server_of};

/// The registry settings of the machine config. Keys are hosts as in image names (`HOST[:PORT]`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Registries {
    /// Mirrors by registry; `*` is for every registry without an entry of its own.
    pub mirrors: BTreeMap<String, Mirror>,
    /// Credentials by the host of the connection.
    pub auth: BTreeMap<String, RegistryAuth>,
    /// Trusted authorities, and TLS settings by the host of the connection (a mirror's are under the mirror's name).
    pub trust: Trust,
    /// The proxies in the machine's environment.
    pub proxies: Proxies,
}

/// How long an endpoint is asked before it is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// For some seconds: another endpoint may have the image.
    Brief,
    /// With all tries, each as long as the transport allows.
    Full,
}

/// One server to ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// The URL of the API, with `/v2` or its replacement.
    pub(super) root: EndpointUrl,
    /// For a mirror: the registry that it mirrors, sent as `?ns=` (as containerd's mirrors expect).
    pub(super) mirrors: Option<String>,
    pub(super) patience: Patience,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.root.fmt(f)
    }
}

impl Registries {
    /// The endpoints for images of a registry, in the order of asking. Plain http only if a mirror's URL says so.
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
                patience: Patience::Full,
            });
        }
        if !mirror.is_some_and(|mirror| mirror.skip_fallback) {
            let root = EndpointUrl {
                https: true,
                authority: server_of(registry).to_owned(),
                path: "/v2".to_owned(),
            };
            endpoints.push(Endpoint {
                root,
                mirrors: None,
                patience: Patience::Full,
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
}
