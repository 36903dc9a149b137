//! A client configuration from the machine's own authority.

use std::time::{Duration, SystemTime};

use instar_pki::client_config::{ClientConfig, Context};
use instar_pki::{AuthorityError, CertificateAuthority, Role};

use crate::config::MachineConfig;

/// Limit on a certificate's lifetime: longer than the default of the authority itself.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The client that the configuration is for.
#[derive(Debug, Clone)]
pub struct NewClient {
    /// Name of its context.
    pub name: String,
    /// The endpoints that it connects to.
    pub endpoints: Vec<String>,
    /// The roles that it has.
    pub roles: Vec<Role>,
    /// Lifetime of its certificate.
    pub lifetime: Duration,
}

/// The files for the new client. Without `Debug`, so that its key cannot get into a log.
pub struct ClientFiles {
    /// PEM of the authority's certificate.
    pub authority: String,
    /// PEM of the client's certificate.
    pub certificate: String,
    /// PEM of the client's key.
    pub key: String,
    /// The complete client configuration, YAML.
    pub config: String,
}

/// Why no configuration was made.
#[derive(Debug, thiserror::Error)]
pub enum NewClientError {
    /// No role: a certificate without roles is useless.
    #[error("no role is named")]
    NoRole,
    /// An unknown role, probably misspelled.
    #[error("{0:?} is no role that grants anything")]
    UnknownRole(String),
    /// The lifetime is zero or too long.
    #[error("a certificate can be good for a second up to ten years")]
    Lifetime,
    /// The machine config has no key of the authority, as on workers.
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
