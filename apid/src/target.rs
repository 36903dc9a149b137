//! The nodes that a call is for: this one, another one, or several (the metadata keys `node` and `nodes`).

use http::{HeaderMap, HeaderValue, Request};

use instar_api::UPLOAD_METHODS;

use super::grpc_status::Code;
use super::identity::Credentials;
use super::metadata::{NODE, NODES, PROXY_FROM};
use super::node_ref::Other;

/// Limit on the nodes of one call. Each is a connection for as long as the call takes.
const MOST_NODES: usize = 64;

/// Services whose calls may name several nodes at once. The messages of other services have no field for the node that answers.
pub(super) const FOR_SEVERAL: [&str; 5] = [
    "machine.MachineService",
    "cluster.ClusterService",
    "inspect.InspectService",
    "storage.StorageService",
    "time.TimeService",
];

/// The target of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    /// This node.
    Here,
    /// Another node, whose answer passes through unchanged.
    Other(Other),
    /// All of these nodes; each answer carries the name of its node.
    Several(Vec<Node>),
}

/// One of several nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    /// The name that the caller gave.
    pub(super) name: String,
    /// The place of the node.
    pub(super) place: Place,
}

/// The place of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// This node.
    Here,
    /// Another node, unless its name turns out to lead here.
    Elsewhere(Other),
    /// No place: neither an address nor a name.
    Nowhere,
}

/// The error for a node that is neither an address nor a name.
pub(super) const NO_NAME: &str = "another node is named by its address or its name, without a port";

