//! The workload of a service: a process of the rootfs or a container, behind one small trait.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use super::log_ring::LogRing;
use crate::base::Exit;

/// The time that a workload has to end after SIGTERM if nothing names another one.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// The future that a step of a workload returns.
pub type Step<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A signal to a running workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// End within the workload's time.
    Terminate,
    /// End now.
    Kill,
}

/// A process or container that a service can start again and again.
pub trait Workload: Send + Sync + 'static {
    /// Prepares the parts that take long and may fail for a while: the image, the filesystem.
    fn prepare(&self) -> Step<'_, anyhow::Result<()>>;
    /// Says once what the preparation has found that people should know; the event of the start carries it.
    fn remark(&self) -> Option<String> {
        None
    }
    /// Prepares a restart by an operator while the workload runs on, for example by pulling another image of the same name.
    fn renew(&self) -> Step<'_, anyhow::Result<()>> {
        Box::pin(async { Ok(()) })
    }
    /// Starts the workload; its output goes to the log.
    fn start(&self, log: LogRing) -> Step<'_, anyhow::Result<Box<dyn Running>>>;
    /// Returns the first process of a workload that an earlier machined left running, if that can be told at once and without the disk.
    fn lives_on(&self) -> Option<u32> {
        None
    }
    /// Reads the output of a workload that an earlier machined left running, before it is adopted; a second call changes nothing.
    fn read_output(&self, _log: LogRing) {}
    /// Ends that reading; what was read is in the log.
    fn leave_output(&self) -> Step<'_, ()> {
        Box::pin(async {})
    }
    /// Adopts the workload of an earlier machined, if it still runs and equals the one that would be started now.
    fn adopt(&self, log: LogRing) -> Step<'_, Adopted>;
    /// Whether it ends with the generation whatever the machine config says, which does not name it.
    fn is_part_of_generation(&self) -> bool {
        true
    }
    /// Checks whether the workload may live through a change of generations; the error says why not, for people.
    ///
    /// # Errors
    /// The workload depends on something in the generation.
    fn outlives_generation(&self) -> anyhow::Result<()> {
        anyhow::bail!("it is a part of the generation")
    }
    /// Returns how many processes of the workload that an earlier machined left running the kernel has killed for lack of memory so far, also
    /// once it has ended; 0 if that is not known.
    fn memory_kills(&self) -> u64 {
        0
    }
    /// Returns the time that the workload has to end after SIGTERM; asked at each stop.
    fn stop_timeout(&self) -> Duration {
        STOP_TIMEOUT
    }
    /// Stores a record beside the workload while it is looked after, as far as there is room.
    ///
    /// # Errors
    /// The record cannot be written.
    fn note_record(&self, _record: &str) -> anyhow::Result<()> {
        Ok(())
    }
    /// Stores a record beside the workload for the machined that adopts it; the record is removed with the workload.
    ///
    /// # Errors
    /// The record cannot be written.
    fn leave_record(&self, _record: &str) -> anyhow::Result<()> {
        Ok(())
    }
    /// Returns the newest record, at most `longest` bytes of it; None if there is no record.
    ///
    /// # Errors
    /// The record cannot be read.
    fn record(&self, _longest: usize) -> anyhow::Result<Option<Vec<u8>>> {
        Ok(None)
    }
    /// Stores the end of the log beside the workload for the machined that adopts it; it is removed with the workload.
    ///
    /// # Errors
    /// It cannot be written.
    fn leave_log(&self, _log: &[u8]) -> anyhow::Result<()> {
        Ok(())
    }
    /// Returns the stored end of the log, at most `longest` bytes of it, and lets it stay.
    ///
    /// # Errors
    /// The log cannot be read.
    fn left_log(&self, _longest: usize) -> anyhow::Result<Option<Vec<u8>>> {
        Ok(None)
    }
    /// Takes the stored end of the log, at most `longest` bytes of it; a second call finds nothing.
    ///
    /// # Errors
    /// The log cannot be read, or would be found again.
    fn take_log(&self, _longest: usize) -> anyhow::Result<Option<Vec<u8>>> {
        Ok(None)
    }
    /// Runs a command inside the workload, as a health check; the error contains the command's output.
    fn exec<'a>(&'a self, command: &'a [String]) -> Step<'a, anyhow::Result<()>>;
    /// Runs the workload's own health check, if it has one.
    fn check(&self) -> Step<'_, anyhow::Result<()>> {
        Box::pin(async { anyhow::bail!("it has no check of its own") })
    }
    /// Whether so many callers wait for the workload that a check may have failed for that reason alone.
    fn is_overrun(&self) -> bool {
        false
    }
}

/// The result of [`Workload::adopt`].
pub enum Adopted {
    /// No workload runs.
    Nothing,
    /// The workload runs on.
    Running(Box<dyn Running>),
    /// The workload has ended by itself since an earlier machined left it, in this way.
    Exited(Exit),
    /// The workload ran, and was ended for this reason.
    Ended(String),
}

/// A started workload.
pub trait Running: Send {
    /// Returns its first process, by its number on the host.
    fn pid(&self) -> u32;
    /// Waits for its end. May be called again after a cancelled call.
    fn wait(&mut self) -> Step<'_, Exit>;
    /// Sends it a signal.
    fn signal(&mut self, signal: Signal) -> anyhow::Result<()>;
    /// Returns how many of its processes the kernel has killed for lack of memory so far; 0 if that is not known.
    fn memory_kills(&self) -> u64 {
        0
    }
    /// Removes what is left after its end.
    fn clean_up(&mut self) -> Step<'_, ()>;
    /// Stops serving it, its output for example; it runs on.
    fn leave(&mut self) -> Step<'_, ()> {
        Box::pin(async {})
    }
}
