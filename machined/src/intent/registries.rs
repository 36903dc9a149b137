//! The registries that images come from.

use std::collections::BTreeMap;
use std::sync::Arc;

use instar_http_client::{Proxies, Trust};

use crate::config::MachineConfig;
use crate::machine::Configured;
use crate::oci::{Puller, Registries};
use crate::values::RegistryHost;

/// Returns the puller of images that the config describes; without a config, one that uses the registries directly.
pub fn puller(configured: Option<&Configured>) -> Arc<Puller> {
    let make = |registries| Puller::new(Arc::new(registries));
    match configured {
        Some(configured) => configured.puller(|config| make(registries(config))),
        None => Arc::new(make(Registries::default())),
    }
}

fn registries(config: &MachineConfig) -> Registries {
    let environment = |name: &str| config.environment.get(name).map(String::as_str);
    Registries {
        mirrors: by_host(&config.registries.mirrors),
        auth: by_host(&config.registries.auth),
        trust: Trust {
            roots: config
                .trusted_roots
                .iter()
                .map(|roots| roots.certificates.clone())
                .collect(),
            hosts: by_host(&config.registries.tls),
            ..Trust::default()
        },
        proxies: Proxies::from_environment(environment),
    }
}

fn by_host<T: Clone>(settings: &BTreeMap<RegistryHost, T>) -> BTreeMap<String, T> {
    let settings = settings.iter();
    settings
        .map(|(host, setting)| (host.to_string(), setting.clone()))
        .collect()
}