/// Why a call is refused: a status code and a message.
pub(super) type Refusal = (Code, &'static str);

/// Finds the target of a call.
pub(super) fn of<B>(request: &Request<B>, credentials: &Credentials) -> Result<Target, Refusal> {
    let headers = request.headers();
    if headers.contains_key(PROXY_FROM) {
        return Ok(Target::Here);
    }
    let dialled = host_of(request.uri().host().unwrap_or_default());
    let is_here = |name: &str| {
        let host = host_of(name);
        name.is_empty() || host.eq_ignore_ascii_case(dialled) || credentials.is_this_node(host)
    };
    let can_pass_on = credentials.peers().is_some();
    match headers.get_all(NODE).iter().count() {
        0 => {}
        1 => {
            let name = headers.get(NODE).map(text).unwrap_or_default();
            return match place(name, is_here) {
                Place::Here => Ok(Target::Here),
                _ if !can_pass_on => Err(NOT_HERE),
                Place::Elsewhere(other) => Ok(Target::Other(other)),
                Place::Nowhere => Err((Code::InvalidArgument, NO_NAME)),
            };
        }
        _ => {
            return Err((
                Code::InvalidArgument,
                "more than one value of node; use nodes for several",
            ));
        }
    }
    let nodes = several(headers, is_here);
    if !nodes.is_empty() && !FOR_SEVERAL.contains(&service_of(request.uri().path())) {
        return Err((
            Code::InvalidArgument,
            "this service answers for one node at a time; use node instead of nodes",
        ));
    }
    let all_here = nodes.iter().all(|node| node.place == Place::Here);
    if UPLOAD_METHODS.contains(&request.uri().path()) {
        return of_upload(nodes, can_pass_on);
    }
    match nodes.len() {
        // machined answers for this node itself.
        0 | 1 if all_here => Ok(Target::Here),
        _ if !all_here && !can_pass_on => Err(NOT_HERE),
        count if count > MOST_NODES => Err((
            Code::InvalidArgument,
            "more than 64 nodes in one call; make several",
        )),
        _ => Ok(Target::Several(nodes)),
    }
}

/// Finds the target of a call whose request is a stream. It is for one node: a request to several is held in memory until it is whole, and a
/// stream may be too long for that.
fn of_upload(mut nodes: Vec<Node>, can_pass_on: bool) -> Result<Target, Refusal> {
    if nodes.len() > 1 {
        return Err((
            Code::InvalidArgument,
            "a file is sent to one node at a time; name one node",
        ));
    }
    match nodes.pop().map(|node| node.place) {
        None | Some(Place::Here) => Ok(Target::Here),
        Some(_) if !can_pass_on => Err(NOT_HERE),
        Some(Place::Elsewhere(other)) => Ok(Target::Other(other)),
        Some(Place::Nowhere) => Err((Code::InvalidArgument, NO_NAME)),
    }
}

const NOT_HERE: Refusal = (
    Code::PermissionDenied,
    "no request forwarding: this node was asked for another one",
);

fn several(headers: &HeaderMap, is_here: impl Fn(&str) -> bool) -> Vec<Node> {
    let names = headers.get_all(NODES).iter().map(text);
    names
        .map(|name| Node {
            name: name.to_owned(),
            place: place(name, &is_here),
        })
        .collect()
}

fn place(name: &str, is_here: impl Fn(&str) -> bool) -> Place {
    if is_here(name) {
        return Place::Here;
    }
    Other::parse(name).map_or(Place::Nowhere, Place::Elsewhere)
}

/// The text of a value; a value that is not text names no node.
fn text(value: &HeaderValue) -> &str {
    value.to_str().unwrap_or("\u{fffd}")
}

/// `package.Service` of `/package.Service/Method`.
fn service_of(path: &str) -> &str {
    let path = path.strip_prefix('/').unwrap_or(path);
    path.split_once('/').map_or(path, |(service, _)| service)
}

/// The host part of `host`, `host:port`, `[v6]` and `[v6]:port`.
fn host_of(name: &str) -> &str {
    if let Some(rest) = name.strip_prefix('[') {
        return rest.split(']').next().unwrap_or(rest);
    }
    match name.split_once(':') {
        Some((host, port)) if !port.contains(':') => host,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::identity::tests::credentials;

    fn target(passes_on: bool, path: &str, metadata: &[(&str, &str)]) -> Result<Target, Refusal> {
        let mut request = Request::post(format!("https://192.0.2.9:50000{path}"))
            .body(())
            .unwrap();
        for (key, value) in metadata {
            let key: http::HeaderName = key.parse().unwrap();
            request
                .headers_mut()
                .append(key, HeaderValue::from_str(value).unwrap());
        }
        of(&request, &credentials(&["10.0.0.1", "node-1"], passes_on))
    }

    const VERSION: &str = "/machine.MachineService/Version";

    #[test]
    fn clients_know_the_words_of_a_node_that_passes_nothing_on() {
        assert!(NOT_HERE.1.starts_with(instar_api::answers::NO_FORWARDING));
    }

    #[test]
    fn what_means_this_node_is_answered_here() {
        for metadata in [
            &[][..],
            &[("node", "")],
            &[("node", "NODE-1")],
            &[("node", "10.0.0.1:50000")],
            &[("node", "192.0.2.9")],
            &[("nodes", "10.0.0.1")],
            &[("node", "10.0.0.2"), ("proxyfrom", "10.0.0.3")],
        ] {
            for passes_on in [false, true] {
                let here = target(passes_on, VERSION, metadata);
                assert_eq!(here, Ok(Target::Here), "{metadata:?}");
            }
        }
    }

    #[test]
    fn another_node_is_asked_where_that_can_be() {
        let asked = |passes_on, name| target(passes_on, VERSION, &[("node", name)]);
        for name in ["10.0.0.2", "node-2", "node-1.example.org"] {
            let other = Other::parse(name).unwrap();
            assert_eq!(asked(true, name), Ok(Target::Other(other)));
            assert_eq!(asked(false, name), Err(NOT_HERE));
        }
        for name in ["10.0.0.2:50000", "node-2:50000", "[::1", "ü"] {
            let refused = asked(true, name).unwrap_err();
            assert_eq!(refused, (Code::InvalidArgument, NO_NAME), "{name}");
            assert_eq!(asked(false, name), Err(NOT_HERE));
        }
    }

    #[test]
    fn several_nodes_are_told_apart() {
        let names = ["10.0.0.1", "fd00::2", "node-2", "x:1"];
        let metadata = names.map(|name| ("nodes", name));
        let Ok(Target::Several(nodes)) = target(true, VERSION, &metadata) else {
            panic!("not several");
        };
        let places: Vec<_> = nodes.into_iter().map(|node| node.place).collect();
        let other = |name| Place::Elsewhere(Other::parse(name).unwrap());
        assert_eq!(
            places,
            [
                Place::Here,
                other("fd00::2"),
                other("node-2"),
                Place::Nowhere
            ]
        );
        assert_eq!(target(false, VERSION, &metadata), Err(NOT_HERE));
        // Two names of this node are two answers.
        let twice = [("nodes", "10.0.0.1"), ("nodes", "node-1")];
        let twice = target(false, VERSION, &twice);
        assert!(matches!(twice, Ok(Target::Several(nodes)) if nodes.len() == 2));
    }

    #[test]
    fn a_stream_is_for_one_node() {
        let upload = UPLOAD_METHODS[0];
        let here = target(false, upload, &[("nodes", "node-1")]);
        assert_eq!(here, Ok(Target::Here));
        let other = ("nodes", "10.0.0.2");
        let passed_on = Target::Other(Other::parse("10.0.0.2").unwrap());
        assert_eq!(target(true, upload, &[other]), Ok(passed_on));
        assert_eq!(target(false, upload, &[other]), Err(NOT_HERE));
        for metadata in [&[other, ("nodes", "node-1")][..], &[("nodes", "x:1")]] {
            let (code, _) = target(true, upload, metadata).unwrap_err();
            assert_eq!(code, Code::InvalidArgument, "{metadata:?}");
        }
    }

    #[test]
    fn calls_that_make_no_sense_are_refused() {
        let many = vec![("nodes", "10.0.0.2"); MOST_NODES + 1];
        let two = [("node", "10.0.0.1"), ("node", "10.0.0.2")];
        for (path, metadata) in [
            (VERSION, &two[..]),
            (VERSION, &many),
            ("/cosi.resource.State/List", &[("nodes", "10.0.0.1")]),
        ] {
            let (code, _) = target(true, path, metadata).unwrap_err();
            assert_eq!(code, Code::InvalidArgument, "{path}");
        }
    }

    #[test]
    fn services_are_told_from_methods() {
        assert_eq!(service_of("/time.TimeService/Time"), "time.TimeService");
        assert_eq!(service_of("nonsense"), "nonsense");
    }

    #[test]
    fn hosts_are_told_from_ports() {
        for (name, host) in [
            ("node", "node"),
            ("10.0.0.1:50000", "10.0.0.1"),
            ("[fd00::1]:50000", "fd00::1"),
            ("[fd00::1]", "fd00::1"),
            ("fd00::1", "fd00::1"),
        ] {
            assert_eq!(host_of(name), host);
        }
    }
}
