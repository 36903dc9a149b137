//! etcd of this machine, by its own API: members, and snapshots of all its data.
//!
//! The messages are written out here with the few fields that are read: etcd's own files describe 60 methods.

use std::time::Duration;

use anyhow::Context as _;
use instar_client::{Endpoint, Trust, connect};
use instar_pki::{certificates_from_pem, private_key_from_pem};
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::certificates::issue;
use crate::config::ControlPlane;

/// etcd's address for its clients.
const ADDRESS: &str = "127.0.0.1:2379";
/// Time limit for a connection, and for an answer.
pub(super) const ANSWER: Duration = Duration::from_secs(10);
/// Time limit for the next piece of a snapshot.
const PIECE: Duration = Duration::from_secs(60);
/// The lifetime of a certificate for calls from here.
const LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// A member of the cluster of etcd.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Member {
    /// Its number.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Its name: the node's.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Its addresses for other members.
    #[prost(string, repeated, tag = "3")]
    pub peer_urls: Vec<String>,
    /// Its addresses for clients.
    #[prost(string, repeated, tag = "4")]
    pub client_urls: Vec<String>,
    /// Whether it learns only.
    #[prost(bool, tag = "5")]
    pub is_learner: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct MemberListRequest {}

#[derive(Clone, PartialEq, prost::Message)]
struct MemberListResponse {
    #[prost(message, repeated, tag = "2")]
    members: Vec<Member>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SnapshotRequest {}

/// A piece of a snapshot.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SnapshotPiece {
    /// The number of bytes after this piece.
    #[prost(uint64, tag = "2")]
    pub remaining: u64,
    /// The bytes.
    #[prost(bytes = "vec", tag = "3")]
    pub blob: Vec<u8>,
}

/// A connection to etcd.
pub struct Etcd {
    calls: Grpc<Channel>,
}

impl Etcd {
    /// Connects, with a certificate of etcd's authority.
    ///
    /// # Errors
    /// The key of the config cannot be used, or etcd does not answer.
    pub async fn connect(plane: &ControlPlane) -> anyhow::Result<Self> {
        let authority = &plane.keys.etcd;
        let identity = issue(authority, "machined", &[], &[], LIFETIME)?;
        let trust = Trust::Mutual {
            authorities: certificates_from_pem(&authority.certificate)?,
            certificates: certificates_from_pem(&identity.certificate)?,
            key: private_key_from_pem(identity.key.expose())?,
            fingerprints: Vec::new(),
        };
        let endpoint: Endpoint = ADDRESS.parse()?;
        let tls = trust.into_tls()?;
        let connected = timeout(ANSWER, connect(&endpoint, tls)).await;
        let channel = connected
            .context("etcd accepts no connection within 10 s")?
            .context("etcd does not answer")?;
        Ok(Self {
            calls: Grpc::new(channel),
        })
    }

    /// Lists the members.
    ///
    /// # Errors
    /// etcd says so.
    pub async fn members(self) -> Result<Vec<Member>, Status> {
        let path = "/etcdserverpb.Cluster/MemberList";
        let asked = self.ask(path, MemberListRequest {}, ANSWER);
        let answer: MemberListResponse = asked.await?;
        Ok(answer.members)
    }

    /// Calls a method that answers once, within this time.
    pub(super) async fn ask<Question, Answer>(
        &self,
        path: &'static str,
        question: Question,
        limit: Duration,
    ) -> Result<Answer, Status>
    where
        Question: prost::Message + Default + 'static,
        Answer: prost::Message + Default + 'static,
    {
        let mut calls = self.calls.clone();
        ready(&mut calls).await?;
        let codec = ProstCodec::<Question, Answer>::default();
        let path = PathAndQuery::from_static(path);
        let asked = calls.unary(Request::new(question), path, codec);
        let answer = timeout(limit, asked).await.map_err(|_| late(limit))??;
        Ok(answer.into_inner())
    }

    /// Begins a snapshot of all data.
    ///
    /// # Errors
    /// etcd says so.
    pub async fn snapshot(mut self) -> Result<Snapshot, Status> {
        ready(&mut self.calls).await?;
        let path = PathAndQuery::from_static("/etcdserverpb.Maintenance/Snapshot");
        let codec = ProstCodec::<SnapshotRequest, SnapshotPiece>::default();
        let request = Request::new(SnapshotRequest {});
        let asked = self.calls.server_streaming(request, path, codec);
        let answer = timeout(ANSWER, asked).await.map_err(|_| late(ANSWER))??;
        Ok(Snapshot {
            pieces: answer.into_inner(),
        })
    }
}

async fn ready(calls: &mut Grpc<Channel>) -> Result<(), Status> {
    let ready = timeout(ANSWER, calls.ready()).await;
    let ready = ready.map_err(|_| late(ANSWER))?;
    ready.map_err(|error| Status::unavailable(format!("etcd: {error}")))
}

fn late(limit: Duration) -> Status {
    Status::deadline_exceeded(format!("etcd gave no answer within {} s", limit.as_secs()))
}

/// A snapshot, piece by piece.
pub struct Snapshot {
    pieces: Streaming<SnapshotPiece>,
}

impl Snapshot {
    /// Returns the next bytes; `None` at the end.
    ///
    /// # Errors
    /// etcd ended it early, or is silent.
    pub async fn piece(&mut self) -> Result<Option<Vec<u8>>, Status> {
        let piece = timeout(PIECE, self.pieces.message()).await;
        let piece = piece.map_err(|_| {
            Status::deadline_exceeded(format!("etcd was silent for {} s", PIECE.as_secs()))
        })??;
        Ok(piece.map(|piece| piece.blob))
    }
}
