//! The page of the pools for a browser, and who may use it.
//!
//! ```text
//!  browser ── kubectl port-forward ──► 127.0.0.1 of the pod ── the visitor's own token ──► API server: watches, patches
//! ```
//!
//! # The key decision: a visitor is the cluster's business
//!
//! The operator lends nobody its rights. A visitor brings a token of the cluster, and everything for this visitor is asked for with this token
//! alone: what the page shows, and what a press changes. So a press is what the same person may do with `kubectl`, RBAC decides, and the API
//! server's audit log names who it was. A token of our own, in a Secret, was the other choice: whoever had it would act with all rights of the
//! operator, and nobody could tell who that was.
//!
//! The watches of a visitor begin and end with the visit. So any replica serves the page, the one that leads or another one, and a page that
//! nobody looks at costs nothing. Each visitor costs the memory of all nodes, and time of the thread that renews the lease: so there are few at once.

mod press;
mod view;
mod watched;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use instar_rollout_page::{Command, Denied, Rollouts, Visitor, serve};
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, Config};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use self::press::Press;
use self::watched::Watched;
use crate::api::Pool;
use crate::failure::{Error, code};
use crate::node::NodeView;
use crate::record_store;

/// Timeout of one call.
const CALL: Duration = Duration::from_secs(8);
/// Visitors that look at the pools at once.
const VISITORS: usize = 8;
/// Limit on a token, in bytes. Those of service accounts have some 1,000.
const LONGEST_TOKEN: usize = 16 << 10;

/// Serves the page until the process ends. `way` leads to the cluster; its own credentials are not used.
pub(crate) async fn begin(listen: SocketAddr, way: Config) -> Result<(), Error> {
    let listener = TcpListener::bind(listen).await;
    let listener = listener.map_err(|error| {
        Error::Other(format!("cannot listen on {listen} for the page: {error}"))
    })?;
    if !listen.ip().is_loopback() {
        eprintln!("the page has no TLS: whoever sees its traffic has the tokens of its visitors");
    }
    let seats = Arc::new(Semaphore::new(VISITORS));
    tokio::task::spawn_local(serve(listener, Door { way, seats }));
    Ok(())
}

/// Where visitors come in.
struct Door {
    way: Config,
    seats: Arc<Semaphore>,
}

impl Rollouts for Door {
    type Visitor = Bearer;

    /// Nobody is asked yet: the API server judges the token with each call.
    fn enter(&self, token: &str) -> Result<Bearer, Denied> {
        let is_token =
            token.len() <= LONGEST_TOKEN && token.bytes().all(|it| it.is_ascii_graphic());
        if !is_token {
            return Err(unknown());
        }
        let impossible = |why: String| Denied::Impossible(format!("the way to the cluster: {why}"));
        let auth_info = serde_json::from_value(json!({ "token": token }));
        let mut config = self.way.clone();
        config.auth_info = auth_info.map_err(|error| impossible(error.to_string()))?;
        config.headers = Vec::new();
        // Watches are silent for longer; other calls have a timeout of their own.
        config.read_timeout = None;
        let client = Client::try_from(config).map_err(|error| impossible(error.to_string()))?;
        let seats = self.seats.clone();
        Ok(Bearer { client, seats })
    }
}

/// A visitor, by the token.
struct Bearer {
    client: Client,
    seats: Arc<Semaphore>,
}

impl Visitor for Bearer {
    type Views = Watched;

    async fn watch(&self) -> Result<Watched, Denied> {
        // A watch goes on over errors. So whether this visitor may look at all is asked before.
        let one = ListParams::default().limit(1);
        in_time(self.pools().list(&one)).await?;
        Ok(Watched::begin(&self.client, seat(&self.seats)?))
    }

    async fn command(&self, rollout: &str, command: Command) -> Result<(), Denied> {
        let pool = in_time(self.pools().get(rollout)).await?;
        let status = pool.status.clone().unwrap_or_default();
        let record = record_store::record(&status);
        let record = record.map_err(|error| Denied::Impossible(error.to_string()))?;
        let said = format!("{command:?}");
        match press::press(&pool, record.as_ref(), command).map_err(Denied::Impossible)? {
            Press::Nothing => return Ok(()),
            Press::Pool(patch) => {
                self.patch(&self.pools(), rollout, patch).await?;
            }
            Press::Hold { node, patch } => {
                self.patch(&self.nodes(), &node, patch).await?;
            }
            Press::Release { node, patch } => {
                let released = self.patch(&self.nodes(), &node, patch).await?;
                if NodeView::of(&released).hold.is_some() {
                    let why = format!("a person has cordoned {node}: `kubectl uncordon {node}`");
                    return Err(Denied::Impossible(why));
                }
            }
        }
        eprintln!("pool {rollout}: a visitor of the page: {said}");
        Ok(())
    }
}

impl Bearer {
    fn pools(&self) -> Api<Pool> {
        Api::all(self.client.clone())
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    async fn patch<K>(&self, api: &Api<K>, name: &str, patch: Value) -> Result<K, Denied>
    where
        K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
    {
        let parameters = PatchParams::default();
        in_time(api.patch(name, &parameters, &Patch::Merge(patch))).await
    }
}

/// A seat for a visitor who looks at the pools.
fn seat(seats: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Denied> {
    let seat = seats.clone().try_acquire_owned();
    seat.map_err(|_| {
        let why = format!(
            "{VISITORS} visitors look at the pools here, and no more may at once: the page comes when one of them closes it; `kubectl get pools` \
             shows the same"
        );
        Denied::Impossible(why)
    })
}

/// Waits for an answer of the API server, and tells the visitor of a refusal.
async fn in_time<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, Denied> {
    let Ok(answer) = timeout(CALL, call).await else {
        let why = format!("no answer of the API server within {} s", CALL.as_secs());
        return Err(Denied::Impossible(why));
    };
    answer.map_err(|error| match (code(&error), &error) {
        (Some(401), _) => unknown(),
        (Some(403), kube::Error::Api(status)) => Denied::Forbidden(status.message.clone()),
        (_, kube::Error::Api(status)) => Denied::Impossible(status.message.clone()),
        (_, error) => Denied::Impossible(error.to_string()),
    })
}

fn unknown() -> Denied {
    let why = "the cluster does not know the token behind the #, or its time is over: make a new one with `kubectl create token`";
    Denied::Unknown(why.to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_ninth_visitor_is_told_to_wait() {
        let seats = Arc::new(Semaphore::new(VISITORS));
        let taken: Vec<_> = (0..VISITORS).map(|_| seat(&seats).unwrap()).collect();
        let denied = seat(&seats).unwrap_err();
        assert!(
            matches!(&denied, Denied::Impossible(why) if why.starts_with("8 visitors")),
            "{denied:?}"
        );
        drop(taken);
        assert!(seat(&seats).is_ok());
    }
}
