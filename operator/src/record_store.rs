//! The records of a pool in its status: that of the newest rollout, which a driver works on, and that of the other kind, which is set aside.
//!
//! The object is replaced only over the version that it was read with. After a conflict it is read again: mostly a person has changed the pool,
//! and the record is the same.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use instar_client::Failure;
use instar_rollout::{Moment, Record, Step};
use instar_rollout_driver::Store;
use kube::Api;
use kube::api::PostParams;
use tokio::time::timeout;

use crate::api::{Kind, Pool, PoolSpec, PoolStatus, Rollout};
use crate::failure::Error;
use crate::lease::Leadership;
use crate::left_behind;
use crate::rollouts;
use crate::turns::Next;

/// Timeout of one call, below the time that a lease gives.
const CALL: Duration = Duration::from_secs(8);
/// Conflicts in a row before the change is given up until the next round.
const CONFLICTS: usize = 5;

/// The status of one pool.
#[derive(Clone)]
pub(crate) struct RecordStore {
    api: Api<Pool>,
    name: String,
    lease: Rc<Leadership>,
    /// The object as it was read or written last; none if that is not known.
    kept: Rc<RefCell<Option<Pool>>>,
}

/// The status of a pool and the records in it, to be changed together.
#[derive(Clone, PartialEq)]
pub(crate) struct Kept {
    pub(crate) status: PoolStatus,
    /// That of the newest rollout.
    pub(crate) record: Option<Record>,
    /// That of the rollout that is set aside.
    aside: Option<Record>,
}

impl Kept {
    /// Reads the status of a pool.
    pub(crate) fn of(status: PoolStatus) -> Result<Self, Error> {
        Ok(Self {
            record: record(&status)?,
            aside: read(status.set_aside.as_ref())?,
            status,
        })
    }

    /// The newest rollout.
    pub(crate) fn newest(&self) -> Option<(&Rollout, &Record)> {
        self.status.rollout.as_ref().zip(self.record.as_ref())
    }

    /// The last rollout of a kind.
    pub(crate) fn last(&self, kind: Kind) -> Option<(&Rollout, &Record)> {
        let aside = self.status.set_aside.as_ref().zip(self.aside.as_ref());
        let both = [self.newest(), aside].into_iter().flatten();
        both.into_iter().find(|(rollout, _)| rollout.kind() == kind)
    }

    /// The number of the rollout that begins next.
    pub(crate) fn next_number(&self) -> u32 {
        let both = [&self.status.rollout, &self.status.set_aside];
        let numbers = both.into_iter().flatten().map(|rollout| rollout.number);
        numbers.max().map_or(1, |number| number + 1)
    }

    /// Makes a rollout the newest one. That of the other kind is set aside. Nodes that failed at the version before, and have no part in this one,
    /// are remembered.
    pub(crate) fn begin(&mut self, rollout: Rollout, record: Record) {
        if rollout.kind() == Kind::Version {
            let last = self.last(Kind::Version).map(|(_, record)| record);
            let left = left_behind::when_begins(&self.status.left_behind, last, &record);
            self.status.left_behind = left;
        }
        let is_same = self.status.rollout.as_ref().map(Rollout::kind) == Some(rollout.kind());
        let command = self.command();
        if !is_same && self.status.rollout.is_some() {
            self.status.set_aside = self.status.rollout.take().map(without_command);
            self.aside = self.record.take().map(at_rest);
        }
        self.status.rollout = Some(Rollout { command, ..rollout });
        self.record = Some(record);
    }

    /// The command that has been carried out: the next rollout does not carry it out again while its annotation is there.
    fn command(&self) -> Option<String> {
        self.status.rollout.as_ref()?.command.clone()
    }

    /// The value of `spec.approvedWaves` before a rollout that begins now.
    pub(crate) fn approved_before(&self, kind: Kind, next: Next, spec: &PoolSpec) -> u32 {
        let is_newest = self.newest().is_some_and(|(it, _)| it.kind() == kind);
        match (next, self.last(kind)) {
            (Next::Again, Some((rollout, _))) if is_newest => rollout.approved_before,
            (Next::Again, Some((_, record))) => rollouts::approved_before_it_goes_on(spec, record),
            (Next::Again, None) | (Next::Another, _) => spec.approved_waves,
        }
    }

