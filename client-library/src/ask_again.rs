//! Continues streams after a change of versions without a reboot: the node is asked again. It reports the change at the end of a stream, unless the
//! reader is so slow that the report finds no room in the connection, or the node's API crashes: then the connection breaks.

use std::error::Error as _;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};
use tonic::{Code, Status};

use crate::connection::is_tls_alert;
use crate::follow::comes_back;

/// Timeout for the next version to serve the stream: a container's log is there some seconds after the API.
const BACK_WITHIN: Duration = Duration::from_secs(60);
/// Pause before each attempt, the first one too: a node may break every stream as soon as it has begun.
const PAUSE: Duration = Duration::from_millis(200);

/// Asks again for a stream that ended with this status. If the node itself ended it, and is not changing versions, the status is the final error.
///
/// # Errors
/// The status at the stream's end, or the node's last answer after a minute.
pub async fn ask_again<T>(
    ended: Status,
    ask: impl AsyncFn() -> Result<T, Status>,
) -> Result<T, Status> {
    if !changes_version(&ended) && !is_broken(&ended) {
        return Err(ended);
    }
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
            assert_eq!(ask_again(ended, asked).await.is_ok(), goes_on, "{text}");
        }
        let refuses = async || Err::<(), _>(Status::permission_denied("not authorized"));
        let code = ask_again(broken(), refuses).await.unwrap_err().code();
        assert_eq!(code, Code::PermissionDenied);
        let began = Instant::now();
        let alert = "received fatal alert: CertificateRequired";
        let lets_nobody_in = async || Err::<(), _>(with_source(Status::unavailable(alert)));
        assert!(ask_again(broken(), lets_nobody_in).await.is_err());
        assert!(began.elapsed() < Duration::from_secs(1));
        // A node that does not come back: the wait has a limit.
        let away = async || Err::<(), _>(broken());
        let began = Instant::now();
        assert!(ask_again(broken(), away).await.is_err());
        assert!(began.elapsed() < BACK_WITHIN + Duration::from_secs(1));
    }
}
