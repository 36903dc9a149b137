//! A client configuration from the machine's own authority.

use std::time::{Duration, SystemTime};

use instar_pki::client_config::{ClientConfig, Context};
use instar_pki::{AuthorityError, CertificateAuthority, Role};

use crate::config::MachineConfig;

/// Longer than the authority itself lives by default.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Whose configuration it is to be.
#[derive(Debug, Clone)]
pub struct NewClient {
    /// Name of the context in it.
    pub name: String,
    /// Where it connects to.
    pub endpoints: Vec<String>,
    /// What it may do.
    pub roles: Vec<Role>,
    /// How long its certificate is good for.
    pub lifetime: Duration,
}

/// What the new client needs. Shows nothing of itself in logs: there is a key in it.
pub struct ClientFiles {
    /// PEM of the authority's certificate.
    pub authority: String,
    /// PEM of the client's certificate.
    pub certificate: String,
    /// PEM of the client's key.
    pub key: String,
    /// All of it as a client configuration, YAML.
    pub config: String,
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub enum NewClientError {
    /// A certificate without roles is good for nothing.
    #[error("no role is named")]
    NoRole,
    /// Misspelled, most likely.
    #[error("{0:?} is no role that grants anything")]
    UnknownRole(String),
    /// Zero, or beyond reason.
    #[error("a certificate can be good for a second up to ten years")]
    Lifetime,
    /// As on workers.
    #[error("the machine config holds no key of the authority; ask a machine that has it")]
    NoKey,
    /// The authority's key or certificate does not work.
    #[error("the authority of the machine config issues no certificate")]
    Authority(#[from] AuthorityError),
    /// The YAML could not be written.
    #[error("the client configuration cannot be written: {0}")]
    Write(String),
}

/// Makes a key and a certificate for a client.
pub fn client_configuration(
    config: &MachineConfig,
    client: &NewClient,
) -> Result<ClientFiles, NewClientError> {
    if client.roles.is_empty() {
        return Err(NewClientError::NoRole);
    }
    if let Some(Role::Unknown(name)) = client
        .roles
        .iter()
        .find(|role| matches!(role, Role::Unknown(_)))
    {
        return Err(NewClientError::UnknownRole(name.clone()));
    }
    if !(Duration::from_secs(1)..=LONGEST).contains(&client.lifetime) {
        return Err(NewClientError::Lifetime);
    }
    let key = config.trust.ca_key.as_ref().ok_or(NewClientError::NoKey)?;
    let authority = CertificateAuthority::from_pem(&config.trust.ca, key.expose())?;
    let issued = authority.issue_client(&client.roles, SystemTime::now(), client.lifetime)?;
    let context = Context::new(client.endpoints.clone(), &authority, &issued);
    Ok(ClientFiles {
        authority: authority.certificate_pem(),
        certificate: issued.pem(),
        key: issued.key_pem(),
        config: ClientConfig::single(&client.name, context)
            .to_yaml()
            .map_err(|error| NewClientError::Write(error.to_string()))?,
    })
}