    /// Makes the rollout that is set aside the newest one, and sets that one aside. The time in between does not count: nobody watched its nodes.
    pub(crate) fn take_up(&mut self, spec: &PoolSpec, now: Moment) {
        let command = self.command();
        if let (Some(rollout), Some(record)) = (&mut self.status.set_aside, &mut self.aside) {
            if let Some(saved) = record.saved_at {
                record.skip_unwatched(saved, now);
                // A driver that takes over from here leaves no time out twice.
                record.saved_at = Some(now);
            }
            record.stalled = None;
            rollout.command = command;
            rollout.approved_before = rollouts::approved_before_it_goes_on(spec, record);
            let newest = self.status.rollout.take().map(without_command);
            self.status.rollout = std::mem::replace(&mut self.status.set_aside, newest);
            let newest = self.record.take().map(at_rest);
            self.record = std::mem::replace(&mut self.aside, newest);
        }
    }

    /// Writes the records into the status.
    fn write(&mut self) -> Result<(), Error> {
        let status = &mut self.status;
        for (rollout, record) in [
            (&mut status.rollout, &self.record),
            (&mut status.set_aside, &self.aside),
        ] {
            if let (Some(rollout), Some(record)) = (rollout, record) {
                rollout.record = serde_json::to_value(record)
                    .map_err(|error| Error::Other(format!("the record: {error}")))?;
            }
        }
        Ok(())
    }
}

/// A person's next command is for it again, whatever was carried out before it was set aside.
fn without_command(rollout: Rollout) -> Rollout {
    Rollout {
        command: None,
        ..rollout
    }
}

/// The record of a rollout that nobody drives. Nobody follows a node that is to fetch the image: it is asked again.
fn at_rest(mut record: Record) -> Record {
    for entry in record.machines.values_mut() {
        if matches!(entry.step, Step::Preparing { .. }) {
            entry.step = Step::Waiting;
        }
    }
    record
}

/// The record of the newest rollout in the status of a pool; none without a rollout.
pub(crate) fn record(status: &PoolStatus) -> Result<Option<Record>, Error> {
    read(status.rollout.as_ref())
}

fn read(rollout: Option<&Rollout>) -> Result<Option<Record>, Error> {
    let record = rollout.map(|rollout| {
        let record: Record = serde_json::from_value(rollout.record.clone())
            .map_err(|error| Error::Other(format!("the record cannot be read: {error}")))?;
        let checked = record.check();
        checked.map_err(|error| Error::Other(format!("the record cannot be used: {error}")))?;
        Ok(record)
    });
    record.transpose()
}

impl RecordStore {
    pub(crate) fn new(api: Api<Pool>, name: &str, lease: Rc<Leadership>) -> Self {
        Self {
            api,
            name: name.to_owned(),
            lease,
            kept: Rc::default(),
        }
    }

    /// The status of the pool and its records, as they are kept.
    pub(crate) async fn kept(&self) -> Result<Kept, Error> {
        Kept::of(self.pool().await?.status.unwrap_or_default())
    }

    /// Changes the status and the record, and saves them if they differ.
    pub(crate) async fn update<T>(
        &self,
        mut change: impl FnMut(&mut Kept) -> T,
    ) -> Result<(T, Kept), Error> {
        for _ in 0..CONFLICTS {
            let mut pool = self.pool().await?;
            let before = Kept::of(pool.status.clone().unwrap_or_default())?;
            let mut kept = before.clone();
            let result = change(&mut kept);
            if kept == before {
                return Ok((result, kept));
            }
            if !self.lease.is_held() {
                return Err(Error::Other("another process has the lease".to_owned()));
            }
            kept.write()?;
            pool.status = Some(kept.status.clone());
            match self.write(&pool).await {
                Ok(written) => {
                    *self.kept.borrow_mut() = Some(written);
                    return Ok((result, kept));
                }
                Err(error) => {
                    // It may have been written even so.
                    *self.kept.borrow_mut() = None;
                    if error.code() != Some(409) {
                        return Err(error);
                    }
                }
            }
        }
        Err(Error::Other(format!(
            "pool {}: others change it all the time",
            self.name
        )))
    }

