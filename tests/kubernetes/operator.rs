//! An operator with `instarctl`, who compares a worker's fingerprint: its certificate is of no authority.

use anyhow::{Context as _, ensure};
use instar_tests::{Instarctl, Node, Outcome, Said, Scratch};

use crate::PATIENCE;
use crate::cluster::{Cluster, Extension};

/// The operator's client, for one node.
pub(crate) struct Operator<'a> {
    client: Instarctl,
    node: &'a Node,
}

impl<'a> Operator<'a> {
    /// Returns the client for this node.
    pub(crate) fn of(node: &'a Node, scratch: &Scratch) -> anyhow::Result<Self> {
        let client = Instarctl::of(node, scratch)?;
        Ok(Self { client, node })
    }

    /// Runs a command; the node must show the certificate that its console names last.
    pub(crate) async fn run(&self, arguments: &[&str]) -> anyhow::Result<Said> {
        let fingerprint = self.fingerprint()?;
        let pinned = ["--cert-fingerprint", &fingerprint];
        self.client.run(&[&pinned[..], arguments].concat()).await
    }

    /// Each generation of a worker has a key of its own.
    fn fingerprint(&self) -> anyhow::Result<String> {
        let console = self.node.vm().console();
        let (_, last) = console
            .rsplit_once("fingerprint ")
            .context("no fingerprint on the console")?;
        let end = last.find([';', '\r', '\n']).unwrap_or(last.len());
        Ok(last[..end].trim().to_owned())
    }
}

/// Applies the node's config with extensions from elsewhere, or with more extensions.
pub(crate) async fn apply(
    node: &Node,
    cluster: &Cluster,
    scratch: &Scratch,
    others: &[Extension],
) -> Outcome {
    apply_text(node, scratch, cluster.config_with(node.identity(), others)).await
}

/// Applies a config, and prints the last line that the node says about it.
pub(crate) async fn apply_text(node: &Node, scratch: &Scratch, config: String) -> Outcome {
    let file = scratch.write("config.yaml", config)?;
    let file = file.to_str().context("a path that is no text")?;
    let operator = Operator::of(node, scratch)?;
    let said = operator.run(&["apply-config", "-f", file]).await?;
    let applied = said.output.lines().last().unwrap_or_default();
    println!("{applied}");
    ensure!(said.code == Some(0), "{said:?}");
    Ok(())
}

/// Waits until a resource has these words.
pub(crate) async fn it_is_told(
    node: &Node,
    scratch: &Scratch,
    resource: &str,
    words: &str,
) -> Outcome {
    let operator = Operator::of(node, scratch)?;
    node.wait_until("the failure is told", PATIENCE, async || {
        let said = operator.run(&["get", resource, "-o", "yaml"]).await?;
        let line = said.output.lines().find(|line| line.contains(words));
        println!("{}", line.with_context(|| format!("{said:?}"))?);
        Ok(())
    })
    .await
}
