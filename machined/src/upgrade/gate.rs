//! When a new generation counts as good: its API answers, and what was up before the upgrade is up again.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use crate::machine::Machine;
use crate::services::Service;

/// How long a service must stay up to count: one that crashes at once has been "running" for a moment too.
const STEADY: Duration = Duration::from_secs(3);

/// What must be up.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Gate {
    /// Services that were up before; those that the config no longer names are forgiven.
    pub services: Vec<String>,
}

impl Gate {
    /// Waits until the gate is passed. Whoever calls it sets the deadline.
    pub async fn pass(&self, machine: &Arc<Machine>) {
        let required = self.required(machine).into_iter();
        join_all(required.map(|service| async move {
            loop {
                service.up().await;
                if service.stays_up(STEADY).await {
                    return;
                }
            }
        }))
        .await;
    }

    /// What is not up yet, for the reason of a rollback.
    pub fn missing(&self, machine: &Machine) -> Vec<String> {
        let required = self.required(machine).into_iter();
        required
            .filter(|service| !service.status().is_up())
            .map(|service| service.summary())
            .collect()
    }

    fn required(&self, machine: &Machine) -> Vec<Service> {
        let mut services = machine.services.list();
        services.retain(|service| {
            let definition = service.definition();
            definition.required || self.services.contains(&definition.id)
        });
        services
    }
}
