//! `bundle fetch`: brings images from the store of one node to others. The bytes go through this program: each of the nodes knows the caller,
//! and no node needs rights at another.

use indicatif::ProgressBar;
use instar_api::instar::bundle_service_client::BundleServiceClient;
use instar_api::instar::{
    BundleBeginRequest, BundleExportRequest, BundleExportResponse, BundleWriteRequest,
};
use instar_client::{Failure, FailureKind, Node};
use serde_json::json;
use tonic::Streaming;

use super::upload::{Imported, import};
use crate::byte_bar::byte_bar;
use crate::cli::Global;
use crate::each_node::each_node;
use crate::target;

const DOING: &str = "cannot fetch images";

pub(super) async fn run(global: &Global, images: &[String], from: &str) -> Result<(), Failure> {
    let peer = target::at(global, from).await?;
    each_node(global, async |node| {
        let bar = byte_bar(global.output, node.name().to_owned());
        let fetched = fetch(&peer, node, images, &bar).await;
        bar.finish_and_clear();
        let fetched = fetched?;
        global.output.show(
            || {
                let lines = fetched.images.iter().chain(&fetched.files);
                let lines: Vec<String> = lines.map(|it| format!("\n  {it}")).collect();
                let (node, peer) = (node.name(), peer.name());
                format!("{node}: imported from {peer}:{}", lines.concat())
            },
            || {
                let Imported { images, files, .. } = &fetched;
                json!({ "node": node.name(), "from": peer.name(), "images": images, "files": files })
            },
        )?;
        Ok(())
    })
    .await
}

/// Fetches images from a peer for a node; returns what the node has taken.
async fn fetch(
    peer: &Node,
    node: &Node,
    images: &[String],
    bar: &ProgressBar,
) -> Result<Imported, Failure> {
    let request = BundleExportRequest {
        references: images.to_vec(),
    };
    let mut source = BundleServiceClient::new(peer.channel());
    let export = source.export(peer.request(request)).await;
    let mut stream = export.map_err(|it| peer.explain(DOING, it))?.into_inner();
    let BundleExportResponse { digest, size, .. } = next(peer, &mut stream).await?;
    bar.set_length(size);
    let mut client = BundleServiceClient::new(node.channel());
    let request = BundleBeginRequest {
        digest: digest.clone(),
        size,
    };
    let begun = client.begin(node.request(request)).await;
    let begun = begun.map_err(|it| node.explain(DOING, it))?;
    // The bytes that the node has already, of a fetch that was cut off: the same images give the same bytes.
    let mut here = begun.into_inner().offset;
    let mut come = 0;
    while come < size {
        let piece = next(peer, &mut stream).await?.content;
        let known = here.saturating_sub(come).min(piece.len() as u64);
        come += piece.len() as u64;
        bar.set_position(come);
        let content = piece.get(known as usize..).unwrap_or_default().to_vec();
        if content.is_empty() {
            continue;
        }
        let request = BundleWriteRequest {
            digest: digest.clone(),
            offset: here,
            content,
        };
        let written = client.write(node.request(request)).await;
        let written = written.map_err(|it| node.explain(DOING, it))?;
        here = written.into_inner().offset;
    }
    import(node, &mut client, &digest, DOING, bar).await
}

/// The next message of the peer.
async fn next(
    peer: &Node,
    stream: &mut Streaming<BundleExportResponse>,
) -> Result<BundleExportResponse, Failure> {
    let message = stream.message().await;
    let message = message.map_err(|status| peer.explain(DOING, status))?;
    message.ok_or_else(|| {
        let text = format!("{DOING}: {} sent less than it announced", peer.name());
        Failure::new(FailureKind::Unreachable, text)
    })
}
