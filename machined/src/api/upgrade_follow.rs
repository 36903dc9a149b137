//! `instar.UpgradeFollowService`: shows how the machine follows its channel, and takes the wishes of people about it.

use std::sync::Arc;
use std::time::SystemTime;

use instar_api::instar as wire;
use instar_api::instar::upgrade_follow_service_server::UpgradeFollowService;
use instar_channel::ChannelFiles;
use tonic::{Request, Response, Status};

use super::changing;
use super::epoch_seconds::epoch_seconds;
use crate::base::error_chain::chain;
use crate::follow::{FollowFact, ReleaseFact};
use crate::machine::Machine;
use crate::sequences::follow::{NotTaken, bring, forgive};
use crate::values::{Digest, Version};

/// The service.
pub(super) struct UpgradeFollowApi {
    machine: Arc<Machine>,
}

impl UpgradeFollowApi {
    pub(super) fn new(machine: Arc<Machine>) -> Self {
        UpgradeFollowApi { machine }
    }
}

#[tonic::async_trait]
impl UpgradeFollowService for UpgradeFollowApi {
    async fn status(
        &self,
        _request: Request<wire::FollowStatusRequest>,
    ) -> Result<Response<wire::FollowStatus>, Status> {
        let (channel, fact) = followed(&self.machine)?;
        let running = self.machine.running.version.clone();
        Ok(Response::new(status(channel, running, fact)))
    }

    async fn check(
        &self,
        _request: Request<wire::CheckChannelRequest>,
    ) -> Result<Response<wire::CheckChannelResponse>, Status> {
        followed(&self.machine)?;
        self.machine.follow.ask_for_look();
        Ok(Response::new(wire::CheckChannelResponse {}))
    }

    async fn bring(
        &self,
        request: Request<wire::BringListRequest>,
    ) -> Result<Response<wire::BringListResponse>, Status> {
        let files = brought(request.into_inner())?;
        let machine = self.machine.clone();
        let bringing = async move {
            let taken = bring(&machine, files).await;
            let serial = taken.map_err(|error| not_taken(&error))?;
            Ok(wire::BringListResponse { serial })
        };
        Ok(Response::new(changing::to_its_end(bringing).await?))
    }

    async fn approve(
        &self,
        request: Request<wire::ApproveReleaseRequest>,
    ) -> Result<Response<wire::ApproveReleaseResponse>, Status> {
        let (digest, _) = release(&self.machine, &request.into_inner().release)?;
        let machine = self.machine.clone();
        let approving = async move {
            let approved = machine.follow.approve(digest, &machine.init).await;
            approved.map_err(|error| Status::failed_precondition(error.to_string()))?;
            Ok(wire::ApproveReleaseResponse {
                digest: digest.to_string(),
            })
        };
        Ok(Response::new(changing::to_its_end(approving).await?))
    }

    async fn hold(
        &self,
        request: Request<wire::HoldReleaseRequest>,
    ) -> Result<Response<wire::HoldReleaseResponse>, Status> {
        let request = request.into_inner();
        let (digest, version) = release(&self.machine, &request.release)?;
        let machine = self.machine.clone();
        let holding = async move {
            match request.take_back {
                true => take_back(&machine, digest).await?,
                false => {
                    let held = machine.follow.hold(digest, version, &machine.init).await;
                    held.map_err(|error| Status::failed_precondition(error.to_string()))?;
                }
            }
            Ok(wire::HoldReleaseResponse {
                digest: digest.to_string(),
            })
        };
        Ok(Response::new(changing::to_its_end(holding).await?))
    }
}

/// Reads the files of a channel from a request.
fn brought(request: wire::BringListRequest) -> Result<ChannelFiles, Status> {
    let mut approvals = Vec::new();
    for approval in request.approvals {
        let release = approval.digest.parse::<Digest>();
        let release = release.map_err(|error| Status::invalid_argument(chain(&error)))?;
        approvals.push((release, approval.signature));
    }
    let files = ChannelFiles::new(request.list, &request.signature, approvals);
    files.map_err(|error| Status::invalid_argument(chain(&error)))
}

fn not_taken(error: &NotTaken) -> Status {
    match error {
        NotTaken::FollowsNone | NotTaken::Replayed(_) => Status::failed_precondition(chain(error)),
        NotTaken::Refused(_) => Status::invalid_argument(chain(error)),
    }
}

