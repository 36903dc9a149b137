//! `bootstrap`: begins the cluster whose control plane is on the node, as a new one or from a snapshot of etcd.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use indicatif::ProgressBar;
use instar_api::common::Data;
use instar_api::machine::BootstrapRequest;
use instar_base::blocking_io;
use instar_client::{Failure, Node};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::byte_bar::byte_bar;
use crate::cli::{Bootstrap, Global};
use crate::target;

/// Size of the pieces of a snapshot.
const PIECE: usize = 256 << 10;
/// Pieces that are read ahead.
const AHEAD: usize = 2;

pub(super) async fn run(global: &Global, arguments: &Bootstrap) -> Result<(), Failure> {
    let node = target::one(global).await?;
    let from = arguments.recover_from.as_deref();
    if let Some(path) = from {
        let bar = byte_bar(
            global.output,
            format!("{} to {}", path.display(), node.name()),
        );
        let sent = send(&node, path, &bar).await;
        bar.finish_and_clear();
        sent?;
    }
    let request = node.request(BootstrapRequest {
        recover_etcd: from.is_some(),
        recover_skip_hash_check: arguments.recover_skip_hash_check,
    });
    let reply = node.machine().bootstrap(request).await;
    reply.map_err(|status| node.explain("cannot begin the cluster", status))?;
    global.output.show(
        || match from {
            Some(path) => {
                let (name, path) = (node.name(), path.display());
                format!("{name}: the cluster begins with the data of {path}")
            }
            None => format!("{}: the cluster begins", node.name()),
        },
        || json!({ "node": node.name(), "done": "begun", "recovered_from": from }),
    )
}

/// Sends a snapshot, piece by piece.
async fn send(node: &Node, path: &Path, bar: &ProgressBar) -> Result<(), Failure> {
    let cannot = |error| Failure::io(format!("cannot read {}", path.display()), error);
    let mut file = File::open(path).map_err(cannot)?;
    bar.set_length(file.metadata().map_err(cannot)?.len());
    let (sender, receiver) = mpsc::channel(AHEAD);
    let progress = bar.clone();
    let reading = blocking_io::to_its_end(move || {
        loop {
            let mut bytes = Vec::with_capacity(PIECE);
            let read = file.by_ref().take(PIECE as u64).read_to_end(&mut bytes)?;
            let piece = Data {
                metadata: None,
                bytes,
            };
            // A node that refuses the rest says why in its answer.
            if read == 0 || sender.blocking_send(piece).is_err() {
                return Ok::<_, io::Error>(());
            }
            progress.inc(read as u64);
        }
    });
    let request = node.request(ReceiverStream::new(receiver));
    let sending = async {
        let answer = node.machine().etcd_recover(request).await;
        answer.map_err(|status| node.explain("cannot send the snapshot", status))
    };
    // The first failure ends both: what a node refuses is read no further.
    let reading = async {
        let read = reading.await.map_err(io::Error::other).flatten();
        read.map_err(cannot)
    };
    tokio::try_join!(sending, reading)?;
    Ok(())
}
