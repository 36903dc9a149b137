//! `Netstat`: the selection of sockets.

use instar_api::machine::NetstatRequest;
use instar_api::machine::netstat_request::Filter;

use crate::statistics::{Namespaces, Protocol, Shown, SocketQuery};

/// Converts a request to a query. Without any protocol it covers all of them; without a namespace, the machine's own.
pub(super) fn query(request: &NetstatRequest) -> SocketQuery {
    let wanted = request.l4proto.unwrap_or_default();
    let protocols = [
        (wanted.tcp, Protocol::Tcp),
        (wanted.tcp6, Protocol::Tcp6),
        (wanted.udp, Protocol::Udp),
        (wanted.udp6, Protocol::Udp6),
        (wanted.udplite, Protocol::UdpLite),
        (wanted.udplite6, Protocol::UdpLite6),
        (wanted.raw, Protocol::Raw),
        (wanted.raw6, Protocol::Raw6),
    ];
    let all = protocols.iter().all(|(wanted, _)| !wanted);
    let namespaces = request.netns.clone().unwrap_or_default();
    SocketQuery {
        shown: match request.filter() {
            Filter::All => Shown::All,
            Filter::Connected => Shown::Connected,
            Filter::Listening => Shown::Listening,
        },
        protocols: protocols
            .into_iter()
            .filter(|(wanted, _)| all || *wanted)
            .map(|(_, protocol)| protocol)
            .collect(),
        namespaces: match (namespaces.allnetns, namespaces.netns.is_empty()) {
            (true, _) => Namespaces::All,
            (false, true) => Namespaces::Host,
            (false, false) => Namespaces::Named {
                host: namespaces.hostnetwork,
                names: namespaces.netns,
            },
        },
        processes: request.feature.is_some_and(|feature| feature.pid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use instar_api::machine::netstat_request::{L4proto, NetNs};

    #[test]
    fn nothing_asked_for_means_everything_of_the_machine() {
        let everything = query(&NetstatRequest::default());
        assert_eq!(everything.protocols.len(), 8);
        assert_eq!(everything.namespaces, Namespaces::Host);
        assert_eq!(everything.shown, Shown::All);
        assert!(!everything.processes);
        let some = query(&NetstatRequest {
            l4proto: Some(L4proto {
                udp6: true,
                ..L4proto::default()
            }),
            netns: Some(NetNs {
                hostnetwork: true,
                netns: vec!["1".to_owned()],
                allnetns: false,
            }),
            ..NetstatRequest::default()
        });
        assert_eq!(some.protocols, [Protocol::Udp6]);
        let names = vec!["1".to_owned()];
        assert_eq!(some.namespaces, Namespaces::Named { host: true, names });
    }
}
