//! The files of a channel that travel in a bundle, so that machines follow the channel where none of its servers can be reached.
//!
//! They are documents of index.json. Nothing here says that a list is good: whoever follows the channel knows its key.

use instar_channel::ChannelName;
use instar_values::Digest;

use crate::root::Document;

const LIST: &str = "application/vnd.instar.channel.list.v1+json";
const SIGNATURE: &str = "application/vnd.instar.channel.signature.v1";
const APPROVAL: &str = "application/vnd.instar.channel.approval.v1";

/// A file of a channel.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChannelFile {
    /// The channel.
    pub channel: ChannelName,
    /// Which of its files it is.
    pub part: ChannelPart,
    /// The file.
    pub document: Document,
}

/// The files of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChannelPart {
    /// The list of its releases.
    List,
    /// The signature of the list.
    Signature,
    /// The signature that approves the release with this digest.
    Approval(Digest),
}

impl ChannelFile {
    /// The entry for a file with this content.
    #[must_use]
    pub fn new(channel: ChannelName, part: ChannelPart, content: &[u8]) -> Self {
        ChannelFile {
            channel,
            part,
            document: Document {
                digest: Digest::of(content),
                size: content.len() as u64,
                media_type: part.media_type().to_owned(),
            },
        }
    }
}

impl ChannelPart {
    fn media_type(self) -> &'static str {
        match self {
            ChannelPart::List => LIST,
            ChannelPart::Signature => SIGNATURE,
            ChannelPart::Approval(_) => APPROVAL,
        }
    }

    /// The part with this media type, which names a release if it is an approval and only then.
    pub(crate) fn of(media_type: &str, approves: Option<Digest>) -> Option<Self> {
        match (media_type, approves) {
            (LIST, None) => Some(ChannelPart::List),
            (SIGNATURE, None) => Some(ChannelPart::Signature),
            (APPROVAL, Some(release)) => Some(ChannelPart::Approval(release)),
            _ => None,
        }
    }
}
