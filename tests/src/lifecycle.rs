//! The first half of an upgrade as newer clients ask for it: the image is pulled, then prepared, and the caller hears how that goes.
//! The second half is a call of Reboot.

use anyhow::{Context, Result, ensure};
use instar_api::common::{ContainerDriver, ContainerdInstance, ContainerdNamespace};
use instar_api::machine::image_service_client::ImageServiceClient;
use instar_api::machine::image_service_pull_response::Response as Pulled;
use instar_api::machine::lifecycle_service_client::LifecycleServiceClient;
use instar_api::machine::lifecycle_service_install_progress::Response as Told;
use instar_api::machine::{
    ImageServicePullRequest, InstallArtifactsSource, LifecycleServiceUpgradeRequest,
};
use tonic::Status;

use crate::node::Node;

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// What was told, as it came.
    pub output: String,
    /// The installer's exit code: the last thing that was told.
    pub exit_code: i32,
}

/// Which store the image is for: clients name the machine's own.
fn store() -> Option<ContainerdInstance> {
    Some(ContainerdInstance {
        driver: ContainerDriver::Cri.into(),
        namespace: ContainerdNamespace::NsSystem.into(),
    })
}

/// Pulls an image and has its version prepared; the inner error is a call that was refused.
pub async fn prepare_upgrade(node: &Node, image: &str) -> Result<Result<Prepared, Status>> {
    node.version().await?;
    let channel = node.channel().await?;
    let pull = ImageServicePullRequest {
        containerd: store(),
        image_ref: image.to_owned(),
    };
    let mut stream = match ImageServiceClient::new(channel.clone()).pull(pull).await {
        Ok(stream) => stream.into_inner(),
        Err(status) => return Ok(Err(status)),
    };
    let mut pulled = None;
    loop {
        match stream.message().await {
            Ok(Some(message)) => pulled = message.response,
            Ok(None) => break,
            Err(status) => return Ok(Err(status)),
        }
    }
    ensure!(
        matches!(&pulled, Some(Pulled::Name(name)) if name.contains("@sha256:")),
        "the pull ended with {pulled:?}"
    );
    let upgrade = LifecycleServiceUpgradeRequest {
        containerd: store(),
        source: Some(InstallArtifactsSource {
            image_name: image.to_owned(),
        }),
    };
    let mut stream = match LifecycleServiceClient::new(channel).upgrade(upgrade).await {
        Ok(stream) => stream.into_inner(),
        Err(status) => return Ok(Err(status)),
    };
    let (mut output, mut exit_code) = (String::new(), None);
    while let Some(message) = stream.message().await? {
        ensure!(exit_code.is_none(), "{message:?} after the exit code");
        match message.progress.and_then(|progress| progress.response) {
            Some(Told::Message(text)) => output.push_str(&text),
            Some(Told::ExitCode(code)) => exit_code = Some(code),
            None => anyhow::bail!("a message without a word after {output:?}"),
        }
    }
    let exit_code = exit_code.with_context(|| format!("no exit code after {output:?}"))?;
    Ok(Ok(Prepared { output, exit_code }))
}
