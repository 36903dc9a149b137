//! Upgrades in steps, with newer servers: the node pulls the image, then prepares the version and reports progress;
//! then pods are drained, and a reboot starts the prepared version.

use anyhow::{Result, ensure};
use tonic::Status;

use super::images::store;
use super::screen::{Screen, Step, Stop};
use super::session::{Release, Session};
use super::tracked::Action;
use super::wire::Fields;
use super::{Talosctl, Words};
use crate::node::Node;

/// The result of a preparation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// The installer's output, in order.
    pub output: String,
    /// The installer's exit code: the last message.
    pub exit_code: i32,
}

/// Pulls an image and prepares its version; the inner error is a call that was refused.
pub async fn prepare_upgrade(node: &Node, image: &str) -> Result<Result<Prepared, Status>> {
    let session = Session::open(node, node.identity(), Release::V1_14).await?;
    let prepared = match pull_and_prepare(&session, image).await {
        Ok(prepared) => prepared,
        Err(status) => return Ok(Err(status)),
    };
    ensure!(
        prepared.exit_codes.len() == 1 && prepared.ends_with_it,
        "the last message is not the exit code: {prepared:?}"
    );
    Ok(Ok(Prepared {
        output: prepared.output,
        exit_code: prepared.exit_codes.first().copied().unwrap_or_default(),
    }))
}

#[derive(Debug, Default)]
struct Told {
    output: String,
    exit_codes: Vec<i32>,
    ends_with_it: bool,
}

async fn pull_and_prepare(session: &Session, image: &str) -> Result<Told, Status> {
    // The machine's own store of images.
    let store = store(Some("system"));
    let pull = Fields::none().message(1, &store).text(3, image);
    let pulled = session.stream("/machine.ImageService/Pull", pull).await?;
    let pulled = pulled.all().await?;
    let name = pulled
        .last()
        .map(|last| last.text_of(1))
        .unwrap_or_default();
    if !name.contains("@sha256:") {
        let why = format!("the pull ended with {:?}", pulled.last());
        return Err(Status::internal(why));
    }
    let source = Fields::none().text(1, image);
    let upgrade = Fields::none().message(1, &store).message(2, &source);
    let mut stream = session
        .stream("/machine.LifecycleService/Upgrade", upgrade)
        .await?;
    let mut told = Told::default();
    while let Some(answer) = stream.next().await? {
        let progress = answer.message_of(1).unwrap_or_default();
        told.output.push_str(&progress.text_of(1));
        told.ends_with_it = progress.has(2);
        if progress.has(2) {
            // An int32 is sent as 64 bits.
            told.exit_codes.push(progress.number_of(2) as i32);
        }
    }
    Ok(told)
}

impl Talosctl<'_> {
    /// Drains pods by the Kubernetes API: needs a kubeconfig, and the node's name there.
    pub(super) async fn drain(&self) -> Step {
        let unnamed = self.session.naming_nobody();
        let kubeconfig = "/machine.MachineService/Kubeconfig";
        let kubeconfig = unnamed.bytes(kubeconfig, Fields::none()).await?;
        let kind = "Nodenames.kubernetes.talos.dev";
        let name = self.get_resource("k8s", kind, "nodename").await?;
        Err(Stop::Failed(format!(
            "there is no Kubernetes to drain {} of, with {} bytes",
            name.id,
            kubeconfig.len()
        )))
    }

    pub(super) async fn upgrade_in_steps(
        &self,
        image: &str,
        drains: bool,
        mut words: Words<'_>,
        screen: &mut Screen,
    ) -> Step {
        let told = pull_and_prepare(&self.session.naming_one(), image).await?;
        screen.text(&told.output)?;
        // A missing exit code counts as success.
        match told.exit_codes.last() {
            None | Some(0) => {}
            Some(code) => {
                return Err(Stop::Failed(format!("the installer ended with {code}")));
            }
        }
        if words.flag("--no-reboot") {
            return Ok(());
        }
        if drains {
            self.drain().await?;
        }
        self.look_at_version(screen).await?;
        let mode = words.reboot_mode();
        self.act(Action::reboot(mode), words, screen).await
    }
}
