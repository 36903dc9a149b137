//! A NodeUpgrade: one node's part in one rollout. People read it; the operator's own memory is the record in the pool.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::conditions;
use super::pool::Kind;

/// One node's part in one rollout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, CustomResource)]
#[kube(
    group = "instar.dev",
    version = "v1alpha1",
    kind = "NodeUpgrade",
    plural = "nodeupgrades",
    status = "NodeUpgradeStatus",
    derive = "PartialEq",
    printcolumn(name = "Node", json_path = ".spec.node", type_ = "string"),
    printcolumn(name = "Kind", json_path = ".spec.kind", type_ = "string"),
    printcolumn(name = "From", json_path = ".status.from", type_ = "string"),
    printcolumn(name = "To", json_path = ".spec.to", type_ = "string"),
    printcolumn(name = "Phase", json_path = ".status.phase", type_ = "string"),
    printcolumn(name = "Reason", json_path = ".status.reason", type_ = "string"),
    printcolumn(name = "Ended", json_path = ".status.ended", type_ = "date"),
    printcolumn(
        name = "Message",
        json_path = ".status.message",
        type_ = "string",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
pub struct NodeUpgradeSpec {
    /// The pool.
    pub pool: String,
    /// The node.
    pub node: String,
    /// The number of the pool's rollout.
    pub rollout: u32,
    /// The kind of change that the rollout brings.
    #[serde(default)]
    pub kind: Kind,
    /// The version that the node is to run; of a config, its fingerprint.
    pub to: String,
}

/// How far the node is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeUpgradeStatus {
    /// Waiting, Preparing, Prepared, Upgrading, Updated, Failed, GoingBack, WentBack, Stuck or Left.
    pub phase: String,
    /// Why, in one word.
    pub reason: String,
    /// Why, in one sentence; of a failure, the node's own.
    pub message: String,
    /// The version that it ran before; of a config, the fingerprint of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// When it was asked to change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub began: Option<String>,
    /// When it came to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// `Complete` and `Failed`, each with its reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
}
