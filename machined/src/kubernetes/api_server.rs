//! The client for the API server of a cluster.

use instar_http_client::{Client, Proxies, Trust};

use crate::config::{ClientIdentity, Cluster, HostTls};

/// A client that trusts the cluster's authorities, and shows this certificate. It uses no proxy.
pub(super) fn client(cluster: &Cluster, identity: ClientIdentity) -> Client {
    let tls = HostTls {
        ca: Some(cluster.authorities.clone()),
        client_identity: Some(identity),
        insecure_skip_verify: false,
    };
    let trust = Trust {
        hosts: [(cluster.endpoint.authority.clone(), tls)].into(),
        ..Trust::default()
    };
    Client::new(trust, &Proxies::default())
}
