//! What a service runs: a process of the rootfs or a container, behind one small seam.

use std::future::Future;
use std::pin::Pin;

use super::log_ring::LogRing;
use crate::base::Exit;

/// A future of a workload's step.
pub type Step<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What is asked of a running workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// End, in your own time.
    Terminate,
    /// End now.
    Kill,
}

/// Something that a service can run, again and again.
pub trait Workload: Send + Sync + 'static {
    /// Gets ready what takes long and may fail for a while: the image, the filesystem.
    fn prepare(&self) -> Step<'_, anyhow::Result<()>>;
    /// Looks for what a restart by an operator is to start, such as another image of the same name, while what runs goes on.
    fn renew(&self) -> Step<'_, anyhow::Result<()>> {
        Box::pin(async { Ok(()) })
    }
    /// Starts it; its output goes to the log.
    fn start(&self, log: LogRing) -> Step<'_, anyhow::Result<Box<dyn Running>>>;
    /// The first process of what an earlier machined left running, as far as that can be told at once and without the disk.
    fn lives_on(&self) -> Option<u32> {
        None
    }
    /// Takes over what an earlier machined started, if it still runs and is what would be started now.
    fn adopt(&self, log: LogRing) -> Step<'_, Adopted>;
    /// Whether it may live through a change of generations; the error says why not, for people.
    ///
    /// # Errors
    /// Something of it leads into the generation.
    fn outlives_generation(&self) -> anyhow::Result<()> {
        anyhow::bail!("it is a part of the generation")
    }
    /// Leaves a record of what is known of it beside it, for whoever takes it over; it goes when what runs goes.
    ///
    /// # Errors
    /// It cannot be written.
    fn leave_record(&self, _record: &str) -> anyhow::Result<()> {
        Ok(())
    }
    /// The newest such record, at most so many bytes of it; none if nobody left one.
    ///
    /// # Errors
    /// It cannot be read.
    fn record(&self, _longest: usize) -> anyhow::Result<Option<Vec<u8>>> {
        Ok(None)
    }
    /// Leaves the end of its log beside it, for whoever takes it over; it goes when what runs goes.
    ///
    /// # Errors
    /// It cannot be written.
    fn leave_log(&self, _log: &[u8]) -> anyhow::Result<()> {
        Ok(())
    }
    /// Takes the end of the log that was left, at most so many bytes of it; a second call finds nothing.
    ///
    /// # Errors
    /// It cannot be read, or would be found again.
    fn take_log(&self, _longest: usize) -> anyhow::Result<Option<Vec<u8>>> {
        Ok(None)
    }
    /// A command inside it, as a health check; ends with an error that says what it printed.
    fn exec<'a>(&'a self, command: &'a [String]) -> Step<'a, anyhow::Result<()>>;
    /// Whether it does its work, for a workload that has a way of its own to tell.
    fn check(&self) -> Step<'_, anyhow::Result<()>> {
        Box::pin(async { anyhow::bail!("it has no check of its own") })
    }
    /// Whether so many wait for it that a check may have failed for that alone.
    fn is_overrun(&self) -> bool {
        false
    }
}

/// What an earlier machined left of a workload.
pub enum Adopted {
    /// Nothing that runs.
    Nothing,
    /// It runs on.
    Running(Box<dyn Running>),
    /// It ran, and was ended, for this reason.
    Ended(String),
}

/// A started workload.
pub trait Running: Send {
    /// Its first process, as the machine sees it.
    fn pid(&self) -> u32;
    /// Waits for its end. May be called again after a cancelled call.
    fn wait(&mut self) -> Step<'_, Exit>;
    /// Asks it to end.
    fn signal(&mut self, signal: Signal) -> anyhow::Result<()>;
    /// Removes what is left after its end.
    fn clean_up(&mut self) -> Step<'_, ()>;
    /// Ends all that is done for it here; it runs on.
    fn leave(&mut self) -> Step<'_, ()> {
        Box::pin(async {})
    }
}
