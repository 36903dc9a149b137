//! Who calls, by apid's word.

use std::sync::Arc;

use instar_pki::Role;
use tonic::Request;
use tonic::metadata::MetadataMap;

use crate::base::quota::Rank;

/// The metadata key of the caller's address; apid sets it, callers cannot.
const PEER: &str = "instar-peer";

/// The metadata key of the caller's roles; apid sets it, callers cannot.
pub(super) const ROLES: &str = "instar-roles";

/// What the caller may do.
pub(super) fn roles(metadata: &MetadataMap) -> Vec<Role> {
    let list = metadata.get(ROLES).and_then(|list| list.to_str().ok());
    instar_pki::roles_from_list(list.unwrap_or_default())
}

/// Whose places a call takes.
#[derive(Debug, Clone)]
pub(super) struct Holder {
    /// The caller's connection.
    pub(super) connection: Arc<str>,
    /// Whether it is an administrator's.
    pub(super) rank: Rank,
}

impl Holder {
    /// Of a call.
    pub(super) fn of<T>(request: &Request<T>) -> Self {
        Holder {
            // Its port tells it from all others of that address.
            connection: peer(request).into(),
            rank: Rank::of(&roles(request.metadata())),
        }
    }
}

/// The caller's address for the log.
pub(super) fn peer<T>(request: &Request<T>) -> &str {
    request
        .metadata()
        .get(PEER)
        .and_then(|peer| peer.to_str().ok())
        .unwrap_or("this machine")
}

/// Whether the call is talosctl's, by what that always says of itself.
pub(super) fn is_talosctl<T>(request: &Request<T>) -> bool {
    let runtime = request.metadata().get("runtime");
    runtime.is_some_and(|name| name == "Talos")
}

/// The reply's metadata: clients that name their target by `nodes` want the name back in each element.
pub(super) fn reply_metadata(request: &MetadataMap) -> Option<instar_api::common::Metadata> {
    let target = request.get(instar_api::NODES_KEY)?.to_str().ok()?;
    Some(instar_api::common::Metadata {
        hostname: target.to_owned(),
        ..Default::default()
    })
}