    async fn pool(&self) -> Result<Pool, Error> {
        if let Some(pool) = self.kept.borrow().clone() {
            return Ok(pool);
        }
        let doing = format!("pool {} cannot be read", self.name);
        let read = self.api.get(&self.name);
        let pool = in_time(read).await?.map_err(Error::calling(doing))?;
        *self.kept.borrow_mut() = Some(pool.clone());
        Ok(pool)
    }

    async fn write(&self, pool: &Pool) -> Result<Pool, Error> {
        let doing = format!("the status of pool {} cannot be written", self.name);
        let parameters = PostParams::default();
        let written = self.api.replace_status(&self.name, &parameters, pool);
        in_time(written).await?.map_err(Error::calling(doing))
    }
}

async fn in_time<T>(call: impl Future<Output = T>) -> Result<T, Error> {
    let late = |_| {
        Error::Other(format!(
            "no answer of the API server within {} s",
            CALL.as_secs()
        ))
    };
    timeout(CALL, call).await.map_err(late)
}

fn missing() -> Failure {
    Error::Other("the pool has no rollout".to_owned()).into()
}

impl Store for RecordStore {
    async fn read(&self) -> Result<Record, Failure> {
        self.kept().await?.record.ok_or_else(missing)
    }

    async fn change<T>(
        &self,
        mut change: impl FnMut(&mut Record) -> T,
    ) -> Result<(T, Record), Failure> {
        let changed = self
            .update(|kept| kept.record.as_mut().map(&mut change))
            .await?;
        let (result, kept) = changed;
        result.zip(kept.record).ok_or_else(missing)
    }

