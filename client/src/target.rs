//! The nodes to ask and the client's identity, from the command line.

use std::path::PathBuf;

use instar_client::{Failure, Node, Target};

use crate::cli::Global;

/// The one node that a command is for.
pub(crate) async fn one(global: &Global) -> Result<Node, Failure> {
    target(global).node().await
}

/// Every node that was named, or the one behind the endpoint if none was; those that are away as well, if one of them answers.
pub(crate) async fn also_away(global: &Global) -> Result<Vec<Node>, Failure> {
    target(global).nodes_also_away().await
}

/// Every node that was named, or the one behind the endpoint if none was, with its name; each with the failure if there is no connection to it.
pub(crate) async fn each(global: &Global) -> Result<Vec<(String, Result<Node, Failure>)>, Failure> {
    target(global).each_node().await
}

/// A node by its address, with the identity of the client configuration.
pub(crate) async fn at(global: &Global, address: &str) -> Result<Node, Failure> {
    let target = Target {
        endpoints: vec![address.to_owned()],
        ..target(global)
    };
    target.behind_endpoint().await
}

/// The target of one node of a fleet: by endpoints of its own, and by the name under which they pass calls on to it.
pub(crate) fn by_way(global: &Global, endpoints: &[String], node: Option<&str>) -> Target {
    let mut target = target(global);
    if !endpoints.is_empty() {
        target.endpoints = endpoints.to_vec();
    }
    target.nodes = node.map(str::to_owned).into_iter().collect();
    target
}

/// The nodes and the endpoints of the context.
pub(crate) fn context(global: &Global) -> Result<(Vec<String>, Vec<String>), Failure> {
    target(global).of_context()
}

/// The endpoints that calls go to, as a client configuration names them: none if the call needs no configuration.
pub(crate) fn endpoints(global: &Global) -> Result<Vec<String>, Failure> {
    let target = target(global);
    if target.insecure || target.is_at_socket() {
        return Ok(Vec::new());
    }
    if !target.endpoints.is_empty() {
        return Ok(target.endpoints);
    }
    let (nodes, endpoints) = target.of_context()?;
    // Without an endpoint, the nodes themselves are the endpoints.
    Ok(match (endpoints.is_empty(), target.nodes.is_empty()) {
        (false, _) => endpoints,
        (true, true) => nodes,
        (true, false) => target.nodes,
    })
}

/// The client configuration, or the place where it would be.
pub(crate) fn config_path(global: &Global) -> Option<PathBuf> {
    target(global).config_path()
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
