//! Calls about a cluster whose control plane is on this machine.

use std::io;
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;
use instar_api::common::Data;
use instar_api::machine as wire;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use super::{MachineApi, Reply};
use crate::api::caller_credentials::CallerCredentials;
use crate::api::{caller, changing, streamed};
use crate::base::error_chain::chain;
use crate::config::{ControlPlane, Kubernetes};
use crate::kubernetes::control_plane::administrator;
use crate::kubernetes::control_plane::beginning::{Refused, Wanted};
use crate::kubernetes::control_plane::recovery::UploadError;
use crate::kubernetes::control_plane::snapshot_file::NotASnapshot;
use crate::machine::{Configured, Machine};
use crate::operation_lock::Operation;
use crate::sequences::kubernetes::beginning::{self, BeginError};

/// The refusal of a machine without a control plane.
pub(super) const NO_ETCD: &str = "there is no etcd";

/// The control plane of a config.
pub(super) struct Here(Arc<Configured>);

impl Here {
    /// Finds the control plane of this machine; `what` is what a machine without one has not.
    pub(super) fn of(machine: &Machine, what: &str) -> Result<Self, Status> {
        let here = machine.config().map(Here);
        let here = here.ok_or_else(|| no_kubernetes(what))?;
        here.parts(what)?;
        Ok(here)
    }

    pub(super) fn parts(&self, what: &str) -> Result<(&Kubernetes, &ControlPlane), Status> {
        let kubernetes = self.0.config.kubernetes.as_ref();
        let kubernetes = kubernetes.ok_or_else(|| no_kubernetes(what))?;
        let plane = kubernetes.control_plane.as_deref().ok_or_else(|| {
            Status::unimplemented(format!(
                "{what}: the control plane of its cluster is on another machine"
            ))
        })?;
        Ok((kubernetes, plane))
    }
}

/// Refuses a call that needs Kubernetes.
fn no_kubernetes(what: &str) -> Status {
    Status::unimplemented(format!("{what}: this node runs no Kubernetes"))
}

/// Begins the cluster, once: a new one, or that of a snapshot which was sent before.
pub(super) async fn bootstrap(
    api: &MachineApi,
    request: Request<wire::BootstrapRequest>,
) -> Reply<wire::BootstrapResponse> {
    let metadata = caller::reply_metadata(request.metadata());
    let credentials = CallerCredentials::of(&request);
    let here = Here::of(&api.machine, NO_ETCD)?;
    tracing::info!("bootstrap asked for by {}", caller::peer(&request));
    let request = request.into_inner();
    let wanted = match request.recover_etcd {
        true => Wanted::FromSnapshot,
        false => Wanted::New,
    };
    let machine = api.machine.clone();
    changing::to_its_end(async move {
        let (_, plane) = here.parts(NO_ETCD)?;
        let with_digest = !request.recover_skip_hash_check;
        let prepared = beginning::prepare(&machine, plane, wanted, with_digest).await;
        let prepared = prepared.map_err(|error| begin_status(&error))?;
        let (of, plane) = (machine.clone(), plane.clone());
        let begin = async move {
            let begun = beginning::begin_cluster(&of, &plane, prepared).await;
            begun.map_err(|error| begin_status(&error))
        };
        changing::alone(&machine, credentials, Operation::BeginCluster, begin).await
    })
    .await?;
    Ok(Response::new(wire::BootstrapResponse {
        messages: vec![wire::Bootstrap { metadata }],
    }))
}

pub(super) fn begin_status(error: &BeginError) -> Status {
    let text = chain(error);
    match error {
        BeginError::Refused(Refused::Begun | Refused::Running | Refused::Starting { .. }) => {
            Status::already_exists(text)
        }
        BeginError::Refused(Refused::NoSnapshot)
        | BeginError::NoPlace
        | BeginError::Snapshot(NotASnapshot::NoDigest) => Status::failed_precondition(text),
        BeginError::Snapshot(NotASnapshot::Io(_)) => Status::internal(text),
        BeginError::Snapshot(_) => Status::data_loss(text),
        BeginError::Busy => Status::resource_exhausted(text),
        BeginError::Room(error) => upload_status(error),
        BeginError::Interrupted(_) => Status::aborted(text),
        BeginError::Failed(error) => Status::internal(format!("{error:#}")),
    }
}

pub(super) fn upload_status(error: &UploadError) -> Status {
    let text = chain(error);
    match error {
        UploadError::TooLarge | UploadError::NoRoom { .. } => Status::resource_exhausted(text),
        UploadError::Io(_) => Status::internal(text),
    }
}

/// Makes a kubeconfig for the administrator.
pub(super) fn kubeconfig(api: &MachineApi, request: Request<()>) -> Reply<BoxStream<Data>> {
    let metadata = caller::reply_metadata(request.metadata());
    let what = "there is no kubeconfig";
    let here = Here::of(&api.machine, what)?;
    let (kubernetes, plane) = here.parts(what)?;
    let text = administrator(kubernetes, plane)
        .map_err(|error| Status::internal(format!("cannot make a kubeconfig: {error:#}")))?;
    let bytes = packed(&text).map_err(|error| Status::internal(error.to_string()))?;
    let (sender, receiver) = mpsc::channel(1);
    let sent = sender.try_send(Ok(Data { metadata, bytes }));
    sent.map_err(|error| Status::internal(error.to_string()))?;
    Ok(streamed(ReceiverStream::new(receiver)))
}

/// Packs a kubeconfig as clients expect it.
fn packed(kubeconfig: &str) -> io::Result<Vec<u8>> {
    let mut header = tar::Header::new_gnu();
    header.set_size(kubeconfig.len() as u64);
    header.set_mode(0o600);
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    archive.append_data(&mut header, "kubeconfig", kubeconfig.as_bytes())?;
    archive.into_inner()?.finish()
}
