//! The node's API with the credentials of a client config.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use instar_api::machine::ReadRequest;
use instar_api::machine::machine_service_client::MachineServiceClient;
use instar_pki::client_config::ClientConfig;
use instar_pki::with_standard_label;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

/// Whom to ask, as whom.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    endpoint: Endpoint,
}

/// What the node says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) version: String,
    /// Counts up with each generation since the kernel's start.
    pub(crate) generation: u64,
    /// Changes when the kernel starts.
    pub(crate) kernel_boot_id: String,
}

impl Api {
    pub(crate) fn new(endpoint: &str, client_config: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(client_config)
            .with_context(|| format!("cannot read {}", client_config.display()))?;
        let config = ClientConfig::from_yaml(&text)?;
        let context = config.context(None)?;
        let missing = |what: &str| format!("no {what} in {}", client_config.display());
        let key = with_standard_label(&context.key_pem()?.with_context(|| missing("key"))?);
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(
                context.ca_pem()?.with_context(|| missing("ca"))?,
            ))
            .identity(Identity::from_pem(
                context.crt_pem()?.with_context(|| missing("crt"))?,
                key,
            ));
        let endpoint = Endpoint::from_shared(format!("https://{endpoint}"))?
            .tls_config(tls)?
            // Long enough to wait where a connection waits, over a change of generations.
            .timeout(Duration::from_secs(30))
            .connect_timeout(Duration::from_secs(30));
        Ok(Self { endpoint })
    }

    async fn client(&self) -> Result<MachineServiceClient<Channel>> {
        Ok(MachineServiceClient::new(self.endpoint.connect().await?))
    }

    /// The version, asked for on a new connection.
    pub(crate) async fn version(&self) -> Result<String> {
        let answer = self.client().await?.version(()).await?.into_inner();
        let version = answer.messages.into_iter().find_map(|one| one.version);
        Ok(version.context("an answer without a version")?.tag)
    }

    pub(crate) async fn facts(&self) -> Result<Facts> {
        Ok(Facts {
            version: self.version().await?,
            generation: self.read("/run/generation").await?.parse()?,
            kernel_boot_id: self.read("/run/kernel-boot-id").await?,
        })
    }

    async fn read(&self, path: &str) -> Result<String> {
        let request = ReadRequest {
            path: path.to_owned(),
        };
        let mut parts = self.client().await?.read(request).await?.into_inner();
        let mut bytes = Vec::new();
        while let Some(part) = parts.message().await? {
            bytes.extend(part.bytes);
        }
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    }
}
