//! The record of a rollout in the status of its pool.
//!
//! The object is replaced only over the version that it was read with. After a conflict it is read again: mostly a person has changed the pool,
//! and the record is the same.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use instar_client::Failure;
use instar_rollout::Record;
use instar_rollout_driver::Store;
use kube::Api;
use kube::api::PostParams;
use tokio::time::timeout;

use crate::api::{Pool, PoolStatus};
use crate::failure::Error;
use crate::lease::Leadership;

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

/// The status of a pool and the record in it, to be changed together.
#[derive(Clone, PartialEq)]
pub(crate) struct Kept {
    pub(crate) status: PoolStatus,
    pub(crate) record: Option<Record>,
}

impl Kept {
    fn of(pool: &Pool) -> Result<Self, Error> {
        let status = pool.status.clone().unwrap_or_default();
        let record = record(&status)?;
        Ok(Self { status, record })
    }
}

/// The record in the status of a pool; none without a rollout.
pub(crate) fn record(status: &PoolStatus) -> Result<Option<Record>, Error> {
    let record = status.rollout.as_ref().map(|rollout| {
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

    /// What is kept.
    pub(crate) async fn kept(&self) -> Result<Kept, Error> {
        Kept::of(&self.pool().await?)
    }

    /// Changes the status and the record, and saves them if they differ.
    pub(crate) async fn update<T>(
        &self,
        mut change: impl FnMut(&mut Kept) -> T,
    ) -> Result<(T, Kept), Error> {
        for _ in 0..CONFLICTS {
            let mut pool = self.pool().await?;
            let before = Kept::of(&pool)?;
            let mut kept = before.clone();
            let result = change(&mut kept);
            if kept == before {
                return Ok((result, kept));
            }
            if !self.lease.is_held() {
                return Err(Error::Other("another process has the lease".to_owned()));
            }
            if let (Some(rollout), Some(record)) = (&mut kept.status.rollout, &kept.record) {
                rollout.record = serde_json::to_value(record)
                    .map_err(|error| Error::Other(format!("the record: {error}")))?;
            }
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
