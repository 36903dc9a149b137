//! Calls about etcd of this machine.

use std::time::Duration;

use instar_api::common::{Data, Metadata};
use instar_api::machine as wire;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status, Streaming};

use super::kubernetes::{Here, NO_ETCD, begin_status, upload_status};
use super::{MachineApi, Reply};
use crate::api::{caller, changing, streamed};
use crate::kubernetes::control_plane::etcd::{Etcd, Snapshot};
use crate::kubernetes::control_plane::maintenance::{Alarm, MemberStatus};
use crate::kubernetes::control_plane::recovery::{Upload, UploadError};
use crate::machine::Machine;
use crate::sequences::kubernetes::beginning::SnapshotPlace;

/// Limit on the pieces of a snapshot that wait for the caller.
const AHEAD: usize = 1;
/// Time limit for the caller to take a piece, or to send one.
const TAKING: Duration = Duration::from_secs(60);
/// Time limit for a whole snapshot to come.
const UPLOADING: Duration = Duration::from_secs(3600);

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

/// Tells how etcd is.
pub(super) async fn etcd_status(
    api: &MachineApi,
    request: Request<()>,
) -> Reply<wire::EtcdStatusResponse> {
    let metadata = caller::reply_metadata(request.metadata());
    let status = etcd(&api.machine).await?.status().await?;
    Ok(Response::new(wire::EtcdStatusResponse {
        messages: vec![wire::EtcdStatus {
            metadata,
            member_status: Some(status_message(status)),
        }],
    }))
}

fn status_message(status: MemberStatus) -> wire::EtcdMemberStatus {
    wire::EtcdMemberStatus {
        member_id: status.header.unwrap_or_default().member_id,
        protocol_version: status.version,
        db_size: status.db_size,
        db_size_in_use: status.db_size_in_use,
        leader: status.leader,
        raft_index: status.raft_index,
        raft_term: status.raft_term,
        raft_applied_index: status.raft_applied_index,
        errors: status.errors,
        is_learner: status.is_learner,
    }
}

/// Lists the alarms that etcd has raised.
pub(super) async fn etcd_alarm_list(
    api: &MachineApi,
    request: Request<()>,
) -> Reply<wire::EtcdAlarmListResponse> {
    let metadata = caller::reply_metadata(request.metadata());
    let alarms = etcd(&api.machine).await?.alarms().await?;
    Ok(Response::new(wire::EtcdAlarmListResponse {
        messages: vec![wire::EtcdAlarm {
            metadata,
            member_alarms: alarms.into_iter().map(alarm_message).collect(),
        }],
    }))
}

/// Ends all alarms. Those whose cause is still there come back.
pub(super) async fn etcd_alarm_disarm(
    api: &MachineApi,
    request: Request<()>,
) -> Reply<wire::EtcdAlarmDisarmResponse> {
    let metadata = caller::reply_metadata(request.metadata());
    tracing::info!("the alarms of etcd are ended by {}", caller::peer(&request));
    let etcd = etcd(&api.machine).await?;
    let disarmed = changing::to_its_end(async move { etcd.disarm().await }).await?;
    Ok(Response::new(wire::EtcdAlarmDisarmResponse {
        messages: vec![wire::EtcdAlarmDisarm {
            metadata,
            member_alarms: disarmed.into_iter().map(alarm_message).collect(),
        }],
    }))
}

fn alarm_message(alarm: Alarm) -> wire::EtcdMemberAlarm {
    wire::EtcdMemberAlarm {
        member_id: alarm.member_id,
        // The same numbers.
        alarm: alarm.kind,
    }
}

/// Has etcd give back the room that its database does not use. Meanwhile etcd answers nobody.
pub(super) async fn etcd_defragment(
    api: &MachineApi,
    request: Request<()>,
) -> Reply<wire::EtcdDefragmentResponse> {
    let metadata = caller::reply_metadata(request.metadata());
    tracing::info!("etcd is defragmented by {}", caller::peer(&request));
    let etcd = etcd(&api.machine).await?;
    changing::to_its_end(async move { etcd.defragment().await }).await?;
    Ok(Response::new(wire::EtcdDefragmentResponse {
        messages: vec![wire::EtcdDefragment { metadata }],
    }))
}

/// Takes a snapshot for `Bootstrap`. One that does not come whole leaves the previous one.
pub(super) async fn etcd_recover(
    api: &MachineApi,
    request: Request<Streaming<Data>>,
) -> Reply<wire::EtcdRecoverResponse> {
    let metadata = caller::reply_metadata(request.metadata());
    let reads_at_its_end = caller::is_talosctl(&request);
    let peer = caller::peer(&request).to_owned();
    let mut pieces = request.into_inner();
    let place = Here::of(&api.machine, NO_ETCD).and_then(|_| {
        let place = SnapshotPlace::take(&api.machine);
        place.map_err(|error| begin_status(&error))
    });
    let bytes = changing::to_its_end(async move {
        let received = match place {
            Ok(_place) => receive(&mut pieces).await,
            Err(status) => Err(status),
        };
        if received.is_err() && reads_at_its_end {
            let rest = timeout(UPLOADING, skip(&mut pieces)).await;
            tracing::debug!("the rest of a refused snapshot: {rest:?}");
        }
        received
    })
    .await?;
    tracing::info!("a snapshot of etcd, {bytes} bytes, was sent by {peer}");
    Ok(Response::new(wire::EtcdRecoverResponse {
        messages: vec![wire::EtcdRecover { metadata }],
    }))
}

/// Takes the rest of a stream whose sender reads no answer before its end: talosctl would tell its user `EOF`, and not why.
async fn skip(pieces: &mut Streaming<Data>) {
    while let Ok(Ok(Some(_))) = timeout(TAKING, pieces.message()).await {}
}

/// Receives a snapshot to its end; returns its size.
async fn receive(pieces: &mut Streaming<Data>) -> Result<u64, Status> {
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

async fn receive_all(pieces: &mut Streaming<Data>, upload: &mut Upload) -> Result<(), Status> {
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