    fn may_act(&self) -> bool {
        self.lease.is_held()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use instar_rollout::{MachineName, Member, Phase, Policy, Release};
    use serde_json::json;

    use super::*;

    fn record(version: &str) -> Record {
        let target = Release {
            version: version.to_owned(),
            digest: None,
            image: None,
        };
        let members = [(MachineName::from("n1"), Member::default())];
        Record::begin(target, vec![Policy::default()], members.into()).unwrap()
    }

    fn rollout(number: u32, patches: &[&str]) -> Rollout {
        Rollout {
            number,
            config_patches: patches.iter().map(|text| (*text).to_owned()).collect(),
            ..Rollout::default()
        }
    }

    fn spec(approved_waves: u32) -> PoolSpec {
        let spec = json!({"nodeSelector": {}, "approvedWaves": approved_waves});
        serde_json::from_value(spec).unwrap()
    }

    /// The newest rollout, and the one that is set aside, each as `number version`.
    fn shown(kept: &Kept) -> [String; 2] {
        let of = |rollout: &Option<Rollout>, record: &Option<Record>| match (rollout, record) {
            (Some(rollout), Some(record)) => {
                format!("{} {}", rollout.number, record.target.version)
            }
            _ => "-".to_owned(),
        };
        [
            of(&kept.status.rollout, &kept.record),
            of(&kept.status.set_aside, &kept.aside),
        ]
    }

    #[test]
    fn a_rollout_of_the_other_kind_is_set_aside_as_it_was() {
        let mut kept = Kept::of(PoolStatus::default()).unwrap();
        assert_eq!(kept.next_number(), 1);
        kept.begin(rollout(1, &[]), record("v1"));
        kept.begin(rollout(2, &[]), record("v2"));
        assert_eq!(shown(&kept), ["2 v2", "-"]);
        kept.begin(rollout(3, &["{}"]), record("config 1"));
        assert_eq!(shown(&kept), ["3 config 1", "2 v2"]);
        assert_eq!(kept.last(Kind::Version).unwrap().0.number, 2);
        kept.record.as_mut().unwrap().phase = Phase::Halted {
            why: "n1".to_owned(),
        };
        kept.begin(rollout(4, &[]), record("v3"));
        assert_eq!(shown(&kept), ["4 v3", "3 config 1"]);
        kept.take_up(&spec(0), Moment(1));
        assert_eq!(shown(&kept), ["3 config 1", "4 v3"]);
        assert!(matches!(
            kept.record.as_ref().unwrap().phase,
            Phase::Halted { .. }
        ));
        assert_eq!(kept.next_number(), 5);
    }

    #[test]
    fn a_command_is_carried_out_once_also_if_another_rollout_comes_next() {
        let mut kept = Kept::of(PoolStatus::default()).unwrap();
        kept.begin(rollout(1, &[]), record("v1"));
        kept.status.rollout.as_mut().unwrap().command = Some("resume".to_owned());
        let commands = |kept: &Kept| {
            let both = [&kept.status.rollout, &kept.status.set_aside];
            both.map(|rollout| rollout.as_ref().and_then(|it| it.command.clone()))
        };
        kept.begin(rollout(2, &["{}"]), record("config 1"));
        assert_eq!(commands(&kept), [Some("resume".to_owned()), None]);
        kept.take_up(&spec(0), Moment(1));
        assert_eq!(commands(&kept), [Some("resume".to_owned()), None]);
    }

    #[test]
    fn time_in_which_a_rollout_was_set_aside_does_not_count() {
        let name = MachineName::from("n1");
        let (saved, hour) = (Moment(1_000_000), 3600);
        let mut config = record("config 1");
        config.saved_at = Some(saved);
        config.stalled = Some(Moment(saved.0 - 60));
        config.machines.get_mut(&name).unwrap().step = Step::Updated {
            at: Moment(saved.0 - 100),
        };
        let mut kept = Kept::of(PoolStatus::default()).unwrap();
        kept.begin(rollout(1, &["{}"]), config);
        kept.begin(rollout(2, &[]), record("v2"));
        // What is set aside is saved and read in between.
        kept.write().unwrap();
        let mut kept = Kept::of(kept.status).unwrap();
        let now = Moment(saved.0 + hour);
        kept.take_up(&spec(0), now);
        let taken = kept.record.unwrap();
        let at = Moment(now.0 - 100);
        assert_eq!(taken.machines[&name].step, Step::Updated { at });
        assert_eq!((taken.stalled, taken.saved_at), (None, Some(now)));
    }

    #[test]
    fn both_records_are_in_the_status() {
        let mut kept = Kept::of(PoolStatus::default()).unwrap();
        kept.begin(rollout(1, &[]), record("v1"));
        kept.begin(rollout(2, &["{}"]), record("config 1"));
        kept.write().unwrap();
        let text = serde_json::to_string(&kept.status).unwrap();
        let read = Kept::of(serde_json::from_str(&text).unwrap()).unwrap();
        assert_eq!(shown(&read), ["2 config 1", "1 v1"]);
    }

    #[test]
    fn the_status_of_an_older_operator_has_a_version_alone() {
        let status = json!({"rollout": {"number": 7, "image": "r/i:v1", "record": record("v1")}});
        let kept = Kept::of(serde_json::from_value(status).unwrap()).unwrap();
        assert_eq!(shown(&kept), ["7 v1", "-"]);
        assert_eq!(kept.newest().unwrap().0.kind(), Kind::Version);
        assert!(kept.last(Kind::Config).is_none());
    }

    #[test]
    fn a_node_that_was_to_fetch_the_image_is_asked_again() {
        let mut kept = Kept::of(PoolStatus::default()).unwrap();
        let name = MachineName::from("n1");
        let mut prepares = record("v1");
        prepares.machines.get_mut(&name).unwrap().step = Step::Preparing { since: Moment(1) };
        kept.begin(rollout(1, &[]), prepares);
        kept.begin(rollout(2, &["{}"]), record("config 1"));
        assert_eq!(
            kept.aside.as_ref().unwrap().machines[&name].step,
            Step::Waiting
        );
    }

    #[test]
    fn an_approval_is_for_one_version_or_one_config() {
        let mut kept = Kept::of(PoolStatus::default()).unwrap();
        let version = Rollout {
            approved_before: 1,
            ..rollout(1, &[])
        };
        kept.begin(version, record("v1"));
        let before = |kept: &Kept, kind, next| kept.approved_before(kind, next, &spec(3));
        assert_eq!(before(&kept, Kind::Version, Next::Again), 1);
        assert_eq!(before(&kept, Kind::Version, Next::Another), 3);
        assert_eq!(before(&kept, Kind::Config, Next::Another), 3);
        // The version has two approvals; all that come while it is set aside are for the config.
        kept.record.as_mut().unwrap().approved = 2;
        kept.begin(rollout(2, &["{}"]), record("config 1"));
        assert_eq!(
            kept.approved_before(Kind::Version, Next::Again, &spec(7)),
            5
        );
        kept.take_up(&spec(7), Moment(1));
        assert_eq!(kept.status.rollout.as_ref().unwrap().approved_before, 5);
    }
}
