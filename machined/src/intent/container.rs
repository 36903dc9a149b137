//! A container of the config as a service.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::config::{self, MachineConfig, NetworkCondition};
use crate::containers::{ContainerSpec, ResourceLimits, RunAs, Runtime};
use crate::machine::{Configured, Machine};
use crate::oci::Puller;
use crate::services::{
    Cgroup, ContainerWorkload, Definition, Dependency, HealthCheck, Probe, Services, output_name,
};
use crate::store::{ClockFact, NetworkFact};
use crate::values::{MountSource, VolumeName};

/// Interval between looks for a path that a container waits for, or for the container that has taken the place of another.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// The service that runs a container.
pub fn service(
    machine: &Arc<Machine>,
    configured: &Configured,
    container: &config::Container,
) -> anyhow::Result<Definition> {
    let id = container.name.to_string();
    // A container that an earlier machined started stays in its cgroup; a start chooses one.
    let cgroup = match Cgroup::where_it_runs(&id)? {
        Some(cgroup) => cgroup,
        None => Cgroup::for_container(&id, false)?,
    };
    let workload = ContainerWorkload {
        spec: spec(container, &configured.config, cgroup.path().to_owned()),
        cgroup: cgroup.into(),
        keeps: in_force(machine, container, keeps),
        image: container.image.clone(),
        puller: puller_in_force(machine),
        images: machine.images.clone(),
        stop_timeout: in_force(machine, container, |it| it.stop_timeout),
        in_force: machine.images_in_force.clone(),
        runtime: Runtime::default(),
        init: machine.init.clone(),
        kept_output: machine.take_kept(&output_name(&id)).into(),
        unattended: None.into(),
        prepared: None.into(),
        told_whole: None.into(),
    };
    Ok(Definition {
        id,
        workload: Arc::new(workload),
        depends_on: dependencies(machine, &configured.config, container),
        health: container.health.as_ref().map(health_check),
        controllable: true,
        required: container
            .health
            .as_ref()
            .is_some_and(|health| health.required),
        judged: true,
        restart_unhealthy: false,
    })
}

/// Returns the service of a container that an earlier machined left running; `None` if it does not run.
///
/// # Errors
/// The service cannot be made.
pub fn living_service(
    machine: &Arc<Machine>,
    configured: &Configured,
    container: &config::Container,
) -> anyhow::Result<Option<Definition>> {
    match Cgroup::where_it_runs(container.name.as_str())? {
        Some(_) => service(machine, configured, container).map(Some),
        None => Ok(None),
    }
}

/// Ends containers that live on from an earlier generation, and that the config no longer names.
pub async fn end_unnamed_containers(machine: &Machine, configured: &Configured) {
    let is_named = |name: &str| {
        let containers = &configured.config.containers;
        containers
            .iter()
            .any(|container| container.name.as_str() == name)
    };
    end_containers(
        machine,
        |name| !is_named(name),
        "the config does not name it",
    )
    .await;
}

/// Ends all containers that live on. Returns whether there were any.
pub async fn end_living_containers(machine: &Machine, why: &str) -> bool {
    end_containers(machine, |_| true, why).await
}

async fn end_containers(machine: &Machine, ends: impl Fn(&str) -> bool, why: &str) -> bool {
    let runtime = Runtime::default();
    let mut names = runtime.names().unwrap_or_default();
    names.retain(|name| ends(name.as_str()));
    for name in &names {
        tracing::info!("container {name} ends: {why}");
        machine
            .services
            .tell(name.as_str(), &format!("is ended: {why}"));
        if let Err(error) = runtime.delete(name, &machine.images).await {
            let error = anyhow::Error::from(error);
            tracing::warn!("something of container {name} is left: {error:#}");
        }
    }
    Cgroup::weigh_workloads();
    !names.is_empty()
}

/// Returns a function that reads a fact about a container from the config in force at the call; of a container that the config names no more,
/// the fact is the one of its start.
fn in_force<T: Copy + Send + Sync + 'static>(
    machine: &Arc<Machine>,
    container: &config::Container,
    fact: fn(&config::Container) -> T,
) -> Box<dyn Fn() -> T + Send + Sync> {
    let (machine, name, at_start) = (machine.clone(), container.name.clone(), fact(container));
    Box::new(move || {
        let configured = machine.config();
        let mut containers = configured.iter().flat_map(|it| &it.config.containers);
        let named = containers.find(|container| container.name == name);
        named.map_or(at_start, fact)
    })
}

/// Whether the config lets a container live through a change of generations.
pub(super) fn keeps(container: &config::Container) -> bool {
    container.upgrade_strategy == config::UpgradeStrategy::Keep
}

/// Returns a function that takes the registries from the config in force: they may change while the container stays the same.
fn puller_in_force(machine: &Arc<Machine>) -> Box<dyn Fn() -> Arc<Puller> + Send + Sync> {
    let machine = machine.clone();
    Box::new(move || super::puller(machine.config().as_deref()))
}

/// Returns the container as the config describes it, in this cgroup.
pub(super) fn spec(
    container: &config::Container,
    config: &MachineConfig,
    cgroup: String,
) -> ContainerSpec {
    let run_as = (container.uid.is_some() || container.gid.is_some()).then_some(RunAs {
        uid: container.uid,
        gid: container.gid,
    });
    ContainerSpec {
        entrypoint: container.entrypoint.clone().unwrap_or_default(),
        args: container.args.clone().unwrap_or_default(),
        working_dir: container.working_dir.as_ref().map(ToString::to_string),
        run_as,
        environment: environment(container, config),
        mounts: container.mounts.clone(),
        network: container.network,
        profile: container.security.profile,
        capabilities: container.security.capabilities.clone(),
        limits: ResourceLimits {
            cpu: container.cpu_limit,
            memory: container.memory_limit,
        },
        ..ContainerSpec::new(container.name.clone(), cgroup)
    }
}

