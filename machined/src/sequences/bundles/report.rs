//! Tells how far a bundle is: as a resource, and on the console at each change of its state.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

use crate::base::lock::Lock as _;
use crate::bundles::{BundleFact, Event, Phase, next};
use crate::store::Store;
use crate::values::Digest;

/// Bytes between two reports of the verification.
const STEP: u64 = 8 << 20;

/// The report of one bundle.
pub struct Report {
    store: Store,
    /// The resource's id.
    id: String,
    fact: Mutex<BundleFact>,
    /// The number of bytes at the last report.
    told: AtomicU64,
    phases: watch::Sender<Phase>,
}

impl Report {
    /// Begins to report about a bundle of this origin.
    pub fn begin(store: Store, origin: String, phase: Phase) -> Self {
        let fact = BundleFact {
            origin: origin.clone(),
            digest: None,
            phase: phase.clone(),
        };
        store.put(&origin, fact.clone());
        Report {
            store,
            id: origin,
            fact: Mutex::new(fact),
            told: AtomicU64::new(0),
            phases: watch::channel(phase).0,
        }
    }

    /// Notes which bundle it is.
    pub fn name(&self, digest: Digest) {
        let mut fact = self.fact.locked();
        fact.digest = Some(digest.to_string());
        self.store.put(&self.id, fact.clone());
    }

    /// Watches the state.
    pub fn watch(&self) -> watch::Receiver<Phase> {
        self.phases.subscribe()
    }

    /// The state.
    pub fn phase(&self) -> Phase {
        self.fact.locked().phase.clone()
    }

    /// Reports bytes that were compared, a few hundred times for a gigabyte.
    pub fn read(&self, bytes: u64) {
        if bytes >= self.told.load(Ordering::Relaxed) + STEP {
            self.told.store(bytes, Ordering::Relaxed);
            self.tell(Event::Read(bytes));
        }
    }

    /// Reports an event. When the bundle is forgotten, its resource goes.
    pub fn tell(&self, event: Event) {
        let mut fact = self.fact.locked();
        let before = fact.phase.clone();
        let Some(after) = next(before.clone(), event) else {
            self.store.remove::<BundleFact>(&self.id);
            return;
        };
        if after == before {
            return;
        }
        if after.word() != before.word() || matches!(after, Phase::Importing { .. }) {
            self.say(&after);
        }
        fact.phase = after.clone();
        self.store.put(&self.id, fact.clone());
        self.phases.send_replace(after);
    }

    fn say(&self, phase: &Phase) {
        let place = &self.id;
        match phase {
            Phase::Searching | Phase::Receiving { .. } => {
                tracing::info!("{place}: {}", phase.word());
            }
            Phase::Verifying { .. } => {
                tracing::info!("{place}: a bundle of images was found; verifying every byte of it");
            }
            Phase::Importing { .. } => {
                tracing::info!(
                    "{place}: the bundle is good and allowed; importing {}",
                    phase.detail()
                );
            }
            Phase::Taken { images } => {
                let may_go = match place.as_str() {
                    super::UPLOAD => "",
                    _ => "; the stick can be pulled out",
                };
                tracing::info!(
                    "{place}: {} images are here{may_go}: {}",
                    images.len(),
                    phase.detail()
                );
            }
            Phase::Refused { reason } => {
                tracing::warn!("{place}: nothing of the bundle is used: {reason}");
            }
        }
    }
}
