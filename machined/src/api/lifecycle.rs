//! `machine.LifecycleService`: an upgrade in two steps. The first prepares the version and reports to the caller line by line;
//! the second is the caller's Reboot call.

use std::sync::Arc;

use instar_api::machine as wire;
use instar_api::machine::lifecycle_service_install_progress::Response as Progress;
use instar_api::machine::lifecycle_service_server::LifecycleService;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use super::changing::busy;
use super::{caller, streamed};
use crate::base::error_chain::chain;
use crate::machine::Machine;
use crate::operation_lock::{Operation, OperationLock};
use crate::sequences::{self, Caller, InstallError, Staged};
use crate::upgrade::{ProgressSink, UpgradeError, UpgradeMode, UpgradeRequest};

/// The exit code of an installation that failed.
const INSTALL_FAILED: i32 = 7;

/// The service. It has one store of images, and ignores the instance and namespace of containerd that a caller names.
pub(super) struct LifecycleApi {
    machine: Arc<Machine>,
}

impl LifecycleApi {
    pub(super) fn new(machine: Arc<Machine>) -> Self {
        LifecycleApi { machine }
    }
}

fn install_status(error: InstallError) -> Status {
    let text = chain(&error);
    match error {
        InstallError::Installed => Status::already_exists(text),
        InstallError::Machine(_) => Status::internal(text),
        InstallError::NoDisk
        | InstallError::OtherDisk(_)
        | InstallError::NoUefi
        | InstallError::Busy(_) => Status::failed_precondition(text),
    }
}

/// Runs long work, even if the caller disconnects, and reports it line by line in messages of the method's own type. The last message is the exit
/// code. `work` returns its last line and the exit code; it may listen to the caller itself, as an upgrade does until its image is here.
async fn narrate<Message>(
    work: impl AsyncFnOnce(&ProgressSink) -> (String, i32),
    caller: mpsc::Sender<Result<Message, Status>>,
    message: impl Fn(Option<wire::LifecycleServiceInstallProgress>) -> Message,
) {
    let tell = async |told| {
        let progress = wire::LifecycleServiceInstallProgress {
            response: Some(told),
        };
        // An error means that the caller has disconnected; the work goes on.
        let _ = caller.send(Ok(message(Some(progress)))).await;
    };
    let (progress, mut lines) = ProgressSink::new();
    let working = async {
        let (last_words, code) = work(&progress).await;
        progress.say(last_words);
        // This closes the channel, so `lines` ends.
        drop(progress);
        code
    };
    let telling = async {
        while let Some(line) = lines.recv().await {
            tell(Progress::Message(format!("{line}\n"))).await;
        }
    };
    let (code, ()) = tokio::join!(working, telling);
    tell(Progress::ExitCode(code)).await;
}

/// Prepares a version for the reboot that the caller will ask for.
async fn prepare(
    machine: Arc<Machine>,
    lock: OperationLock,
    request: UpgradeRequest,
    caller: Caller,
    progress: &ProgressSink,
) -> (String, i32) {
    let prepared = sequences::prepare_upgrade(&machine, lock, request, caller, progress).await;
    if let Err(error) = &prepared {
        tracing::warn!("no version was prepared: {}", chain(error));
    }
    let last_words = last_words(&prepared);
    (
        last_words,
        prepared.err().map_or(0, |error| error.exit_code()),
    )
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
        let peer = caller::peer(&request).to_owned();
        let request = request.into_inner();
        let image = request.source.unwrap_or_default().image_name;
        let disk = request.destination.unwrap_or_default().disk;
        let lock = sequences::may_install(&self.machine, &disk)
            .await
            .map_err(install_status)?;
        if image.is_empty() {
            return Err(Status::invalid_argument("source.image_name is empty"));
        }
        tracing::info!("installation of {image} asked for by {peer}");
        let machine = self.machine.clone();
        let work = async move |progress: &ProgressSink| {
            let installed = sequences::install_image(&machine, lock, &image, progress).await;
            match installed {
                Ok(()) => (format!("{image} is installed; the next boot starts it"), 0),
                Err(error) => {
                    let reason = format!("{error:#}");
                    tracing::error!("{image} is not installed: {reason}");
                    (reason, INSTALL_FAILED)
                }
            }
        };
        let (sender, receiver) = mpsc::channel(16);
        crate::base::task::spawn(narrate(work, sender, |progress| {
            wire::LifecycleServiceInstallResponse { progress }
        }));
        Ok(streamed(ReceiverStream::new(receiver)))
    }

    async fn upgrade(
        &self,
        request: Request<wire::LifecycleServiceUpgradeRequest>,
    ) -> Result<Response<BoxStream<wire::LifecycleServiceUpgradeResponse>>, Status> {
        let peer = caller::peer(&request).to_owned();
        let request = request.into_inner();
        let wanted = UpgradeRequest {
            image: request.source.unwrap_or_default().image_name,
            force: request.force,
            mode: UpgradeMode::Quickest,
        };
        if wanted.image.is_empty() {
            return Err(Status::invalid_argument("source.image_name is empty"));
        }
        let lock = self
            .machine
            .lock_operation(Operation::PrepareUpgrade)
            .map_err(busy)?;
        tracing::info!("preparation of {} asked for by {peer}", wanted.image);
        let machine = self.machine.clone();
        let (sender, receiver) = mpsc::channel(16);
        let listener = sender.clone();
        // Dropped with the first step of the work: the stream ends with its last sender.
        let caller = Caller::until(async move { listener.closed().await });
        let work = async move |progress: &ProgressSink| {
            prepare(machine, lock, wanted, caller, progress).await
        };
        crate::base::task::spawn(narrate(work, sender, |progress| {
            wire::LifecycleServiceUpgradeResponse { progress }
        }));
        Ok(streamed(ReceiverStream::new(receiver)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::event_log::ActorId;
    use crate::upgrade::Route;

    #[test]
    fn the_last_words_say_what_a_reboot_will_do() {
        let staged = |path| {
            last_words(&Ok(Staged {
                version: "v0.2.0".to_owned(),
                actor: ActorId::default(),
                path,
            }))
        };
        assert!(staged(Route::Soft).ends_with("without the kernel"));
        assert!(staged(Route::Reboot("init is another one")).contains("init is another one"));
        let error = last_words(&Err(UpgradeError::NowhereToKeep("init is another one")));
        assert!(error.contains("nowhere to keep it"), "{error}");
    }
}
