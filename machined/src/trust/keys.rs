//! The keys by which apid proves to callers that it is the node.

use tokio::sync::watch;

use crate::apid::{Identity, SelfCheck};

/// The current keys: made anew whenever the node's names, clock or authorities change; None before they are made for the first time.
#[derive(Clone)]
pub struct Keys {
    /// The node's identity for its callers.
    pub identity: watch::Receiver<Option<Identity>>,
    /// The credentials with which the node calls its own API.
    pub self_check: watch::Receiver<Option<SelfCheck>>,
}
