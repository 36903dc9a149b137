//! Runs work that waits for a disk or a device outside the runtime's only thread. All such work goes through here, so that it fails in the
//! same way when the runtime ends before it.
//!
//! [`within`] limits the wait: only the device can end the thread, but the caller goes on, and can report the problem. [`to_its_end`] is
//! for work that has a limit of its own, or that must be finished before the caller goes on.

use std::time::Duration;

use tokio::sync::oneshot;

/// Timeout after which a silent disk counts as dead. Unmounting writes all unwritten data: minutes on the slowest stick.
pub const ANSWER: Duration = Duration::from_secs(300);

/// Why work has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// The device does not answer; the thread still waits.
    #[error(
        "no answer within {} s: a disk or another device may be failing, and only a reboot ends the wait for it", .0.as_secs()
    )]
    Late(Duration),
    /// The runtime ended before the work did. (A panic of the work looks the same; it ends the programs of the root filesystem.)
    #[error("the work was interrupted because the program is stopping")]
    Interrupted,
}

/// Runs the work, and waits for it for a limited time.
///
/// # Errors
/// The timeout, or the end of the runtime before the work's.
pub async fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, NoAnswer> {
    // Does not use `to_its_end`: its future depends on the work's type, and a timeout around each of these made machined 20 KB larger.
    let work = start(work);
    match tokio::time::timeout(limit, work).await {
        Ok(done) => done.map_err(|_| NoAnswer::Interrupted),
        Err(_) => Err(NoAnswer::Late(limit)),
    }
}

/// Runs the work without a timeout. It goes on even if its caller stops waiting.
///
/// # Errors
/// The runtime ended before the work did.
pub async fn to_its_end<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, NoAnswer> {
    let work = start(work);
    work.await.map_err(|_| NoAnswer::Interrupted)
}

/// Has a thread do the work, and waits for nobody. Without a runtime it is done at once: there is nothing that it could keep waiting.
pub fn in_background(work: impl FnOnce() + Send + 'static) {
    match tokio::runtime::Handle::try_current() {
        Ok(_) => drop(start(work)),
        Err(_) => work(),
    }
}

/// Starts the work on a thread. Its result comes by the receiver; an error there says that the runtime ended before the work did.
fn start<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> oneshot::Receiver<T> {
    let (done, result) = oneshot::channel();
    // Of one type, as tokio makes its functions anew for each one that it is given.
    let work: Box<dyn FnOnce() + Send> = Box::new(move || {
        // Its caller may have stopped waiting.
        drop(done.send(work()));
    });
    drop(tokio::task::spawn_blocking(work));
    result
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn work_that_is_never_begun_is_told() {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.build().unwrap();
        let handle = runtime.handle().clone();
        drop(runtime);
        let _inside = handle.enter();
        assert!(start(|| 8).blocking_recv().is_err());
    }

    #[tokio::test]
    async fn whoever_asks_a_silent_device_goes_on() {
        assert_eq!(within(ANSWER, || 7).await, Ok(7));
        let (answer, question) = std::sync::mpsc::channel::<()>();
        let limit = Duration::from_millis(20);
        let silent = within(limit, move || question.recv()).await;
        assert_eq!(silent, Err(NoAnswer::Late(limit)));
        drop(answer);
    }
}
