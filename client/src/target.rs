//! Whom to ask, as whom: from the command line and the client configuration.

use std::path::PathBuf;

use instar_pki::client_config::{ClientConfig, Context, Lookup};

use crate::cli::Global;
use crate::connection::{self, Trust};
use crate::endpoint::Endpoint;
use crate::failure::{Exit, Failure};
use crate::node::Node;

/// The one node that a command is for.
pub(crate) async fn one(global: &Global) -> Result<Node, Failure> {
    let mut nodes = all(global).await?;
    if nodes.len() > 1 {
        return Err(
            Failure::new(Exit::Usage, "this command is for one node at a time")
                .advise("name one with -n"),
        );
    }
    nodes
        .pop()
        .ok_or_else(|| Failure::new(Exit::Usage, "no node to ask"))
}

/// Every node that was named, or the one behind the endpoint if none was.
pub(crate) async fn all(global: &Global) -> Result<Vec<Node>, Failure> {
    if global.insecure {
        insecure(global).await
    } else {
        configured(global).await
    }
}

/// In maintenance mode a node knows nobody: its address is the endpoint, and nothing is routed.
async fn insecure(global: &Global) -> Result<Vec<Node>, Failure> {
    let addresses = if global.nodes.is_empty() {
        &global.endpoints
    } else {
        &global.nodes
    };
    if addresses.is_empty() {
        return Err(
            Failure::new(Exit::Usage, "--insecure needs the node's address")
                .advise("name it with -n"),
        );
    }
    let mut nodes = Vec::new();
    for endpoint in parse(addresses)? {
        let trust = Trust::Insecure {
            fingerprints: global.cert_fingerprint.clone(),
        };
        let channel = connection::connect(&endpoint, tls(trust)?).await?;
        nodes.push(Node::new(channel, endpoint, None));
    }
    Ok(nodes)
}

async fn configured(global: &Global) -> Result<Vec<Node>, Failure> {
    let (path, config) = load(global)?;
    let context = config.context(global.context.as_deref()).map_err(|error| {
        Failure::new(Exit::Usage, format!("cannot use {}", path.display())).because(error)
    })?;
    let endpoints = if global.endpoints.is_empty() {
        context.endpoints()
    } else {
        global.endpoints.clone()
    };
    let nodes = if global.nodes.is_empty() {
        context.nodes.clone()
    } else {
        global.nodes.clone()
    };
    // Like other clients of this API: without an endpoint, the nodes are asked themselves.
    let endpoints = parse(if endpoints.is_empty() {
        &nodes
    } else {
        &endpoints
    })?;
    if endpoints.is_empty() {
        return Err(Failure::new(
            Exit::Usage,
            format!("the context in {} has no endpoint", path.display()),
        )
        .advise("name one with -e"));
    }
    let tls = tls(mutual(context, &path, &global.cert_fingerprint)?)?;
    let mut failures = Vec::new();
    for endpoint in endpoints {
        match connection::connect(&endpoint, tls.clone()).await {
            Ok(channel) => {
                let node = |name| Node::new(channel.clone(), endpoint.clone(), name);
                return Ok(if nodes.is_empty() {
                    vec![node(None)]
                } else {
                    nodes.iter().cloned().map(|name| node(Some(name))).collect()
                });
            }
            Err(failure) => failures.push(failure),
        }
    }
    // The first endpoint is the one that is meant most.
    Err(failures.swap_remove(0))
}

/// The configuration file and what it says.
fn load(global: &Global) -> Result<(PathBuf, ClientConfig), Failure> {
    let path = |name: &str| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let lookup = Lookup {
        argument: global.talosconfig.clone(),
        // The command line parser has looked at $TALOSCONFIG already.
        talosconfig: None,
        talos_home: path("TALOS_HOME"),
        home: path("HOME"),
    };
    let path = lookup.find(|place| place.exists()).ok_or_else(|| {
        let places: Vec<_> = lookup
            .places()
            .iter()
            .map(|place| place.display().to_string())
            .collect();
        Failure::new(
            Exit::Usage,
            format!("no client configuration at {}", places.join(" or ")),
        )
        .advise("make one with `instarctl gen config`, or name it with --talosconfig")
    })?;
    let text = std::fs::read_to_string(&path)
        .map_err(|error| Failure::io(format!("cannot read {}", path.display()), error))?;
    let config = ClientConfig::from_yaml(&text).map_err(|error| {
        Failure::new(Exit::Usage, format!("cannot use {}", path.display())).because(error)
    })?;
    Ok((path, config))
}

/// The identity in a context.
fn mutual(
    context: &Context,
    path: &std::path::Path,
    fingerprints: &[String],
) -> Result<Trust, Failure> {
    let bad = |what: &str| {
        Failure::new(
            Exit::Usage,
            format!("the context in {} has no usable {what}", path.display()),
        )
    };
    let pem = |what: &'static str, value: Result<Option<String>, _>| match value {
        Ok(Some(pem)) => Ok(pem),
        Ok(None) => Err(bad(what)),
        Err(error) => Err(bad(what).because(error)),
    };
    let (ca, crt, key) = ("ca", "crt", "key");
    Ok(Trust::Mutual {
        fingerprints: fingerprints.to_vec(),
        authorities: instar_pki::certificates_from_pem(&pem(ca, context.ca_pem())?)
            .map_err(|error| bad(ca).because(error))?,
        certificates: instar_pki::certificates_from_pem(&pem(crt, context.crt_pem())?)
            .map_err(|error| bad(crt).because(error))?,
        key: instar_pki::private_key_from_pem(&pem(key, context.key_pem())?)
            .map_err(|error| bad(key).because(error))?,
    })
}

fn tls(trust: Trust) -> Result<std::sync::Arc<rustls::ClientConfig>, Failure> {
    trust.into_tls().map_err(|error| {
        Failure::new(
            Exit::Usage,
            "the certificates of the client configuration cannot be used",
        )
        .because(error)
    })
}

fn parse(texts: &[String]) -> Result<Vec<Endpoint>, Failure> {
    let endpoints: Result<Vec<Endpoint>, _> = texts.iter().map(|text| text.parse()).collect();
    endpoints.map_err(|error| Failure::new(Exit::Usage, "cannot connect").because(error))
}
