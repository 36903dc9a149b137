//! Reads the logs and hands each line to the destinations that want it. One task for each log, which never waits for a receiver.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
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

/// Follows the kernel's log: from its begin in the first generation, and else from here. A machined that starts again goes on where the one
/// before has stopped.
pub(super) async fn kernel(machine: Arc<Machine>, destinations: Destinations) {
    let mut told = Told::at(Path::new(TOLD));
    let is_first = machine.generation.number <= 1;
    let mut log = match KernelLog::open(!is_first && told.last.is_none()) {
        Ok(log) => log,
        Err(error) => return tracing::warn!("the kernel's log is not forwarded: {error:#}"),
    };
    loop {
        match log.next().await {
            Ok(record) if told.has(record.number) => {}
            Ok(record) => {
                told.note(record.number);
                destinations.tell(LogContent::Kernel, &line::of_kernel(record));
            }
            Err(error) => return tracing::warn!("the kernel's log is not forwarded: {error:#}"),
        }
    }
}

/// The file of [`Told`], in memory of the generation.
const TOLD: &str = "/run/kernel-log-told";

/// The number of the last line of the kernel's log that was handed on, in a file that outlasts machined, and not the wish for these lines.
struct Told {
    file: PathBuf,
    last: Option<u64>,
}

impl Told {
    fn at(file: &Path) -> Self {
        let last = std::fs::read_to_string(file);
        Told {
            file: file.to_owned(),
            last: last.ok().and_then(|number| number.parse().ok()),
        }
    }

    fn has(&self, number: u64) -> bool {
        self.last.is_some_and(|last| number <= last)
    }

    fn note(&mut self, number: u64) {
        self.last = Some(number);
        if let Err(error) = std::fs::write(&self.file, number.to_string()) {
            tracing::debug!("a machined that starts again repeats lines of the kernel: {error}");
        }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        // Nobody wants these lines any more. Without the file there is nothing to do.
        let _ = std::fs::remove_file(&self.file);
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_not_repeated_after_machined_has_died() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("told");
        let mut told = Told::at(&file);
        assert!(!told.has(0));
        told.note(7);
        // It is not dropped when machined dies.
        std::mem::forget(told);
        let told = Told::at(&file);
        assert!(told.has(7) && !told.has(8));
        // A receiver that comes later has all of them.
        drop(told);
        assert!(!Told::at(&file).has(7));
    }
}
