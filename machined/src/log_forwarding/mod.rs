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
use crate::values::{LogContent, LogDestination, LogTransport};
use queue::Queue;
use sources::{Destinations, Wanted};

/// All that runs.
#[derive(Default)]
struct Running {
    destinations: Destinations,
    deliveries: Vec<Delivery>,
    sources: BTreeMap<LogContent, AbortOnDropHandle<()>>,
}

/// The sending to one receiver.
struct Delivery {
    destination: LogDestination,
    trust: Trust,
    queue: Queue,
    _task: AbortOnDropHandle<()>,
}

impl Delivery {
    fn begin(destination: &LogDestination, trust: &Trust, queue: Queue) -> Self {
        let endpoint = destination.endpoint.clone();
        let delivering = delivery::deliver(endpoint, trust.clone(), queue.clone());
        Delivery {
            destination: destination.clone(),
            trust: trust.clone(),
            queue,
            _task: AbortOnDropHandle::new(crate::base::task::spawn(delivering)),
        }
    }

    /// Goes on with the lines that wait: on the same connection, unless other authorities have to vouch for its receiver.
    fn go_on(self, destination: &LogDestination, trust: &Trust) -> Self {
        if destination.endpoint.transport == LogTransport::Tls && self.trust != *trust {
            return Delivery::begin(destination, trust, self.queue.clone());
        }
        Delivery {
            destination: destination.clone(),
            trust: trust.clone(),
            ..self
        }
    }
}

/// Starts what is wanted and does not run yet, and ends what is wanted no more. A receiver whose tags or authorities change stays.
fn deliveries(
    mut before: Vec<Delivery>,
    wanted: &[LogDestination],
    trust: &Trust,
) -> Vec<Delivery> {
    let mut all: Vec<Delivery> = Vec::new();
    for destination in wanted {
        if all.iter().any(|it| it.destination == *destination) {
            continue;
        }
        let is_the_same = |it: &Delivery| it.destination == *destination;
        let has_its_receiver = |it: &Delivery| {
            let LogDestination {
                endpoint, content, ..
            } = &it.destination;
            (endpoint, content) == (&destination.endpoint, &destination.content)
        };
        let known = before.iter().position(is_the_same);
        let known = known.or_else(|| before.iter().position(has_its_receiver));
        all.push(match known {
            Some(at) => before.swap_remove(at).go_on(destination, trust),
            None => Delivery::begin(destination, trust, Queue::default()),
        });
    }
    all
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
        let before = std::mem::take(&mut self.deliveries);
        self.deliveries = deliveries(before, wanted, &trust);
        let in_force = self.deliveries.iter().map(|it| Wanted {
            content: it.destination.content,
            tags: it.destination.tags.clone(),
            queue: it.queue.clone(),
        });
        self.destinations.set(in_force.collect());
        self.start_sources(machine);
    }

    fn start_sources(&mut self, machine: &Arc<Machine>) {
        let deliveries = &self.deliveries;
        let is_wanted = |content| {
            let mut all = deliveries.iter();
            all.any(|it| it.destination.content == content)
        };
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::*;

    /// Nobody listens there.
    fn destination(port: u16, site: &str) -> LogDestination {
        LogDestination {
            endpoint: format!("tls://127.0.0.1:{port}").parse().unwrap(),
            content: LogContent::Events,
            tags: BTreeMap::from([("site".to_owned(), site.to_owned())]),
        }
    }

    #[tokio::test]
    async fn a_receiver_that_stays_keeps_the_lines_that_wait_for_it() {
        let trust = Trust::default();
        let before = deliveries(Vec::new(), &[destination(1, "lab")], &trust);
        before[0].queue.push(b"waits".to_vec());
        let wanted = [destination(2, "lab"), destination(1, "hall")];
        let other = Trust {
            roots: vec!["another authority".to_owned()],
            ..Trust::default()
        };
        let after = deliveries(before, &wanted, &other);
        let destinations: Vec<_> = after.iter().map(|it| it.destination.clone()).collect();
        assert_eq!(destinations, wanted);
        let line = tokio::time::timeout(Duration::from_secs(1), after[1].queue.pop()).await;
        assert_eq!(line.unwrap(), b"waits");
        assert!(deliveries(after, &[], &other).is_empty());
    }
}
