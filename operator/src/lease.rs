//! Who drives: one process of all that run, by a Lease of the cluster.
//!
//! ```text
//!            nobody has it, or who had it has not renewed it for its duration
//!   Waiting ───────────────────────────────────────────────────────────────► Holding ─┐ renewed every third of it
//!      ▲                                                                       │ ▲────┘
//!      └──────────────── somebody else has it, or not renewed in time ─────────┘
//! ```
//!
//! The clocks of the processes play no part: who waits counts from when it saw the last change of the lease, by its own clock. Who holds it counts
//! from before it sent the renewal, and stops to act at two thirds of the duration, before anybody else may begin.

use std::cell::Cell;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, PostParams};
use kube::core::ObjectMeta;
use tokio::time::{sleep, timeout};

use crate::failure::{Error, code};

/// How long a lease is good for.
const DURATION: Duration = Duration::from_secs(15);
/// The pause between two renewals, and between two looks of who waits.
const INTERVAL: Duration = Duration::from_secs(5);
/// How long after a renewal its holder may act.
const ACTS_FOR: Duration = Duration::from_secs(10);
/// Timeout of one call.
const CALL: Duration = Duration::from_secs(4);

/// The lease, and whether this process holds it.
pub(crate) struct Leadership {
    api: Api<Lease>,
    name: String,
    me: String,
    /// When the renewal that was granted last was sent.
    renewed: Cell<Option<Instant>>,
}

/// The lease as it was seen, and since when it is so.
struct Seen {
    spec: LeaseSpec,
    since: Instant,
}

impl Leadership {
    pub(crate) fn new(api: Api<Lease>, name: impl Into<String>, me: impl Into<String>) -> Self {
        Self {
            api,
            name: name.into(),
            me: me.into(),
            renewed: Cell::new(None),
        }
    }

    /// Whether this process may act.
    pub(crate) fn is_held(&self) -> bool {
        let renewed = self.renewed.get();
        renewed.is_some_and(|renewed| renewed.elapsed() < ACTS_FOR)
    }

    /// Waits until this process holds the lease.
    pub(crate) async fn acquire(&self) {
        let mut seen = None;
        while !self.try_once(&mut seen).await {
            sleep(INTERVAL).await;
        }
    }

    /// Keeps the lease; returns when it is lost.
    pub(crate) async fn keep(&self) {
        let mut seen = None;
        while self.is_held() {
            sleep(INTERVAL).await;
            self.try_once(&mut seen).await;
        }
    }

    /// Gives the lease back, so that the next process need not wait.
    pub(crate) async fn give_back(&self) {
        self.renewed.set(None);
        let give = async {
            let mut lease = self.api.get(&self.name).await?;
            let spec = lease.spec.get_or_insert_default();
            if spec.holder_identity.as_deref() == Some(&self.me) {
                spec.holder_identity = None;
                self.api
                    .replace(&self.name, &PostParams::default(), &lease)
                    .await?;
            }
            Ok::<_, kube::Error>(())
        };
        // A lease that is not given back ends by itself.
        let _ = timeout(CALL, give).await;
    }

    async fn try_once(&self, seen: &mut Option<Seen>) -> bool {
        match timeout(CALL, self.try_to_hold(seen)).await {
            Ok(Ok(holds)) => holds,
            Ok(Err(error)) => {
                eprintln!("the lease cannot be renewed: {error}");
                false
            }
            Err(_) => {
                eprintln!(
                    "the lease cannot be renewed: no answer within {} s",
                    CALL.as_secs()
                );
                false
            }
        }
    }

