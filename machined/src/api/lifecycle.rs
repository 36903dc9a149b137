//! `machine.LifecycleService`: an upgrade in two steps. The caller sees the first, the preparation, line by line, and takes the
//! second by a call of Reboot.

use std::sync::Arc;

use instar_api::machine as wire;
use instar_api::machine::lifecycle_service_install_progress::Response as Told;
use instar_api::machine::lifecycle_service_server::LifecycleService;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use super::{caller, streamed};
use crate::error_chain::chain;
use crate::machine::{Machine, Turn};
use crate::sequences::{self, Staged};
use crate::upgrade::{Narrator, UpgradeError, UpgradeMode, UpgradeRequest};

type Progress = Result<wire::LifecycleServiceUpgradeResponse, Status>;

/// The service. It has one store of images, whichever instance and namespace of containerd a caller names.
pub(super) struct LifecycleApi {
    machine: Arc<Machine>,
}

impl LifecycleApi {
    pub(super) fn new(machine: Arc<Machine>) -> Self {
        LifecycleApi { machine }
    }
}

fn progress(told: Told) -> Progress {
    Ok(wire::LifecycleServiceUpgradeResponse {
        progress: Some(wire::LifecycleServiceInstallProgress {
            response: Some(told),
        }),
    })
}

/// Prepares the version, whoever listens; the last that is told is the exit code.
async fn prepare(
    machine: Arc<Machine>,
    turn: Turn,
    image: String,
    listener: mpsc::Sender<Progress>,
) {
    let (narrator, mut lines) = Narrator::new();
    let request = UpgradeRequest {
        image,
        force: false,
        mode: UpgradeMode::Quickest,
    };
    let preparing = async {
        let prepared = sequences::prepare_upgrade(&machine, turn, request, &narrator).await;
        narrator.say(last_words(&prepared));
        // The lines end with it.
        drop(narrator);
        prepared
    };
    let telling = async {
        while let Some(line) = lines.recv().await {
            // A caller who went away left an upgrade that goes on.
            let _ = listener
                .send(progress(Told::Message(format!("{line}\n"))))
                .await;
        }
    };
    let (prepared, ()) = tokio::join!(preparing, telling);
    if let Err(error) = &prepared {
        tracing::warn!("no version was prepared: {}", chain(error));
    }
    let code = prepared.err().map_or(0, |error| error.exit_code());
    let _ = listener.send(progress(Told::ExitCode(code))).await;
}

fn last_words(prepared: &Result<Staged, UpgradeError>) -> String {
    match prepared {
        Ok(staged) => format!("{} is ready; {}", staged.version, staged.start()),
        Err(error) => chain(error),
    }
}

#[tonic::async_trait]
impl LifecycleService for LifecycleApi {
    async fn install(
        &self,
        request: Request<wire::LifecycleServiceInstallRequest>,
    ) -> Result<Response<BoxStream<wire::LifecycleServiceInstallResponse>>, Status> {
        tracing::info!("an installation asked for by {}", caller::peer(&request));
        let installed = sequences::is_installed(&self.machine).await;
        match installed.map_err(|error| Status::internal(format!("{error:#}")))? {
            true => Err(Status::already_exists(
                "this machine boots from its disk already; upgrade it instead",
            )),
            false => Err(Status::failed_precondition(
                "this machine installs itself where its machine config says: name a disk in machine.install, apply that, and reboot",
            )),
        }
    }

    async fn upgrade(
        &self,
        request: Request<wire::LifecycleServiceUpgradeRequest>,
    ) -> Result<Response<BoxStream<wire::LifecycleServiceUpgradeResponse>>, Status> {
        let peer = caller::peer(&request).to_owned();
        let source = request.into_inner().source.unwrap_or_default();
        if source.image_name.is_empty() {
            return Err(Status::invalid_argument("source.image_name is empty"));
        }
        let turn = self
            .machine
            .take_turn()
            .map_err(|busy| Status::failed_precondition(busy.to_string()))?;
        tracing::info!("preparation of {} asked for by {peer}", source.image_name);
        let (sender, receiver) = mpsc::channel(16);
        tokio::spawn(prepare(
            self.machine.clone(),
            turn,
            source.image_name,
            sender,
        ));
        Ok(streamed(ReceiverStream::new(receiver)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_log::ActorId;
    use crate::upgrade::Path;

    #[test]
    fn the_last_words_say_what_a_reboot_will_do() {
        let staged = |path| {
            last_words(&Ok(Staged {
                version: "v0.2.0".to_owned(),
                actor: ActorId::default(),
                path,
            }))
        };
        assert!(staged(Path::Soft).ends_with("without the kernel"));
        assert!(staged(Path::Reboot("init is another one")).contains("init is another one"));
        let error = last_words(&Err(UpgradeError::NowhereToKeep("init is another one")));
        assert!(error.contains("nowhere to keep it"), "{error}");
    }
}
