//! The ways to registries: by the same documents as a node's config has, and with docker's credentials.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;

use instar_client::{Failure, FailureKind};
use instar_config::ImageSources;
use instar_http_client::{Proxies, Trust};
use instar_oci::Registries;

use super::credentials;
use crate::cli::CreateBundle;

/// The settings of all registries.
pub(super) fn settings(arguments: &CreateBundle) -> Result<Registries, Failure> {
    let config = arguments.registries.as_deref().map(read).transpose()?;
    let mut settings = config.as_ref().map(of_config).unwrap_or_default();
    for (host, auth) in credentials::read(arguments.docker_config.as_deref())? {
        settings.auth.entry(host).or_insert(auth);
    }
    // The place of the system's authorities differs between distributions; OpenSSL's variable names it.
    if let Some(bundle) = std::env::var_os("SSL_CERT_FILE") {
        settings.trust.bundle = bundle.into();
    }
    let environment: BTreeMap<String, String> = std::env::vars().collect();
    let variable = |name: &str| environment.get(name).map(String::as_str);
    settings.proxies = Proxies::from_environment(variable);
    Ok(settings)
}

fn of_config(config: &ImageSources) -> Registries {
    let roots = config.trusted_roots.iter();
    Registries {
        mirrors: by_host(&config.registries.mirrors),
        auth: by_host(&config.registries.auth),
        trust: Trust {
            roots: roots.map(|roots| roots.certificates.clone()).collect(),
            hosts: by_host(&config.registries.tls),
            ..Trust::default()
        },
        proxies: Proxies::default(),
    }
}

fn by_host<K: Display, T: Clone>(settings: &BTreeMap<K, T>) -> BTreeMap<String, T> {
    let settings = settings.iter();
    settings
        .map(|(host, setting)| (host.to_string(), setting.clone()))
        .collect()
}

fn read(path: &Path) -> Result<ImageSources, Failure> {
    let name = path.display();
    let text = std::fs::read(path);
    let text = text.map_err(|error| Failure::io(format!("cannot read {name}"), error))?;
    let parsed = instar_config::parse_image_sources(&text);
    parsed.map_err(|errors| {
        let problems: Vec<String> = errors.problems().iter().map(ToString::to_string).collect();
        let problems = problems.join("\n");
        Failure::new(
            FailureKind::Failed,
            format!("{name} is not valid:\n{problems}"),
        )
    })
}
