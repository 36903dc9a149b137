//! Looks up the addresses of other nodes' names. apid sees none of the files that a resolver reads, and has no thread that could wait for
//! one: it asks machined, on the stream on which its orders come, and the answer comes as an order.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::Context as _;
use instar_api::answers::Unreached;
use rustls_pki_types::DnsName;
use tokio::io::AsyncWrite;
use tokio::sync::{mpsc, oneshot};

use super::control_message::{self, Answer, Found, Question};
use instar_base::lock::Lock as _;
use instar_base::quota::{Permit, Quota, Rank};

/// Limit on lookups at a time, of all callers: each is a thread of machined's. More wait.
pub const LOOKUPS: usize = 16;
/// Limit on lookups of callers who are no administrators: names without an answer take until the timeout.
const OTHERS_LOOKUPS: usize = 12;

/// DNS timeout: after this the name counts as one without an address.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why a name has no address.
#[derive(Debug, thiserror::Error)]
#[error(
    "{}: {reason}; do this node's resolvers, or its StaticHostConfig, know the name?",
    Unreached::NoAddress.of(.name)
)]
pub(super) struct LookupError {
    name: String,
    reason: String,
}

/// The way to machined's resolver; clones share it.
#[derive(Clone)]
pub(super) struct Lookups {
    questions: mpsc::Sender<Question>,
    askers: Arc<Mutex<Askers>>,
    places: Quota,
}

/// The callers that wait for an answer.
#[derive(Default)]
struct Askers {
    next: u64,
    waiting: HashMap<u64, Asker>,
}

struct Asker {
    answer: oneshot::Sender<Found>,
    /// Held until machined has answered, even if the caller is gone: so there are never more open questions than places.
    _place: Permit,
}

impl Lookups {
    /// Also returns the sender of the questions to machined; without it no lookup is answered.
    pub(super) fn new() -> (Self, Questions) {
        // As many as there are places, so that no sender waits here.
        let (sender, receiver) = mpsc::channel(LOOKUPS);
        let lookups = Lookups {
            questions: sender,
            askers: Arc::default(),
            places: Quota::new(LOOKUPS, OTHERS_LOOKUPS),
        };
        (lookups, Questions(receiver))
    }

    /// The addresses of a name, at least one, within [`PATIENCE`].
    pub(super) async fn addresses(
        &self,
        name: &DnsName<'_>,
        rank: Rank,
    ) -> Result<Vec<IpAddr>, LookupError> {
        let name = name.as_ref();
        let found = match tokio::time::timeout(PATIENCE, self.ask(name, rank)).await {
            Ok(Ok(Ok(found))) if found.is_empty() => Err("it has none".to_owned()),
            Ok(Ok(found)) => found,
            Ok(Err(error)) => Err(format!("{error:#}")),
            Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
        };
        found.map_err(|reason| LookupError {
            name: name.to_owned(),
            reason,
        })
    }

    async fn ask(&self, name: &str, rank: Rank) -> anyhow::Result<Found> {
        let place = self.places.acquire(rank).await;
        let (answer, found) = oneshot::channel();
        let number = self.askers().add(Asker {
            answer,
            _place: place,
        });
        let question = Question {
            number,
            name: name.to_owned(),
        };
        let asked = self.questions.send(question).await;
        asked.ok().context("machined cannot be asked")?;
        found.await.context("machined does not answer")
    }

    /// Gives an answer to the caller that asked.
    pub(super) fn answer(&self, answer: Answer) {
        if let Some(asker) = self.askers().waiting.remove(&answer.number) {
            // The caller may have given up.
            let _ = asker.answer.send(answer.found);
        }
    }

    fn askers(&self) -> MutexGuard<'_, Askers> {
        self.askers.locked()
    }
}

impl Askers {
    fn add(&mut self, asker: Asker) -> u64 {
        let number = self.next;
        self.next += 1;
        self.waiting.insert(number, asker);
        number
    }
}

/// The questions to machined that are not yet sent.
pub(super) struct Questions(mpsc::Receiver<Question>);

