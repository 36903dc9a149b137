//! The node's API with the credentials of a client config.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use instar_client::{Node, Target};

/// Timeout for one question: longer than the pause of a connection in a change of generations.
const PATIENCE: Duration = Duration::from_secs(30);

/// The node's API with the client's credentials.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    target: Target,
}

/// The node's facts about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) version: String,
    /// Counts up with each generation since the kernel's start.
    pub(crate) generation: u64,
    /// Changes when the kernel starts.
    pub(crate) kernel_boot_id: String,
}

impl Api {
    pub(crate) fn new(endpoint: &str, client_config: &Path) -> Self {
        Self {
            target: Target {
                config_file: Some(client_config.to_owned()),
                endpoints: vec![endpoint.to_owned()],
                ..Target::default()
            },
        }
    }

    /// Connects anew.
    async fn node(&self) -> Result<Node> {
        Ok(self.target.node().await?)
    }

    /// Asks for the version, on a new connection.
    pub(crate) async fn version(&self) -> Result<String> {
        let asked = async { anyhow::Ok(self.node().await?.tag().await?) };
        let answer = tokio::time::timeout(PATIENCE, asked).await;
        answer.context("no answer to Version")?
    }

    pub(crate) async fn facts(&self) -> Result<Facts> {
        let node = self.node().await?;
        let read = async |path| {
            let read = tokio::time::timeout(PATIENCE, node.read_text(path)).await;
            let text = read.with_context(|| format!("no answer to Read {path}"))??;
            anyhow::Ok(text.trim().to_owned())
        };
        Ok(Facts {
            version: self.version().await?,
            generation: read("/run/generation").await?.parse()?,
            kernel_boot_id: read("/run/kernel-boot-id").await?,
        })
    }
}
