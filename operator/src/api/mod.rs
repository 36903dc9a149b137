//! The custom resources: what people write, and what the operator shows.

// The lint takes the columns of a definition, which have the same type, for one attribute that is written twice.
#![allow(clippy::duplicated_attributes)]

mod channel;
mod node_upgrade;
mod pool;

use schemars::{Schema, SchemaGenerator, json_schema};

pub(crate) use channel::expired_text;
pub use channel::{Channel, ChannelRelease, ChannelSpec, ChannelStatus};
pub use node_upgrade::{NodeUpgrade, NodeUpgradeSpec, NodeUpgradeStatus};
pub use pool::{
    Approval, Drain, Kind, LeftBehind, OnDrainTimeout, OnFailure, Policy, Pool, PoolSpec,
    PoolStatus, Rate, RemovedPatch, Rollout, Select, Strategy, Wave,
};

/// The label of a node with the version of its OS; the node sets it itself.
pub const VERSION_LABEL: &str = "instar.dev/version";
/// The annotation of a node that this operator has cordoned: the name of the pool.
pub const CORDONED_BY: &str = "instar.dev/cordoned-by";
/// The annotation of a node that a person wants left alone: the reason.
pub const HOLD: &str = "instar.dev/hold";
/// The annotation of a node whose API is elsewhere than at port 50000 of its InternalIP: host, or host:port.
pub const API_ADDRESS: &str = "instar.dev/api-address";
/// The annotation of a pool with a person's command: `resume`, `retry`, `abort` or `rollback`.
pub const COMMAND: &str = "instar.dev/command";
/// The annotation of a pool with the fingerprints of patches that were taken out of it and undone by a person, with commas or spaces between.
pub const UNDONE_PATCHES: &str = "instar.dev/undone-patches";
/// The label of a NodeUpgrade with the name of its pool.
pub const POOL_LABEL: &str = "instar.dev/pool";
/// The annotation of a pool with the Machine of Cluster API that it updates, as NAMESPACE.NAME.
pub const MACHINE: &str = "instar.dev/machine";
/// The annotation of a Machine of Cluster API that is never to be replaced for an update: `true`.
pub const NEVER_REPLACE: &str = "instar.dev/never-replace";

/// Merged by type, as conditions of other kinds are.
fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type", "status", "reason", "message", "lastTransitionTime"],
            "properties": {
                "type": {"type": "string"},
                "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                "reason": {"type": "string"},
                "message": {"type": "string"},
                "lastTransitionTime": {"type": "string", "format": "date-time"},
                "observedGeneration": {"type": "integer", "format": "int64"}
            }
        }
    })
}
