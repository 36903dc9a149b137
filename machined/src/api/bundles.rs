//! `instar.BundleService`: takes the file of a bundle piece by piece, and imports it.

use std::sync::Arc;

use instar_api::instar as wire;
use instar_api::instar::bundle_service_server::BundleService;
use instar_bundle::Files;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use super::{bundle_export, caller, streamed};
use crate::base::blocking_io;
use crate::base::error_chain::chain;
use crate::bundles::{BundleFact, Origin, Phase, Place, TakenUpload, UploadError};
use crate::machine::Machine;
use crate::sequences::{BundleError, Report, UPLOAD, take_bundle, tell_end};
use crate::values::Digest;

/// The service.
pub(super) struct BundleApi {
    machine: Arc<Machine>,
}

impl BundleApi {
    pub(super) fn new(machine: Arc<Machine>) -> Self {
        BundleApi { machine }
    }

    /// Runs work on the upload's file outside of the runtime's thread, to its end.
    async fn on_upload<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Machine) -> Result<T, UploadError> + Send + 'static,
    ) -> Result<T, Status> {
        if !self.machine.disk.status().borrow().var_mounted {
            return Err(bundle_status(&BundleError::NoPlace));
        }
        let machine = self.machine.clone();
        let working = blocking_io::within(blocking_io::ANSWER, move || work(&machine));
        let worked = working.await;
        let worked = worked.map_err(|error| Status::unavailable(chain(&error)))?;
        let done = worked.map_err(|error| upload_status(&error))?;
        self.show();
        Ok(done)
    }

    /// Shows in the resources how much of the upload is here.
    fn show(&self) {
        let Some((digest, bytes, total)) = self.machine.bundles.uploads.progress() else {
            return;
        };
        let phase = Phase::Receiving { bytes, total };
        let mut fact = BundleFact::new(UPLOAD.to_owned(), Place::Upload, phase);
        fact.digest = Some(digest.to_string());
        self.machine.store.put(UPLOAD, fact);
    }
}

fn digest(text: &str) -> Result<Digest, Status> {
    let digest = text.parse();
    digest.map_err(|error| Status::invalid_argument(chain(&error)))
}

fn upload_status(error: &UploadError) -> Status {
    let text = chain(error);
    match error {
        UploadError::Busy { .. } | UploadError::NoRoom { .. } => Status::resource_exhausted(text),
        UploadError::Offset { .. } | UploadError::TooLong(_) => Status::out_of_range(text),
        UploadError::Taken(_) | UploadError::NotBegun(_) | UploadError::Incomplete { .. } => {
            Status::failed_precondition(text)
        }
        UploadError::Io { .. } => Status::internal(text),
    }
}

fn bundle_status(error: &BundleError) -> Status {
    let text = chain(error);
    match error {
        BundleError::Altered(_) => Status::data_loss(text),
        BundleError::Busy { .. } => Status::resource_exhausted(text),
        BundleError::Interrupted(_) | BundleError::NoAnswer(_) => Status::aborted(text),
        BundleError::Machine(_) => Status::internal(text),
        BundleError::OtherArchitecture { .. }
        | BundleError::Image(_)
        | BundleError::TooMuch { .. }
        | BundleError::NotAllowed(_)
        | BundleError::NotApproved(_)
        | BundleError::NotAnswered(_)
        | BundleError::NoPlace
        | BundleError::NoFile { .. }
        | BundleError::File { .. }
        | BundleError::Import { .. } => Status::failed_precondition(text),
    }
}

/// The message about a bundle whose import goes on.
fn progress(phase: &Phase) -> wire::BundleImportResponse {
    wire::BundleImportResponse {
        phase: phase.word().to_owned(),
        detail: phase.detail(),
        images: Vec::new(),
        channels: Vec::new(),
        files: Vec::new(),
    }
}

/// Imports an upload to its end; returns the last message.
async fn import(
    machine: &Arc<Machine>,
    upload: TakenUpload,
    files: Files,
    report: &Arc<Report>,
) -> Result<wire::BundleImportResponse, Status> {
    let taken = take_bundle(machine, files, Origin::Caller, report).await;
    match taken.as_ref().map_err(file_after) {
        Err(After::Waits) => upload.release(),
        Err(After::Stays) => drop(upload),
        // The images are in the store.
        Ok(_) | Err(After::Goes) => remove_file(upload).await,
    }
    tell_end(report, &taken);
    let taken = taken.map_err(|error| bundle_status(&error))?;
    let (lists, files) = (taken.lists.iter(), taken.files.iter());
    Ok(wire::BundleImportResponse {
        images: taken.images,
        files: files.map(ToString::to_string).collect(),
        channels: lists.map(ToString::to_string).collect(),
        ..progress(&report.phase())
    })
}

/// The end of an upload's file that was not imported.
#[derive(Debug, PartialEq, Eq)]
enum After {
    /// Its caller tries again in a moment.
    Waits,
    /// The config has to change first: nothing is wrong with the file.
    Stays,
    /// It is of no use, and the next upload begins anew.
    Goes,
}

