//! Work that waits for a disk or a device, away from the runtime's only thread. It is the one way to such a thread, so that all of them
//! answer alike when the runtime ends under them.
//!
//! [`within`] limits the wait: nothing but the device ends the thread, but whoever asked goes on, and can say what is wrong. [`to_its_end`]
//! is for work that has a limit of its own, or that nobody may go on without.

use std::time::Duration;

/// A disk that has not answered after this time is taken for a dead one. Unmounting writes what was not written yet: minutes on the
/// slowest stick.
pub const ANSWER: Duration = Duration::from_secs(300);

/// Why there is no outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// The device does not answer; the thread goes on waiting.
    #[error(
        "no answer within {} s: a disk or another device may be failing, and only a reboot ends the wait for it", .0.as_secs()
    )]
    Late(Duration),
    /// The runtime ended before the work did. (A panic of the work looks the same; it ends the programs of the root filesystem.)
    #[error("the work was interrupted because the program is stopping")]
    Interrupted,
}

/// Does it, or gives up waiting for it.
///
/// # Errors
/// It took too long.
pub async fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, NoAnswer> {
    // Not by `to_its_end`: its future is of the work's own type, and a limit around each of these made machined 20 KB larger.
    let work = tokio::task::spawn_blocking(work);
    match tokio::time::timeout(limit, work).await {
        Ok(done) => done.map_err(|_| NoAnswer::Interrupted),
        Err(_) => Err(NoAnswer::Late(limit)),
    }
}

/// Does it, however long it takes. It goes on where whoever waits for it stops waiting.
///
/// # Errors
/// The runtime ended before the work did.
pub async fn to_its_end<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, NoAnswer> {
    let work = tokio::task::spawn_blocking(work);
    work.await.map_err(|_| NoAnswer::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

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
