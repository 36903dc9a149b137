//! The loop: looks, has the engine decide, saves, and acts.
//!
//! Each round changes the record in one step that is saved before anything is sent. So the driver may be killed at any moment; the next one
//! finds what was intended.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use instar_client::Failure;
use instar_rollout::{
    Action, Decision, Facts, MachineName, Moment, Record, Report, Seconds, TracedRound,
};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::pauses::Pauses;
use crate::time_left::time_left;

/// The time that an order has beyond that of its machine, to tell how it ended.
const TO_TELL: Duration = Duration::from_secs(60);

/// This moment by the driver's clock.
pub fn now() -> Moment {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    Moment(since.unwrap_or_default().as_secs())
}

/// Where the record of a rollout is kept.
pub trait Store {
    /// Reads the record.
    fn read(&self) -> impl Future<Output = Result<Record, Failure>>;

    /// Changes the record, alone, and saves it. `change` may be called again on a newer record, if another one was saved meanwhile.
    fn change<T>(
        &self,
        change: impl FnMut(&mut Record) -> T,
    ) -> impl Future<Output = Result<(T, Record), Failure>>;

    /// Whether this driver may send what it has saved: another one may have taken over meanwhile.
    fn may_act(&self) -> bool;
}

/// The carrying out of one action. Without a report the facts show what came of it.
pub type Task = Pin<Box<dyn Future<Output = Option<Report>>>>;

/// The machines of a rollout.
pub trait Machines {
    /// Looks at all machines. Those that are `busy` with an action of this driver need not be asked.
    fn look(
        &mut self,
        record: &Record,
        busy: &BTreeSet<MachineName>,
    ) -> impl Future<Output = Facts>;

    /// Begins an action; none if the machine cannot be asked now.
    fn ask(&mut self, action: &Action, record: &Record) -> Option<Task>;
}

/// The result of a round.
#[derive(Debug)]
pub struct Round {
    /// The engine's decision, with its reasons.
    pub decision: Decision,
    /// The record as it is saved.
    pub record: Record,
    /// The facts of the round.
    pub facts: Facts,
    /// The round as a trace has it.
    pub traced: TracedRound,
}

/// An action that has ended, and what there is to report of it.
#[derive(Debug)]
pub struct Ended(Option<(Action, Option<Report>)>);

/// A driver of one rollout. It has to run in a `LocalSet`.
#[derive(Debug)]
pub struct Driver<S, M> {
    store: S,
    machines: M,
    tasks: JoinSet<(Action, Option<Report>)>,
    /// Machines that a task of this driver is about.
    asked: BTreeSet<MachineName>,
    /// Machines whose last order came to nothing definite.
    pauses: Pauses,
    clock: fn() -> Moment,
    /// The time of the clock at the last save; none before the first one. The other clock is never set, and stands while the computer sleeps.
    saved: Option<(Moment, Instant)>,
}

impl<S: Store, M: Machines> Driver<S, M> {
    /// A driver that has not begun.
    pub fn new(store: S, machines: M) -> Self {
        Self {
            store,
            machines,
            tasks: JoinSet::new(),
            asked: BTreeSet::new(),
            pauses: Pauses::default(),
            clock: now,
            saved: None,
        }
    }

    /// One round: facts in, intents out, saved, and then asked.
    ///
    /// # Errors
    /// The record could not be read or saved; nothing was asked.
    pub async fn round(&mut self) -> Result<Round, Failure> {
        let record = self.store.read().await?;
        let changes = |name: &&MachineName| {
            let entry = record.machines.get(*name);
            entry.is_some_and(|entry| entry.step.is_under_way())
        };
        let busy = self.asked.iter().filter(changes).cloned().collect();
        let facts = self.machines.look(&record, &busy).await;
        // Who is not to be asked yet is not intended to be asked either.
        let mut asked = self.asked.clone();
        asked.extend(self.pauses.at(Instant::now()));
        let changed = self.change(|record, now| TracedRound::go_on(record, &facts, &asked, now));
        let ((decision, traced), record) = changed.await?;
        self.act(&decision, &record);
        Ok(Round {
            decision,
            record,
            facts,
            traced,
        })
    }

    /// Changes the record at this moment. Time that nobody watched does not count: neither that before this driver took over, nor a step of its clock.
    async fn change<T>(
        &mut self,
        mut change: impl FnMut(&mut Record, Moment) -> T,
    ) -> Result<(T, Record), Failure> {
        let (now, at) = ((self.clock)(), Instant::now());
        let since = |(saved, at): (Moment, Instant)| saved.after(Seconds(at.elapsed().as_secs()));
        let expected = self.saved.map(since);
        let changed = self.store.change(|record| {
            let before = record.revision;
            if let Some(expected) = expected.or(record.saved_at) {
                record.skip_unwatched(expected, now);
            }
            let result = change(record, now);
            record.note_save(before, now);
            result
        });
        let changed = changed.await?;
        self.saved = Some((now, at));
        Ok(changed)
    }

    fn act(&mut self, decision: &Decision, record: &Record) {
        // The time between this look and the request is not in the model.
        if !self.store.may_act() {
            return;
        }
        for action in &decision.actions {
            // A machine that cannot be asked now is asked in a later round.
            if let Some(task) = self.machines.ask(action, record) {
                self.asked.insert(action.machine().clone());
                let left = time_left(record, action.machine(), (self.clock)());
                let action = action.clone();
                self.tasks.spawn_local(async move {
                    // A machine that says nothing more has failed by then, and must not keep its rollout from its end.
                    let told = timeout(left + TO_TELL, task).await;
                    (action, told.ok().flatten())
                });
            }
        }
    }

    /// Whether no action of this driver is under way.
    pub fn is_idle(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Waits until an action of this driver has ended; for ever if there is none. The future may be dropped at any time.
    pub async fn ended(&mut self) -> Ended {
        match self.tasks.join_next().await {
            Some(Ok(ended)) => Ended(Some(ended)),
            Some(Err(_)) => Ended(None),
            None => std::future::pending().await,
        }
    }

    /// Saves the report of an action that has ended.
    ///
    /// # Errors
    /// It could not be saved: the facts of the next rounds have to show what came of the action.
    pub async fn note(&mut self, ended: Ended) -> Result<(), Failure> {
        let Some((action, report)) = ended.0 else {
            return Ok(());
        };
        self.asked.remove(action.machine());
        match report {
            Some(Report::Done | Report::Failed(_)) => self.pauses.end(action.machine()),
            Some(Report::NotAsked) | None => self.pauses.begin(action.machine(), Instant::now()),
        }
        let Some(report) = report else {
            return Ok(());
        };
        let report = |record: &mut Record, now| record.report(&action, report.clone(), now);
        self.change(report).await.map(|_| ())
    }

    /// The machines.
    pub fn machines(&mut self) -> &mut M {
        &mut self.machines
    }
}

#[cfg(test)]
mod tests;
