//! Calls that change the machine: each runs in a task of its own, to its end. A call's own future is dropped when its caller hangs up,
//! wherever it is; what it changes would be left half done.

use std::sync::Arc;
use std::time::Duration;

use tonic::Status;

use super::caller_credentials::CallerCredentials;
use crate::machine::Machine;
use crate::operation_lock::{Busy, Operation};

/// What takes a moment waits for others that do so, too.
const MOMENT: Duration = Duration::from_secs(5);

/// Goes on to the end of the work when the caller hangs up.
pub(super) async fn to_its_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, Status>> + Send + 'static,
) -> Result<T, Status> {
    tokio::spawn(work).await.unwrap_or_else(|error| {
        Err(Status::internal(format!(
            "the call did not come to its end: {error}"
        )))
    })
}

/// The same for work that nothing else may come between. Its caller may have lost its right while it waited for that.
pub(super) async fn alone<T: Send + 'static>(
    machine: &Arc<Machine>,
    credentials: Option<CallerCredentials>,
    operation: Operation,
    work: impl Future<Output = Result<T, Status>> + Send + 'static,
) -> Result<T, Status> {
    let machine = machine.clone();
    to_its_end(async move {
        let locked = machine.operations.lock_within(operation, MOMENT).await;
        let lock = locked.map_err(busy)?;
        credentials.map_or(Ok(()), |credentials| credentials.check())?;
        let done = work.await;
        drop(lock);
        done
    })
    .await
}

/// The status for a call that has to wait for another operation.
pub(super) fn busy(busy: Busy) -> Status {
    Status::failed_precondition(busy.to_string())
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn who_hangs_up_leaves_work_that_goes_on() {
        let (begin, begins) = oneshot::channel::<()>();
        let (ended, ends) = oneshot::channel();
        let call = to_its_end(async move {
            // A dropped sender is a word to begin, too.
            let _ = begins.await;
            Ok(ended.send(7).is_ok())
        });
        // Polled once, then dropped.
        assert!(tokio::time::timeout(Duration::ZERO, call).await.is_err());
        assert!(begin.send(()).is_ok());
        assert_eq!(ends.await, Ok(7));
    }
}
