//! The client's configuration file, in the shape of a talosconfig: named contexts, each with endpoints and an identity.

use std::collections::BTreeMap;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};

use crate::authority::{CertificateAuthority, IssuedCertificate};

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ClientConfigError {
    /// The text is not YAML of the expected form.
    #[error("cannot read the client configuration: {0}")]
    Parse(String),
    /// It cannot be written as YAML.
    #[error("cannot write the client configuration: {0}")]
    Write(String),
    /// There is no context of that name.
    #[error(
        "no context {name:?} in the client configuration; it has {}",
        list(known)
    )]
    NoContext {
        /// The requested name.
        name: String,
        /// The existing names.
        known: Vec<String>,
    },
    /// No context is selected.
    #[error(
        "the client configuration chooses no context; name one with --context, it has {}",
        list(known)
    )]
    NoneChosen {
        /// The existing names.
        known: Vec<String>,
    },
    /// A key of the context is not base64 of text.
    #[error("{key:?} of the context is not base64 of PEM text")]
    BadBase64 {
        /// `ca`, `crt` or `key`.
        key: &'static str,
    },
}

fn list(names: &[String]) -> String {
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    }
}

/// The whole file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientConfig {
    /// Name of the context in use.
    #[serde(default)]
    pub context: String,
    /// By name.
    #[serde(default)]
    pub contexts: BTreeMap<String, Context>,
}

/// The endpoints and the identity of a client.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Context {
    /// The addresses to connect to: host, host:port or URL.
    #[serde(default)]
    pub endpoints: Vec<String>,
    /// The default nodes for calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// Base64 of the authority's certificate in PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
    /// Base64 of the client's certificate in PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crt: Option<String>,
    /// Base64 of the client's key in PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Old name of `endpoints`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Cluster behind a proxy; kept, not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// Proxy; kept, not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_url: Option<String>,
}

/// Shows a context without its key.
impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context")
            .field("endpoints", &self.endpoints)
            .field("nodes", &self.nodes)
            .finish_non_exhaustive()
    }
}

impl Context {
    /// A context with one identity.
    pub fn new(
        endpoints: Vec<String>,
        authority: &CertificateAuthority,
        identity: &IssuedCertificate,
    ) -> Self {
        Self {
            endpoints,
            ca: Some(BASE64_STANDARD.encode(authority.certificate_pem())),
            crt: Some(BASE64_STANDARD.encode(identity.pem())),
            key: Some(BASE64_STANDARD.encode(identity.key_pem())),
            ..Self::default()
        }
    }

    /// The addresses to connect to, including the old key `target`.
    pub fn endpoints(&self) -> Vec<String> {
        if self.endpoints.is_empty() {
            self.target.iter().cloned().collect()
        } else {
            self.endpoints.clone()
        }
    }

    /// The authority's certificate in PEM.
    ///
    /// # Errors
    /// The value is not base64 of text.
    pub fn ca_pem(&self) -> Result<Option<String>, ClientConfigError> {
        decode("ca", self.ca.as_deref())
    }

    /// The client's certificate in PEM.
    ///
    /// # Errors
    /// The value is not base64 of text.
    pub fn crt_pem(&self) -> Result<Option<String>, ClientConfigError> {
        decode("crt", self.crt.as_deref())
    }

    /// The client's key in PEM.
    ///
    /// # Errors
    /// The value is not base64 of text.
    pub fn key_pem(&self) -> Result<Option<String>, ClientConfigError> {
        decode("key", self.key.as_deref())
    }
}

fn decode(key: &'static str, value: Option<&str>) -> Result<Option<String>, ClientConfigError> {
    let Some(value) = value.filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    let bytes = BASE64_STANDARD
        .decode(value.trim())
        .map_err(|_| ClientConfigError::BadBase64 { key })?;
    String::from_utf8(bytes)
        .map(Some)
        .map_err(|_| ClientConfigError::BadBase64 { key })
}

impl ClientConfig {
    /// A file with one context, which is the one in use.
    pub fn single(name: &str, context: Context) -> Self {
        Self {
            context: name.to_owned(),
            contexts: BTreeMap::from([(name.to_owned(), context)]),
        }
    }

    /// Parses YAML. An empty file is an empty configuration.
    ///
    /// # Errors
    /// The syntax error with line and column.
    pub fn from_yaml(text: &str) -> Result<Self, ClientConfigError> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        serde_saphyr::from_str(text).map_err(|error| ClientConfigError::Parse(error.to_string()))
    }

    /// Formats the configuration as YAML.
    ///
    /// # Errors
    /// Never in practice.
    pub fn to_yaml(&self) -> Result<String, ClientConfigError> {
        serde_saphyr::to_string(self).map_err(|error| ClientConfigError::Write(error.to_string()))
    }

    /// The context of that name, or the one in use.
    ///
    /// # Errors
    /// There is no such context.
    pub fn context(&self, name: Option<&str>) -> Result<&Context, ClientConfigError> {
        let known = || self.contexts.keys().cloned().collect();
        match name.unwrap_or(&self.context) {
            "" => Err(ClientConfigError::NoneChosen { known: known() }),
            name => self
                .contexts
                .get(name)
                .ok_or_else(|| ClientConfigError::NoContext {
                    name: name.to_owned(),
                    known: known(),
                }),
        }
    }
}
