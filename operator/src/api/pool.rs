//! A Pool: nodes, the version and the config that they are to have, and how carefully they get them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::conditions;

/// Nodes, the version and the config that they are to have, and how carefully they get them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, CustomResource)]
#[kube(
    group = "instar.dev",
    version = "v1alpha1",
    kind = "Pool",
    plural = "pools",
    status = "PoolStatus",
    derive = "PartialEq",
    printcolumn(name = "Version", json_path = ".status.version", type_ = "string"),
    printcolumn(name = "Config", json_path = ".status.config", type_ = "string"),
    printcolumn(name = "Nodes", json_path = ".status.nodes", type_ = "integer"),
    printcolumn(name = "Updated", json_path = ".status.updated", type_ = "integer"),
    printcolumn(name = "Failed", json_path = ".status.failed", type_ = "integer"),
    printcolumn(name = "Phase", json_path = ".status.phase", type_ = "string"),
    printcolumn(name = "Message", json_path = ".status.message", type_ = "string"),
    printcolumn(
        name = "Age",
        json_path = ".metadata.creationTimestamp",
        type_ = "date"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct PoolSpec {
    /// The nodes of the pool. A node belongs to one pool at most.
    pub node_selector: LabelSelector,
    /// The installer's image: with a tag, with a digest, or with neither, and then `version` is its tag. A pool with patches needs none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub image: Option<String>,
    /// The tag of the image, if `image` has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub version: Option<String>,
    /// The Channel whose newest release the nodes are to run, in place of an image. They never get an older version by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub channel: Option<String>,
    /// The fate of a node's data when the node gets a version.
    #[serde(default, skip_serializing_if = "Strategy::is_in_place")]
    pub strategy: Strategy,
    /// Patches of the nodes' machine configs, in this order, as `instarctl fleet apply --patch` takes them: documents to merge, or a JSON patch.
    /// Everybody who may read the pool reads them: no secrets here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 16384)))]
    pub config_patches: Vec<String>,
    /// How carefully nodes get the version.
    #[serde(default)]
    pub policy: Policy,
    /// The eviction of pods that do not live through an upgrade.
    #[serde(default)]
    pub drain: Drain,
    /// Pools that have to run their versions before this one begins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
    /// Nothing new begins while this is set.
    #[serde(default)]
    pub paused: bool,
    /// The number of waves that a person has approved, with `policy.approval: waves`. It counts on over versions: what was set before a version
    /// begins approves none of its waves.
    #[serde(default)]
    pub approved_waves: u32,
}

/// The fate of a node's data when the node gets a version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Strategy {
    /// It stays, and so do pods where no reboot is needed.
    #[default]
    InPlace,
    /// Nothing is left on EPHEMERAL: the node reboots into the version with its config, and joins again.
    Replace,
}

impl Strategy {
    fn is_in_place(&self) -> bool {
        *self == Self::InPlace
    }
}

/// How carefully nodes get a version.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Policy {
    /// The number of nodes that may be out of service at once; 1 if neither this nor `share` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub at_once: Option<u32>,
    /// The same as a share of the pool in percent, rounded down, but at least one node.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub share: Option<u8>,
    /// The number of nodes that may begin in a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Nodes that go before the others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waves: Vec<Wave>,
    /// Hours and days in which a node may begin, as in `Sat,Sun 02:00-05:00 +01:00` or `02:00-05:00 Europe/Berlin`; at any time if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<String>,
    /// Whether all nodes must have the image before the first one begins.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub prepare_first: bool,
    /// The parts of a rollout that a person has to approve.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<Approval>,
    /// The number of failures at which the rollout stops; 1 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_failures: Option<u32>,
    /// The fate of nodes that run the version by then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<OnFailure>,
    /// The time that one node has for its upgrade, as in `30m`, which is the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[0-9]+[smhd]$"))]
    pub patience: Option<String>,
}

/// A number of nodes in a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Rate {
    /// The number of nodes.
    #[schemars(range(min = 1))]
    pub machines: u32,
    /// The time, as in `1h`.
    #[schemars(regex(pattern = "^[0-9]+[smhd]$"))]
    pub per: String,
}

