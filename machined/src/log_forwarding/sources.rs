//! Reads the logs and hands each line to the destinations that want it. One task for each log, which never waits for a receiver.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::sync::broadcast::error::RecvError;
use tokio_util::task::AbortOnDropHandle;

use super::line::{self, Fields};
use super::queue::Queue;
use crate::api::KernelLog;
use crate::base::lock::Lock as _;
use crate::machine::Machine;
use crate::services::{LogRing, Tail};
use crate::store::event_log::Start;
use crate::values::LogContent;

/// A queue with its lines' content and tags.
#[derive(Clone)]
pub(super) struct Wanted {
    pub(super) content: LogContent,
    pub(super) tags: BTreeMap<String, String>,
    pub(super) queue: Queue,
}

/// The destinations in force; clones share them.
#[derive(Clone, Default)]
pub(super) struct Destinations(Arc<Mutex<Vec<Wanted>>>);

impl Destinations {
    /// Replaces them.
    pub(super) fn set(&self, wanted: Vec<Wanted>) {
        *self.0.locked() = wanted;
    }

    fn tell(&self, content: LogContent, fields: &Fields) {
        let wanted = self.0.locked();
        for it in wanted.iter().filter(|it| it.content == content) {
            it.queue.push(line::encoded(fields, &it.tags));
        }
    }
}

/// Follows the logs of all services, those that come later too.
pub(super) async fn services(machine: Arc<Machine>, destinations: Destinations) {
    let mut followed: BTreeMap<String, (LogRing, AbortOnDropHandle<()>)> = BTreeMap::new();
    // Each service has a fact there, so a new one is a change.
    let mut changes = machine.store.watch();
    loop {
        let names = machine.log_names();
        followed.retain(|name, _| names.contains(name));
        for name in names {
            let Some(ring) = machine.log_of(&name) else {
                continue;
            };
            if followed
                .get(&name)
                .is_some_and(|(known, _)| known.is(&ring))
            {
                continue;
            }
            let reading = service(name.clone(), ring.clone(), destinations.clone());
            let task = AbortOnDropHandle::new(crate::base::task::spawn(reading));
            followed.insert(name, (ring, task));
        }
        match changes.recv().await {
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}

async fn service(name: String, ring: LogRing, destinations: Destinations) {
    // What an earlier generation has left, that one has sent.
    let mut reader = ring.read(Tail::Own);
    loop {
        let text = reader.next().await;
        let fields = line::of_service(&name, &text, jiff::Timestamp::now());
        destinations.tell(LogContent::Services, &fields);
    }
}

/// Follows the kernel's log: from its begin in the first generation, and else from here.
pub(super) async fn kernel(machine: Arc<Machine>, destinations: Destinations) {
    let is_first = machine.generation.number <= 1;
    let mut log = match KernelLog::open(!is_first) {
        Ok(log) => log,
        Err(error) => return tracing::warn!("the kernel's log is not forwarded: {error:#}"),
    };
    loop {
        match log.next().await {
            Ok(record) => destinations.tell(LogContent::Kernel, &line::of_kernel(record)),
            Err(error) => return tracing::warn!("the kernel's log is not forwarded: {error:#}"),
        }
    }
}

/// Follows the events of this generation, from the first.
pub(super) async fn events(machine: Arc<Machine>, destinations: Destinations) {
    let mut reader = machine.events.read(&Start::History);
    loop {
        let event = reader.next().await;
        destinations.tell(LogContent::Events, &line::of_event(&event));
    }
}
