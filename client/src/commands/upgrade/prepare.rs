//! `upgrade --no-reboot`: the first half of an upgrade. The image is pulled and its version prepared; a reboot is the second half.

use instar_api::machine::lifecycle_service_client::LifecycleServiceClient;
use instar_api::machine::lifecycle_service_install_progress::Response;
use instar_api::machine::{InstallArtifactsSource, LifecycleServiceUpgradeRequest};
use instar_client::{Failure, FailureKind, Node, Progress};
use serde_json::json;

use crate::cli::Global;
use crate::commands::image;
use crate::progress::ProgressDisplay;

/// The exit codes of an installer that refuses before it does anything: bad input, unsupported, not in this environment.
const REFUSALS: std::ops::RangeInclusive<i32> = 2..=4;

pub(super) async fn run(
    global: &Global,
    node: &Node,
    name: &str,
    force: bool,
) -> Result<(), Failure> {
    let pulled = image::bring(global, node, name).await?;
    let mut progress = ProgressDisplay::new(node.name());
    let prepared = prepare(node, name, force, &mut progress).await;
    progress.finish();
    let last = prepared?;
    global.output.show(
        || format!("{}: {last}", node.name()),
        || json!({ "node": node.name(), "image": pulled, "prepared": true }),
    )
}

/// Shows the progress that the node reports; returns its last message.
async fn prepare(
    node: &Node,
    name: &str,
    force: bool,
    progress: &mut impl Progress,
) -> Result<String, Failure> {
    let explain = |status| node.explain("did not prepare the upgrade", status);
    let request = LifecycleServiceUpgradeRequest {
        containerd: image::store(),
        source: Some(InstallArtifactsSource {
            image_name: name.to_owned(),
        }),
        force,
    };
    let mut client = LifecycleServiceClient::new(node.channel());
    let reply = client.upgrade(node.request(request)).await;
    let mut stream = reply.map_err(explain)?.into_inner();
    let (mut last, mut exit_code) = (String::new(), None);
    while let Some(message) = stream.message().await.map_err(explain)? {
        match message.progress.unwrap_or_default().response {
            Some(Response::Message(text)) => {
                for line in text.lines() {
                    progress.note(line);
                    last = line.to_owned();
                }
            }
            Some(Response::ExitCode(code)) => exit_code = Some(code),
            None => {}
        }
    }
    let failed = |exit, what: &str| {
        Failure::new(exit, format!("{}: {what}", node.name())).advise("the node runs on as before")
    };
    match exit_code {
        Some(0) => Ok(last),
        Some(code) if REFUSALS.contains(&code) => Err(failed(FailureKind::Refused, &last)),
        Some(code) => Err(failed(
            FailureKind::Failed,
            &format!("{last} (exit code {code})"),
        )),
        None => Err(failed(
            FailureKind::Failed,
            "the node did not say how the preparation ended",
        )),
    }
}
