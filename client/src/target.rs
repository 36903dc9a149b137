//! The nodes to ask and the client's identity, from the command line.

use instar_client::{Failure, Node, Target};

use crate::cli::Global;

/// The one node that a command is for.
pub(crate) async fn one(global: &Global) -> Result<Node, Failure> {
    target(global).node().await
}

/// Every node that was named, or the one behind the endpoint if none was.
pub(crate) async fn all(global: &Global) -> Result<Vec<Node>, Failure> {
    target(global).nodes().await
}

/// A node by its address, with the identity of the client configuration.
pub(crate) async fn at(global: &Global, address: &str) -> Result<Node, Failure> {
    let target = Target {
        endpoints: vec![address.to_owned()],
        ..target(global)
    };
    target.behind_endpoint().await
}

fn target(global: &Global) -> Target {
    Target {
        config_file: global.talosconfig.clone(),
        context: global.context.clone(),
        endpoints: global.endpoints.clone(),
        nodes: global.nodes.clone(),
        insecure: global.insecure,
        fingerprints: global.cert_fingerprint.clone(),
    }
}
