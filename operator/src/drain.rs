//! The drain of a node: its pods are evicted, and have a time to leave.
//!
//! ```text
//!  evict all ──► all have left ─────────────────────────────────────────────► empty
//!   ▲  │ refused, or they take their time
//!   └──┘ again after 5 s, or when a pod changes
//!      │ the time is over ─── by the policy ──┬─► refused: the reason names the pods, and why the last one was not evicted
//!                                             └─► forced: deleted, and waited for once more
//! ```
//!
//! The time holds whatever the API server does: refuse, fail, or not answer at all. So a drain whose time is over ends with a definite failure:
//! one that may pass would have the drain begun anew, with all of its time.

use std::cell::RefCell;
use std::time::Duration;

use futures_util::StreamExt as _;
use instar_client::{Failure, FailureKind};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, EvictParams, ListParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::eviction;
use crate::failure::{Error, code};

/// The pause before an eviction that was refused is tried again.
const EVICT_AGAIN: Duration = Duration::from_secs(5);
/// The pause between two looks at pods that were deleted.
const GONE: Duration = Duration::from_secs(2);
/// Timeout of the last look at the pods that are left, and of the deletions after it.
const LAST_LOOK: Duration = Duration::from_secs(30);

/// How the pods of a node leave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drain {
    /// How long they have.
    pub(crate) timeout: Duration,
    /// Whether those that are left are deleted then.
    pub(crate) force: bool,
}

impl Default for Drain {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(600),
            force: false,
        }
    }
}

/// The drain of one node.
pub(crate) struct Draining<'a> {
    pub(crate) client: &'a Client,
    /// A client whose calls end with the first answer.
    pub(crate) evictions: &'a Client,
    /// The namespace of the operator, whose own pods stay.
    pub(crate) namespace: &'a str,
    pub(crate) node: &'a str,
    pub(crate) drain: Drain,
    /// Gets a line for each step.
    pub(crate) log: &'a dyn Fn(&str),
}

impl Draining<'_> {
    /// Evicts the pods, as their disruption budgets allow, and waits until they are gone.
    pub(crate) async fn empty(&self) -> Result<(), Failure> {
        let refused = RefCell::new(None);
        let left = timeout(self.drain.timeout, self.leave(&refused)).await;
        match left {
            Ok(()) => Ok(()),
            Err(_) => self.after_the_timeout(refused.into_inner()).await,
        }
    }

    /// Evicts until all pods have left. Keeps why they have not, as far as the last round says it.
    async fn leave(&self, refused: &RefCell<Option<String>>) {
        let pods: Api<Pod> = Api::all(self.client.clone());
        let on_this_node =
            watcher::Config::default().fields(&format!("spec.nodeName={}", self.node));
        // Without a pause an API server that refuses the watch would be asked as fast as it answers.
        let mut watch = std::pin::pin!(watcher(pods, on_this_node).default_backoff());
        loop {
            match self.evict_all(refused).await {
                Ok(true) => return,
                Ok(false) => {}
                // It would begin the drain anew, with all of its time.
                Err(failure) => {
                    let why = failure.chain();
                    (self.log)(&why);
                    refused.replace(Some(why));
                    sleep(EVICT_AGAIN).await;
                    continue;
                }
            }
            // Until a pod changes, or those that were refused may be asked again.
            let _ = timeout(EVICT_AGAIN, async {
                while let Some(event) = watch.next().await {
                    if matches!(
                        event,
                        Ok(watcher::Event::Delete(_) | watcher::Event::Apply(_))
                    ) {
                        break;
                    }
                }
            })
            .await;
        }
    }

    async fn after_the_timeout(&self, refused: Option<String>) -> Result<(), Failure> {
        let until = Instant::now() + LAST_LOOK;
        let seconds = self.drain.timeout.as_secs();
        let definite = |why: String| {
            let why = format!("pods did not leave within {seconds} s: {why}");
            Failure::new(FailureKind::Refused, why)
        };
        let late =
            |_| definite("the API server does not answer at the end of the drain".to_owned());
        let left = timeout_at(until, self.left()).await.map_err(late)?;
        let left = left.map_err(|failure| definite(failure.chain()))?;
        if left.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = left.iter().map(eviction::name).collect();
        let names = names.join(", ");
        if !self.drain.force {
            let why = refused.unwrap_or_else(|| "they do not end".to_owned());
            return Err(definite(format!("{names}: {why}")));
        }
        (self.log)(&format!("deletes pods that were left: {names}"));
        let deleted = timeout_at(until, self.delete(&left)).await;
        deleted.map_err(late)?.map_err(definite)?;
        let gone = async {
            while !self.left().await.is_ok_and(|left| left.is_empty()) {
                sleep(GONE).await;
            }
        };
        // Pods that still do not end keep the node from nothing, nor does an API server that fails.
        let _ = timeout(self.drain.timeout, gone).await;
        Ok(())
    }

    /// Deletes all pods that can be deleted. Returns why the others cannot be.
    async fn delete(&self, pods: &[Pod]) -> Result<(), String> {
        let mut why_not = Vec::new();
        for pod in pods {
            let deleted = pods_of(self.client, pod)
                .delete(&pod.name_any(), &DeleteParams::default())
                .await;
            if let Err(error) = deleted
                && code(&error) != Some(404)
            {
                why_not.push(format!(
                    "{} cannot be deleted: {error}",
                    eviction::name(pod)
                ));
            }
        }
        match why_not.is_empty() {
            true => Ok(()),
            false => Err(why_not.join("; ")),
        }
    }

    /// The pods that still have to leave.
    async fn left(&self) -> Result<Vec<Pod>, Failure> {
        let pods: Api<Pod> = Api::all(self.client.clone());
        let here = ListParams::default().fields(&format!("spec.nodeName={}", self.node));
        let listed = pods.list(&here).await;
        let listed = listed.map_err(Error::calling("pods cannot be listed"))?;
        let pods = listed.items.into_iter();
        Ok(pods
            .filter(|pod| eviction::has_to_go(pod, self.namespace))
            .collect())
    }

    /// Asks for the eviction of all pods that have to leave, and returns whether all have left. Whatever the reason of a refusal, it is asked
    /// again until the timeout.
    async fn evict_all(&self, refused: &RefCell<Option<String>>) -> Result<bool, Failure> {
        let mut why_not = None;
        for pod in self.left().await? {
            if pod.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let evicted = pods_of(self.evictions, &pod)
                .evict(&pod.name_any(), &EvictParams::default())
                .await;
            match evicted {
                Ok(_) => (self.log)(&format!("evicted {}", eviction::name(&pod))),
                Err(error) if code(&error) == Some(404) => {}
                // A budget forbids it.
                Err(kube::Error::Api(status)) if status.code == 429 => {
                    why_not = Some(status.message.clone());
                }
                // It would begin the drain anew, with all of its time.
                Err(error) => {
                    let why = format!("{} cannot be evicted: {error}", eviction::name(&pod));
                    (self.log)(&why);
                    why_not = Some(why);
                }
            }
        }
        refused.replace(why_not);
        Ok(self.left().await?.is_empty())
    }
}

fn pods_of(client: &Client, pod: &Pod) -> Api<Pod> {
    let namespace = pod.namespace().unwrap_or_else(|| "default".to_owned());
    Api::namespaced(client.clone(), &namespace)
}

#[cfg(test)]
mod tests;
