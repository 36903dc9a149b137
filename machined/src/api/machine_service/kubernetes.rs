//! Calls about a cluster whose control plane is on this machine.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use instar_api::common::{Data, Metadata};
use instar_api::machine as wire;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status, Streaming};

use super::{MachineApi, Reply};
use crate::api::caller_credentials::CallerCredentials;
use crate::api::{caller, changing, streamed};
use crate::base::error_chain::chain;
use crate::config::{ControlPlane, Kubernetes};
use crate::kubernetes::control_plane::administrator;
use crate::kubernetes::control_plane::beginning::{Refused, Wanted};
use crate::kubernetes::control_plane::etcd::{Etcd, Snapshot};
use crate::kubernetes::control_plane::recovery::{Upload, UploadError};
use crate::kubernetes::control_plane::snapshot_file::NotASnapshot;
use crate::machine::{Configured, Machine};
use crate::operation_lock::Operation;
use crate::sequences::kubernetes::beginning::{self, BeginError, SnapshotPlace};

/// Limit on the pieces of a snapshot that wait for the caller.
const AHEAD: usize = 1;
/// Time limit for the caller to take a piece, or to send one.
const TAKING: Duration = Duration::from_secs(60);
/// Time limit for a whole snapshot to come.
const UPLOADING: Duration = Duration::from_secs(3600);
/// What a machine without a control plane has not.
const NO_ETCD: &str = "there is no etcd";

/// The control plane of a config.
struct Here(Arc<Configured>);

impl Here {
    /// Finds the control plane of this machine; `what` is what a machine without one has not.
    fn of(machine: &Machine, what: &str) -> Result<Self, Status> {
        let here = machine.config().map(Here);
        let here = here.ok_or_else(|| no_kubernetes(what))?;
        here.parts(what)?;
        Ok(here)
    }

    fn parts(&self, what: &str) -> Result<(&Kubernetes, &ControlPlane), Status> {
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

fn begin_status(error: &BeginError) -> Status {
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

fn upload_status(error: &UploadError) -> Status {
    let text = chain(error);
    match error {
        UploadError::TooLarge | UploadError::NoRoom { .. } => Status::resource_exhausted(text),
        UploadError::Io(_) => Status::internal(text),
    }
}

/// Takes a snapshot for `Bootstrap`. One that does not come whole leaves the one of before.
pub(super) async fn etcd_recover(
    api: &MachineApi,
    request: Request<Streaming<Data>>,
) -> Reply<wire::EtcdRecoverResponse> {
    let metadata = caller::reply_metadata(request.metadata());
    Here::of(&api.machine, NO_ETCD)?;
    let peer = caller::peer(&request).to_owned();
    let place = SnapshotPlace::take(&api.machine).map_err(|error| begin_status(&error))?;
    let pieces = request.into_inner();
    let bytes = changing::to_its_end(async move {
        let _place = place;
        receive(pieces).await
    })
    .await?;
    tracing::info!("a snapshot of etcd, {bytes} bytes, was sent by {peer}");
    Ok(Response::new(wire::EtcdRecoverResponse {
        messages: vec![wire::EtcdRecover { metadata }],
    }))
}

/// Receives a snapshot to its end; returns its size.
async fn receive(pieces: Streaming<Data>) -> Result<u64, Status> {
    let failed = |error: UploadError| upload_status(&error);
    let mut upload = Upload::begin().await.map_err(failed)?;
    let received = timeout(UPLOADING, receive_all(pieces, &mut upload)).await;
    let late = || {
        let limit = UPLOADING.as_secs();
        Status::deadline_exceeded(format!("the snapshot was not whole after {limit} s"))
    };
    match received.unwrap_or_else(|_| Err(late())) {
        Ok(()) => upload.finish().await.map_err(failed),
        Err(status) => {
            upload.discard().await;
            Err(status)
        }
    }
}

async fn receive_all(mut pieces: Streaming<Data>, upload: &mut Upload) -> Result<(), Status> {
    loop {
        let piece = timeout(TAKING, pieces.message()).await;
        let piece = piece.map_err(|_| {
            let limit = TAKING.as_secs();
            Status::deadline_exceeded(format!("no byte of the snapshot came for {limit} s"))
        })?;
        let Some(data) = piece? else {
            return Ok(());
        };
        let added = upload.add(&data.bytes).await;
        added.map_err(|error| upload_status(&error))?;
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

pub(super) async fn etcd_member_list(
    api: &MachineApi,
    request: Request<wire::EtcdMemberListRequest>,
) -> Reply<wire::EtcdMemberListResponse> {
    let metadata = caller::reply_metadata(request.metadata());
    let members = etcd(&api.machine).await?.members().await?;
    let members = members.into_iter().map(|member| wire::EtcdMember {
        id: member.id,
        hostname: member.name,
        peer_urls: member.peer_urls,
        client_urls: member.client_urls,
        is_learner: member.is_learner,
    });
    let members: Vec<wire::EtcdMember> = members.collect();
    Ok(Response::new(wire::EtcdMemberListResponse {
        messages: vec![wire::EtcdMembers {
            metadata,
            legacy_members: members.iter().map(|it| it.hostname.clone()).collect(),
            members,
        }],
    }))
}

pub(super) async fn etcd_snapshot(
    api: &MachineApi,
    request: Request<wire::EtcdSnapshotRequest>,
) -> Reply<BoxStream<Data>> {
    let metadata = caller::reply_metadata(request.metadata());
    let snapshot = etcd(&api.machine).await?.snapshot().await?;
    let (sender, receiver) = mpsc::channel(AHEAD);
    crate::base::task::spawn(pass_on(snapshot, sender, metadata));
    Ok(streamed(ReceiverStream::new(receiver)))
}

async fn etcd(machine: &Machine) -> Result<Etcd, Status> {
    let here = Here::of(machine, NO_ETCD)?;
    let (_, plane) = here.parts(NO_ETCD)?;
    let connected = Etcd::connect(plane).await;
    connected.map_err(|error| Status::unavailable(format!("{error:#}")))
}

/// Passes the pieces on for as long as the caller takes them: one that takes none for a while loses the stream.
async fn pass_on(
    mut snapshot: Snapshot,
    sender: mpsc::Sender<Result<Data, Status>>,
    metadata: Option<Metadata>,
) {
    while let Some(piece) = snapshot.piece().await.transpose() {
        let is_last = piece.is_err();
        let metadata = metadata.clone();
        let piece = piece.map(|bytes| Data { metadata, bytes });
        let taken = timeout(TAKING, sender.send(piece)).await;
        if !matches!(taken, Ok(Ok(()))) || is_last {
            return;
        }
    }
}
