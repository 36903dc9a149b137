//! The times by which a machine waits of its own, so that a fleet does not do the same thing at the same moment.
//!
//! A time is computed from the machine's identity and the release: a restart does not draw again, and the machines that go first are others
//! with each release.

use std::time::Duration;

use crate::values::Digest;

/// The delays of a machine.
#[derive(Debug, Clone, Copy)]
pub struct Delays<'a> {
    /// The machine's identity.
    pub identity: &'a str,
    /// The longest delay.
    pub longest: Duration,
}

impl Delays<'_> {
    /// Returns the delay for this release, in seconds.
    pub fn of(self, release: Digest) -> u64 {
        let longest = self.longest.as_secs();
        let drawn = Digest::of(format!("instar.dev/delay {} {release}", self.identity).as_bytes());
        let number = drawn
            .bytes()
            .iter()
            .take(8)
            .fold(0, |number, byte| number << 8 | u64::from(*byte));
        number % (longest + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_drawn_once_and_all_are_spread() {
        let longest = Duration::from_secs(600);
        let delay =
            |identity: &str, release: &[u8]| Delays { identity, longest }.of(Digest::of(release));
        assert_eq!(delay("a", b"1"), delay("a", b"1"));
        let drawn: Vec<u64> = (0..1000)
            .map(|number| delay(&number.to_string(), b"1"))
            .collect();
        assert!(drawn.iter().all(|delay| *delay <= 600));
        for tenth in 0..10 {
            let within = |delay: &&u64| (tenth * 60..=tenth * 60 + 60).contains(*delay);
            let count = drawn.iter().filter(within).count();
            assert!((60..150).contains(&count), "{tenth}: {count}");
        }
        let zero = Delays {
            identity: "a",
            longest: Duration::ZERO,
        };
        assert_eq!(zero.of(Digest::of(b"1")), 0);
    }
}
