//! `kubeconfig`: the administrator's way into the cluster on the node.

use std::io::Read as _;
use std::path::Path;

use flate2::read::GzDecoder;
use instar_client::{Failure, FailureKind};
use serde_json::json;

use crate::cli::Global;
use crate::output::print_bytes;
use crate::{private_file, target};

pub(super) async fn run(global: &Global, file: &Path, force: bool) -> Result<(), Failure> {
    let node = target::one(global).await?;
    let doing = "cannot get a kubeconfig";
    let explain = |status| node.explain(doing, status);
    let reply = node.machine().kubeconfig(node.request(())).await;
    let mut stream = reply.map_err(explain)?.into_inner();
    let mut packed = Vec::new();
    while let Some(data) = stream.message().await.map_err(explain)? {
        packed.extend(data.bytes);
    }
    let kubeconfig = unpacked(&packed)
        .map_err(|error| Failure::new(FailureKind::Failed, doing).because(error))?;
    if file == Path::new("-") {
        return print_bytes(&kubeconfig);
    }
    private_file::write(file, force, &kubeconfig)?;
    global.output.show(
        || format!("wrote {}", file.display()),
        || json!({ "node": node.name(), "file": file }),
    )
}

/// Returns the one file of the archive.
fn unpacked(packed: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut archive = tar::Archive::new(GzDecoder::new(packed));
    let first = archive.entries()?.next();
    let mut entry = first.ok_or(std::io::ErrorKind::UnexpectedEof)??;
    let mut content = Vec::new();
    entry.read_to_end(&mut content)?;
    Ok(content)
}
