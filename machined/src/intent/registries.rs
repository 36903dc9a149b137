//! The registries that images come from, and the policy for them.

use std::collections::BTreeMap;
use std::sync::Arc;

use instar_http_client::{Proxies, Trust};

use crate::config::MachineConfig;
use crate::machine::Configured;
use crate::oci::{Pace, Policy, Puller, Registries};
use crate::values::{RegistryAuth, RegistryHost};

/// Returns the puller of images that the config describes, which takes only images that its rules allow; without a config, one that uses
/// the registries directly and takes every image.
pub fn puller(configured: Option<&Configured>) -> Arc<Puller> {
    let make = |registries, policy| Puller::new(Arc::new(registries), policy);
    match configured {
        Some(configured) => configured.puller(|config| make(registries(config), policy(config))),
        None => Arc::new(make(Registries::default(), Policy::default())),
    }
}

/// Returns a puller whose downloads keep to a bandwidth, and that is like [`puller`] otherwise.
pub fn puller_at_pace(configured: Option<&Configured>, pace: Arc<Pace>) -> Puller {
    let config = configured.map(|configured| &configured.config);
    let registries = config.map(registries).unwrap_or_default();
    let policy = config.map(policy).unwrap_or_default();
    Puller::new(Arc::new(registries), policy).at_pace(pace)
}

/// Returns a puller that shows a caller's own credentials to one registry, and is like [`puller`] otherwise.
pub fn puller_with_credentials(
    configured: Option<&Configured>,
    host: String,
    auth: RegistryAuth,
) -> Puller {
    let config = configured.map(|configured| &configured.config);
    let mut registries = config.map(registries).unwrap_or_default();
    registries.auth.insert(host, auth);
    Puller::new(Arc::new(registries), config.map(policy).unwrap_or_default())
}

/// Returns the rules for images.
pub(super) fn policy(config: &MachineConfig) -> Policy {
    Policy::new(config.image_rules.clone())
}

/// Returns the authorities and identities for servers of files and images.
pub fn trust(config: &MachineConfig) -> Trust {
    Trust {
        roots: config
            .trusted_roots
            .iter()
            .map(|roots| roots.certificates.clone())
            .collect(),
        hosts: by_host(&config.registries.tls),
        ..Trust::default()
    }
}

fn registries(config: &MachineConfig) -> Registries {
    let environment = |name: &str| config.environment.get(name).map(String::as_str);
    Registries {
        mirrors: by_host(&config.registries.mirrors),
        auth: by_host(&config.registries.auth),
        trust: trust(config),
        proxies: Proxies::from_environment(environment),
    }
}

fn by_host<T: Clone>(settings: &BTreeMap<RegistryHost, T>) -> BTreeMap<String, T> {
    let settings = settings.iter();
    settings
        .map(|(host, setting)| (host.to_string(), setting.clone()))
        .collect()
}
