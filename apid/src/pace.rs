//! The pace of a client on one connection: whether it rests once it has its answer.
//!
//! A client that polls asks again a period after its last question. If the answer takes longer than that, the client is behind its pace and
//! asks again at once.

use std::time::Duration;

use tokio::time::Instant;

/// A client that is not to ask again for this long rests: it has time to read what is sent along with its answer.
const REST: Duration = Duration::from_millis(20);

/// When a client asks. Small, as there may be thousands of connections.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pace {
    last: Option<Instant>,
    /// The shortest time between two questions lately.
    period: Option<Duration>,
}

impl Pace {
    /// Notes a question.
    pub(super) fn asks(&mut self, now: Instant) {
        if let Some(last) = self.last {
            let time = now.duration_since(last);
            // One question that came early is forgotten after a few: each longer time at most doubles the period.
            self.period = Some(match self.period {
                Some(period) => time.min(period * 2),
                None => time,
            });
        }
        self.last = Some(now);
    }

    /// Whether a client that gets its answer now rests before it asks again. One that has asked once may be gone for ever.
    pub(super) fn rests_after_answer(&self, now: Instant) -> bool {
        match (self.last, self.period) {
            (Some(last), Some(period)) => last + period >= now + REST,
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_rests_when_its_next_question_is_not_due() {
        // Times of questions in ms, the time of the last answer, whether the client rests.
        let table: [(&[u64], u64, bool); 8] = [
            (&[], 0, true),
            (&[0], 900, true),
            (&[0, 100], 180, true),
            (&[0, 100], 181, false),
            (&[0, 100, 200], 350, false),
            // One answer came late, and the next question early.
            (&[0, 100, 290, 300], 310, false),
            (&[0, 100, 290, 300, 400, 500], 510, true),
            (&[0, 3, 6, 9], 11, false),
        ];
        let begin = Instant::now();
        let at = |milliseconds| begin + Duration::from_millis(milliseconds);
        for (questions, answer, rests) in table {
            let mut pace = Pace::default();
            for question in questions {
                pace.asks(at(*question));
            }
            assert_eq!(
                pace.rests_after_answer(at(answer)),
                rests,
                "{questions:?}, {answer}"
            );
        }
    }
}
