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
use tonic::{Request, Response, Status};

use super::{MachineApi, Reply};
use crate::api::{caller, streamed};
use crate::base::blocking_io;
use crate::config::{ControlPlane, Kubernetes};
use crate::kubernetes::control_plane::etcd::{Etcd, Snapshot};
use crate::kubernetes::control_plane::{administrator, begin};
use crate::machine::{Configured, Machine};

/// Limit on the pieces of a snapshot that wait for the caller.
const AHEAD: usize = 1;
/// Time limit for the caller to take a piece.
const TAKING: Duration = Duration::from_secs(60);

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

/// Begins the cluster, once.
pub(super) async fn bootstrap(
    api: &MachineApi,
    request: Request<wire::BootstrapRequest>,
) -> Reply<wire::BootstrapResponse> {
    let metadata = caller::reply_metadata(request.metadata());
    Here::of(&api.machine, "there is no etcd to bootstrap")?;
    if request.get_ref().recover_etcd {
        return Err(Status::unimplemented(
            "a cluster cannot begin from a snapshot by this call yet: docs/kubernetes.md says how to put one in place",
        ));
    }
    let begun = blocking_io::within(blocking_io::ANSWER, begin).await;
    begun
        .map_err(|error| Status::internal(error.to_string()))?
        .map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => Status::already_exists(
                "the cluster has begun already: etcd has its place on this machine",
            ),
            _ => Status::internal(format!("cannot make the place of etcd's data: {error}")),
        })?;
    tracing::info!("Kubernetes: the cluster begins");
    Ok(Response::new(wire::BootstrapResponse {
        messages: vec![wire::Bootstrap { metadata }],
    }))
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
    let what = "there is no etcd";
    let here = Here::of(machine, what)?;
    let (_, plane) = here.parts(what)?;
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
