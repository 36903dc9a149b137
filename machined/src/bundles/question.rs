//! The question at a terminal: a person types the digits that the terminal shows. Nothing that cannot read the terminal can answer it, such
//! as a stick that claims to be a keyboard.
//!
//! ```text
//!  (0 digits) ── right digit ──► (1) ── … ──► (6): Right
//!       └─────────── wrong digit ────────────► Wrong            other keys change nothing
//! ```

/// Number of digits.
const DIGITS: usize = 6;

/// The digits that a person has to type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    digits: [u8; DIGITS],
    typed: usize,
}

/// The answer that the keys pressed so far give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Not all digits are typed.
    Open,
    /// All digits are right.
    Right,
    /// A digit is wrong.
    Wrong,
}

impl Question {
    /// A question with digits made of random bytes.
    pub fn new(random: [u8; DIGITS]) -> Self {
        Question {
            digits: random.map(|byte| b'0' + byte % 10),
            typed: 0,
        }
    }

    /// The digits as a person reads them.
    pub fn shown(&self) -> String {
        let text = String::from_utf8_lossy(&self.digits);
        let (one, other) = text.split_at_checked(DIGITS / 2).unwrap_or((&text, ""));
        format!("{one} {other}")
    }

    /// Takes a key.
    pub fn key(&mut self, key: u8) -> Answer {
        let Some(expected) = self.digits.get(self.typed) else {
            return Answer::Right;
        };
        if !key.is_ascii_digit() {
            return Answer::Open;
        }
        if key != *expected {
            return Answer::Wrong;
        }
        self.typed += 1;
        match self.typed == DIGITS {
            true => Answer::Right,
            false => Answer::Open,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_digits_in_their_order_are_the_answer() {
        let question = Question::new([1, 12, 3, 4, 5, 250]);
        assert_eq!(question.shown(), "123 450");
        for (keys, expected) in [
            (&b""[..], Answer::Open),
            (b"12345", Answer::Open),
            (b"123450", Answer::Right),
            (b"1 2\n3y4\x1b5q0", Answer::Right),
            (b"2", Answer::Wrong),
            (b"12346", Answer::Wrong),
            (b"123451", Answer::Wrong),
            (b"y\r\n", Answer::Open),
        ] {
            let mut question = question.clone();
            let mut answer = Answer::Open;
            for key in keys {
                answer = question.key(*key);
                if answer == Answer::Wrong {
                    break;
                }
            }
            assert_eq!(answer, expected, "{keys:?}");
        }
    }
}
