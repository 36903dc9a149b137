//! A workload that runs on when its generation leaves it, as containers do.

use super::*;
use crate::base::Exit;
use crate::services::workload_for_tests::{RunningSlow, definition};

/// A workload that runs on when it is left, with a record beside it; `ends` is the reason if it does not outlive its generation.
#[derive(Clone, Default)]
pub(super) struct Lasting {
    pub(super) record: Arc<Mutex<Option<Vec<u8>>>>,
    pub(super) log: Arc<Mutex<Option<Vec<u8>>>>,
    pub(super) ends: Option<&'static str>,
    /// An earlier machined has left it running.
    pub(super) runs: bool,
    /// It differs from the one that would be started now.
    pub(super) differs: bool,
    /// It has ended since an earlier machined left it.
    pub(super) exited: Option<Exit>,
    /// The output that nobody has read.
    pub(super) said: &'static str,
    /// The machine has ended it, and removed all that was left of it.
    pub(super) removed: bool,
    /// Whether the copy of its log was there at the last adoption.
    pub(super) had_log: Arc<Mutex<bool>>,
    /// How many of its processes the kernel has killed for lack of memory.
    pub(super) memory_kills: u64,
    /// Whether there is room for its record while it is looked after.
    pub(super) has_room: bool,
}

impl Workload for Lasting {
    fn prepare(&self) -> Step<'_, anyhow::Result<()>> {
        Box::pin(async { Ok(()) })
    }
    fn start(&self, _log: LogRing) -> Step<'_, anyhow::Result<Box<dyn Running>>> {
        Box::pin(async { Ok(lasting()) })
    }
    fn lives_on(&self) -> Option<u32> {
        self.runs.then_some(1)
    }
    fn adopt(&self, log: LogRing) -> Step<'_, Adopted> {
        *self.had_log.locked() = self.log.locked().is_some();
        log.write(self.said.as_bytes());
        let adopted = match (self.runs, self.differs) {
            _ if self.exited.is_some() => Adopted::Exited(self.exited.unwrap()),
            _ if self.removed => Adopted::Nothing,
            (true, false) => Adopted::Running(lasting()),
            (true, true) => Adopted::Ended("another image is in force".to_owned()),
            (false, _) => Adopted::Nothing,
        };
        Box::pin(async { adopted })
    }
    fn is_part_of_generation(&self) -> bool {
        false
    }
    fn outlives_generation(&self) -> anyhow::Result<()> {
        self.ends.map_or(Ok(()), |why| Err(anyhow::anyhow!(why)))
    }
    fn memory_kills(&self) -> u64 {
        self.memory_kills
    }
    fn note_record(&self, record: &str) -> anyhow::Result<()> {
        anyhow::ensure!(self.has_room, "there is no room");
        self.leave_record(record)
    }
    fn leave_record(&self, record: &str) -> anyhow::Result<()> {
        *self.record.locked() = Some(record.as_bytes().to_vec());
        Ok(())
    }
    fn record(&self, longest: usize) -> anyhow::Result<Option<Vec<u8>>> {
        Ok(at_most(longest, self.record.locked().clone()))
    }
    fn leave_log(&self, log: &[u8]) -> anyhow::Result<()> {
        *self.log.locked() = Some(log.to_vec());
        Ok(())
    }
    fn left_log(&self, longest: usize) -> anyhow::Result<Option<Vec<u8>>> {
        Ok(at_most(longest, self.log.locked().clone()))
    }
    fn take_log(&self, longest: usize) -> anyhow::Result<Option<Vec<u8>>> {
        Ok(at_most(longest, self.log.locked().take()))
    }
    fn exec<'a>(&'a self, _command: &'a [String]) -> Step<'a, anyhow::Result<()>> {
        Box::pin(async { Ok(()) })
    }
}

fn at_most(longest: usize, bytes: Option<Vec<u8>>) -> Option<Vec<u8>> {
    bytes.map(|mut bytes| {
        bytes.truncate(longest);
        bytes
    })
}

pub(super) fn lasting() -> Box<dyn Running> {
    Box::new(RunningSlow::new(EIGHT))
}

pub(super) fn of_lasting(id: &str, workload: &Lasting) -> Definition {
    Definition {
        workload: Arc::new(workload.clone()),
        ..definition(id, None)
    }
}

/// Returns a workload that an earlier machined left running, with its record.
pub(super) async fn left_running() -> Lasting {
    let before = services();
    let mut workload = Lasting::default();
    let service = before.add(of_lasting("web", &workload)).unwrap();
    service.start();
    service.up().await;
    before.leave_workloads(None, &KEPT).await;
    workload.runs = true;
    workload
}
