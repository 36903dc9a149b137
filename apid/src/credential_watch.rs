//! Closes connections whose credentials are no longer valid. A connection outlives its handshake by far: the authority of its caller may be
//! removed meanwhile, the caller's certificate may expire, and a node in maintenance mode may get its config.
//!
//! The check is repeated whenever the node's identity changes, which it does twice a day by itself.

use std::sync::Arc;

use tokio::sync::watch;

use super::caller::Caller;
use super::flag::Flag;
use super::identity::Credentials;

/// Watches whether the credentials of one connection's caller are still valid.
pub(super) struct CredentialWatch {
    newest: watch::Receiver<Arc<Credentials>>,
    caller: Caller,
    is_lost: Flag,
}

impl CredentialWatch {
    /// Watches this caller; `newest` has seen the credentials that accepted it.
    pub(super) fn of(caller: Caller, newest: watch::Receiver<Arc<Credentials>>) -> Self {
        CredentialWatch {
            newest,
            caller,
            is_lost: Flag::default(),
        }
    }

    /// A flag that is set once the credentials are no longer valid.
    pub(super) fn is_lost(&self) -> Flag {
        self.is_lost.clone()
    }

    /// Returns once the credentials are no longer valid.
    pub(super) async fn lost(&mut self) {
        loop {
            if self.newest.changed().await.is_err() {
                // No other identity will come: apid is about to end.
                return std::future::pending().await;
            }
            let newest = self.newest.borrow_and_update().clone();
            if !newest.still_lets_in(&self.caller) {
                self.is_lost.set();
                return;
            }
        }
    }
}
