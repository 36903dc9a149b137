//! The order of a round: saved before it is asked, and not asked without the right to.
#![allow(clippy::unwrap_used)]

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use instar_rollout::{Condition, Fact, Member, Phase, Policy, Release, Seconds, Step};
use tokio::task::LocalSet;

use super::*;

fn release(version: &str) -> Release {
    Release {
        version: version.to_owned(),
        digest: None,
        image: Some(format!("r/i:{version}")),
    }
}

/// A store in memory.
#[derive(Clone)]
struct Kept {
    record: Rc<RefCell<Record>>,
    holds_the_lease: Rc<Cell<bool>>,
}

impl Kept {
    fn of(names: &[&str]) -> Self {
        let members = names
            .iter()
            .map(|name| (MachineName::from(*name), Member::default()));
        let policies = vec![Policy {
            at_once: std::num::NonZeroU32::new(1),
            ..Policy::default()
        }];
        let record = Record::begin(release("v2"), policies, members.collect()).unwrap();
        Self {
            record: Rc::new(RefCell::new(record)),
            holds_the_lease: Rc::new(Cell::new(true)),
        }
    }
}

impl Store for Kept {
    async fn read(&self) -> Result<Record, Failure> {
        Ok(self.record.borrow().clone())
    }

    async fn change<T>(
        &self,
        mut change: impl FnMut(&mut Record) -> T,
    ) -> Result<(T, Record), Failure> {
        let result = change(&mut self.record.borrow_mut());
        Ok((result, self.record.borrow().clone()))
    }

    fn may_act(&self) -> bool {
        self.holds_the_lease.get()
    }
}

/// Machines that do at once as they are asked.
#[derive(Clone)]
struct Obedient {
    kept: Kept,
    facts: Rc<RefCell<Facts>>,
    asked: Rc<RefCell<Vec<Action>>>,
}

impl Obedient {
    fn of(kept: &Kept) -> Self {
        let ready = Fact {
            condition: Condition::Ready,
            running: Some(release("v1")),
            ..Fact::away("")
        };
        let names = kept
            .record
            .borrow()
            .machines
            .keys()
            .cloned()
            .collect::<Vec<_>>();
        let facts = names.into_iter().map(|name| (name, ready.clone()));
        Self {
            kept: kept.clone(),
            facts: Rc::new(RefCell::new(facts.collect())),
            asked: Rc::default(),
        }
    }
}

impl Machines for Obedient {
    async fn look(&mut self, _: &Record, _: &BTreeSet<MachineName>) -> Facts {
        self.facts.borrow().clone()
    }

    fn ask(&mut self, action: &Action, _: &Record) -> Option<Task> {
        let saved = self.kept.record.borrow();
        let entry = &saved.machines[action.machine()];
        assert!(
            matches!(entry.step, Step::Switching { .. }),
            "asked before it was saved"
        );
        self.asked.borrow_mut().push(action.clone());
        let (facts, name) = (self.facts.clone(), action.machine().clone());
        Some(Box::pin(async move {
            if let Some(fact) = facts.borrow_mut().get_mut(&name) {
                fact.running = Some(release("v2"));
            }
            None
        }))
    }
}

#[tokio::test]
async fn each_machine_is_asked_once_after_its_intent_was_saved() {
    let kept = Kept::of(&["n1", "n2", "n3"]);
    let machines = Obedient::of(&kept);
    let asked = machines.asked.clone();
    let mut driver = Driver::new(kept.clone(), machines);
    let drive = async {
        loop {
            let round = driver.round().await.unwrap();
            if round.record.has_ended() {
                return round.record.phase;
            }
            let ended = driver.ended().await;
            driver.note(ended).await.unwrap();
        }
    };
    assert_eq!(LocalSet::new().run_until(drive).await, Phase::Done);
    assert_eq!(asked.borrow().len(), 3);
}

#[tokio::test]
async fn a_driver_without_its_lease_saves_and_asks_nobody() {
    let kept = Kept::of(&["n1"]);
    let machines = Obedient::of(&kept);
    kept.holds_the_lease.set(false);
    let asked = machines.asked.clone();
    let mut driver = Driver::new(kept.clone(), machines);
    LocalSet::new().run_until(driver.round()).await.unwrap();
    assert!(asked.borrow().is_empty() && driver.is_idle());
    // The next driver finds the intent, and asks.
    kept.holds_the_lease.set(true);
    LocalSet::new().run_until(driver.round()).await.unwrap();
    assert_eq!(asked.borrow().len(), 1);
}

/// Machines whose orders end at once, and came to nothing.
struct Hindered(Obedient, Option<Report>);