impl Questions {
    /// Sends them one after the other, until all askers are gone.
    pub(super) async fn ask(mut self, mut machined: impl AsyncWrite + Unpin) -> anyhow::Result<()> {
        while let Some(question) = self.0.recv().await {
            let asked = control_message::send(&mut machined, &question).await;
            asked.context("ask machined for an address")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tokio::time::timeout;

    fn name(text: &str) -> DnsName<'static> {
        DnsName::try_from(text.to_owned()).unwrap()
    }

    /// Asks for the address of each name at the same time.
    fn ask(
        lookups: &Lookups,
        rank: Rank,
        names: &[&str],
    ) -> Vec<tokio::task::JoinHandle<Result<String, String>>> {
        let asked = names.iter().map(|text| {
            let (lookups, name) = (lookups.clone(), name(text));
            tokio::spawn(async move {
                let found = lookups.addresses(&name, rank).await;
                let first = found.map(|addresses| addresses[0].to_string());
                first.map_err(|error| error.to_string())
            })
        });
        asked.collect()
    }

    #[tokio::test]
    async fn answers_reach_who_asked() {
        let (lookups, questions) = Lookups::new();
        let (ours, mut machined) = tokio::io::duplex(1024);
        tokio::spawn(questions.ask(ours));
        let names = ["one", "two", "none", "nothing"];
        let asked = ask(&lookups, Rank::Administrator, &names);
        let mut questions = Vec::new();
        while questions.len() < asked.len() {
            let question: Question = control_message::receive(&mut machined)
                .await
                .unwrap()
                .unwrap();
            questions.push(question);
        }
        // Answered in another order than they were asked.
        for Question { number, name } in questions.into_iter().rev() {
            let found = match name.as_str() {
                "one" => Ok(vec!["10.0.0.1".parse().unwrap()]),
                "two" => Ok(vec!["fd00::2".parse().unwrap()]),
                "none" => Ok(Vec::new()),
                _ => Err("Name does not resolve".to_owned()),
            };
            lookups.answer(Answer { number, found });
        }
        let mut found = Vec::new();
        for asked in asked {
            found.push(asked.await.unwrap());
        }
        assert_eq!(found[..2], [Ok("10.0.0.1".into()), Ok("fd00::2".into())]);
        for (found, name) in found[2..]
            .iter()
            .zip(["none: it has", "nothing: Name does"])
        {
            let error = found.as_ref().unwrap_err();
            assert!(error.contains(name), "{error}");
            assert!(instar_api::answers::is_away(error), "{error}");
        }
        // An answer to a question that was never asked is dropped.
        let found = Ok(Vec::new());
        lookups.answer(Answer { number: 77, found });
        assert_eq!(lookups.places.free(), LOOKUPS);
    }

    #[tokio::test]
    async fn who_gives_up_holds_the_place_until_machined_has_done() {
        let (lookups, mut questions) = Lookups::new();
        let asked = ask(&lookups, Rank::Other, &["slow"; LOOKUPS]);
        let mut numbers = Vec::new();
        while numbers.len() < OTHERS_LOOKUPS {
            numbers.push(questions.0.recv().await.unwrap().number);
        }
        for asked in &asked {
            asked.abort();
        }
        let next = ask(&lookups, Rank::Other, &["next"]);
        let early = timeout(Duration::from_millis(50), questions.0.recv()).await;
        assert!(early.is_err(), "more is looked up than there are places");
        // The slow lookups of others do not delay an administrator.
        let administrator = ask(&lookups, Rank::Administrator, &["now"]);
        assert_eq!(questions.0.recv().await.unwrap().name, "now");
        administrator[0].abort();
        let found = Ok(Vec::new());
        lookups.answer(Answer {
            number: numbers[0],
            found,
        });
        let question = questions.0.recv().await.unwrap();
        assert_eq!(question.name, "next");
        next[0].abort();
    }

    #[tokio::test]
    async fn without_machined_there_is_no_answer() {
        let (lookups, questions) = Lookups::new();
        drop(questions);
        let error = lookups.addresses(&name("node"), Rank::Other).await;
        let error = error.unwrap_err();
        assert!(error.to_string().contains("cannot be asked"), "{error}");
    }
}
