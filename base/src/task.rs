//! Starts tasks, and work on other threads, through one type of future and of closure.
//!
//! tokio makes its functions anew for each type that it is given: poll, cancel, read the result, and more. In machined, with some 250 such
//! types, these were an eighth of the program. Behind a box all of them share one copy, for one allocation for each task.

use std::pin::Pin;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Starts a task.
pub fn spawn<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    let future: Pin<Box<dyn Future<Output = T> + Send>> = Box::pin(future);
    tokio::spawn(future)
}

/// Starts work on a thread on which it may block. Its result comes by the receiver; an error there says that the runtime ended before the
/// work did.
pub(crate) fn spawn_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> oneshot::Receiver<T> {
    let (done, result) = oneshot::channel();
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

    #[tokio::test]
    async fn results_come_back() {
        assert_eq!(spawn(async { 7 }).await.unwrap(), 7);
        assert_eq!(spawn_blocking(|| 8).await, Ok(8));
    }

    #[test]
    fn work_that_is_never_begun_is_told() {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.build().unwrap();
        let handle = runtime.handle().clone();
        drop(runtime);
        let _inside = handle.enter();
        assert!(spawn_blocking(|| 8).blocking_recv().is_err());
    }
}
