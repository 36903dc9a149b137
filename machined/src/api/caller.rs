//! The caller of a request, as apid reports it.

use std::sync::Arc;

use instar_pki::{Role, may_all};
use tonic::Request;
use tonic::metadata::MetadataMap;

use crate::base::quota::Rank;

/// The metadata key of the caller's address; apid sets it, callers cannot.
pub(super) const PEER: &str = "instar-peer";

/// The metadata key of the caller's roles; apid sets it, callers cannot.
pub(super) const ROLES: &str = "instar-roles";

/// Returns the roles of the caller.
pub(super) fn roles(metadata: &MetadataMap) -> Vec<Role> {
    let list = metadata.get(ROLES).and_then(|list| list.to_str().ok());
    instar_pki::roles_from_list(list.unwrap_or_default())
}

/// The holder of a call's places in the quotas.
#[derive(Debug, Clone)]
pub(super) struct Holder {
    /// The caller's connection, by its address and port.
    pub(super) connection: Arc<str>,
    /// Whether the caller is an administrator.
    pub(super) rank: Rank,
}

impl Holder {
    /// Returns the holder for a call.
    pub(super) fn of<T>(request: &Request<T>) -> Self {
        Holder {
            // The port tells this connection from others of the same address.
            connection: peer(request).into(),
            rank: Rank::of(may_all(&roles(request.metadata()))),
        }
    }
}

/// Returns the caller's address for the log.
pub(super) fn peer<T>(request: &Request<T>) -> &str {
    request
        .metadata()
        .get(PEER)
        .and_then(|peer| peer.to_str().ok())
        .unwrap_or("this machine")
}

/// Returns whether the caller is talosctl, by the metadata that it always sends.
pub(super) fn is_talosctl<T>(request: &Request<T>) -> bool {
    let runtime = request.metadata().get("runtime");
    runtime.is_some_and(|name| name == "Talos")
}

/// Builds the reply's metadata: clients that name their targets by `nodes` expect the name in each element.
pub(super) fn reply_metadata(request: &MetadataMap) -> Option<instar_api::common::Metadata> {
    let target = request.get(instar_api::NODES_KEY)?.to_str().ok()?;
    Some(instar_api::common::Metadata {
        hostname: target.to_owned(),
        ..Default::default()
    })
}
