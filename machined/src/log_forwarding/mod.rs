//! Sends logs of services, the kernel's log and events to the receivers that the config names, as lines of JSON.
//!
//! ```text
//!   log of a service ──┐                        ┌─► queue ──► delivery ──► receiver
//!   kernel's log ──────┼─ a line of JSON, tags ─┤
//!   events ────────────┘                        └─► queue ──► delivery ──► receiver
//! ```
//!
//! Nothing on the left waits for anything on the right: a queue drops its oldest lines. Without a receiver in the config nothing of this
//! runs. The sources stay when only receivers change, so that the others lose and repeat nothing.

mod delivery;
mod line;
mod queue;
mod sources;

use std::collections::BTreeMap;
use std::sync::Arc;

use instar_http_client::Trust;
use tokio_util::task::AbortOnDropHandle;

use crate::intent;
use crate::machine::{Configured, Machine};
use crate::values::{LogContent, LogDestination};
use queue::Queue;
use sources::{Destinations, Wanted};

/// All that runs.
#[derive(Default)]
struct Running {
    destinations: Destinations,
    deliveries: Vec<(LogDestination, Trust, Queue, AbortOnDropHandle<()>)>,
    sources: BTreeMap<LogContent, AbortOnDropHandle<()>>,
}

/// Follows the config for as long as the machine runs.
pub async fn keep(machine: Arc<Machine>) {
    let mut config = machine.watch_config();
    // Boxed: most machines have none.
    let mut running: Option<Box<Running>> = None;
    loop {
        let configured = config.borrow_and_update().clone();
        let is_wanted = configured
            .as_ref()
            .is_some_and(|it| !it.config.log_destinations.is_empty());
        match configured {
            Some(configured) if is_wanted => {
                running
                    .get_or_insert_default()
                    .update(&machine, &configured);
            }
            _ => running = None,
        }
        if config.changed().await.is_err() {
            return;
        }
    }
}

impl Running {
    /// Starts what the config has and does not run yet, and ends what it has no more.
    fn update(&mut self, machine: &Arc<Machine>, configured: &Configured) {
        let (wanted, trust) = (
            &configured.config.log_destinations,
            intent::trusted_servers(&configured.config),
        );
        self.deliveries
            .retain(|(destination, by, ..)| wanted.contains(destination) && *by == trust);
        for destination in wanted {
            let mut there = self.deliveries.iter();
            if there.any(|(it, ..)| it == destination) {
                continue;
            }
            let queue = Queue::default();
            let endpoint = destination.endpoint.clone();
            let delivery = delivery::deliver(endpoint, trust.clone(), queue.clone());
            let task = AbortOnDropHandle::new(crate::base::task::spawn(delivery));
            self.deliveries
                .push((destination.clone(), trust.clone(), queue, task));
        }
        let in_force = self.deliveries.iter();
        let in_force = in_force.map(|(destination, _, queue, _)| Wanted {
            content: destination.content,
            tags: destination.tags.clone(),
            queue: queue.clone(),
        });
        self.destinations.set(in_force.collect());
        self.start_sources(machine);
    }

    fn start_sources(&mut self, machine: &Arc<Machine>) {
        let deliveries = &self.deliveries;
        let is_wanted = |content| deliveries.iter().any(|(it, ..)| it.content == content);
        self.sources.retain(|content, _| is_wanted(*content));
        for content in [LogContent::Services, LogContent::Kernel, LogContent::Events] {
            if !is_wanted(content) || self.sources.contains_key(&content) {
                continue;
            }
            let (machine, to) = (machine.clone(), self.destinations.clone());
            let task = match content {
                LogContent::Services => crate::base::task::spawn(sources::services(machine, to)),
                LogContent::Kernel => crate::base::task::spawn(sources::kernel(machine, to)),
                LogContent::Events => crate::base::task::spawn(sources::events(machine, to)),
            };
            self.sources.insert(content, AbortOnDropHandle::new(task));
        }
    }
}
