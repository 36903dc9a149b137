//! The node's API with the credentials of a client config.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use instar_client::{Node, Target};

/// For one question: long enough to wait where a connection waits, over a change of generations.
const PATIENCE: Duration = Duration::from_secs(30);

/// Whom to ask, as whom.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    target: Target,
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
    pub(crate) fn new(endpoint: &str, client_config: &Path) -> Self {
        Self {
            target: Target {
                config_file: Some(client_config.to_owned()),
                endpoints: vec![endpoint.to_owned()],
                ..Target::default()
            },
        }
    }

    /// On a new connection.
    async fn node(&self) -> Result<Node> {
        Ok(self.target.node().await?)
    }

    /// The version, asked for on a new connection.
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
