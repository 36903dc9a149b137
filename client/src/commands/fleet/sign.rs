//! `fleet sign`: signs the requests of nodes that have no authority's key, on the computer of a person who has it.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use instar_api::instar::node_certificate_service_client::NodeCertificateServiceClient;
use instar_api::instar::{
    GrantCertificateRequest, ShowCertificateRequest, ShowCertificateResponse,
};
use instar_client::{Endpoint, Failure, FailureKind, Node};
use instar_pki::{CertificateAuthority, ServerRequest, SubjectName};
use instar_rollout::MachineName;
use serde_json::json;
use tokio::task::LocalSet;

use super::authority_file;
use super::look;
use super::members::{self, Way};
use crate::cli::{ApplyHow, ApplyMode, FleetSign, Global};
use crate::commands::apply_config;
use crate::target;

/// A signed certificate that the node has taken.
pub(super) struct Given {
    /// Whether it is on the node's disk.
    pub(super) is_kept: bool,
    /// When it ends, in seconds since 1970.
    pub(super) ends: i64,
    /// Its names.
    names: Vec<String>,
}

pub(super) async fn run(global: &Global, arguments: &FleetSign) -> Result<(), Failure> {
    let authority = authority_file::read(&arguments.authority)?;
    let lifetime = Duration::from_secs(arguments.valid_for.0);
    let config = match &arguments.apply {
        Some(path) => Some(
            std::fs::read(path)
                .map_err(|error| Failure::io(format!("cannot read {}", path.display()), error))?,
        ),
        None => None,
    };
    let fleet = match arguments.nodes.fleet.is_some() || arguments.nodes.members {
        true => Some(members::direct_ways(global, &arguments.nodes).await?),
        false => None,
    };
    let signer = Signer {
        global,
        arguments,
        authority,
        lifetime,
        config,
        others: Others(fleet.clone().unwrap_or_default()),
    };
    let nodes = nodes(global, fleet).await?;
    let (count, mut unsigned) = (nodes.len(), Vec::new());
    // One that is away or refuses keeps no other one from its certificate.
    for (name, node) in nodes {
        let signed = match node {
            Ok(node) => signer.sign(&node).await,
            Err(failure) => Err(failure),
        };
        match signed {
            Ok(()) => {}
            Err(failure) if count == 1 => return Err(failure),
            Err(failure) => {
                let advice = failure.advice().map(|advice| format!(" ({advice})"));
                let advice = advice.unwrap_or_default();
                eprintln!("not signed: {}{advice}", failure.chain());
                unsigned.push(name);
            }
        }
    }
    match unsigned.is_empty() {
        true => Ok(()),
        false => Err(Failure::new(
            FailureKind::Failed,
            format!("not signed for {}", unsigned.join(", ")),
        )
        .advise("the same command signs for them once they answer; the others get another certificate then")),
    }
}

/// The means of signing, which are the same for all nodes.
struct Signer<'a> {
    global: &'a Global,
    arguments: &'a FleetSign,
    authority: CertificateAuthority,
    lifetime: Duration,
    /// The machine config that follows the certificate.
    config: Option<Vec<u8>>,
    others: Others,
}

impl Signer<'_> {
    /// Signs for one node.
    async fn sign(&self, node: &Node) -> Result<(), Failure> {
        let global = self.global;
        let shown = show(node).await?;
        if shown.signs_for_itself {
            return say(
                global,
                node,
                "has its authority's key and signs for itself",
                0,
            );
        }
        if self.arguments.nodes.members && shown.asks_control_plane {
            return say(
                global,
                node,
                "gets its certificate from its control plane",
                0,
            );
        }
        let mut request = confirmed(global, node, &shown)?;
        self.others.check(node, &request)?;
        let names = self.arguments.name.iter();
        let names = names.map(|name| SubjectName::from(name.as_str()));
        request.names.extend(names);
        let given = give(node, &request, &self.authority, self.lifetime).await?;
        tell(global, node, &given)?;
        let Some(config) = &self.config else {
            return Ok(());
        };
        let how = ApplyHow {
            mode: ApplyMode::Auto,
            dry_run: false,
            timeout: Duration::from_secs(60),
        };
        apply_config::apply(global, node, config.clone(), how).await
    }
}

/// The nodes to sign for by their names; one that does not answer has the reason instead.
async fn nodes(
    global: &Global,
    fleet: Option<BTreeMap<MachineName, Way>>,
) -> Result<Vec<(String, Result<Node, Failure>)>, Failure> {
    let Some(ways) = fleet else {
        return target::each(global).await;
    };
    let connecting = look::connect_all(global, ways);
    let nodes = LocalSet::new().run_until(connecting).await.into_iter();
    let called = nodes.map(|(name, node)| {
        let node = node.map(|node| node.called(name.as_str()));
        (name.to_string(), node)
    });
    Ok(called.collect())
}

