//! The lock on changes of the machine: one operation at a time, and every caller can see which one holds it.
//!
//! ```text
//!           lock                       hand_over: another name, never let go between
//!   free ─────────► held by operation ─────────────────────────────────────────────► held by operation
//!     ▲                │       ▲
//!     │ drop           │       │ seize: only while the holder runs a step that has changed nothing (`interruptible`);
//!     └────────────────┘       └ that step ends with `Interrupted`, and its lock is worth nothing any more
//! ```
//!
//! The lock belongs to the task that does the work, never to the call that asked for it: if the caller hangs up, the operation still runs
//! to its end, but for a step that has changed nothing and is told of its caller (`sequences/hang_up.rs`).

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

/// Interval between log lines of an operation that waits for the lock.
const REMINDER: Duration = Duration::from_secs(60);

/// An operation that changes the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// The boot, up to its verdict.
    Boot,
    /// Makes a version that runs well the one that is booted.
    BlessBootEntry,
    /// Applies a machine config.
    ApplyConfig,
    /// Ends a config's trial: the config before it returns.
    TakeBackConfig,
    /// Starts a service.
    ServiceStart,
    /// Stops a service.
    ServiceStop,
    /// Stops and starts a service.
    ServiceRestart,
    /// Removes an image.
    ImageRemove,
    /// Keeps or removes a value for operators.
    MetaChange,
    /// Begins the cluster of this machine, as a new one or from a snapshot.
    BeginCluster,
    /// Wipes a disk that is not the machine's own.
    WipeDisk,
    /// Installs a version on the machine's own disk.
    Install,
    /// Upgrades the machine.
    Upgrade,
    /// Stages an upgrade for the next boot.
    StageUpgrade,
    /// Runs the first half of an upgrade in two steps.
    PrepareUpgrade,
    /// Returns to the version before.
    Rollback,
    /// Reboots the machine.
    Reboot,
    /// Powers the machine off.
    Shutdown,
    /// Erases the machine's disk.
    Reset,
}

impl Operation {
    /// Whether this operation ends the running machine.
    pub fn ends_the_machine(self) -> bool {
        matches!(
            self,
            Self::Rollback | Self::Reboot | Self::Shutdown | Self::Reset
        )
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Boot => "the boot",
            Self::BlessBootEntry => "the change of a boot entry",
            Self::ApplyConfig => "apply-config",
            Self::TakeBackConfig => "the return to the config before a trial",
            Self::ServiceStart => "the start of a service",
            Self::ServiceStop => "the stop of a service",
            Self::ServiceRestart => "the restart of a service",
            Self::ImageRemove => "the removal of an image",
            Self::MetaChange => "a change of meta values",
            Self::BeginCluster => "the beginning of a cluster",
            Self::WipeDisk => "the wipe of a disk",
            Self::Install => "an installation",
            Self::Upgrade => "an upgrade",
            Self::StageUpgrade => "the staging of an upgrade",
            Self::PrepareUpgrade => "the preparation of an upgrade",
            Self::Rollback => "a rollback",
            Self::Reboot => "a reboot",
            Self::Shutdown => "a shutdown",
            Self::Reset => "a reset",
        })
    }
}

/// The holder of the lock.
#[derive(Debug, Clone, Copy)]
pub struct Holder {
    /// Its operation.
    pub operation: Operation,
    /// When it took the lock.
    since: Instant,
    /// Whether its present step has changed nothing, so that it can be interrupted.
    interruptible: bool,
    /// A number that no other holder has.
    number: u64,
}

impl Holder {
    /// Returns the error for other operations that want the lock.
    fn busy(&self) -> Busy {
        Busy {
            operation: self.operation,
            running_for: self.since.elapsed(),
            interruptible: self.interruptible,
        }
    }
}

/// Another operation is running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the machine is busy: {operation} has been running for {} s; {}",
    running_for.as_secs(),
    if *interruptible {
        "try again when it has ended, or end it by a reset, or by a reboot or shutdown with force: it has changed nothing yet"
    } else {
        "try again when it has ended"
    }
)]
pub struct Busy {
    /// The running operation.
    pub operation: Operation,
    /// How long it has been running.
    pub running_for: Duration,
    /// Whether a more urgent operation could interrupt it.
    pub interruptible: bool,
}

/// A more urgent operation has interrupted one that had changed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "given up before it changed anything: {} took its place",
    by.map_or_else(|| "a more urgent operation".to_owned(), |by| by.to_string())
)]
pub struct Interrupted {
    /// The operation that runs instead; None if it has already ended.
    pub by: Option<Operation>,
}

/// The lock on changes of the machine; clones share it.
#[derive(Debug, Clone)]
pub struct Operations {
    holder: watch::Sender<Option<Holder>>,
    numbers: Arc<AtomicU64>,
}

