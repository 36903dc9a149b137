//! Where the layers come from that the store does not have.

use std::io::{self, Read as _};
use std::sync::Arc;

use bytes::Bytes;
use instar_bundle::VerifiedBundle;

use crate::manifest::Layer;
use crate::registry::{Pace, RegistryClient, Upstream};
use crate::store_error::StoreError;
use instar_base::blocking_io;
use instar_values::ImageReference;

/// Size of the pieces that are read from a bundle.
const PIECE: usize = 64 << 10;

/// A source of layers.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    /// The image's registry and its mirrors.
    Registry(&'a RegistryClient),
    /// A bundle that was verified.
    Bundle(&'a VerifiedBundle),
    /// None: all layers have to be in the store.
    Nowhere,
}

impl Source<'_> {
    /// The limit on the bandwidth, if there is one.
    pub(super) fn pace(self) -> Option<Arc<Pace>> {
        match self {
            Source::Registry(client) => client.pace(),
            Source::Bundle(_) | Source::Nowhere => None,
        }
    }

    /// Whether its pulls take turns: those from a registry do, but for those with a limit on their bandwidth. They may take hours, come one after
    /// the other already, and nobody else is to wait for them.
    pub(super) fn takes_turns(self) -> bool {
        matches!(self, Source::Registry(client) if client.pace().is_none())
    }

    /// Sends a layer, from this position on. Errors go through the channel as well: the reader reports them.
    pub(super) async fn send(
        self,
        reference: &ImageReference,
        layer: &Layer,
        from: u64,
        upstream: Upstream,
        arrived: &(dyn Fn(u64) + Send + Sync),
    ) {
        match self {
            Source::Registry(client) => {
                let transfer = client.download(reference, layer, from, upstream, arrived);
                transfer.await;
            }
            Source::Bundle(bundle) => {
                let (bundle, digest) = (bundle.clone(), layer.digest);
                let sending = blocking_io::to_its_end(move || {
                    if let Err(error) = send_from(&bundle, digest, from, &upstream) {
                        upstream.fail_blocking(error);
                    }
                });
                // If the program stops before its end, the reader finds a layer that is too short.
                let _ = sending.await;
                arrived(layer.size - from);
            }
            Source::Nowhere => {
                let missing = StoreError::NoBlob(layer.digest);
                upstream.fail(io::Error::other(missing)).await;
            }
        }
    }
}

/// Sends a blob of a bundle, from this position on. What is before it is read as well: the blob's digest is compared once more.
fn send_from(
    bundle: &VerifiedBundle,
    digest: instar_values::Digest,
    from: u64,
    upstream: &Upstream,
) -> io::Result<()> {
    let mut blob = bundle.blob(digest)?;
    io::copy(&mut blob.by_ref().take(from), &mut io::sink())?;
    loop {
        let mut piece = vec![0; PIECE];
        let count = blob.read(&mut piece)?;
        piece.truncate(count);
        // A reader that is gone has failed first.
        if count == 0 || !upstream.send_blocking(Bytes::from(piece)) {
            return Ok(());
        }
    }
}
