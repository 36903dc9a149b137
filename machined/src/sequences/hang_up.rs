//! The caller of a sequence whose first part changes nothing, such as the pull of an upgrade: that part ends when the caller hangs up.
//!
//! ```text
//!   the call: holds the line ──────────────── hangs up: the line is dropped
//!                                                 │
//!   the task: step that changes nothing ◄─────────┘ ends with `HungUp`
//!             all after it                          goes on to its end without a caller
//! ```
//!
//! The decision: a call that begins something later, when its caller has counted it as failed, does harm; a call that stops halfway does more. So
//! the step before the first change listens to the caller, and nothing after it does.

use std::pin::Pin;

use tokio::sync::oneshot;

/// The caller has hung up before anything was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the caller left before anything was changed")]
pub struct HungUp;

/// The call's end of the line: held by the call's own future, which is dropped when its caller hangs up.
#[derive(Debug)]
pub struct Line {
    _held: oneshot::Sender<()>,
}

/// The caller, as a sequence sees it.
pub struct Caller(Option<Pin<Box<dyn Future<Output = ()> + Send>>>);

impl Caller {
    /// A caller at the other end of a line.
    pub fn on_the_line() -> (Line, Self) {
        let (held, hangs_up) = oneshot::channel();
        let caller = Caller::until(async move {
            // Nothing is sent: the line ends with the call.
            let _ = hangs_up.await;
        });
        (Line { _held: held }, caller)
    }

    /// A caller who has hung up once this has ended.
    pub fn until(left: impl Future<Output = ()> + Send + 'static) -> Self {
        Caller(Some(Box::pin(left)))
    }

    /// The machine itself, which does not hang up.
    pub fn machine() -> Self {
        Caller(None)
    }

    /// Runs a step that changes nothing for as long as the caller is there; then the step is dropped.
    ///
    /// # Errors
    /// The caller has hung up: the sequence has to end before it changes anything.
    pub async fn while_there<T>(self, step: impl Future<Output = T>) -> Result<T, HungUp> {
        let Some(left) = self.0 else {
            return Ok(step.await);
        };
        tokio::select! {
            // A step that ends at the same moment counts for nothing: nobody would hear of it.
            biased;
            () = left => Err(HungUp),
            done = step => Ok(done),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::future::{pending, ready};
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_step_ends_with_its_caller_and_what_comes_after_it_does_not() {
        let (line, caller) = Caller::on_the_line();
        assert_eq!(caller.while_there(ready(7)).await, Ok(7));
        drop(line);

        let (line, caller) = Caller::on_the_line();
        let pulling = tokio::spawn(caller.while_there(pending::<()>()));
        tokio::task::yield_now().await;
        assert!(!pulling.is_finished());
        drop(line);
        assert_eq!(pulling.await.unwrap(), Err(HungUp));

        // Who has left before the step began is not there for its end either.
        let (line, caller) = Caller::on_the_line();
        drop(line);
        assert_eq!(caller.while_there(ready(7)).await, Err(HungUp));
    }

    #[tokio::test(start_paused = true)]
    async fn the_machine_does_not_hang_up() {
        let late = tokio::time::sleep(Duration::from_secs(86_400));
        assert_eq!(Caller::machine().while_there(late).await, Ok(()));
    }
}