    /// Takes or renews the lease, if that may be. The API server lets one of two win who try at once.
    async fn try_to_hold(&self, seen: &mut Option<Seen>) -> Result<bool, Error> {
        let sent = Instant::now();
        let found = self.api.get_opt(&self.name).await;
        let found = found.map_err(Error::calling("the lease cannot be read"))?;
        let taken = match found {
            None => {
                let lease = Lease {
                    metadata: ObjectMeta {
                        name: Some(self.name.clone()),
                        ..ObjectMeta::default()
                    },
                    spec: Some(mine(&self.me, &LeaseSpec::default(), Timestamp::now())),
                };
                self.api.create(&PostParams::default(), &lease).await
            }
            Some(mut lease) => {
                let spec = lease.spec.clone().unwrap_or_default();
                if seen.as_ref().is_none_or(|seen| seen.spec != spec) {
                    *seen = Some(Seen {
                        spec: spec.clone(),
                        since: sent,
                    });
                }
                let unchanged_for = seen.as_ref().map(|seen| seen.since.elapsed());
                if !may_take(&spec, &self.me, unchanged_for.unwrap_or_default()) {
                    self.renewed.set(None);
                    return Ok(false);
                }
                lease.spec = Some(mine(&self.me, &spec, Timestamp::now()));
                self.api
                    .replace(&self.name, &PostParams::default(), &lease)
                    .await
            }
        };
        match taken {
            Ok(_) => {
                self.renewed.set(Some(sent));
                Ok(true)
            }
            Err(error) if code(&error) == Some(409) => Ok(false),
            Err(error) => Err(Error::calling("the lease cannot be written")(error)),
        }
    }
}

/// Whether a process may take the lease that it has seen unchanged for this long.
fn may_take(lease: &LeaseSpec, me: &str, unchanged_for: Duration) -> bool {
    match lease.holder_identity.as_deref() {
        None | Some("") => true,
        Some(holder) if holder == me => true,
        Some(_) => {
            let seconds = lease.lease_duration_seconds.unwrap_or_default();
            let duration = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
            unchanged_for > duration.max(DURATION)
        }
    }
}

/// The lease when this process has it.
fn mine(me: &str, before: &LeaseSpec, now: Timestamp) -> LeaseSpec {
    let changes = before.holder_identity.as_deref() != Some(me);
    let seconds = i32::try_from(DURATION.as_secs()).unwrap_or(i32::MAX);
    LeaseSpec {
        holder_identity: Some(me.to_owned()),
        lease_duration_seconds: Some(seconds),
        renew_time: Some(MicroTime(now)),
        acquire_time: match changes {
            true => Some(MicroTime(now)),
            false => before.acquire_time.clone(),
        },
        lease_transitions: match changes {
            true => Some(before.lease_transitions.unwrap_or_default() + 1),
            false => before.lease_transitions,
        },
        ..before.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_taken_when_it_is_free_ones_own_or_not_renewed() {
        let held = |by: &str| mine(by, &LeaseSpec::default(), Timestamp::UNIX_EPOCH);
        let free = LeaseSpec::default();
        let given_back = LeaseSpec {
            holder_identity: Some(String::new()),
            ..held("b")
        };
        for (lease, unchanged_for, expected) in [
            (&free, 0, true),
            (&given_back, 0, true),
            (&held("a"), 0, true),
            (&held("b"), 0, false),
            (&held("b"), 15, false),
            (&held("b"), 16, true),
        ] {
            let taken = may_take(lease, "a", Duration::from_secs(unchanged_for));
            assert_eq!(taken, expected, "{lease:?} unchanged for {unchanged_for} s");
        }
    }

    #[test]
    fn a_holder_stops_before_another_one_may_begin() {
        assert!(ACTS_FOR + CALL < DURATION);
        assert!(INTERVAL + CALL < ACTS_FOR);
    }

    #[test]
    fn only_another_holder_is_a_transition() {
        let first = mine("a", &LeaseSpec::default(), Timestamp::UNIX_EPOCH);
        let later = Timestamp::from_second(60).unwrap_or_default();
        let renewed = mine("a", &first, later);
        assert_eq!(renewed.lease_transitions, Some(1));
        assert_eq!(renewed.acquire_time, first.acquire_time);
        assert_eq!(mine("b", &renewed, later).lease_transitions, Some(2));
    }
}
