//! The order in which the endpoints of an image are asked: a mirror that is away must not keep the registry behind it from being asked in time.
//!
//! ```text
//! first pass     all that are not known to be away: each briefly, the last one with all its tries
//! second pass    those that are away, and those whose failure may pass: each with all its tries
//! ```
//!
//! The value says whose turn it is and knows no clock. [`Away`] remembers who gave no answer, for a minute: the documents and layers of one image
//! are asked for one after the other.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::time::Duration;

use instar_base::lock::Lock as _;
use tokio::time::Instant;

use super::error::{RequestError, Tried};
use crate::registries::{Endpoint, Patience};

/// Time for which an endpoint that gave no answer is asked after the others.
const AWAY: Duration = Duration::from_secs(60);

/// The endpoints of an image that are still to be asked, by their place in the config, and the errors of those that were asked.
#[derive(Debug)]
pub(crate) struct Round {
    first: BTreeMap<usize, Endpoint>,
    second: BTreeMap<usize, Endpoint>,
    tried: BTreeMap<usize, (String, RequestError)>,
}

/// The turn of an endpoint.
#[derive(Debug)]
pub(crate) struct Turn {
    place: usize,
    pub(crate) endpoint: Endpoint,
}

impl Round {
    /// Begins a round.
    pub(super) fn new(endpoints: Vec<Endpoint>, is_away: impl Fn(&Endpoint) -> bool) -> Self {
        let all = endpoints.into_iter().enumerate();
        let (second, first): (BTreeMap<_, _>, BTreeMap<_, _>) =
            all.partition(|(_, endpoint)| is_away(endpoint));
        // Nobody is asked after nobody.
        let (first, second) = match first.is_empty() {
            true => (second, first),
            false => (first, second),
        };
        Round {
            first,
            second,
            tried: BTreeMap::new(),
        }
    }

    /// The endpoint that is to be asked next.
    pub(crate) fn turn(&mut self) -> Option<Turn> {
        let (place, mut endpoint) = self.first.pop_first().or_else(|| self.second.pop_first())?;
        endpoint.patience = match self.first.is_empty() {
            true => Patience::Full,
            false => Patience::Brief,
        };
        self.tried.remove(&place);
        Some(Turn { place, endpoint })
    }

    /// Notes an endpoint's error; returns whether it is asked once more.
    pub(crate) fn failed(&mut self, turn: Turn, error: RequestError) -> bool {
        let Turn { place, endpoint } = turn;
        let has_another = endpoint.patience == Patience::Brief && error.may_pass();
        self.tried.insert(place, (endpoint.to_string(), error));
        if has_another {
            self.second.insert(place, endpoint);
        }
        has_another
    }

    /// The errors of the endpoints that have failed, in the order of the config.
    pub(crate) fn into_tried(self) -> Tried {
        Tried(self.tried.into_values().collect())
    }
}

/// The endpoints that gave no answer a moment ago.
#[derive(Debug, Default)]
pub(super) struct Away {
    since: Mutex<HashMap<String, Instant>>,
}

impl Away {
    /// Notes one.
    pub(super) fn note(&self, endpoint: &Endpoint) {
        let mut since = self.since.locked();
        since.insert(endpoint.to_string(), Instant::now());
    }

    /// Forgets one: it has answered.
    pub(super) fn forget(&self, endpoint: &Endpoint) {
        self.since.locked().remove(&endpoint.to_string());
    }

    /// Whether this is one of them.
    pub(super) fn has(&self, endpoint: &Endpoint) -> bool {
        let since = self.since.locked();
        let noted = since.get(&endpoint.to_string());
        noted.is_some_and(|noted| noted.elapsed() < AWAY)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::said::Said;
    use super::*;

    fn endpoint(name: &str) -> Endpoint {
        Endpoint {
            root: format!("https://{name}").parse().unwrap(),
            mirrors: None,
            patience: Patience::Full,
        }
    }

    fn absent() -> RequestError {
        RequestError::NotFound {
            said: Said::default(),
        }
    }

    /// Asks all endpoints in vain. Those in `silent` give no answer, the others do not have the image.
    fn asked(endpoints: &str, away: &str, silent: &str) -> String {
        let all = endpoints.split_whitespace().map(endpoint).collect();
        let is_in =
            |names: &str, endpoint: &Endpoint| names.contains(endpoint.root.authority.as_str());
        let mut round = Round::new(all, |endpoint| is_in(away, endpoint));
        let mut told = Vec::new();
        while let Some(turn) = round.turn() {
            let (name, patience) = (turn.endpoint.root.authority.clone(), turn.endpoint.patience);
            told.push(format!("{name} {patience:?}"));
            match is_in(silent, &turn.endpoint) {
                true => _ = round.failed(turn, RequestError::Hesitates),
                false => _ = round.failed(turn, absent()),
            }
        }
        let tried: Vec<String> = round.into_tried().0.into_iter().map(|it| it.0).collect();
        let expected = endpoints.split_whitespace();
        let expected: Vec<String> = expected.map(|it| endpoint(it).to_string()).collect();
        assert_eq!(tried, expected, "each has one error, in their order");
        told.join(", ")
    }

    #[test]
    fn the_last_endpoint_is_asked_patiently_and_then_those_that_were_silent() {
        for (endpoints, away, silent, expected) in [
            ("", "", "", ""),
            ("r", "", "", "r Full"),
            ("r", "r", "r", "r Full"),
            ("a r", "", "", "a Brief, r Full"),
            ("a r", "", "a", "a Brief, r Full, a Full"),
            ("a r", "", "a r", "a Brief, r Full, a Full"),
            ("a r", "a", "", "r Full, a Full"),
            ("a r", "r", "", "a Full, r Full"),
            ("a r", "a r", "a r", "a Brief, r Full, a Full"),
            (
                "a b r",
                "",
                "a b",
                "a Brief, b Brief, r Full, a Full, b Full",
            ),
            ("a b r", "a", "b", "b Brief, r Full, a Full, b Full"),
            ("a b r", "b r", "", "a Full, b Full, r Full"),
        ] {
            let found = asked(endpoints, away, silent);
            assert_eq!(found, expected, "{endpoints}; {away} away; {silent} silent");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_endpoint_is_away_for_a_minute_or_until_it_answers() {
        let (away, mirror) = (Away::default(), endpoint("mirror"));
        assert!(!away.has(&mirror));
        away.note(&mirror);
        tokio::time::advance(AWAY - Duration::from_secs(1)).await;
        assert!(away.has(&mirror) && !away.has(&endpoint("other")));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!away.has(&mirror));
        away.note(&mirror);
        away.forget(&mirror);
        assert!(!away.has(&mirror));
    }
}
