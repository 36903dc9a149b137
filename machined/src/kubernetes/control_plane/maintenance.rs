//! How etcd of this machine is, by its own API: its status, its alarms, and the room that its database does not use.

use std::time::Duration;

use tonic::Status;

use super::etcd::{ANSWER, Etcd};

/// Time limit for etcd to write its database anew.
const DEFRAGMENT: Duration = Duration::from_secs(600);
/// The numbers of what is done with alarms.
const GET: i32 = 0;
const DEACTIVATE: i32 = 2;

/// The first field of each answer.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Header {
    /// The number of the member that answers.
    #[prost(uint64, tag = "2")]
    pub member_id: u64,
}

/// The status of the member.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MemberStatus {
    /// The member.
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    /// etcd's version.
    #[prost(string, tag = "2")]
    pub version: String,
    /// Bytes of the database's file.
    #[prost(int64, tag = "3")]
    pub db_size: i64,
    /// The number of the leader.
    #[prost(uint64, tag = "4")]
    pub leader: u64,
    /// The number of the last entry of the log.
    #[prost(uint64, tag = "5")]
    pub raft_index: u64,
    /// The number of the term.
    #[prost(uint64, tag = "6")]
    pub raft_term: u64,
    /// The number of the last entry that is in the database.
    #[prost(uint64, tag = "7")]
    pub raft_applied_index: u64,
    /// The troubles of the member.
    #[prost(string, repeated, tag = "8")]
    pub errors: Vec<String>,
    /// Bytes of the database that are used.
    #[prost(int64, tag = "9")]
    pub db_size_in_use: i64,
    /// Whether it learns only.
    #[prost(bool, tag = "10")]
    pub is_learner: bool,
}

/// An alarm.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Alarm {
    /// The number of the member that raised it.
    #[prost(uint64, tag = "1")]
    pub member_id: u64,
    /// Its kind: 1 is a database without room under its quota, 2 one that is damaged.
    #[prost(int32, tag = "2")]
    pub kind: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Empty {}

#[derive(Clone, PartialEq, prost::Message)]
struct AlarmRequest {
    #[prost(int32, tag = "1")]
    action: i32,
    #[prost(uint64, tag = "2")]
    member_id: u64,
    #[prost(int32, tag = "3")]
    kind: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct AlarmResponse {
    #[prost(message, repeated, tag = "2")]
    alarms: Vec<Alarm>,
}

impl Etcd {
    /// Returns the status.
    ///
    /// # Errors
    /// etcd says so.
    pub async fn status(&self) -> Result<MemberStatus, Status> {
        let path = "/etcdserverpb.Maintenance/Status";
        self.ask(path, Empty {}, ANSWER).await
    }

    /// Lists the alarms that are raised.
    ///
    /// # Errors
    /// etcd says so.
    pub async fn alarms(&self) -> Result<Vec<Alarm>, Status> {
        self.alarm(AlarmRequest {
            action: GET,
            ..AlarmRequest::default()
        })
        .await
    }

    /// Ends all alarms; returns those that were raised.
    ///
    /// # Errors
    /// etcd says so.
    pub async fn disarm(&self) -> Result<Vec<Alarm>, Status> {
        let raised = self.alarms().await?;
        for Alarm { member_id, kind } in raised.iter().cloned() {
            self.alarm(AlarmRequest {
                action: DEACTIVATE,
                member_id,
                kind,
            })
            .await?;
        }
        Ok(raised)
    }

    async fn alarm(&self, request: AlarmRequest) -> Result<Vec<Alarm>, Status> {
        let path = "/etcdserverpb.Maintenance/Alarm";
        let answer: AlarmResponse = self.ask(path, request, ANSWER).await?;
        Ok(answer.alarms)
    }

    /// Has etcd write its database anew, without the room that it does not use. Meanwhile etcd answers nobody.
    ///
    /// # Errors
    /// etcd says so, or takes too long.
    pub async fn defragment(self) -> Result<(), Status> {
        let path = "/etcdserverpb.Maintenance/Defragment";
        let _: Empty = self.ask(path, Empty {}, DEFRAGMENT).await?;
        Ok(())
    }
}
