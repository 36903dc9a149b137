//! Containers live through every fault that is not done to them, and through the changes of versions that go on meanwhile.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use instar_tests::{GREETER, Outcome};
use rustix::process::Signal;

use super::faults::Fault;
use super::{ALONE, COUNTING, Chaos, HUNGRY, HUNGRY_PORT, STARVING, STARVING_PORT};
use crate::PATIENCE;

const CONTAINERS: [&str; 5] = [GREETER, ALONE, HUNGRY, STARVING, COUNTING];

/// init's word that machined has died too often, so that a generation begins in which nothing of before lives on.
const FRESH: &str = "starting its image again in a fresh generation";

/// The process of each container, and its start.
pub(super) struct Living {
    processes: BTreeMap<String, (u32, u64)>,
    /// Number of fresh generations until then.
    fresh: usize,
}

impl Living {
    /// Looks at the containers of a node that is well.
    pub(super) async fn of(chaos: &Chaos) -> anyhow::Result<Self> {
        // A change of versions takes the saboteur away for a moment.
        let look = async || {
            let processes = chaos.saboteur.workloads()?;
            for name in CONTAINERS {
                ensure!(processes.contains_key(name), "no process of {name}");
            }
            let fresh = chaos.node.vm().console().matches(FRESH).count();
            Ok(Self { processes, fresh })
        };
        let what = "the containers have processes";
        chaos.node.wait_until(what, PATIENCE, look).await
    }

    /// Waits until the containers that a fault has ended have other processes: a moment after their end the API still says that they run.
    pub(super) async fn has_felt(&self, chaos: &Chaos, fault: Fault) -> Outcome {
        let look = async || {
            let now = Self::of(chaos).await?;
            let is_another = |name: &&str| now.processes.get(*name) != self.processes.get(*name);
            let ended: Vec<&str> = CONTAINERS.into_iter().filter(is_another).collect();
            ensure!(fault.shows_in(&ended), "{ended:?} have ended");
            Ok(())
        };
        let what = "the containers that have ended are started again";
        chaos.node.wait_until(what, PATIENCE, look).await
    }

    /// Checks that the containers that a fault spares have the same processes as before it, unless init began afresh.
    /// Returns how many these are.
    pub(super) async fn has_spared(&self, chaos: &Chaos, fault: Fault) -> anyhow::Result<usize> {
        let now = Self::of(chaos).await?;
        if now.fresh > self.fresh {
            return Ok(0);
        }
        let mut spared = 0;
        for name in CONTAINERS.into_iter().filter(|name| fault.spares(name)) {
            let (before, after) = (self.process_of(name)?, now.process_of(name)?);
            ensure!(
                before == after,
                "{name} was to live on: process {before:?}, now {after:?}"
            );
            spared += 1;
        }
        Ok(spared)
    }

    /// Whether a container has the same process as before.
    pub(super) fn is_same(&self, now: &Self, container: &str) -> bool {
        self.processes.get(container) == now.processes.get(container)
    }

    fn process_of(&self, name: &str) -> anyhow::Result<(u32, u64)> {
        let process = self.processes.get(name).copied();
        process.with_context(|| format!("{name} has no process"))
    }
}

impl Fault {
    /// Whether all that the fault ends for certain is among the containers that have ended since.
    fn shows_in(self, ended: &[&str]) -> bool {
        match self {
            Fault::Kill("greeter") | Fault::At(Signal::KILL, "greeter", _) => ended == CONTAINERS,
            Fault::OutOfMemory(HUNGRY_PORT) => ended.contains(&HUNGRY),
            // The kernel chooses which one.
            Fault::OutOfMemory(_) => !ended.is_empty(),
            Fault::ForkBomb => ended.contains(&STARVING),
            _ => true,
        }
    }

    /// Whether a fault is not done to this container.
    fn spares(self, container: &str) -> bool {
        match self {
            // The program of all of them.
            Fault::Kill("greeter") | Fault::StopForAWhile("greeter") => false,
            Fault::At(_, "greeter", _) => false,
            // The container is restarted for the fault; the signal reaches every call of the runtime.
            Fault::Kill("crun") | Fault::Stop("crun") => container != ALONE,
            Fault::OutOfMemory(HUNGRY_PORT) => container != HUNGRY,
            // The memory of the whole machine runs out, and the kernel chooses a container.
            Fault::OutOfMemory(STARVING_PORT) => false,
            Fault::ForkBomb => container != STARVING,
            _ => true,
        }
    }
}