impl Default for Operations {
    fn default() -> Self {
        Operations {
            holder: watch::channel(None).0,
            numbers: Arc::default(),
        }
    }
}

impl Operations {
    /// Watches the holder of the lock.
    pub fn watch(&self) -> watch::Receiver<Option<Holder>> {
        self.holder.subscribe()
    }

    /// Waits until an operation begins that ends the machine, and returns it.
    pub async fn end_of_machine(&self) -> Option<Operation> {
        let mut holder = self.watch();
        let is_end = |holder: &Option<Holder>| {
            holder.is_some_and(|holder| holder.operation.ends_the_machine())
        };
        let end = holder.wait_for(is_end).await;
        end.ok().and_then(|end| end.map(|holder| holder.operation))
    }

    /// Checks whether the lock is free without taking it: tasks that wait for it or watch it are not disturbed.
    ///
    /// # Errors
    /// An operation is running.
    pub fn check_free(&self) -> Result<(), Busy> {
        match &*self.holder.borrow() {
            Some(holder) => Err(holder.busy()),
            None => Ok(()),
        }
    }

    /// Takes the lock if it is free.
    ///
    /// # Errors
    /// Another operation is running.
    pub fn lock(&self, operation: Operation) -> Result<OperationLock, Busy> {
        self.take(operation, |_| false)
    }

    /// Takes the lock; waits for it at most `limit`.
    ///
    /// # Errors
    /// Another operation is still running after that time.
    pub async fn lock_within(
        &self,
        operation: Operation,
        limit: Duration,
    ) -> Result<OperationLock, Busy> {
        let mut holder = self.watch();
        let until = Instant::now() + limit;
        loop {
            // Marked as seen first, so that no change from here on is missed.
            holder.borrow_and_update();
            let taken = self.lock(operation);
            if taken.is_ok() {
                return taken;
            }
            if timeout_at(until, holder.changed()).await.is_err() {
                // The holder may be another one than at first.
                return self.lock(operation);
            }
        }
    }

    /// Takes the lock as soon as it is free: every operation has time limits, so it ends. Logs each minute which operation it waits for.
    pub async fn lock_when_free(&self, operation: Operation) -> OperationLock {
        loop {
            match self.lock_within(operation, REMINDER).await {
                Ok(lock) => return lock,
                Err(busy) => tracing::warn!("{operation} waits: {busy}"),
            }
        }
    }

    /// Takes the lock if it is free, or from an operation that has changed nothing yet, which is interrupted.
    ///
    /// # Errors
    /// The running operation cannot be interrupted.
    pub fn seize(&self, operation: Operation) -> Result<OperationLock, Busy> {
        self.take(operation, |holder| holder.interruptible)
    }

    fn take(
        &self,
        operation: Operation,
        gives_way: impl Fn(&Holder) -> bool,
    ) -> Result<OperationLock, Busy> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let mut busy = None;
        self.holder.send_if_modified(|holder| {
            match holder {
                Some(holder) if !gives_way(holder) => busy = Some(holder.busy()),
                _ => {
                    *holder = Some(Holder {
                        operation,
                        since: Instant::now(),
                        interruptible: false,
                        number,
                    });
                }
            }
            busy.is_none()
        });
        match busy {
            Some(busy) => Err(busy),
            None => Ok(OperationLock {
                holder: self.holder.clone(),
                number,
            }),
        }
    }
}

/// The right to change the machine, until it is dropped.
#[derive(Debug)]
pub struct OperationLock {
    holder: watch::Sender<Option<Holder>>,
    number: u64,
}

impl OperationLock {
    /// Passes the lock on to the next operation: no other operation gets it in between.
    #[must_use]
    pub fn hand_over(self, operation: Operation) -> Self {
        self.change(|holder| {
            holder.operation = operation;
            holder.since = Instant::now();
        });
        self
    }

    /// Runs a step that changes nothing on the machine. A more urgent operation may take the lock meanwhile (see [`Operations::seize`]):
    /// then the step is dropped.
    ///
    /// # Errors
    /// Another operation has taken the lock: this one has to end at once.
    pub async fn interruptible<T>(&self, step: impl Future<Output = T>) -> Result<T, Interrupted> {
        self.mark(true)?;
        tokio::select! {
            biased;
            interrupted = self.lost() => Err(interrupted),
            done = step => self.mark(false).map(|()| done),
        }
    }

    fn mark(&self, interruptible: bool) -> Result<(), Interrupted> {
        match self.change(|holder| holder.interruptible = interruptible) {
            true => Ok(()),
            false => Err(Interrupted {
                by: self.holder.borrow().map(|holder| holder.operation),
            }),
        }
    }

