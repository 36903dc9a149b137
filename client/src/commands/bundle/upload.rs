//! `bundle upload`: brings a bundle to nodes, and has them import its images. Of a directory, its archive is sent, which is nowhere.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use indicatif::ProgressBar;
use instar_api::instar::bundle_service_client::BundleServiceClient;
use instar_api::instar::{BundleBeginRequest, BundleImportRequest, BundleWriteRequest};
use instar_bundle::AsArchive;
use instar_client::{Failure, Node};
use instar_values::Digest;
use serde_json::json;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::{cannot_read, refused, verified};
use crate::byte_bar::byte_bar;
use crate::cli::Global;
use crate::each_node::each_node;

/// Size of the pieces.
const PIECE: usize = 1 << 20;
/// Limit on failures in a row after which the upload goes on: a node that changes its version is away for a moment.
const MOST_FAILURES: u32 = 10;
/// Pause after a failure.
const PAUSE: Duration = Duration::from_secs(1);

pub(super) async fn run(global: &Global, path: &Path, unchecked: bool) -> Result<(), Failure> {
    let archive = archive(path)?;
    let digest = match unchecked {
        true => archive.summary().digest,
        false => verified(global, path)?.digest(),
    };
    let upload = Upload {
        archive,
        digest,
        doing: format!("cannot upload {}", path.display()),
    };
    each_node(global, async |node| {
        let bar = byte_bar(global.output, node.name().to_owned());
        let imported = upload.to(node, &bar).await;
        bar.finish_and_clear();
        let Imported {
            images,
            files,
            channels,
        } = imported?;
        global.output.show(
            || {
                let lines = images.iter().chain(&files).chain(&channels);
                let lines: Vec<String> = lines.map(|it| format!("\n  {it}")).collect();
                format!(
                    "{}: imported from the bundle {digest}:{}",
                    node.name(),
                    lines.concat()
                )
            },
            || {
                json!({
                    "node": node.name(),
                    "bundle": digest,
                    "images": images,
                    "files": files,
                    "channels": channels,
                })
            },
        )?;
        Ok(())
    })
    .await
}

/// The archive of the bundle in a file or a directory.
fn archive(path: &Path) -> Result<AsArchive, Failure> {
    let file = File::open(path).map_err(|error| cannot_read(path, error))?;
    let about = file.metadata().map_err(|error| cannot_read(path, error))?;
    let archive = match about.is_dir() {
        true => AsArchive::of_directory(file),
        false => AsArchive::of_file(file),
    };
    archive.map_err(|error| refused(path, error))
}

/// A bundle to upload.
struct Upload {
    archive: AsArchive,
    digest: Digest,
    doing: String,
}

impl Upload {
    /// Uploads the rest of the archive and has the node import it.
    async fn to(&self, node: &Node, bar: &ProgressBar) -> Result<Imported, Failure> {
        let mut client = BundleServiceClient::new(node.channel());
        let size = self.archive.bytes();
        bar.set_length(size);
        let mut failures = 0;
        let mut offset = self.begin(node, &mut client).await?;
        while offset < size {
            bar.set_position(offset);
            match self.write(node, &mut client, offset).await? {
                Ok(next) => (offset, failures) = (next, 0),
                Err(status) if failures < MOST_FAILURES && may_go_on(&status) => {
                    failures += 1;
                    tokio::time::sleep(PAUSE).await;
                    // While the node is away, the previous failure counts on.
                    offset = self.begin(node, &mut client).await.unwrap_or(offset);
                }
                Err(status) => return Err(node.explain(&self.doing, status)),
            }
        }
        self.import(node, &mut client, bar).await
    }

    async fn begin(
        &self,
        node: &Node,
        client: &mut BundleServiceClient<Channel>,
    ) -> Result<u64, Failure> {
        let request = BundleBeginRequest {
            digest: self.digest.to_string(),
            size: self.archive.bytes(),
        };
        let begun = client.begin(node.request(request)).await;
        let begun = begun.map_err(|status| node.explain(&self.doing, status))?;
        Ok(begun.into_inner().offset)
    }

    async fn write(
        &self,
        node: &Node,
        client: &mut BundleServiceClient<Channel>,
        offset: u64,
    ) -> Result<Result<u64, Status>, Failure> {
        let left = self.archive.bytes().saturating_sub(offset);
        let length = left.min(PIECE as u64) as usize;
        let mut content = vec![0; length];
        let read = self.archive.read_exact_at(&mut content, offset);
        read.map_err(|error| Failure::io(self.doing.clone(), error))?;
        let request = BundleWriteRequest {
            digest: self.digest.to_string(),
            offset,
            content,
        };
        let written = client.write(node.request(request)).await;
        Ok(written.map(|written| written.into_inner().offset))
    }

    async fn import(
        &self,
        node: &Node,
        client: &mut BundleServiceClient<Channel>,
        bar: &ProgressBar,
    ) -> Result<Imported, Failure> {
        import(node, client, &self.digest.to_string(), &self.doing, bar).await
    }
}

/// A node's report on a bundle that it imports.
#[derive(Default)]
pub(super) struct Imported {
    /// The references of the images.
    pub(super) images: Vec<String>,
    /// A sentence about each file of an extension in the bundle.
    pub(super) files: Vec<String>,
    /// A sentence about each channel whose list is in the bundle.
    pub(super) channels: Vec<String>,
}

/// Has a node import the bundle that it was brought.
pub(super) async fn import(
    node: &Node,
    client: &mut BundleServiceClient<Channel>,
    digest: &str,
    doing: &str,
    bar: &ProgressBar,
) -> Result<Imported, Failure> {
    let explain = |status| node.explain(doing, status);
    let request = BundleImportRequest {
        digest: digest.to_owned(),
    };
    let reply = client.import(node.request(request)).await;
    let mut stream = reply.map_err(explain)?.into_inner();
    let mut imported = Imported::default();
    while let Some(message) = stream.message().await.map_err(explain)? {
        bar.set_message(format!(
            "{}: {} {}",
            node.name(),
            message.phase,
            message.detail
        ));
        imported = Imported {
            images: message.images,
            files: message.files,
            channels: message.channels,
        };
    }
    Ok(imported)
}

/// Whether the node may take further bytes after this error: it was away, or has another number of bytes than we believe.
fn may_go_on(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable | Code::OutOfRange | Code::Aborted
    ) || status.code() == Code::FailedPrecondition && status.message().contains("begin it again")
}
