//! Starts tasks through one type of future.
//!
//! tokio makes its functions anew for each type of future that it is given: poll, cancel, read the result, and more. In machined, with some
//! 100 of them, and as many closures of blocking work, these were an eighth of the program. Behind a box all of them share one copy, for one
//! allocation for each task. Work on threads is started in the same way ([`blocking_io`](crate::blocking_io)).

use std::pin::Pin;

use tokio::task::JoinHandle;

/// Starts a task.
pub fn spawn<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    let future: Pin<Box<dyn Future<Output = T> + Send>> = Box::pin(future);
    tokio::spawn(future)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn results_come_back() {
        assert_eq!(spawn(async { 7 }).await.unwrap(), 7);
    }
}
