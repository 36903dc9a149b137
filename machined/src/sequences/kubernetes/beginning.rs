//! The beginning of the cluster whose control plane is on this machine: a new one, or that of a snapshot.
//!
//! ```text
//! judged ──► the snapshot is checked ──► etcd's image is pulled ──► [ lock: judged again ──► etcdutl ──► judged again ──► put in place ]
//! ```
//!
//! Nothing is changed before the lock is held, so that a reboot or an upgrade need not wait for a registry.

use std::fs::File;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use instar_kubernetes_plan::State;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::sleep;
use tonic::Code;

use super::etcdutl;
use super::node_name::name_now;
use crate::base::blocking_io;
use crate::base::error_chain::chain;
use crate::config::{ControlPlane, Kubernetes};
use crate::containers::Runtime;
use crate::intent;
use crate::kubernetes::control_plane::beginning::{BootstrapMode, Data, Refused, Wanted, judge};
use crate::kubernetes::control_plane::etcd::Etcd;
use crate::kubernetes::control_plane::recovery::{self, UploadError};
use crate::kubernetes::control_plane::snapshot_file::{NotASnapshot, check};
use crate::kubernetes::control_plane::{begin, etcd_image, has_begun};
use crate::kubernetes::{KubernetesFact, kubelet_age};
use crate::machine::Machine;
use crate::oci::{Limits, VerifiedImage};
use crate::operation_lock::Interrupted;
use crate::services::Cgroup;
use crate::store::Store;
use crate::values::ImageReference;

/// The service that starts etcd.
const KUBELET: &str = "kubelet";
/// Questions to etcd, and the pause between two of them, before its silence is believed: one that keeps failing answers for moments.
const QUESTIONS: u32 = 3;
const PAUSE: Duration = Duration::from_secs(3);
/// Time limit for reading the largest snapshot whole.
const READING: Duration = Duration::from_secs(900);
/// The place of the snapshot: one call at a time writes or reads it.
static SNAPSHOT: Semaphore = Semaphore::const_new(1);