/// Nodes that go before others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Wave {
    /// The nodes.
    pub select: Select,
    /// How long all of them must have run the version before the next wave begins, as in `10m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[0-9]+[smhd]$"))]
    pub soak: Option<String>,
}

/// A choice of nodes among those of no earlier wave: exactly one of these.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Select {
    /// The first ones by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub count: Option<u32>,
    /// A share of the pool in percent, the first ones by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub share: Option<u8>,
    /// Those with this label, as in `canary=yes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// The parts of a rollout that a person has to approve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Approval {
    /// Nothing.
    None,
    /// Each wave before it begins, the first one too.
    Waves,
}

/// The fate of updated nodes once too many have failed. Nothing new begins then.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnFailure {
    /// Nodes that run the version keep it.
    Halt,
    /// Nodes that run the version go back to the one before.
    Rollback,
}

/// The eviction of pods that do not live through an upgrade, as their disruption budgets allow it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Drain {
    /// How long pods of one node have, as in `10m`, which is the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[0-9]+[smhd]$"))]
    pub timeout: Option<String>,
    /// The fate of pods that are left then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_timeout: Option<OnDrainTimeout>,
}

/// The fate of pods that could not be evicted in time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub enum OnDrainTimeout {
    /// They stay, and the node's upgrade has failed.
    GiveUp,
    /// They are deleted, against their disruption budgets.
    Force,
}

/// The state of a pool as the operator knows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PoolStatus {
    /// The generation of the pool that this is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The version of the newest rollout of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The fingerprint of the patches of the newest rollout of configs, as in `config 1a2b3c4d`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// The number of nodes in the rollout.
    pub nodes: u32,
    /// Those that have what it brings, and have proved themselves.
    pub updated: u32,
    /// Those that failed, also those that are left behind.
    pub failed: u32,
    /// Where the rollout is, in one word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Where it is, in one sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// `Valid`, `Updated` and `Failed`, each with its reason, and `PatchesRemoved` if there are such.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
    /// The newest rollout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Rollout>,
    /// The newest rollout of the other kind: of configs, where the newest one is of a version. Nothing of it is under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set_aside: Option<Rollout>,
    /// Nodes that failed at a release of the channel, and that the others went on without: as many as a pool may have, 5,000. Reasons are whole for
    /// the newest 256 alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_behind: Vec<LeftBehind>,
    /// Patches that were taken out of `configPatches`, and that stay in force on nodes: the newest 32.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub removed_patches: Vec<RemovedPatch>,
}

/// A patch that was taken out of `configPatches`, and that stays in force on nodes until a person undoes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RemovedPatch {
    /// Its fingerprint, which the annotation `instar.dev/undone-patches` names once it is undone.
    pub fingerprint: String,
    /// Its begin.
    pub begins: String,
    /// The number of nodes that had it when it was taken out.
    pub nodes: u32,
}

/// A node that failed at a release of the channel, and that the others went on without. It does not get that release again before a person says
/// `retry`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LeftBehind {
    /// The node.
    pub node: String,
    /// The version at which it failed.
    pub version: String,
    /// The digest of that version's image, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// When it failed, in seconds since 1970.
    pub failed_at: i64,
    /// Why, in the node's words.
    pub why: String,
    /// Whether a person has said that it is to try again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub tries_again: bool,
}

/// The kind of change that a rollout brings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Kind {
    /// A version of the OS.
    #[default]
    Version,
    /// Patches of machine configs.
    Config,
}

/// A rollout as the operator keeps it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Rollout {
    /// Counts the rollouts of the pool.
    pub number: u32,
    /// The image as the pool names it; of configs, that of the version before them.
    pub image: String,
    /// The patches, if it brings configs; a rollout of a version has none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub config_patches: Vec<String>,
    /// The value of `spec.approvedWaves` when a version began: that many approvals were for versions before.
    #[serde(skip_serializing_if = "is_zero")]
    pub approved_before: u32,
    /// The command of a person that has been carried out, until its annotation is removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The engine's record.
    #[schemars(schema_with = "anything")]
    pub record: Value,
}

impl Rollout {
    /// The kind of change that it brings.
    pub fn kind(&self) -> Kind {
        match self.config_patches.is_empty() {
            true => Kind::Version,
            false => Kind::Config,
        }
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn anything(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}
