//! Questions to nodes, which run on beside the rounds: a look waits a few seconds for its answers, and a later look takes in those that come later.
//!
//! ```text
//!  due, the most urgent first ─► 16 slots, half of them closed to nodes that the cluster calls dead ─► answers, for this look or for a later one
//! ```
//!
//! So a rack without power delays a round by seconds, however many nodes are in it: a pause, an abort or a halt is in the record before a drain ends.

use std::collections::BTreeMap;
use std::time::Duration;

use instar_rollout::MachineName;
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio::time::{Instant, timeout_at};

/// Nodes that are asked at once.
const AT_ONCE: usize = 16;
/// Of these, nodes that will hardly answer: the other slots are never theirs.
const LIKELY_SILENT_AT_ONCE: usize = 8;

/// How long one look waits for its answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// For nodes that are expected to answer.
    pub(crate) all: Duration,
    /// When only nodes are left that will hardly answer.
    pub(crate) likely_silent: Duration,
}

/// A question that is to be put to a node.
pub(crate) struct Due<F> {
    pub(crate) name: MachineName,
    /// Whether the node will hardly answer.
    pub(crate) is_likely_silent: bool,
    pub(crate) ask: F,
}

/// A question that is under way.
struct UnderWay {
    handle: AbortHandle,
    is_likely_silent: bool,
    /// Whether the look that goes on has put it.
    is_new: bool,
}

/// The questions to nodes. Each future has to end by itself. It has to run in a `LocalSet`.
pub(crate) struct Questions<T> {
    asks: JoinSet<T>,
    /// At most one for each node.
    under_way: BTreeMap<MachineName, UnderWay>,
}

