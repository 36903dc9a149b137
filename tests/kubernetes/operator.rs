//! An operator with `instarctl`, who compares a worker's fingerprint: its certificate is of no authority.

use anyhow::Context as _;
use instar_tests::{Instarctl, Node, Said, Scratch};

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
