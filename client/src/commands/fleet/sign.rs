//! `fleet sign`: signs the requests of nodes that have no authority's key, on the computer of a person who has it.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
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
use super::note::note;
use crate::cli::{ApplyHow, ApplyMode, FleetSign, Global};
use crate::commands::apply_config;
use crate::target;

/// Timeout of one call of a node.
const CALL: Duration = Duration::from_secs(30);

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
        others: Others::of(&fleet.clone().unwrap_or_default()),
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
                note(&format!("not signed: {}{advice}", failure.chain()));
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
        let shown = look::answered(node.name(), CALL, show(node)).await?;
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
        self.others.check(node.name(), &request)?;
        let names = self.arguments.name.iter();
        let names = names.map(|name| SubjectName::from(name.as_str()));
        request.names.extend(names);
        let giving = give(node, &request, &self.authority, self.lifetime);
        let given = look::answered(node.name(), CALL, giving).await?;
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
    let request = read(node.name(), shown)?;
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
pub(super) fn read(node: &str, shown: &ShowCertificateResponse) -> Result<ServerRequest, Failure> {
    ServerRequest::from_pem(&shown.csr).map_err(|error| {
        let what = format!("{node}: cannot sign its request");
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

/// Names and addresses of the nodes of a fleet: a node that asks for one of another node is not signed for.
pub(super) struct Others(BTreeMap<MachineName, Vec<Host>>);

impl Others {
    /// Those of the nodes that are reached in these ways.
    pub(super) fn of(ways: &BTreeMap<MachineName, Way>) -> Self {
        let hosts = |(name, way): (&MachineName, &Way)| {
            let endpoints = way.endpoints.iter();
            let endpoints = endpoints.filter_map(|it| it.parse::<Endpoint>().ok());
            let endpoints = endpoints.filter(|it| !is_loopback(it.host()));
            let mut hosts = vec![Host::of(name.as_str())];
            hosts.extend(endpoints.map(|it| Host::of(it.host())));
            (name.clone(), hosts)
        };
        Self(ways.iter().map(hosts).collect())
    }

    /// Refuses a request of this node for a name of another one. A name that both have, as that of a gateway with a port for each, is its own.
    pub(super) fn check(&self, node: &str, request: &ServerRequest) -> Result<(), Failure> {
        let own = self.0.get(&MachineName::from(node));
        let asked = request.names.iter().map(|name| Host::of(&text(name)));
        for asked in asked.filter(|it| !own.is_some_and(|own| own.contains(it))) {
            let mut others = self.0.iter();
            let Some((name, _)) = others.find(|(_, theirs)| theirs.contains(&asked)) else {
                continue;
            };
            let what = format!("{node} asks for {asked}, which is a name of {name}");
            return Err(Failure::new(FailureKind::Refused, what)
                .advise("nothing was signed for it: find out why the machine has that name"));
        }
        Ok(())
    }
}

/// A name or an address in the one form that clients compare: an address may be written in several ways, and case does not count in a name.
#[derive(Debug, PartialEq, Eq)]
enum Host {
    Ip(IpAddr),
    Dns(String),
}

impl Host {
    fn of(text: &str) -> Self {
        // A dot at the end names the same host.
        let name = text.trim_end_matches('.');
        let address = name.parse().map(Self::Ip);
        address.unwrap_or_else(|_| Self::Dns(name.to_ascii_lowercase()))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Dns(name) => f.write_str(name),
        }
    }
}

/// Each machine has these.
fn is_loopback(host: &str) -> bool {
    let address = host.parse::<IpAddr>();
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

    #[test]
    fn a_node_is_not_signed_for_a_name_of_another_node() {
        let way = |endpoint: &str| Way {
            endpoints: vec![endpoint.to_owned()],
            node: None,
        };
        let ways = [
            ("lamp-1", "gate.example:50001"),
            ("lamp-2", "[fd00:0::7]:50000"),
            ("lamp-3", "gate.example:50003"),
            ("lamp-4", "127.0.0.1:50004"),
        ];
        let ways = ways.map(|(name, endpoint)| (MachineName::from(name), way(endpoint)));
        let others = Others::of(&ways.into());
        let key = instar_pki::PrivateKey::generate().unwrap();
        for (asked, whose) in [
            ("lamp-1", None),
            ("LAMP-1", None),
            ("lamp-22", None),
            ("fd00::8", None),
            // Each machine has it.
            ("127.0.0.1", None),
            // The gateway is its own name as well.
            ("gate.example", None),
            ("lamp-2", Some("lamp-2")),
            ("LAMP-2", Some("lamp-2")),
            ("lamp-2.", Some("lamp-2")),
            ("fd00::7", Some("lamp-2")),
            ("fd00:0:0::7", Some("lamp-2")),
            ("Lamp-4", Some("lamp-4")),
        ] {
            let names = [SubjectName::from("lamp-1"), SubjectName::from(asked)];
            let request = instar_pki::request_for_server(&key, &names).unwrap();
            let request = ServerRequest::from_pem(&request).unwrap();
            let refused = others.check("lamp-1", &request).err();
            let is_meant = match (&refused, whose) {
                (None, None) => true,
                (Some(failure), Some(whose)) => {
                    failure.chain().ends_with(&format!("a name of {whose}"))
                }
                _ => false,
            };
            assert!(is_meant, "{asked}: {refused:?}");
        }
    }
}
