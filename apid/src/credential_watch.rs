//! Closes connections whose credentials are no longer valid. A connection outlives its handshake by far: the authority of its caller may be
//! removed meanwhile, the caller's certificate may expire, and a node in maintenance mode may get its config.
//!
//! It is asked again whenever the node's identity changes, which it does twice a day by itself.

use std::sync::Arc;

use rustls_pki_types::CertificateDer;
use tokio::sync::watch;

use super::flag::Flag;
use super::identity::Credentials;

/// The standing of one connection's caller.
pub(super) struct CredentialWatch {
    newest: watch::Receiver<Arc<Credentials>>,
    /// The certificates that the caller showed, its own first; none where nobody was asked.
    chain: Arc<[CertificateDer<'static>]>,
    is_lost: Flag,
}

impl CredentialWatch {
    /// Of a caller who showed these certificates; `newest` has seen the credentials that accepted them.
    pub(super) fn of(
        chain: Arc<[CertificateDer<'static>]>,
        newest: watch::Receiver<Arc<Credentials>>,
    ) -> Self {
        CredentialWatch {
            newest,
            chain,
            is_lost: Flag::default(),
        }
    }

    /// Tells whether it is lost by now.
    pub(super) fn is_lost(&self) -> Flag {
        self.is_lost.clone()
    }

    /// Ends when it is lost.
    pub(super) async fn lost(&mut self) {
        loop {
            if self.newest.changed().await.is_err() {
                // No identity comes any more: apid is about to end.
                return std::future::pending().await;
            }
            let newest = self.newest.borrow_and_update().clone();
            if !newest.lets_in(&self.chain) {
                self.is_lost.set();
                return;
            }
        }
    }
}
