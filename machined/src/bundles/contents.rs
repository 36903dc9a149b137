//! The contents of a bundle, as far as they are known: its images with their versions, and who allows them.

use std::fmt;

use instar_channel::ChannelName;
use serde::Serialize;

use crate::values::Digest;

/// An image of a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FoundImage {
    /// Its reference.
    pub reference: String,
    /// The version by its labels, once its config was verified.
    pub version: Option<String>,
    /// Whether the machine may use it.
    pub approval: Approval,
}

/// Whether an image may be used, and who says so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Approval {
    /// Its signatures are not judged yet.
    NotJudged,
    /// Nobody whom the config trusts has said yes.
    Nobody,
    /// The caller of the API who brought it, who may pull images.
    Caller,
    /// The key of a rule of `ImageVerificationConfig` has signed it.
    Signature {
        /// The rule's pattern.
        rule: String,
        /// The key's fingerprint.
        key: Digest,
    },
    /// `BundleConfig` approves the bundle's digest.
    Config,
    /// A person at the machine has approved the bundle.
    Person,
}

/// The list of a channel that is in a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FoundList {
    /// The channel.
    pub channel: ChannelName,
    /// The use that the machine has for it.
    pub use_of_it: UseOfList,
}

/// The use that the machine has for the list of a channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum UseOfList {
    /// Nothing: its config does not follow this channel.
    NotFollowed,
    /// It goes by this list now.
    Taken {
        /// The serial of the list.
        serial: u64,
    },
    /// Nothing, for this reason.
    Refused(String),
}

impl fmt::Display for FoundList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let channel = &self.channel;
        match &self.use_of_it {
            UseOfList::NotFollowed => write!(
                f,
                "The bundle has a list of the channel {channel}, which this machine does not follow."
            ),
            UseOfList::Taken { serial } => {
                write!(
                    f,
                    "This machine goes by list {serial} of the channel {channel} now."
                )
            }
            UseOfList::Refused(reason) => {
                write!(
                    f,
                    "The list of the channel {channel} is not used: {reason}."
                )
            }
        }
    }
}

/// Support data that are written onto a stick.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Support {
    /// They are being written.
    Writing,
    /// They are on the stick.
    Written {
        /// The file's path on the stick.
        file: String,
        /// Its size.
        bytes: u64,
    },
    /// They were not written, for this reason.
    Failed(String),
}
