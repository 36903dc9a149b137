//! The last meeting of this machine with its cluster.

/// The cluster that this machine has met last. Another value tells one that may be another cluster, or an older state of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Meeting {
    /// The uid of the node's object: another one is another object.
    pub(super) uid: Option<String>,
    /// How often it has answered again after a silence.
    pub(super) returns: u64,
}