/// Asks a node for its request.
pub(super) async fn show(node: &Node) -> Result<ShowCertificateResponse, Failure> {
    let mut client = NodeCertificateServiceClient::new(node.channel());
    let reply = client.show(node.request(ShowCertificateRequest {})).await;
    let reply = reply.map_err(|status| node.explain("shows no request", status))?;
    Ok(reply.into_inner())
}

/// The request, if it comes from the node that the person means: either the connection was verified by an authority, or the person has compared
/// the fingerprint on the node's console.
fn confirmed(
    global: &Global,
    node: &Node,
    shown: &ShowCertificateResponse,
) -> Result<ServerRequest, Failure> {
    let request = read(node, shown)?;
    let fingerprint = request.fingerprint();
    let refused = |why: String| Err(Failure::new(FailureKind::Refused, why));
    let given = &global.cert_fingerprint;
    if given.is_empty() && global.insecure {
        return refused(format!(
            "{}: the fingerprint of its key is not confirmed: it is {fingerprint}",
            node.name()
        ))
        .map_err(|failure| {
            failure.advise("compare it with the one on the node's console, and name that one with --cert-fingerprint")
        });
    }
    if !given.is_empty() && !given.contains(&fingerprint) {
        return refused(format!(
            "{}: its request is for a key with the fingerprint {fingerprint}, which is not the one of --cert-fingerprint",
            node.name()
        ));
    }
    Ok(request)
}

/// Reads and checks a node's request.
pub(super) fn read(node: &Node, shown: &ShowCertificateResponse) -> Result<ServerRequest, Failure> {
    ServerRequest::from_pem(&shown.csr).map_err(|error| {
        let what = format!("{}: cannot sign its request", node.name());
        Failure::new(FailureKind::Refused, what).because(error)
    })
}

/// Signs a request, and gives the node its certificate.
pub(super) async fn give(
    node: &Node,
    request: &ServerRequest,
    authority: &CertificateAuthority,
    lifetime: Duration,
) -> Result<Given, Failure> {
    let signed = authority.sign_server(request, SystemTime::now(), lifetime);
    let signed = signed.map_err(|error| {
        Failure::new(FailureKind::Failed, format!("{}: cannot sign", node.name())).because(error)
    })?;
    let message = GrantCertificateRequest {
        certificate: instar_pki::certificate_to_pem(&signed),
        authority: authority.certificate_pem(),
    };
    let mut client = NodeCertificateServiceClient::new(node.channel());
    let reply = client.grant(node.request(message)).await;
    let reply = reply
        .map_err(|status| node.explain("did not take the certificate", status))?
        .into_inner();
    Ok(Given {
        is_kept: reply.kept,
        ends: reply.ends,
        names: request.names.iter().map(text).collect(),
    })
}

fn text(name: &SubjectName) -> String {
    match name {
        SubjectName::Ip(address) => address.to_string(),
        SubjectName::Dns(name) => name.clone(),
    }
}

/// Names and addresses of the other nodes of a fleet: a node that asks for one of them is not signed for.
struct Others(BTreeMap<MachineName, Way>);

impl Others {
    fn check(&self, node: &Node, request: &ServerRequest) -> Result<(), Failure> {
        let others = self
            .0
            .iter()
            .filter(|(name, _)| name.as_str() != node.name());
        for (name, way) in others {
            let mut theirs = vec![name.to_string()];
            let hosts = way
                .endpoints
                .iter()
                .filter_map(|it| it.parse::<Endpoint>().ok());
            theirs.extend(
                hosts
                    .map(|it| it.host().to_owned())
                    .filter(|it| !is_loopback(it)),
            );
            let asked = request
                .names
                .iter()
                .map(text)
                .find(|it| theirs.contains(it));
            if let Some(asked) = asked {
                let what = format!(
                    "{} asks for {asked}, which is a name of {name}",
                    node.name()
                );
                return Err(Failure::new(FailureKind::Refused, what)
                    .advise("nothing was signed for it: find out why the machine has that name"));
            }
        }
        Ok(())
    }
}

/// Each machine has these.
fn is_loopback(host: &str) -> bool {
    let address = host.parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

fn tell(global: &Global, node: &Node, given: &Given) -> Result<(), Failure> {
    let date = jiff::Timestamp::from_second(given.ends)
        .map_or_else(|_| given.ends.to_string(), |date| date.to_string());
    let kept = match given.is_kept {
        true => "",
        false => "; it is in the node's memory until the node has a config and a disk",
    };
    let names = given.names.join(", ");
    say(
        global,
        node,
        &format!("has its certificate until {date}, for {names}{kept}"),
        given.ends,
    )
}

fn say(global: &Global, node: &Node, text: &str, ends: i64) -> Result<(), Failure> {
    global.output.show(
        || format!("{}: {text}", node.name()),
        || json!({ "node": node.name(), "details": text, "ends": ends }),
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_that_every_machine_has_are_nobodys() {
        assert!(is_loopback("localhost") && is_loopback("127.0.0.1") && is_loopback("::1"));
        assert!(!is_loopback("10.0.0.7") && !is_loopback("lamp-1"));
    }
}
