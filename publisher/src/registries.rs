//! The ways to registries: by the same documents as a node's config has.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use instar_http_client::{Proxies, Trust};
use instar_oci::registry::RegistryClient;
use instar_oci::{Registries, Retries};

/// A client with the settings of the file.
pub(crate) fn client(file: Option<&Path>) -> anyhow::Result<RegistryClient> {
    let mut settings = match file {
        Some(file) => read(file)?,
        None => Registries::default(),
    };
    // The place of the system's authorities differs between distributions; OpenSSL's variable names it.
    if let Some(bundle) = std::env::var_os("SSL_CERT_FILE") {
        settings.trust.bundle = bundle.into();
    }
    let environment: BTreeMap<String, String> = std::env::vars().collect();
    settings.proxies = Proxies::from_environment(|name| environment.get(name).map(String::as_str));
    Ok(RegistryClient::new(Arc::new(settings), Retries::default()))
}

fn read(file: &Path) -> anyhow::Result<Registries> {
    let name = file.display();
    let text = fs::read(file).with_context(|| format!("read {name}"))?;
    let sources = instar_config::parse_image_sources(&text).map_err(|errors| {
        let problems: Vec<String> = errors.problems().iter().map(ToString::to_string).collect();
        anyhow!("{name} is not valid: {}", problems.join("; "))
    })?;
    let roots = sources.trusted_roots.iter();
    Ok(Registries {
        mirrors: by_host(&sources.registries.mirrors),
        auth: by_host(&sources.registries.auth),
        trust: Trust {
            roots: roots.map(|roots| roots.certificates.clone()).collect(),
            hosts: by_host(&sources.registries.tls),
            ..Trust::default()
        },
        proxies: Proxies::default(),
    })
}

fn by_host<K: Display, T: Clone>(settings: &BTreeMap<K, T>) -> BTreeMap<String, T> {
    settings
        .iter()
        .map(|(host, setting)| (host.to_string(), setting.clone()))
        .collect()
}
