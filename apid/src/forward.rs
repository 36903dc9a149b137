//! Routing of a call: to machined, to another node or to several, if the caller may make it.

use std::sync::Arc;

use http::{Request, Response};
use http_body_util::Either;
use hyper::body::Incoming;

use super::caller::{Caller, Mode, Peer};
use super::counted::Counted;
use super::exchange::{Body, NO_LONGER_ACCEPTED, refuse};
use super::fan_out::{self, Ways};
use super::flag::Flag;
use super::grpc_status::Code;
use super::identity::Credentials;
use super::proxy::Proxy;
use super::revocable::{Revocable, Revocation};
use super::target::{self, Target};
use super::uploads::{Room, Upload};
use super::{impersonation, permissions};
use instar_api::{CERTIFICATE_METHOD, UPLOAD_METHODS};
use instar_base::error_chain::chain;
use instar_base::quota::Rank;

/// The answer to a caller who tries to change a node that has no config and holds data.
const CLOSED: &str = "not authorized: this machine may hold data and cannot read its machine config, so nobody may change it (its status says why); boot it with the kernel argument instar.maintenance=open to let anybody bring a config";
/// The answer to a pod that names another node.
const THIS_NODE_ALONE: &str = "a call over the node's socket for pods is for this node alone";

/// The answer to a call at the wrong one of the two ports.
fn other_port(is_worker: bool) -> &'static str {
    match is_worker {
        true => "this port is for certificates alone; the API is on port 50000",
        false => "certificates are signed on port 50001",
    }
}

impl Proxy {
    /// Answers a call: by machined or by other nodes if the caller may make it, with an error status otherwise. The call is also refused if
    /// the caller's credentials become invalid before the whole request has come.
    pub(super) async fn forward(
        &self,
        request: Request<Incoming>,
        caller: &Caller,
        lost: &Flag,
        credentials: &Arc<Credentials>,
    ) -> Response<Counted<Body>> {
        let caller = Caller {
            roles: impersonation::roles_in_force(&caller.roles, request.headers()),
            ..caller.clone()
        };
        let refused = |code, message| refuse(code, message).map(Counted::free);
        let is_worker = matches!(caller.peer, Peer::Worker(_));
        if is_worker != (request.uri().path() == CERTIFICATE_METHOD) {
            return refused(Code::PermissionDenied, other_port(is_worker));
        }
        // Checked for calls to other nodes too: the other node checks them again, by its own table.
        if !is_worker
            && !permissions::may_call(request.uri().path(), &caller.roles, credentials.mode())
        {
            let why = match credentials.mode() {
                Mode::Closed => CLOSED,
                Mode::Normal | Mode::Maintenance => "not authorized",
            };
            return refused(Code::PermissionDenied, why);
        }
        let rank = match credentials.mode() {
            // An unknown client that holds all places would keep out the one who brings the config: nothing tells them apart.
            Mode::Maintenance => Rank::Administrator,
            Mode::Normal | Mode::Closed => caller.rank(),
        };
        let Some(place) = self.shared.under_way.try_acquire(rank) else {
            return refused(
                Code::ResourceExhausted,
                "too many calls are under way on this node; try again when some have ended",
            );
        };
        let room = match credentials.mode() {
            Mode::Normal if UPLOAD_METHODS.contains(&request.uri().path()) => Room::Stream,
            Mode::Normal | Mode::Closed if !caller.may_bring_much() => Room::Small,
            // Any caller may bring the config.
            Mode::Normal | Mode::Maintenance | Mode::Closed => Room::Large,
        };
        let request = request.map(|body| self.shared.uploads.body(body, room));
        let overdrawn = request.body().overdrawn();
        let revocation = Revocation::by(lost);
        let answer = self.send(request, caller, &revocation, credentials).await;
        let answer = match (overdrawn.is_so(), revocation.has_cut_off()) {
            (false, false) => answer,
            (_, true) => refuse(Code::Unauthenticated, NO_LONGER_ACCEPTED),
            (true, _) => refuse(
                Code::ResourceExhausted,
                "too much is being sent to this node at a time; try again",
            ),
        };
        answer.map(|body| Counted::new(body, place))
    }

    /// Sends a call to its target.
    async fn send(
        &self,
        request: Request<Upload>,
        caller: Caller,
        revocation: &Revocation,
        credentials: &Arc<Credentials>,
    ) -> Response<Body> {
        let request = request.map(|body| revocation.guard(body));
        let target = match credentials.mode() {
            Mode::Normal if matches!(caller.peer, Peer::Worker(_)) => Ok(Target::Here),
            Mode::Normal => target::of(&request, credentials),
            Mode::Maintenance | Mode::Closed => Ok(Target::Here),
        };
        match target {
            Ok(Target::Other(_) | Target::Several(_)) if caller.peer == Peer::Pods => {
                refuse(Code::PermissionDenied, THIS_NODE_ALONE)
            }
            Ok(Target::Here) => self.answer(request, &caller).await,
            Ok(Target::Other(other)) => {
                let request = request.map(Either::Left);
                let answer = self.call(&other, request, &caller, credentials);
                // Boxed, like the next one: the state that few calls need must not enlarge the future of every call.
                match Box::pin(answer).await {
                    Ok(response) => response.map(Either::Left),
                    Err(error) => refuse(error.code(), &chain(&error)),
                }
            }
            Ok(Target::Several(nodes)) => {
                let ways = Ways {
                    here: self.clone(),
                    credentials: credentials.clone(),
                    caller,
                    revocation: revocation.clone(),
                };
                Box::pin(fan_out::ask(nodes, request, ways)).await
            }
            Err((code, message)) => refuse(code, message),
        }
    }

    /// Has machined answer a call.
    async fn answer(&self, request: Request<Revocable<Upload>>, caller: &Caller) -> Response<Body> {
        match self.pass_on(request.map(Either::Left), caller).await {
            Ok(response) => response.map(Either::Left),
            Err(error) => refuse(Code::Unavailable, &format!("{error:#}")),
        }
    }
}
