//! Credentials in docker's `config.json`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use instar_client::{Failure, FailureKind};
use instar_values::{RegistryAuth, Secret, server_of};
use serde::Deserialize;

#[derive(Deserialize, Default)]
struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    auth: String,
    #[serde(default)]
    identitytoken: String,
    /// In place of `auth`, as in the secrets of Kubernetes.
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
}

/// Reads the credentials by the host of the connection. A missing file is an error only if it was named.
pub(super) fn read(named: Option<&Path>) -> Result<BTreeMap<String, RegistryAuth>, Failure> {
    let Some(path) = named.map(Path::to_owned).or_else(usual_file) else {
        return Ok(BTreeMap::new());
    };
    let name = path.display();
    let text = std::fs::read(&path);
    let text = text.map_err(|error| Failure::io(format!("cannot read {name}"), error))?;
    parse(&text).map_err(|problem| Failure::new(FailureKind::Failed, format!("{name}: {problem}")))
}

fn usual_file() -> Option<PathBuf> {
    let folder = std::env::var_os("DOCKER_CONFIG").map(PathBuf::from);
    let folder = folder.or_else(|| Some(std::env::home_dir()?.join(".docker")))?;
    Some(folder.join("config.json")).filter(|path| path.exists())
}

fn parse(text: &[u8]) -> Result<BTreeMap<String, RegistryAuth>, String> {
    let config: DockerConfig = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let mut credentials = BTreeMap::new();
    for (server, entry) in config.auths {
        // Entries whose password a helper keeps are empty.
        if let Some(auth) = credential(&server, &entry)? {
            credentials.insert(host(&server).to_owned(), auth);
        }
    }
    Ok(credentials)
}

fn credential(server: &str, entry: &Entry) -> Result<Option<RegistryAuth>, String> {
    if !entry.identitytoken.is_empty() {
        let token = Secret::new(entry.identitytoken.clone());
        return Ok(Some(RegistryAuth::IdentityToken(token)));
    }
    if entry.auth.is_empty() {
        let (username, password) = (entry.username.clone(), entry.password.clone());
        return Ok((!username.is_empty()).then(|| RegistryAuth::Password {
            username,
            password: Secret::new(password),
        }));
    }
    let pair = BASE64_STANDARD.decode(&entry.auth).ok();
    let pair = pair.and_then(|pair| String::from_utf8(pair).ok());
    match pair.as_deref().and_then(|pair| pair.split_once(':')) {
        Some((username, password)) => Ok(Some(RegistryAuth::Password {
            username: username.to_owned(),
            password: Secret::new(password.to_owned()),
        })),
        None => Err(format!(
            "the credentials for {server} are not USER:PASSWORD in base64"
        )),
    }
}

/// The host of the connection for a server of the file, which may be a URL.
fn host(server: &str) -> &str {
    let rest = server.split_once("://").map_or(server, |(_, rest)| rest);
    match rest.split('/').next().unwrap_or(rest) {
        "index.docker.io" => server_of("docker.io"),
        host => server_of(host),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn each_form_of_credentials_is_read() {
        let text = br#"{
            "auths": {
                "https://index.docker.io/v1/": {"auth": "YTpi"},
                "r.io:5000": {"auth": "YTpiOmM="},
                "token.io": {"identitytoken": "t"},
                "secret.io": {"username": "a", "password": "d", "email": "a@b"},
                "kept.by.a.helper": {}
            },
            "credsStore": "x"
        }"#;
        let password = |password: &str| RegistryAuth::Password {
            username: "a".to_owned(),
            password: Secret::new(password.to_owned()),
        };
        let expected = BTreeMap::from([
            ("registry-1.docker.io".to_owned(), password("b")),
            ("r.io:5000".to_owned(), password("b:c")),
            ("secret.io".to_owned(), password("d")),
            (
                "token.io".to_owned(),
                RegistryAuth::IdentityToken(Secret::new("t".to_owned())),
            ),
        ]);
        assert_eq!(parse(text).unwrap(), expected);
        assert_eq!(parse(b"{}").unwrap(), BTreeMap::new());
    }

    #[test]
    fn credentials_that_cannot_be_read_are_said_without_the_secret() {
        let problem = parse(br#"{"auths": {"r.io": {"auth": "c2VjcmV0"}}}"#).unwrap_err();
        assert_eq!(
            problem,
            "the credentials for r.io are not USER:PASSWORD in base64"
        );
        assert!(parse(b"x").is_err());
    }
}