/// Why the cluster does not begin.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    /// It may not.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// EPHEMERAL is not there.
    #[error(
        "etcd has no place for its data: EPHEMERAL is not mounted, and the machine's status says why"
    )]
    NoPlace,
    /// Another call sends a snapshot, or begins the cluster.
    #[error(
        "another call is sending a snapshot, or beginning the cluster; try again when it has ended"
    )]
    Busy,
    /// The file is no snapshot.
    #[error("the file that was sent cannot be restored")]
    Snapshot(#[from] NotASnapshot),
    /// There is no room for the restored data.
    #[error(transparent)]
    Room(#[from] UploadError),
    /// The machine shuts down or reboots.
    #[error("the cluster does not begin")]
    Interrupted(#[from] Interrupted),
    /// etcd's image cannot be had, etcdutl failed, or the disk did.
    #[error(transparent)]
    Failed(#[from] anyhow::Error),
}

/// The place of the snapshot, held by one call.
pub struct SnapshotPlace(#[allow(dead_code)] SemaphorePermit<'static>);

impl SnapshotPlace {
    /// Takes the place.
    ///
    /// # Errors
    /// Another call has it, or EPHEMERAL is not there.
    pub fn take(machine: &Machine) -> Result<Self, BeginError> {
        if !machine.disk.status().borrow().var_mounted {
            return Err(BeginError::NoPlace);
        }
        let permit = SNAPSHOT.try_acquire().map_err(|_| BeginError::Busy)?;
        Ok(SnapshotPlace(permit))
    }
}

/// A beginning that is allowed, with all that it takes.
pub struct Prepared {
    way: BootstrapMode,
    /// etcd's image, if data are restored.
    image: Option<VerifiedImage>,
    with_digest: bool,
    _place: SnapshotPlace,
}

/// Judges whether the cluster may begin, checks the snapshot, and has etcd's image here. Changes nothing.
///
/// # Errors
/// It may not begin, or something is missing.
pub async fn prepare(
    machine: &Machine,
    plane: &ControlPlane,
    wanted: Wanted,
    with_digest: bool,
) -> Result<Prepared, BeginError> {
    let place = SnapshotPlace::take(machine)?;
    let way = match way(&machine.store, plane, wanted).await {
        Err(BeginError::Refused(Refused::Running)) => {
            // It takes room, holds all Secrets, and is of no use here.
            on_disk(recovery::forget_snapshot).await?;
            return Err(Refused::Running.into());
        }
        way => way?,
    };
    let image = match way {
        BootstrapMode::Empty => None,
        BootstrapMode::Restored | BootstrapMode::Replaced => {
            checked_or_removed(with_digest).await?;
            Some(image(machine, plane).await?)
        }
    };
    Ok(Prepared {
        way,
        image,
        with_digest,
        _place: place,
    })
}

/// Begins the cluster. The caller holds the operation lock.
///
/// # Errors
/// It may not begin any more, or the disk or etcdutl failed; then etcd's data are as before.
pub async fn begin_cluster(
    machine: &Machine,
    plane: &ControlPlane,
    prepared: Prepared,
) -> Result<(), BeginError> {
    let Some(image) = &prepared.image else {
        return begin_empty().await;
    };
    let restore = async {
        on_disk(recovery::clear).await?;
        let node = name_now(machine).await?;
        let restored = etcdutl::restore(machine, image, &node, prepared.with_digest).await;
        Ok(restored.context("restore the snapshot")?)
    };
    let ask = || way(&machine.store, plane, Wanted::FromSnapshot);
    let restored = restore_if_still(prepared.way, ask, restore).await;
    if matches!(restored, Err(BeginError::Refused(_)))
        && let Err(error) = on_disk(recovery::clear).await
    {
        tracing::warn!(
            "restored data of etcd that are of no use stay: {}",
            chain(&error)
        );
    }
    restored?;
    let replace = prepared.way == BootstrapMode::Replaced;
    on_disk(move || recovery::put_in_place(replace)).await?;
    tracing::info!("Kubernetes: the cluster begins from a snapshot");
    Ok(())
}

/// Restores data, if they may take their place in the way that was prepared. That is asked again after etcdutl, which may work for minutes: an
/// etcd that has come up meanwhile has taken writes.
async fn restore_if_still<F>(
    prepared: BootstrapMode,
    way: impl Fn() -> F,
    restore: impl Future<Output = Result<(), BeginError>>,
) -> Result<(), BeginError>
where
    F: Future<Output = Result<BootstrapMode, BeginError>>,
{
    let is_still = |way| match way == prepared {
        true => Ok(()),
        false => Err(BeginError::from(Refused::Begun)),
    };
    is_still(way().await?)?;
    restore.await?;
    is_still(way().await?)
}

async fn begin_empty() -> Result<(), BeginError> {
    let begun = blocking_io::within(blocking_io::ANSWER, begin).await;
    let begun = begun.map_err(anyhow::Error::from)?;
    begun.map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => Refused::Begun.into(),
        _ => {
            BeginError::Failed(anyhow::Error::from(error).context("make the place of etcd's data"))
        }
    })?;
    tracing::info!("Kubernetes: the cluster begins");
    Ok(())
}

async fn on_disk(
    work: impl FnOnce() -> std::io::Result<()> + Send + 'static,
) -> Result<(), BeginError> {
    let done = blocking_io::within(blocking_io::ANSWER, work).await;
    let done = done.map_err(anyhow::Error::from)?;
    Ok(done.context("put etcd's data in their place")?)
}

async fn way(
    store: &Store,
    plane: &ControlPlane,
    wanted: Wanted,
) -> Result<BootstrapMode, BeginError> {
    let data = match (has_begun(), wanted) {
        (false, _) => Data::None,
        // Nobody needs to know more.
        (true, Wanted::New) => Data::Answering,
        (true, Wanted::FromSnapshot) => data(store, plane).await,
    };
    Ok(judge(wanted, data, recovery::snapshot_is_here())?)
}

/// Asks etcd whether it is there.
async fn data(store: &Store, plane: &ControlPlane) -> Data {
    for question in 0..QUESTIONS {
        if question > 0 {
            sleep(PAUSE).await;
        }
        if answers(plane).await {
            return Data::Answering;
        }
    }
    Data::Silent {
        kubelet: kubelet_has_run(store).await,
    }
}

async fn answers(plane: &ControlPlane) -> bool {
    let Ok(etcd) = Etcd::connect(plane).await else {
        return false;
    };
    match etcd.members().await {
        Ok(_) => true,
        Err(status) => !matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded),
    }
}

/// For how long kubelet has been running: by its process, as the wall clock may have been set since. Without an answer of the kernel the time in
/// its status counts.
pub(super) async fn kubelet_has_run(store: &Store) -> Option<Duration> {
    let age = || {
        let name = Kubernetes::CONTAINER.parse()?;
        let running = Cgroup::where_it_runs(Kubernetes::CONTAINER)?;
        let Some((container, cgroup)) = Runtime::default().noted_pid(&name).zip(running) else {
            return Ok(None);
        };
        anyhow::Ok(kubelet_age(container, &cgroup)?)
    };
    let age = blocking_io::within(blocking_io::ANSWER, age).await;
    match age.map_err(anyhow::Error::from).flatten() {
        Ok(Some(age)) => Some(age),
        Ok(None) => by_wall_clock(store),
        Err(error) => {
            tracing::warn!("the age of kubelet is told by the wall clock: {error:#}");
            by_wall_clock(store)
        }
    }
}

fn by_wall_clock(store: &Store) -> Option<Duration> {
    let (_, fact) = store.list::<KubernetesFact>().into_iter().next()?;
    let mut services = fact.services.into_iter();
    let kubelet = services.find(|it| it.name == KUBELET && it.state == State::Running)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    now.checked_sub(Duration::from_secs(kubelet.since))
}

/// Checks the file that was sent. One that is no whole snapshot is removed: it takes room, holds all Secrets, and is sent anew.
async fn checked_or_removed(with_digest: bool) -> Result<(), BeginError> {
    let checked = check_snapshot(with_digest).await;
    if let Err(BeginError::Snapshot(why)) = &checked
        && !matches!(why, NotASnapshot::Io(_))
    {
        on_disk(recovery::forget_snapshot).await?;
    }
    checked
}

/// Checks that the file that was sent is a whole snapshot, and that its data have room.
async fn check_snapshot(with_digest: bool) -> Result<(), BeginError> {
    let path = recovery::directory().join(recovery::SNAPSHOT);
    let checked = blocking_io::within(READING, move || {
        let mut file = File::open(path).map_err(NotASnapshot::from)?;
        let bytes = check(&mut file, with_digest)?;
        recovery::demand_room(&recovery::directory(), bytes)?;
        Ok(())
    });
    checked.await.map_err(anyhow::Error::from)?
}

/// Has etcd's image here: the one of the store if its name leads there, otherwise from its registry.
async fn image(machine: &Machine, plane: &ControlPlane) -> Result<VerifiedImage, BeginError> {
    let name = etcd_image(plane);
    let fetched = async {
        let reference: ImageReference = name.parse()?;
        let image = fetch(machine, &reference).await?;
        // It stays for another try.
        machine.images.note_asked_for(&image)?;
        anyhow::Ok(image)
    };
    tokio::select! {
        fetched = fetched => Ok(fetched.with_context(|| format!("have etcd's image {name} here, for its etcdutl"))?),
        by = machine.operations.end_of_machine() => Err(Interrupted { by }.into()),
    }
}

async fn fetch(machine: &Machine, reference: &ImageReference) -> anyhow::Result<VerifiedImage> {
    let store = &machine.images;
    let puller = intent::puller(machine.config().as_deref());
    let here = match store.find(reference) {
        Some(here) => puller.whole(reference, here.digest(), store).await?,
        None => None,
    };
    if let Some(image) = here {
        return Ok(puller.admit(reference, image, store).await?);
    }
    let resolved = puller.look_up(reference).await?;
    Ok(puller.pull(&resolved, store, &Limits::default()).await?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cell::{Cell, RefCell};

    use super::*;

    #[tokio::test]
    async fn an_etcd_that_comes_up_while_its_data_are_restored_keeps_them() {
        let silent = || Ok(BootstrapMode::Replaced);
        let runs = || Err(Refused::Running);
        // The answers before and after etcdutl → whether it runs, whether its data are put in place.
        for (answers, restores, is_put) in [
            ([silent(), silent()], true, true),
            ([silent(), runs()], true, false),
            ([silent(), Ok(BootstrapMode::Restored)], true, false),
            ([runs(), silent()], false, false),
            ([Ok(BootstrapMode::Restored), silent()], false, false),
        ] {
            let case = format!("{answers:?}");
            let left = RefCell::new(answers.into_iter());
            let way = async || Ok(left.borrow_mut().next().unwrap()?);
            let has_restored = Cell::new(false);
            let restore = async {
                has_restored.set(true);
                Ok(())
            };
            let restored = restore_if_still(BootstrapMode::Replaced, way, restore).await;
            assert_eq!(has_restored.get(), restores, "{case}");
            assert_eq!(restored.is_ok(), is_put, "{case}");
        }
    }
}