impl Machines for Hindered {
    async fn look(&mut self, _: &Record, _: &BTreeSet<MachineName>) -> Facts {
        self.0.facts.borrow().clone()
    }

    fn ask(&mut self, action: &Action, _: &Record) -> Option<Task> {
        self.0.asked.borrow_mut().push(action.clone());
        let report = self.1.clone();
        Some(Box::pin(async move { report }))
    }
}

#[tokio::test]
async fn an_order_that_fails_at_once_is_not_given_again_without_a_pause() {
    for (report, word) in [(None, "upgrading"), (Some(Report::NotAsked), "waiting")] {
        let kept = Kept::of(&["n1"]);
        let machines = Hindered(Obedient::of(&kept), report);
        let asked = machines.0.asked.clone();
        let mut driver = Driver::new(kept.clone(), machines);
        let drive = async {
            driver.round().await.unwrap();
            let ended = driver.ended().await;
            driver.note(ended).await.unwrap();
            for _ in 0..10 {
                driver.round().await.unwrap();
            }
        };
        LocalSet::new().run_until(drive).await;
        assert_eq!(asked.borrow().len(), 1);
        // Who waits for its turn takes no place as one that is under way.
        let record = kept.record.borrow();
        let step = &record.machines[&MachineName::from("n1")].step;
        assert_eq!(step.word(), word);
    }
}

/// Machines that say nothing to an order.
struct Silent(Obedient);

impl Machines for Silent {
    async fn look(&mut self, _: &Record, _: &BTreeSet<MachineName>) -> Facts {
        self.0.facts.borrow().clone()
    }

    fn ask(&mut self, _: &Action, _: &Record) -> Option<Task> {
        Some(Box::pin(std::future::pending()))
    }
}

#[tokio::test(start_paused = true)]
async fn an_order_ends_soon_after_the_time_of_its_machine() {
    let kept = Kept::of(&["n1"]);
    let machines = Silent(Obedient::of(&kept));
    let mut driver = Driver::new(kept, machines);
    let patience = Duration::from_secs(Policy::default().patience.0);
    let drive = async {
        driver.round().await.unwrap();
        assert!(timeout(patience, driver.ended()).await.is_err());
        let ended = timeout(2 * TO_TELL, driver.ended()).await.unwrap();
        driver.note(ended).await.unwrap();
        driver.is_idle()
    };
    assert!(LocalSet::new().run_until(drive).await);
}

fn ahead() -> Moment {
    now().after(Seconds(5 * 3600))
}

fn behind() -> Moment {
    Moment(now().0 - 5 * 3600)
}

/// The phase after a round of a driver with this clock, on a machine that is silent, and how long ago the machine was asked by that clock.
async fn taken_over(kept: &Kept, clock: fn() -> Moment) -> (Phase, i128) {
    let mut machines = Obedient::of(kept);
    machines.facts = Rc::default();
    let mut driver = Driver::new(kept.clone(), machines);
    driver.clock = clock;
    let round = LocalSet::new().run_until(driver.round()).await.unwrap();
    let Step::Switching { since, .. } = round.record.machines[&MachineName::from("n1")].step else {
        panic!("{:?}", round.record.machines);
    };
    (
        round.record.phase,
        i128::from(clock().0) - i128::from(since.0),
    )
}

#[tokio::test]
async fn a_driver_by_another_clock_leaves_a_machine_its_patience() {
    let kept = Kept::of(&["n1"]);
    let machines = Obedient::of(&kept);
    kept.holds_the_lease.set(false);
    let mut first = Driver::new(kept.clone(), machines);
    LocalSet::new().run_until(first.round()).await.unwrap();
    for clock in [ahead as fn() -> Moment, behind, now] {
        let (phase, ago) = taken_over(&kept, clock).await;
        assert_eq!(phase, Phase::Rolling);
        assert!((0..60).contains(&ago), "{ago} s");
    }
}

#[tokio::test]
async fn a_clock_that_is_set_under_a_driver_changes_no_patience() {
    let kept = Kept::of(&["n1"]);
    let mut machines = Obedient::of(&kept);
    kept.holds_the_lease.set(false);
    LocalSet::new()
        .run_until(Driver::new(kept.clone(), machines.clone()).round())
        .await
        .unwrap();
    machines.facts = Rc::default();
    let mut driver = Driver::new(kept.clone(), machines);
    for clock in [now as fn() -> Moment, ahead, behind] {
        driver.clock = clock;
        let round = LocalSet::new().run_until(driver.round()).await.unwrap();
        assert_eq!(round.record.phase, Phase::Rolling);
    }
}