/// Takes a hold back. A release that failed may be tried again.
async fn take_back(machine: &Machine, digest: Digest) -> Result<(), Status> {
    let had_failed = forgive(machine, &[digest]).await;
    match machine.follow.release(digest, &machine.init).await || had_failed {
        true => Ok(()),
        false => Err(Status::failed_precondition(format!("{digest} is not held"))),
    }
}

/// Returns the channel that the machine follows, as the resource has it.
fn followed(machine: &Machine) -> Result<(String, FollowFact), Status> {
    let mut facts = machine.store.list::<FollowFact>().into_iter();
    let configured = machine.config();
    let follows = configured.is_some_and(|it| it.config.upgrade_follow.is_some());
    match (facts.next(), follows) {
        (Some((metadata, fact)), _) => Ok((metadata.id, fact)),
        (None, true) => Err(Status::unavailable(
            "the machine has not looked at its channel yet; ask again in a moment",
        )),
        (None, false) => Err(follows_none()),
    }
}

fn follows_none() -> Status {
    Status::failed_precondition(
        "this machine follows no channel; UpgradeFollowConfig in its config names one",
    )
}

/// Finds a release of the list by its version, for this machine's architecture, or by its digest.
fn release(machine: &Machine, named: &str) -> Result<(Digest, Version), Status> {
    let (channel, fact) = followed(machine)?;
    let architecture = &machine.running.architecture;
    let found = listed(&fact.releases, named, architecture);
    let held = || {
        let record = machine.follow.record()?;
        let mut holds = record.holds.into_iter();
        let is_it = |version: &Version, digest: &Digest| {
            version.to_string() == named || digest.to_string() == named
        };
        let hold = holds.find(|hold| is_it(&hold.version, &hold.digest))?;
        Some((hold.digest, hold.version))
    };
    found
        .map(|it| (it.digest, it.version.clone()))
        .or_else(held)
        .ok_or_else(|| {
            Status::not_found(format!(
                "the channel {channel} has no release {named:?} for {architecture}"
            ))
        })
}

/// The release that a person names. That of another architecture with the same version is none for this machine: a hold of it would hold nothing.
fn listed<'a>(
    releases: &'a [ReleaseFact],
    named: &str,
    architecture: &str,
) -> Option<&'a ReleaseFact> {
    let mut releases = releases.iter();
    releases.find(|it| {
        let is_named = it.version.to_string() == named && it.architecture == architecture;
        is_named || it.digest.to_string() == named
    })
}

fn status(channel: String, running: String, fact: FollowFact) -> wire::FollowStatus {
    let heard = fact.heard;
    let time = |at: Option<SystemTime>| at.map_or(0, epoch_seconds);
    let releases = fact.releases.into_iter();
    wire::FollowStatus {
        channel,
        serial: fact.serial.unwrap_or(0),
        running,
        release: fact.release,
        digest: fact.digest,
        state: fact.state.to_owned(),
        reason: fact.reason,
        until: time(fact.until),
        looked_at: time(heard.as_ref().map(|heard| heard.at)),
        next_look: time(heard.as_ref().map(|heard| heard.next)),
        look_error: heard.map_or_else(String::new, |heard| heard.error),
        releases: releases
            .map(|it| wire::ListedRelease {
                version: it.version.to_string(),
                digest: it.digest.to_string(),
                why: it.why,
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_version_is_the_release_for_this_architecture() {
        let fact = |architecture: &str| ReleaseFact {
            version: "v0.2.0".parse().unwrap(),
            architecture: architecture.to_owned(),
            digest: Digest::of(architecture.as_bytes()),
            why: String::new(),
        };
        // As a list has them: the greater name comes first.
        let releases = ["arm64", "amd64"].map(fact);
        let found = |named: &str, own: &str| {
            let found = listed(&releases, named, own);
            found.map(|it| it.architecture.clone())
        };
        for own in ["amd64", "arm64"] {
            assert_eq!(found("v0.2.0", own).as_deref(), Some(own));
        }
        let digest = releases[0].digest.to_string();
        assert_eq!(found(&digest, "amd64").as_deref(), Some("arm64"));
        assert_eq!(found("v0.2.0", "riscv64"), None);
        assert_eq!(found("v0.3.0", "amd64"), None);
    }
}
