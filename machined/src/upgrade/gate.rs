//! When a new generation counts as good: its API answers, and what was up before the upgrade is up again.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use crate::machine::Machine;

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
        let services = machine.services.list();
        let required = services.into_iter().filter(|service| {
            let definition = service.definition();
            definition.required || self.services.contains(&definition.id)
        });
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
        let services = machine.services.list();
        let required = services.iter().filter(|service| {
            let definition = service.definition();
            definition.required || self.services.contains(&definition.id)
        });
        required
            .filter(|service| !service.status().is_up())
            .map(|service| {
                let status = service.status();
                let last = status
                    .happenings
                    .back()
                    .map_or("", |last| last.message.as_str());
                format!(
                    "service {}: {}: {last}",
                    service.definition().id,
                    status.phase.name()
                )
            })
            .collect()
    }
}
