//! The channel that a machine follows by itself.

use std::{fmt, str::FromStr, time::Duration};

pub use instar_channel::{ChannelName, Label};

use super::{Bandwidth, EndpointUrl, PublicKey, Window};

/// The channel, and how the machine follows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpgradeFollow {
    /// The channel.
    pub channel: ChannelName,
    /// The folders of channels, in the order in which they are asked; none: channels come by bundles alone.
    pub urls: Vec<EndpointUrl>,
    /// The key that signs the channel's lists.
    pub key: PublicKey,
    /// The interval between two looks at the list.
    pub interval: Duration,
    /// The machine waits for a time of its own up to this, with the download and with the switch.
    pub jitter: Duration,
    /// The machine's labels.
    pub labels: Vec<Label>,
    /// When a release may be fetched; `None`: at any time.
    pub download_window: Option<Window>,
    /// The bandwidth that fetching it may use; `None`: all of it.
    pub bandwidth: Option<Bandwidth>,
    /// When the machine may switch to a release; `None`: at any time.
    pub switch_window: Option<Window>,
    /// The approvals that a release needs.
    pub approval: Approval,
    /// How long the machine has to be ready without a break under a release until that has proved itself.
    pub healthy_for: Duration,
    /// How long a release that has failed is held; `None`: for good.
    pub hold_for: Option<Duration>,
    /// Where changes of the state are reported to.
    pub report: Option<EndpointUrl>,
    /// The lock that lets one machine of a group switch at a time.
    pub fleet_lock: Option<FleetLock>,
}

/// The approvals that a release needs before the machine switches to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Approval {
    /// Nobody.
    NotNeeded,
    /// A caller.
    ByCall,
    /// Whoever has this key: a signature beside the list.
    ByKey(PublicKey),
}

/// A server of the protocol FleetLock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetLock {
    /// Its address.
    pub url: EndpointUrl,
    /// The machine's group.
    pub group: LockGroup,
}

/// The name of a group at a FleetLock server: letters, digits, `-` and `.`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockGroup(String);

/// The text is not the name of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the name of a group has letters, digits, `-` and `.`, 63 at most")]
pub struct NotAGroup;

impl LockGroup {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for LockGroup {
    fn default() -> Self {
        LockGroup("default".to_owned())
    }
}

impl FromStr for LockGroup {
    type Err = NotAGroup;

    fn from_str(text: &str) -> Result<Self, NotAGroup> {
        let is_right = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
        match (1..=63).contains(&text.len()) && text.bytes().all(is_right) {
            true => Ok(LockGroup(text.to_owned())),
            false => Err(NotAGroup),
        }
    }
}

impl fmt::Display for LockGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
