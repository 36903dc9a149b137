//! What apid needs to be the node to its callers.

use tokio::sync::watch;

use crate::apid::{Identity, SelfCheck};

/// What is made anew whenever the node's names, clock or authorities change; nothing until it was made once.
#[derive(Clone)]
pub struct Keys {
    /// Who the node is to its callers.
    pub identity: watch::Receiver<Option<Identity>>,
    /// How it is a caller of its own.
    pub self_check: watch::Receiver<Option<SelfCheck>>,
}