    /// Waits until another holder has the lock.
    async fn lost(&self) -> Interrupted {
        let mut holder = self.holder.subscribe();
        let is_lost =
            |holder: &Option<Holder>| holder.is_none_or(|holder| holder.number != self.number);
        // The sender lives in `self`, so this cannot fail.
        let now = holder.wait_for(is_lost).await;
        Interrupted {
            by: now.ok().and_then(|now| now.map(|holder| holder.operation)),
        }
    }

    /// Changes this holder's entry; false if another holder has the lock.
    fn change(&self, change: impl FnOnce(&mut Holder)) -> bool {
        self.holder.send_if_modified(|holder| match holder {
            Some(holder) if holder.number == self.number => {
                change(holder);
                true
            }
            _ => false,
        })
    }
}

impl Drop for OperationLock {
    fn drop(&mut self) {
        self.holder.send_if_modified(|holder| {
            let is_ours = holder.is_some_and(|holder| holder.number == self.number);
            if is_ours {
                *holder = None;
            }
            is_ours
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::future::{pending, ready};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    fn holder(operations: &Operations) -> Option<Operation> {
        operations.watch().borrow().map(|holder| holder.operation)
    }

    #[tokio::test(start_paused = true)]
    async fn the_second_one_is_told_which_one_runs() {
        let operations = Operations::default();
        let first = operations.lock(Operation::ApplyConfig).unwrap();
        tokio::time::advance(Duration::from_secs(3)).await;
        let busy = operations.lock(Operation::Reboot).unwrap_err();
        assert_eq!(
            busy.to_string(),
            "the machine is busy: apply-config has been running for 3 s; try again when it has ended"
        );
        drop(first);
        assert!(operations.lock(Operation::Reboot).is_ok());
        assert_eq!(holder(&operations), None);
    }

    #[tokio::test(start_paused = true)]
    async fn asking_whether_it_is_free_disturbs_nobody() {
        let operations = Operations::default();
        let mut changes = operations.watch();
        changes.borrow_and_update();
        assert_eq!(operations.check_free(), Ok(()));
        assert!(!changes.has_changed().unwrap());
        let _first = operations.lock(Operation::Reset).unwrap();
        let told = operations.check_free().unwrap_err();
        assert_eq!(told, operations.lock(Operation::Upgrade).unwrap_err());
    }

    #[tokio::test(start_paused = true)]
    async fn handed_over_it_is_never_free() {
        let operations = Operations::default();
        let mut changes = operations.watch();
        let lock = operations.lock(Operation::Rollback).unwrap();
        changes.borrow_and_update();
        let lock = lock.hand_over(Operation::Reboot);
        assert_eq!(holder(&operations), Some(Operation::Reboot));
        assert!(operations.seize(Operation::Reset).is_err());
        drop(lock);
        assert_eq!(holder(&operations), None);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_gets_it_in_time_or_is_told_why_not() {
        let operations = Operations::default();
        let first = operations.lock(Operation::Upgrade).unwrap();
        let busy = operations
            .lock_within(Operation::MetaChange, LIMIT)
            .await
            .unwrap_err();
        assert_eq!(
            (busy.operation, busy.running_for),
            (Operation::Upgrade, LIMIT)
        );
        let waits = operations.clone();
        let waiting =
            tokio::spawn(async move { waits.lock_within(Operation::MetaChange, LIMIT).await });
        tokio::time::sleep(LIMIT / 2).await;
        drop(first);
        assert!(waiting.await.unwrap().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_step_that_changes_nothing_is_given_up() {
        let operations = Operations::default();
        let upgrade = operations.lock(Operation::Upgrade).unwrap();
        assert!(operations.seize(Operation::Reset).is_err());
        assert_eq!(upgrade.interruptible(ready(7)).await, Ok(7));
        assert!(operations.seize(Operation::Reset).is_err());

        let seizes = operations.clone();
        let pulling = tokio::spawn(async move {
            let given_up = upgrade.interruptible(pending::<()>()).await;
            (given_up, upgrade)
        });
        tokio::task::yield_now().await;
        let busy = operations.lock(Operation::ApplyConfig).unwrap_err();
        assert!(busy.to_string().contains("with force"), "{busy}");
        let reset = seizes.seize(Operation::Reset).unwrap();
        let (given_up, upgrade) = pulling.await.unwrap();
        let by = Some(Operation::Reset);
        assert_eq!(given_up, Err(Interrupted { by }));
        // Its lock is worthless now.
        assert_eq!(
            upgrade.interruptible(ready(())).await,
            Err(Interrupted { by })
        );
        drop(upgrade.hand_over(Operation::Reboot));
        assert_eq!(holder(&operations), by);
        drop(reset);
        assert_eq!(holder(&operations), None);
    }
}
