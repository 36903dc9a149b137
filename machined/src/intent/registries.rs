//! Where images come from.

use std::sync::Arc;

use anyhow::Context as _;
use instar_http_client::{ClientIdentity, HostTls, Proxies, Trust};

use crate::config::{self, MachineConfig};
use crate::machine::Configured;
use crate::oci::{Mirror, MirrorEndpoint, Puller, Registries, RegistryAuth};

/// What pulls images as the config says; without one, from the registries themselves.
pub fn puller(configured: Option<&Configured>) -> anyhow::Result<Arc<Puller>> {
    let make = |registries| Puller::new(Arc::new(registries));
    match configured {
        Some(configured) => configured.puller(|config| registries(config).map(make)),
        None => Ok(Arc::new(make(Registries::default()))),
    }
}

fn registries(config: &MachineConfig) -> anyhow::Result<Registries> {
    let roots = config.trusted_roots.iter();
    let environment = |name: &str| config.environment.get(name).map(String::as_str);
    let mut registries = Registries {
        trust: Trust {
            roots: roots.map(|roots| roots.certificates.clone()).collect(),
            ..Trust::default()
        },
        proxies: Proxies::from_environment(environment),
        ..Registries::default()
    };
    for (host, mirror) in &config.registries.mirrors {
        let endpoints = mirror.endpoints.iter().map(|endpoint| {
            let url = endpoint.url.to_string();
            let url = url
                .parse()
                .with_context(|| format!("the mirror of {host}"))?;
            Ok(MirrorEndpoint {
                url,
                override_path: endpoint.override_path,
            })
        });
        let endpoints = endpoints.collect::<anyhow::Result<Vec<_>>>()?;
        registries.mirrors.insert(
            host.to_string(),
            Mirror {
                endpoints,
                skip_fallback: mirror.skip_fallback,
            },
        );
    }
    for (host, tls) in &config.registries.tls {
        let client_identity =
            tls.client_identity
                .as_ref()
                .map(|(certificate, key)| ClientIdentity {
                    certificate: certificate.clone(),
                    key: key.expose().to_owned(),
                });
        let tls = HostTls {
            ca: tls.ca.clone(),
            client_identity,
            insecure_skip_verify: tls.insecure_skip_verify,
        };
        registries.trust.hosts.insert(host.to_string(), tls);
    }
    for (host, auth) in &config.registries.auth {
        if let Some(auth) = credentials(auth) {
            registries.auth.insert(host.to_string(), auth);
        }
    }
    Ok(registries)
}

fn credentials(auth: &config::RegistryAuth) -> Option<RegistryAuth> {
    if let Some(token) = &auth.identity_token {
        return Some(RegistryAuth::IdentityToken(token.expose().to_owned()));
    }
    let username = auth.username.clone()?;
    let password = auth.password.as_ref();
    Some(RegistryAuth::Password {
        username,
        password: password.map_or_else(String::new, |password| password.expose().to_owned()),
    })
}