fn file_after(error: &BundleError) -> After {
    match error {
        BundleError::Busy { .. }
        | BundleError::NoPlace
        | BundleError::Interrupted(_)
        | BundleError::NoAnswer(_) => After::Waits,
        BundleError::NotAllowed(_) | BundleError::NotApproved(_) | BundleError::NoFile { .. } => {
            After::Stays
        }
        BundleError::Altered(_)
        | BundleError::OtherArchitecture { .. }
        | BundleError::Image(_)
        | BundleError::TooMuch { .. }
        | BundleError::NotAnswered(_)
        | BundleError::Import { .. }
        | BundleError::File { .. }
        | BundleError::Machine(_) => After::Goes,
    }
}

async fn remove_file(upload: TakenUpload) {
    let removing = move || upload.end();
    let removed = blocking_io::within(blocking_io::ANSWER, removing).await;
    if let Ok(Err(error)) = removed {
        tracing::warn!("the file of an upload stays: {}", chain(&error));
    }
}

#[tonic::async_trait]
impl BundleService for BundleApi {
    async fn begin(
        &self,
        request: Request<wire::BundleBeginRequest>,
    ) -> Result<Response<wire::BundleBeginResponse>, Status> {
        let peer = caller::peer(&request).to_owned();
        let wire::BundleBeginRequest { digest: text, size } = request.into_inner();
        let digest = digest(&text)?;
        tracing::info!("upload of the bundle {digest}, {size} bytes, by {peer}");
        let offset = self
            .on_upload(move |machine| machine.bundles.uploads.begin(digest, size))
            .await?;
        Ok(Response::new(wire::BundleBeginResponse { offset }))
    }

    async fn write(
        &self,
        request: Request<wire::BundleWriteRequest>,
    ) -> Result<Response<wire::BundleWriteResponse>, Status> {
        let wire::BundleWriteRequest {
            digest: text,
            offset,
            content,
        } = request.into_inner();
        let digest = digest(&text)?;
        let offset = self
            .on_upload(move |machine| machine.bundles.uploads.write(digest, offset, &content))
            .await?;
        Ok(Response::new(wire::BundleWriteResponse { offset }))
    }

    async fn import(
        &self,
        request: Request<wire::BundleImportRequest>,
    ) -> Result<Response<BoxStream<wire::BundleImportResponse>>, Status> {
        tracing::info!(
            "import of the bundle {} asked for by {}",
            request.get_ref().digest,
            caller::peer(&request)
        );
        let digest = digest(&request.into_inner().digest)?;
        let (file, upload) = self
            .on_upload(move |machine| machine.bundles.uploads.take(digest))
            .await?;
        let (sender, receiver) = mpsc::channel(16);
        let machine = self.machine.clone();
        crate::base::task::spawn(async move {
            let report = Arc::new(Report::begin(&machine, UPLOAD, Place::Upload));
            let mut phases = report.watch();
            let importing = import(&machine, upload, Files::archive(file), &report);
            let mut importing = std::pin::pin!(importing);
            let ended = loop {
                tokio::select! {
                    ended = &mut importing => break ended,
                    Ok(()) = phases.changed() => {
                        let phase = phases.borrow_and_update().clone();
                        // If the channel is full, the reader gets the next message instead; a caller who has hung up gets none.
                        let _ = sender.try_send(Ok(progress(&phase)));
                    }
                }
            };
            // An error means that the caller has disconnected.
            let _ = sender.send(ended).await;
        });
        Ok(streamed(ReceiverStream::new(receiver)))
    }

    async fn export(
        &self,
        request: Request<wire::BundleExportRequest>,
    ) -> Result<Response<BoxStream<wire::BundleExportResponse>>, Status> {
        let peer = caller::peer(&request).to_owned();
        let references = request.into_inner().references;
        tracing::info!("a bundle of {} asked for by {peer}", references.join(", "));
        bundle_export::export(&self.machine, &references).await
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::bundles::NotApproved;
    use crate::oci::verification::VerificationError;

    #[test]
    fn the_file_of_an_upload_goes_only_if_it_is_of_no_use() {
        let unreadable = VerificationError::Bundle {
            image: "r.io/web:v1".parse().unwrap(),
            digest: Digest::of(b"image"),
            wanted: None,
            source: std::io::ErrorKind::NotFound.into(),
        };
        let not_approved = NotApproved {
            images: vec!["r.io/web:v1".to_owned()],
            bundle: Digest::of(b"bundle"),
        };
        let found = "linux/arm64".to_owned();
        let holder = "sda1".to_owned();
        for (error, expected) in [
            (BundleError::Busy { holder }, After::Waits),
            (BundleError::NotAllowed(Box::new(unreadable)), After::Stays),
            (BundleError::NotApproved(not_approved), After::Stays),
            (BundleError::OtherArchitecture { found }, After::Goes),
        ] {
            assert_eq!(file_after(&error), expected, "{error}");
        }
    }
}
