//! DNS lookups for apid. machined makes them because the resolver reads the current /etc/resolv.conf and /etc/hosts, and blocks a thread.

use std::net::{IpAddr, ToSocketAddrs as _};

use tokio::io::AsyncRead;
use tokio::sync::{Semaphore, mpsc};

use crate::apid::{Answer, Found, LOOKUPS, Question, receive_question};
use crate::base::blocking_io;

/// Limit on simultaneous lookups; a further question waits. A restarted apid shares the places with lookups that still run for
/// the previous one.
static PLACES: Semaphore = Semaphore::const_new(LOOKUPS);

/// Limit on the addresses of a name in an answer. A server with more is not tried at each of them.
const MOST_ADDRESSES: usize = 8;

/// Answers apid's questions until their stream ends.
///
/// # Errors
///
/// When the stream breaks, or a message is not a question.
pub(super) async fn answer(
    mut questions: impl AsyncRead + Unpin,
    answers: mpsc::Sender<Answer>,
) -> anyhow::Result<()> {
    loop {
        let place = PLACES.acquire().await?;
        let Some(question) = receive_question(&mut questions).await? else {
            return Ok(());
        };
        let Question { number, name } = question;
        let answers = answers.clone();
        crate::base::task::spawn(async move {
            // The resolver has its own timeout: some seconds for each domain that it searches.
            let looked_up = blocking_io::to_its_end(move || addresses(&name)).await;
            let found = looked_up.unwrap_or_else(|error| Err(error.to_string()));
            drop(place);
            // An error means that apid has ended and needs no answer.
            let _ = answers.send(Answer { number, found }).await;
        });
    }
}

fn addresses(name: &str) -> Found {
    // The resolver sorts the addresses by preference (RFC 6724). The port is a placeholder: apid sets it.
    let mut found = (name, 0).to_socket_addrs();
    // Upper and lower case are equal in names (RFC 4343), but musl compares the names in /etc/hosts byte by byte.
    let lower = name.to_ascii_lowercase();
    if found.is_err() && lower != name {
        found = (lower.as_str(), 0).to_socket_addrs();
    }
    let found = found.map_err(|error| error.to_string())?;
    let found = found.take(MOST_ADDRESSES);
    Ok(found.map(|address| address.ip()).collect::<Vec<IpAddr>>())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::apid::send_control;

    #[tokio::test]
    async fn names_are_looked_up_and_failures_told() {
        let (mut apid, machined) = tokio::io::duplex(4096);
        let (sender, mut answers) = mpsc::channel(1);
        let answering = tokio::spawn(answer(machined, sender));
        // The last one is not a valid name, so that no server is asked for it.
        let names = [
            "localhost".to_owned(),
            "10.9.8.7".to_owned(),
            "x".repeat(300),
        ];
        for (number, name) in (0..).zip(names) {
            let question = Question { number, name };
            send_control(&mut apid, &question).await.unwrap();
        }
        drop(apid);
        let mut found = Vec::new();
        while let Some(answer) = answers.recv().await {
            found.push((answer.number, answer.found));
        }
        found.sort_by_key(|(number, _)| *number);
        let [(0, Ok(own)), (1, Ok(literal)), (2, Err(_))] = &found[..] else {
            panic!("{found:?}");
        };
        assert!(own.iter().all(IpAddr::is_loopback) && !own.is_empty());
        assert_eq!(*literal, ["10.9.8.7".parse::<IpAddr>().unwrap()]);
        answering.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn what_is_no_question_ends_it() {
        let (sender, _answers) = mpsc::channel(1);
        let nonsense = [0, 0, 0, 1, b'x'];
        assert!(answer(nonsense.as_slice(), sender).await.is_err());
    }
}
