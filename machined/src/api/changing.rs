//! Calls that change the machine. Each runs in a task of its own, to its end: the call's own future is dropped at any point when
//! its caller hangs up, which would leave the change half done. What comes before the first change may end with its caller ([`told_of_its_caller`]).

use std::sync::Arc;
use std::time::Duration;

use tonic::Status;

use super::caller_credentials::CallerCredentials;
use crate::machine::Machine;
use crate::operation_lock::{Busy, Operation, OperationLock};
use crate::sequences::Caller;

/// Timeout for the operation lock: a short operation waits for another short one.
const MOMENT: Duration = Duration::from_secs(5);

/// Runs the work to its end, even if the caller hangs up.
pub(super) async fn to_its_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, Status>> + Send + 'static,
) -> Result<T, Status> {
    crate::base::task::spawn(work)
        .await
        .unwrap_or_else(|error| {
            Err(Status::internal(format!(
                "the call did not come to its end: {error}"
            )))
        })
}

/// Like [`to_its_end`] for work that begins with a step that changes nothing: it is told when its caller hangs up, and ends that step.
pub(super) async fn told_of_its_caller<T: Send + 'static, Work>(
    work: impl FnOnce(Caller) -> Work,
) -> Result<T, Status>
where
    Work: Future<Output = Result<T, Status>> + Send + 'static,
{
    let (line, caller) = Caller::on_the_line();
    let done = to_its_end(work(caller)).await;
    drop(line);
    done
}

/// Like [`to_its_end`], with the operation lock held. Checks the caller's credentials again, because they may have been revoked
/// while the call waited for the lock.
pub(super) async fn alone<T: Send + 'static>(
    machine: &Arc<Machine>,
    credentials: Option<CallerCredentials>,
    operation: Operation,
    work: impl Future<Output = Result<T, Status>> + Send + 'static,
) -> Result<T, Status> {
    let machine = machine.clone();
    to_its_end(async move {
        let lock = lock_for(&machine, credentials, operation).await?;
        let done = work.await;
        drop(lock);
        done
    })
    .await
}

/// Like [`alone`] for work that is a wait: an operation that ends the machine by force does not wait for it, and the wait is dropped.
pub(super) async fn giving_way<T: Send + 'static>(
    machine: &Arc<Machine>,
    credentials: Option<CallerCredentials>,
    operation: Operation,
    work: impl Future<Output = Result<T, Status>> + Send + 'static,
) -> Result<T, Status> {
    let machine = machine.clone();
    to_its_end(async move {
        let lock = lock_for(&machine, credentials, operation).await?;
        let waited = lock.interruptible(work).await;
        waited.unwrap_or_else(|interrupted| {
            let by = interrupted
                .by
                .map_or_else(String::new, |by| format!(": {by} has begun"));
            Err(Status::aborted(format!(
                "{operation} is awaited no longer{by}"
            )))
        })
    })
    .await
}

/// Takes the lock, and checks the caller's credentials after the wait for it.
async fn lock_for(
    machine: &Machine,
    credentials: Option<CallerCredentials>,
    operation: Operation,
) -> Result<OperationLock, Status> {
    let locked = machine.operations.lock_within(operation, MOMENT).await;
    let lock = locked.map_err(busy)?;
    credentials.map_or(Ok(()), |credentials| credentials.check())?;
    Ok(lock)
}

/// Builds the status of a call that is refused because another operation runs.
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
            // The work begins when the sender is dropped, too.
            let _ = begins.await;
            Ok(ended.send(7).is_ok())
        });
        // The call is polled once, then dropped.
        assert!(tokio::time::timeout(Duration::ZERO, call).await.is_err());
        assert!(begin.send(()).is_ok());
        assert_eq!(ends.await, Ok(7));
    }

    #[tokio::test]
    async fn who_hangs_up_ends_the_step_before_the_change_alone() {
        let (told, tells) = oneshot::channel();
        let call = told_of_its_caller(|caller| async move {
            let pulled = caller.while_there(std::future::pending::<()>()).await;
            Ok(told.send(pulled.is_ok()))
        });
        assert!(tokio::time::timeout(Duration::ZERO, call).await.is_err());
        assert_eq!(tells.await, Ok(false));

        let (begin, begins) = oneshot::channel::<()>();
        let (ended, ends) = oneshot::channel();
        let call = told_of_its_caller(|caller| async move {
            let pulled = caller.while_there(async { true }).await;
            // The sender is never dropped before it sends.
            let _ = begins.await;
            Ok(ended.send(pulled.is_ok()))
        });
        // The image is here when the caller hangs up.
        assert!(
            tokio::time::timeout(Duration::from_millis(50), call)
                .await
                .is_err()
        );
        assert!(begin.send(()).is_ok());
        assert_eq!(ends.await, Ok(true));
    }
}
