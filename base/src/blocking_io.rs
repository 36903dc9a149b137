//! Work that waits for a disk or a device: away from the runtime's only thread, and for a limited time. Nothing but the device ends the
//! thread that waits for it, but whoever asked goes on, and can say what is wrong.

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
    /// The thread was torn down with the runtime.
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
    let work = tokio::task::spawn_blocking(work);
    match tokio::time::timeout(limit, work).await {
        Ok(done) => done.map_err(|_| NoAnswer::Interrupted),
        Err(_) => Err(NoAnswer::Late(limit)),
    }
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