impl<T: 'static> Questions<T> {
    pub(crate) fn new() -> Self {
        Self {
            asks: JoinSet::new(),
            under_way: BTreeMap::new(),
        }
    }

    /// Whether a node is being asked.
    pub(crate) fn are_put_to(&self, name: &MachineName) -> bool {
        self.under_way.contains_key(name)
    }

    /// Drops the question to a node: what it says to it is no answer any more.
    pub(crate) fn drop_that_to(&mut self, name: &MachineName) {
        if let Some(question) = self.under_way.remove(name) {
            question.handle.abort();
        }
    }

    /// Takes the answers to earlier questions that have come meanwhile.
    pub(crate) fn come_in(&mut self) -> Vec<(MachineName, T)> {
        let mut answers = Vec::new();
        while let Some(ended) = self.asks.try_join_next_with_id() {
            answers.extend(self.ended(ended));
        }
        answers
    }

    /// Puts the questions, the first ones first, and waits for their answers within the limits. Those under way then run on; those for which there
    /// was no slot are not put. Nodes that are being asked must not be among them.
    pub(crate) async fn put<F>(&mut self, due: Vec<Due<F>>, limits: Limits) -> Vec<(MachineName, T)>
    where
        F: Future<Output = T> + 'static,
    {
        let began = Instant::now();
        let (mut silent, mut others): (Vec<_>, Vec<_>) =
            due.into_iter().partition(|it| it.is_likely_silent);
        // The next one is the last of its list.
        silent.reverse();
        others.reverse();
        for question in self.under_way.values_mut() {
            question.is_new = false;
        }
        let mut answers = Vec::new();
        loop {
            while self.has_room(false)
                && let Some(next) = others.pop()
            {
                self.begin(next);
            }
            while self.has_room(true)
                && let Some(next) = silent.pop()
            {
                self.begin(next);
            }
            let waits_for_others = !others.is_empty() || self.has_new(false);
            let waits_for_silent = !silent.is_empty() || self.has_new(true);
            let limit = match (waits_for_others, waits_for_silent) {
                (true, _) => limits.all,
                (false, true) => limits.likely_silent,
                (false, false) => return answers,
            };
            match timeout_at(began + limit, self.asks.join_next_with_id()).await {
                Ok(Some(ended)) => answers.extend(self.ended(ended)),
                Ok(None) | Err(_) => return answers,
            }
        }
    }

    fn begin<F>(&mut self, due: Due<F>)
    where
        F: Future<Output = T> + 'static,
    {
        let question = UnderWay {
            handle: self.asks.spawn_local(due.ask),
            is_likely_silent: due.is_likely_silent,
            is_new: true,
        };
        self.under_way.insert(due.name, question);
    }

    fn has_room(&self, likely_silent: bool) -> bool {
        let questions = self.under_way.values();
        let silent = questions.filter(|it| it.is_likely_silent).count();
        let has_slot = self.under_way.len() < AT_ONCE;
        has_slot && (!likely_silent || silent < LIKELY_SILENT_AT_ONCE)
    }

    fn has_new(&self, likely_silent: bool) -> bool {
        let mut questions = self.under_way.values();
        questions.any(|it| it.is_new && it.is_likely_silent == likely_silent)
    }

    /// The node and its answer; none of a question that was dropped or that failed: the node is asked again.
    fn ended(&mut self, ended: Result<(Id, T), JoinError>) -> Option<(MachineName, T)> {
        let (id, answer) = match ended {
            Ok((id, answer)) => (id, Some(answer)),
            Err(error) => (error.id(), None),
        };
        let mut questions = self.under_way.iter();
        let (name, _) = questions.find(|(_, question)| question.handle.id() == id)?;
        let name = name.clone();
        self.under_way.remove(&name);
        Some((name, answer?))
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::pin::Pin;

    use tokio::task::LocalSet;
    use tokio::time::sleep;

    use super::*;

    type Ask = Pin<Box<dyn Future<Output = u32>>>;

    const LIMITS: Limits = Limits {
        all: Duration::from_millis(300),
        likely_silent: Duration::from_millis(20),
    };

    fn due(
        name: &str,
        is_likely_silent: bool,
        ask: impl Future<Output = u32> + 'static,
    ) -> Due<Ask> {
        Due {
            name: MachineName::from(name),
            is_likely_silent,
            ask: Box::pin(ask),
        }
    }

    async fn put(questions: &mut Questions<u32>, due: Vec<Due<Ask>>) -> (Vec<String>, Duration) {
        let began = Instant::now();
        let answers = questions.put(due, LIMITS).await;
        let names = answers.into_iter().map(|(name, _)| name.to_string());
        (names.collect(), began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_dead_rack_delays_nobody() {
        let rack = || {
            let dead = (0..200).map(|number| due(&format!("dead-{number}"), true, pending()));
            dead.chain([due("well", false, ready(1))]).collect()
        };
        let looks = async {
            let mut questions = Questions::new();
            for _ in 0..3 {
                let due: Vec<Due<Ask>> = rack();
                let due = due.into_iter().filter(|it| !questions.are_put_to(&it.name));
                let due = due.collect();
                let (names, took) = put(&mut questions, due).await;
                assert_eq!(names, ["well"]);
                assert!(took < LIMITS.all, "{took:?}");
                assert_eq!(questions.under_way.len(), LIKELY_SILENT_AT_ONCE);
            }
        };
        LocalSet::new().run_until(looks).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_answer_is_taken_in_by_a_later_look() {
        let looks = async {
            let mut questions = Questions::new();
            let late = async {
                sleep(2 * LIMITS.all).await;
                7
            };
            let all = vec![due("late", false, late), due("well", false, ready(1))];
            let (names, took) = put(&mut questions, all).await;
            assert_eq!(names, ["well"]);
            assert!(took >= LIMITS.all, "{took:?}");
            // The next look waits for its own questions alone.
            let (names, took) = put(&mut questions, vec![due("other", false, ready(2))]).await;
            assert_eq!(names, ["other"]);
            assert!(took < LIMITS.all, "{took:?}");
            sleep(2 * LIMITS.all).await;
            assert_eq!(questions.come_in(), [(MachineName::from("late"), 7)]);
            assert!(questions.under_way.is_empty());
        };
        LocalSet::new().run_until(looks).await;
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_node_says_to_a_question_that_was_dropped_is_no_answer() {
        let looks = async {
            let mut questions = Questions::new();
            let late = async {
                sleep(Duration::from_millis(50)).await;
                7
            };
            assert!(
                questions
                    .put(vec![due("n1", true, late)], LIMITS)
                    .await
                    .is_empty()
            );
            questions.drop_that_to(&MachineName::from("n1"));
            assert!(!questions.are_put_to(&MachineName::from("n1")));
            sleep(Duration::from_millis(100)).await;
            assert!(questions.come_in().is_empty());
        };
        LocalSet::new().run_until(looks).await;
    }
}
