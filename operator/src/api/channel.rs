//! A Channel: the newest release of a signed list, for pools that follow it.

use instar_channel::Date;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::conditions;

/// The newest release of a signed list, for pools that follow it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, CustomResource)]
#[kube(
    group = "instar.dev",
    version = "v1alpha1",
    kind = "Channel",
    plural = "channels",
    status = "ChannelStatus",
    derive = "PartialEq",
    printcolumn(name = "Version", json_path = ".status.version", type_ = "string"),
    printcolumn(name = "Serial", json_path = ".status.serial", type_ = "integer"),
    printcolumn(name = "Date", json_path = ".status.date", type_ = "string"),
    printcolumn(name = "Message", json_path = ".status.message", type_ = "string"),
    printcolumn(
        name = "Age",
        json_path = ".metadata.creationTimestamp",
        type_ = "date"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct ChannelSpec {
    /// Where channels are published: the list is URL/CHANNEL/releases-v1.json.
    #[schemars(length(min = 1, max = 1024))]
    pub url: String,
    /// The channel's name there; that of this object by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// The key that signs its lists, PEM.
    pub public_key: String,
    /// An authority of the server's certificate, PEM. Lists are believed by their signature alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
    /// The architecture of its nodes.
    #[serde(default = "amd64")]
    pub architecture: String,
    /// How often the list is read, as in `10m`, which is the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[0-9]+[smhd]$"))]
    pub interval: Option<String>,
}

fn amd64() -> String {
    "amd64".to_owned()
}

/// The state of a channel as the operator knows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ChannelStatus {
    /// The version of the newest release that was not withdrawn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Its image, by its digest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The date at which it came into the channel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub date: Option<String>,
    /// The releases that a node may have to go over, the newest first: that one, and those before it as long as a newer one may not follow every
    /// version.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub releases: Vec<ChannelRelease>,
    /// Whose list it is: its address, and the fingerprint of the key. Of another one nothing is known that was seen of this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The serial of the newest list that was seen: an older one is not believed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial: Option<u64>,
    /// The digest of that list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub list: Option<String>,
    /// When that list expires. After that it starts no upgrade.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
    /// The error of the last look at the list; empty if there was none.
    pub message: String,
    /// `Ready`, with its reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
}

impl ChannelStatus {
    /// That the list has expired, as a sentence; none if it has not.
    pub(crate) fn expired(&self, now: Date) -> Option<String> {
        let expires: Date = self.expires.as_ref()?.parse().ok()?;
        (expires < now).then(|| expired_text(expires))
    }
}

/// Why a list that has expired names no release.
pub(crate) fn expired_text(expired: Date) -> String {
    format!("the list has expired on {expired}; it starts no upgrade until a newer one is read")
}

/// A release as nodes go to it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChannelRelease {
    /// Its version.
    pub version: String,
    /// Its image, by its digest.
    pub image: String,
    /// The versions that it may follow; none: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upgrades_from: Option<String>,
}
