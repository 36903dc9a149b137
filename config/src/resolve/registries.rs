//! The sources of images.

use std::collections::BTreeMap;

use base64::{Engine, prelude::BASE64_STANDARD};
use instar_values::server_of;

use super::{
    super::{
        model::{
            ClientIdentity, HostTls, Mirror, MirrorEndpoint, Registries, RegistryAuth,
            RegistryHost, Secret,
        },
        section::Section,
    },
    Documents, trust,
};

/// The names of Docker's registry.
const HUB: [&str; 2] = ["docker.io", "index.docker.io"];

pub(super) fn registries(documents: &Documents<'_>) -> Registries {
    let mut registries = Registries::default();
    if let Some(old) = documents.section("registries") {
        for (host, section) in old.sections("mirrors") {
            if let Some(host) = host_name(&section, host) {
                registries.mirrors.insert(host, old_mirror(&section));
            }
        }
        for (host, section) in old.sections("config") {
            let Some(host) = host_name(&section, host) else {
                continue;
            };
            if let Some(section) = section.section("tls") {
                registries.tls.insert(host.clone(), tls(&section, "crt"));
            }
            if let Some(auth) = section.section("auth").and_then(|section| auth(&section)) {
                registries.auth.insert(host, auth);
            }
        }
    }
    for document in documents.of("RegistryMirrorConfig") {
        if let Some(host) = document.required("name") {
            registries.mirrors.insert(host, mirror(&document));
        }
    }
    for document in documents.of("RegistryTLSConfig") {
        if let Some(host) = document.required("name") {
            registries.tls.insert(host, tls(&document, "cert"));
        }
    }
    for document in documents.of("RegistryAuthConfig") {
        if let (Some(host), Some(auth)) = (document.required("name"), auth(&document)) {
            registries.auth.insert(host, auth);
        }
    }
    note_hub(&mut registries.tls);
    note_hub(&mut registries.auth);
    registries
}

/// Gives the host of Docker's registry the settings that the config has for its name, unless the host has some of its own: they are looked up by
/// the host that is asked, and images have the name.
fn note_hub<T: Clone>(settings: &mut BTreeMap<RegistryHost, T>) {
    let setting = HUB.into_iter().find_map(|name| settings.get(name).cloned());
    if let (Some(setting), Ok(host)) = (setting, server_of(HUB[0]).parse::<RegistryHost>()) {
        settings.entry(host).or_insert(setting);
    }
}

/// Reads a host, which is the key of a map in the large document.
fn host_name(section: &Section<'_>, host: &str) -> Option<RegistryHost> {
    host.parse().map_err(|error| section.wrong(error)).ok()
}

fn old_mirror(section: &Section<'_>) -> Mirror {
    let override_path = section.flag("overridePath").unwrap_or(false);
    Mirror {
        endpoints: section
            .parsed_list("endpoints")
            .into_iter()
            .map(|url| MirrorEndpoint { url, override_path })
            .collect(),
        skip_fallback: section.flag("skipFallback").unwrap_or(false),
    }
}

fn mirror(document: &Section<'_>) -> Mirror {
    Mirror {
        endpoints: document
            .sections("endpoints")
            .into_iter()
            .filter_map(|(_, endpoint)| {
                Some(MirrorEndpoint {
                    url: endpoint.required("url")?,
                    override_path: endpoint.flag("overridePath").unwrap_or(false),
                })
            })
            .collect(),
        skip_fallback: document.flag("skipFallback").unwrap_or(false),
    }
}

/// Reads TLS settings. `certificate`: the name of the client certificate's field in this shape.
fn tls(section: &Section<'_>, certificate: &str) -> HostTls {
    let client_identity = section.section("clientIdentity").and_then(|identity| {
        let pair = (
            trust::certificate(&identity, certificate),
            trust::key(&identity, "key"),
        );
        match pair {
            (Some(certificate), Some(key)) => Some(ClientIdentity { certificate, key }),
            _ => {
                identity.wrong(format_args!(
                    "a client's identity needs both `{certificate}` and `key`"
                ));
                None
            }
        }
    });
    HostTls {
        ca: trust::certificate(section, "ca"),
        client_identity,
        insecure_skip_verify: section.flag("insecureSkipVerify").unwrap_or(false),
    }
}

/// Reads credentials. A token takes precedence over `auth`, and `auth` over `username` and `password`.
fn auth(section: &Section<'_>) -> Option<RegistryAuth> {
    let user = user_and_password(section);
    if let Some(token) = section.secret("identityToken") {
        return Some(RegistryAuth::IdentityToken(token));
    }
    if let Some((username, password)) = user {
        return Some(RegistryAuth::Password { username, password });
    }
    let password = section.secret("password");
    let username = section.owned("username");
    if username.is_none() && password.is_some() && section.text("auth").is_none() {
        section.wrong_field("username", "a password needs the name that it belongs to");
    }
    Some(RegistryAuth::Password {
        username: username?,
        password: password.unwrap_or_else(|| Secret::new("")),
    })
}

/// Decodes `auth`: the base64 of `user:password`, as in Docker's config.
fn user_and_password(section: &Section<'_>) -> Option<(String, Secret)> {
    let decoded = BASE64_STANDARD.decode(section.text("auth")?.trim()).ok();
    let text = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
    let both = text.as_deref().and_then(|text| text.split_once(':'));
    if both.is_none() {
        section.wrong_field("auth", "this must be the base64 of `user:password`");
    }
    both.map(|(username, password)| (username.to_owned(), Secret::new(password)))
}