/// Returns the machine's variables and the container's own, which take precedence. Those of Kubernetes are its services', by their plan: so
/// another value ends no pod.
fn environment(container: &config::Container, config: &MachineConfig) -> Vec<String> {
    if config.is_of_kubernetes(container) {
        return Vec::new();
    }
    let own = container.environment.iter();
    let own = own.map(|variable| (variable.name.as_str(), variable.value.as_str()));
    let machines = config.environment.iter();
    let machines = machines.map(|(name, value)| (name.as_str(), value.as_str()));
    let variables = machines.chain(own);
    // The last one of the same name counts.
    variables
        .map(|(name, value)| format!("{name}={value}"))
        .collect()
}

fn health_check(health: &config::ContainerHealth) -> HealthCheck {
    HealthCheck {
        probe: Probe::Configured(health.check.clone()),
        interval: health.interval,
        timeout: health.timeout,
        failures: health.failure_threshold,
    }
}

fn dependencies(
    machine: &Arc<Machine>,
    config: &MachineConfig,
    container: &config::Container,
) -> Vec<Dependency> {
    let mut dependencies = Vec::new();
    let wanted = &container.depends_on;
    let volumes = container
        .mounts
        .iter()
        .filter_map(|mount| match &mount.source {
            MountSource::UserVolume(name) => Some(volume_exists(config, name)),
            _ => None,
        });
    dependencies.extend(volumes);
    for path in &wanted.paths {
        dependencies.push(path_exists(
            format!("the path {path}"),
            path.as_str().into(),
        ));
    }
    for condition in &wanted.networks {
        dependencies.push(network(machine, *condition));
    }
    if wanted.time {
        let store = machine.store.clone();
        dependencies.push(Dependency {
            what: "the clock".to_owned(),
            wait: Box::new(move || {
                let store = store.clone();
                Box::pin(async move {
                    store
                        .wait_for::<ClockFact>("node", |clock| {
                            clock.is_some_and(|clock| clock.synced || clock.sync_disabled)
                        })
                        .await;
                })
            }),
        });
    }
    for name in &wanted.containers {
        let (services, name) = (machine.services.clone(), name.to_string());
        dependencies.push(Dependency {
            what: format!("container {name}"),
            wait: Box::new(move || {
                let (services, name) = (services.clone(), name.clone());
                Box::pin(async move { container_up(&services, &name).await })
            }),
        });
    }
    dependencies
}

/// Waits until the container of this name is up, whichever service it is by then: a changed config replaces the service of a container, and one
/// that waits for it is not changed by that.
async fn container_up(services: &Services, name: &str) {
    loop {
        let up = async {
            match services.get(name) {
                Some(service) => service.up().await,
                // It is being replaced.
                None => std::future::pending().await,
            }
        };
        if tokio::time::timeout(LOOK_AGAIN, up).await.is_ok() {
            return;
        }
    }
}

/// Returns the dependency on a volume. Volumes that this version makes exist before containers start, unless making them failed.
fn volume_exists(config: &MachineConfig, name: &VolumeName) -> Dependency {
    let kind = config
        .user_volumes
        .iter()
        .find(|volume| volume.name == *name)
        .map(|volume| volume.kind);
    let what = match kind {
        Some(config::UserVolumeKind::Directory) | None => format!("the user volume {name}"),
        Some(other) => format!(
            "the user volume {name}, which is to be a {}: this version makes only volumes of the type directory",
            other.word()
        ),
    };
    path_exists(what, name.path())
}

fn path_exists(what: String, path: PathBuf) -> Dependency {
    Dependency {
        what,
        wait: Box::new(move || {
            let path = path.clone();
            Box::pin(async move {
                while !path.exists() {
                    tokio::time::sleep(LOOK_AGAIN).await;
                }
            })
        }),
    }
}

fn network(machine: &Arc<Machine>, condition: NetworkCondition) -> Dependency {
    let store = machine.store.clone();
    let (what, holds): (_, fn(&NetworkFact) -> bool) = match condition {
        NetworkCondition::Addresses => ("an address", |network| network.address_ready),
        NetworkCondition::Connectivity => ("a default route", |network| network.connectivity_ready),
        NetworkCondition::Hostname => ("the hostname", |network| network.hostname_ready),
        NetworkCondition::EtcFiles => ("/etc/resolv.conf", |network| network.etc_files_ready),
    };
    Dependency {
        what: what.to_owned(),
        wait: Box::new(move || {
            let store = store.clone();
            Box::pin(async move {
                store
                    .wait_for::<NetworkFact>("status", |network| network.is_some_and(holds))
                    .await
            })
        }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::services::LogDisk;
    use crate::services::workload_for_tests::{definition, running};
    use crate::store::Store;
    use crate::store::event_log::EventLog;
    use tokio::time::timeout;

    /// A config that mends the one is no change of the other.
    #[tokio::test(start_paused = true)]
    async fn who_waits_for_a_container_waits_for_the_one_in_its_place() {
        let (minute, second) = (Duration::from_secs(60), Duration::from_secs(1));
        let services = Services::new(EventLog::default(), Store::default(), LogDisk::default());
        // It does not come up.
        services.add(definition("db", Some(second))).unwrap();
        let mut waits = Box::pin(container_up(&services, "db"));
        assert!(timeout(minute, &mut waits).await.is_err());
        services.remove("db").await;
        assert!(timeout(minute, &mut waits).await.is_err());
        running(&services, "db", Some(second)).await;
        assert!(timeout(second, &mut waits).await.is_ok());
    }
}
