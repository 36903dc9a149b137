//! Continues streams after a change of versions without a reboot: the node is asked again. It reports the change at the end of a stream, unless the
//! reader is so slow that the report finds no room in the connection, or the node's API crashes: then the connection breaks.

use std::error::Error as _;
use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout, timeout_at};
use tonic::{Code, Status};

use crate::connection::is_tls_alert;
use crate::follow::comes_back;

/// Timeout for the next version to serve the stream: a container's log is there some seconds after the API.
pub const BACK_WITHIN: Duration = Duration::from_secs(60);
/// A node that does not answer within this time is told of. A change of versions is mostly over by then.
const QUIET: Duration = Duration::from_secs(2);
/// Pause before each attempt, the first one too: a node may break every stream as soon as it has begun.
const PAUSE: Duration = Duration::from_millis(200);

/// Why a stream is asked for again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interruption {
    /// The node changes to another version.
    ChangesVersion,
    /// The connection broke.
    Broken,
}

/// Asks again for a stream that ended with this status. If the node itself ended it, and is not changing versions, the status is the final error.
/// `waits` is called once if there is no answer after two seconds, so that the user learns what the silence is.
///
/// # Errors
/// The status at the stream's end, or the node's last answer after [`BACK_WITHIN`].
pub async fn ask_again<T>(
    ended: Status,
    ask: impl AsyncFn() -> Result<T, Status>,
    waits: impl FnOnce(Interruption),
) -> Result<T, Status> {
    let why = match (changes_version(&ended), is_broken(&ended)) {
        (true, _) => Interruption::ChangesVersion,
        (false, true) => Interruption::Broken,
        (false, false) => return Err(ended),
    };
    let mut asking = pin!(ask_until_back(ended, ask));
    if let Ok(answer) = timeout(QUIET, asking.as_mut()).await {
        return answer;
    }
    waits(why);
    asking.await
}

/// Asks until there is an answer that stays, or the time is over.
async fn ask_until_back<T>(
    ended: Status,
    ask: impl AsyncFn() -> Result<T, Status>,
) -> Result<T, Status> {
    let until = Instant::now() + BACK_WITHIN;
    loop {
        sleep(PAUSE).await;
        match timeout_at(until, ask()).await {
            Ok(Err(status)) if may_come_back(&status) && Instant::now() < until => {}
            Ok(answer) => return answer,
            Err(_) => return Err(ended),
        }
    }
}

/// Whether waiting may help. It does not if the node refuses the caller: a call with a status, a certificate with an alert of TLS.
fn may_come_back(status: &Status) -> bool {
    comes_back(status.code()) && !is_tls_alert(status)
}

fn changes_version(ended: &Status) -> bool {
    ended.code() == Code::Unavailable && ended.message() == instar_api::CHANGES_VERSION
}

/// Whether the connection broke. Only errors of the transport have a source: a status that the node sent has none, whatever its code.
fn is_broken(ended: &Status) -> bool {
    let may_be_broken = matches!(
        ended.code(),
        Code::Unknown | Code::Internal | Code::Unavailable | Code::Cancelled
    );
    may_be_broken && ended.source().is_some()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cell::Cell;
    use std::io;
    use std::sync::Arc;

    use super::*;

    fn unheard(_: Interruption) {}

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
        assert_eq!(
            ask_again(changes(), third, unheard).await.unwrap(),
            "answer"
        );
        let never = async || Err::<(), _>(Status::not_found("no such service"));
        let code = ask_again(changes(), never, unheard)
            .await
            .unwrap_err()
            .code();
        assert_eq!(code, Code::NotFound);
        let silent = async || std::future::pending::<Result<(), Status>>().await;
        let code = ask_again(changes(), silent, unheard)
            .await
            .unwrap_err()
            .code();
        assert_eq!(code, Code::Unavailable);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_goes_on_over_a_broken_connection_and_no_other_end() {
        let broken = || Status::from_error(Box::new(io::Error::from(io::ErrorKind::BrokenPipe)));
        let with_source = |mut status: Status| {
            status.set_source(Arc::new(io::Error::from(io::ErrorKind::ConnectionReset)));
            status
        };
        for (ended, goes_on) in [
            (broken(), true),
            (with_source(Status::internal("h2 protocol error")), true),
            (
                with_source(Status::unavailable("keep-alive timed out")),
                true,
            ),
            (with_source(Status::cancelled("")), true),
            (with_source(Status::permission_denied("")), false),
            (Status::unavailable("the service's log went away"), false),
            (Status::internal("the disk failed"), false),
            (Status::not_found("no such service"), false),
            (
                Status::unauthenticated("the certificate is no longer accepted"),
                false,
            ),
        ] {
            let text = format!("{ended:?}");
            let asked = async || Ok::<_, Status>(());
            assert_eq!(
                ask_again(ended, asked, unheard).await.is_ok(),
                goes_on,
                "{text}"
            );
        }
        let refuses = async || Err::<(), _>(Status::permission_denied("not authorized"));
        let code = ask_again(broken(), refuses, unheard)
            .await
            .unwrap_err()
            .code();
        assert_eq!(code, Code::PermissionDenied);
        let began = Instant::now();
        let alert = "received fatal alert: CertificateRequired";
        let lets_nobody_in = async || Err::<(), _>(with_source(Status::unavailable(alert)));
        assert!(ask_again(broken(), lets_nobody_in, unheard).await.is_err());
        assert!(began.elapsed() < Duration::from_secs(1));
        // A node that does not come back: the wait has a limit.
        let away = async || Err::<(), _>(broken());
        let began = Instant::now();
        assert!(ask_again(broken(), away, unheard).await.is_err());
        assert!(began.elapsed() < BACK_WITHIN + Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_is_told_once_and_only_if_it_lasts() {
        let broken = || Status::from_error(Box::new(io::Error::from(io::ErrorKind::BrokenPipe)));
        let changes = || Status::unavailable(instar_api::CHANGES_VERSION);
        for (ended, back_after, told) in [
            (changes(), 1_700, None),
            (broken(), 1_700, None),
            (changes(), 2_300, Some(Interruption::ChangesVersion)),
            (broken(), 30_000, Some(Interruption::Broken)),
            (broken(), 90_000, Some(Interruption::Broken)),
            (Status::internal("the disk failed"), 0, None),
        ] {
            let back = Instant::now() + Duration::from_millis(back_after);
            let ask = async || match Instant::now() < back {
                true => Err(broken()),
                false => Ok(()),
            };
            let heard = Cell::new(None);
            // Whether the node comes back in time is no matter here.
            let _ = ask_again(ended, ask, |why| heard.set(Some(why))).await;
            assert_eq!(heard.get(), told, "back after {back_after} ms");
        }
        // One that hangs is told of as well.
        let silent = async || std::future::pending::<Result<(), Status>>().await;
        let heard = Cell::new(None);
        assert!(
            ask_again(broken(), silent, |why| heard.set(Some(why)))
                .await
                .is_err()
        );
        assert_eq!(heard.get(), Some(Interruption::Broken));
    }
}
