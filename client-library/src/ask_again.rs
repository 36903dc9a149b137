//! Continues streams after a change of versions without a reboot: the node reports it at the end of the stream, and is asked again.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};
use tonic::{Code, Status};

use crate::follow::comes_back;

/// Timeout for the next version to serve the stream: a container's log is there some seconds after the API.
const BACK_WITHIN: Duration = Duration::from_secs(60);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(200);

/// Asks again for a stream that ended with this status. If the node is not changing versions, the status is the final error.
///
/// # Errors
/// The status at the stream's end, or the node's last answer after a minute.
pub async fn ask_again<T>(
    ended: Status,
    ask: impl AsyncFn() -> Result<T, Status>,
) -> Result<T, Status> {
    let changes =
        ended.code() == Code::Unavailable && ended.message() == instar_api::CHANGES_VERSION;
    if !changes {
        return Err(ended);
    }
    let until = Instant::now() + BACK_WITHIN;
    loop {
        match timeout_at(until, ask()).await {
            Ok(Err(status)) if comes_back(status.code()) && Instant::now() < until => {
                sleep(PAUSE).await;
            }
            Ok(answer) => return answer,
            Err(_) => return Err(ended),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cell::Cell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_node_that_changes_is_asked_until_it_answers() {
        let changes = || Status::unavailable(instar_api::CHANGES_VERSION);
        let asked = Cell::new(0);
        let third = async || {
            asked.set(asked.get() + 1);
            match asked.get() {
                3 => Ok("answer"),
                _ => Err(Status::not_found("no such service yet")),
            }
        };
        assert_eq!(ask_again(changes(), third).await.unwrap(), "answer");
        let never = async || Err::<(), _>(Status::not_found("no such service"));
        let code = ask_again(changes(), never).await.unwrap_err().code();
        assert_eq!(code, Code::NotFound);
        let silent = async || std::future::pending::<Result<(), Status>>().await;
        let code = ask_again(changes(), silent).await.unwrap_err().code();
        assert_eq!(code, Code::Unavailable);
    }

    #[tokio::test]
    async fn any_other_end_is_one() {
        let ended = Status::unavailable("the service's log went away");
        let asked = async || Ok::<_, Status>(());
        assert!(ask_again(ended, asked).await.is_err());
    }
}
