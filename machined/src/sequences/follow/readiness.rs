//! Since when the machine is ready without a break, watched beside the sequence: that may wait for a list or for the fleet's lock, and a service that
//! ends and is back meanwhile has broken the proof.

use std::convert::Infallible;
use std::sync::Mutex;

use tokio::time::Instant;

use crate::base::lock::Lock as _;
use crate::store::{MachineStatus, Store};

/// The readiness of the machine by itself.
pub(super) struct Readiness {
    store: Store,
    since: Mutex<Option<Instant>>,
}

impl Readiness {
    /// Begins with the present state of the machine.
    pub(super) fn of(store: Store) -> Self {
        let readiness = Readiness {
            store,
            since: Mutex::default(),
        };
        readiness.note();
        readiness
    }

    /// Returns since when the machine is ready without a break; `None` if it is not.
    pub(super) fn since(&self) -> Option<Instant> {
        // The newest state may be on its way to `watch`.
        self.note();
        *self.since.locked()
    }

    /// Notes each change, for as long as it is awaited.
    pub(super) async fn watch(&self) -> Infallible {
        let mut changes = self.store.watch();
        loop {
            self.note();
            // A lag only means that many facts have changed.
            let _ = changes.recv().await;
        }
    }

    fn note(&self) {
        let status = self.store.get::<MachineStatus>(MachineStatus::ID);
        let is_ready = status.is_some_and(|it| it.is_ready_by_itself());
        let mut since = self.since.locked();
        *since = is_ready.then(|| since.unwrap_or_else(Instant::now));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::MachineStage;

    fn status(unmet: &[&str]) -> MachineStatus {
        let unmet = unmet.iter().map(|it| ((*it).to_owned(), String::new()));
        MachineStatus {
            stage: MachineStage::Running,
            ready: false,
            unmet: unmet.collect(),
        }
    }

    /// The sequence waits for a mirror that says nothing, and asks afterwards.
    #[tokio::test(start_paused = true)]
    async fn a_break_that_nobody_asks_about_is_noted() {
        let store = Store::default();
        store.put(MachineStatus::ID, status(&[]));
        let readiness = Readiness::of(store.clone());
        let begun = Instant::now();
        let looking = async {
            for unmet in [&[MachineStatus::KUBERNETES][..], &["services"], &[]] {
                tokio::time::advance(Duration::from_secs(20)).await;
                store.put(MachineStatus::ID, status(unmet));
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            never = readiness.watch() => match never {},
            () = looking => {}
        }
        let since = readiness.since().map(|since| since - begun);
        assert_eq!(since, Some(Duration::from_secs(60)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_is_not_ready_says_so_at_once() {
        let store = Store::default();
        let readiness = Readiness::of(store.clone());
        assert_eq!(readiness.since(), None);
        store.put(MachineStatus::ID, status(&[]));
        assert_eq!(readiness.since(), Some(Instant::now()));
        store.put(MachineStatus::ID, status(&["network"]));
        assert_eq!(readiness.since(), None);
    }
}
