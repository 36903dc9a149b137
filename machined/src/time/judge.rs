//! Whether to believe a time server, and what to do about it.

use std::time::Duration;

use super::STEP;

/// One answer of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// Server minus us, in microseconds.
    pub offset_us: i64,
    /// There and back, in microseconds.
    pub roundtrip_us: u64,
    /// Distance from a reference clock, 1 to 15.
    pub stratum: u8,
    /// The server says that it is not synchronized itself.
    pub unsynchronized: bool,
}

/// What to do after an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The clock is right.
    Close,
    /// Set the clock.
    Step,
    /// Do nothing, ask another one.
    Doubt(Doubt),
}

/// Why an answer is not believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Doubt {
    /// No reference behind it.
    #[error("it is not synchronized itself")]
    Unsynchronized,
    /// Too slow to say anything.
    #[error("it took {0} ms to answer")]
    Slow(u64),
    /// Before the build of this system.
    #[error("it says a time before this system was built")]
    Past,
    /// Long after the build of this system.
    #[error("it says a time more than 50 years after this system was built")]
    Future,
    /// A leap that wants a second opinion.
    #[error(
        "it is {0} s away from a time that was right before; waiting for a second answer that agrees"
    )]
    Far(i64),
}

/// Slower answers are worth nothing.
const SLOWEST: Duration = Duration::from_secs(2);
/// Once right, a clock does not go this wrong by itself, in microseconds: ntpd's panic threshold.
const FAR_US: i64 = 1_000_000_000;
/// Two opinions agree within this, in microseconds.
const AGREE_US: i64 = 1_000_000;
/// In microseconds.
const FIFTY_YEARS_US: i64 = 50 * 365 * 86_400 * 1_000_000;

/// Believes servers, with a memory.
#[derive(Debug)]
pub struct Judge {
    floor_us: i64,
    /// The clock was right once.
    synced: bool,
    /// A far offset that waits for a second opinion.
    far: Option<i64>,
}

impl Judge {
    /// `floor` is the build date in seconds since 1970.
    pub fn new(floor: u64) -> Self {
        Self {
            floor_us: i64::try_from(floor).unwrap_or(0).saturating_mul(1_000_000),
            synced: false,
            far: None,
        }
    }

    /// What to do about `sample`, at `now_us` (microseconds since 1970 by our clock).
    pub fn judge(&mut self, sample: &Sample, now_us: i64) -> Verdict {
        if sample.unsynchronized || !(1..=15).contains(&sample.stratum) {
            return Verdict::Doubt(Doubt::Unsynchronized);
        }
        if u128::from(sample.roundtrip_us) > SLOWEST.as_micros() {
            return Verdict::Doubt(Doubt::Slow(sample.roundtrip_us / 1000));
        }
        let target = now_us.saturating_add(sample.offset_us);
        if target < self.floor_us {
            return Verdict::Doubt(Doubt::Past);
        }
        if target > self.floor_us.saturating_add(FIFTY_YEARS_US) {
            return Verdict::Doubt(Doubt::Future);
        }
        let size = sample.offset_us.unsigned_abs();
        // Half of the way there and back is the error of the measurement.
        if u128::from(size) < STEP.as_micros() || size <= sample.roundtrip_us / 2 {
            return Verdict::Close;
        }
        let agrees = |other: i64| other.abs_diff(sample.offset_us) <= AGREE_US.unsigned_abs();
        if self.synced && size > FAR_US.unsigned_abs() && !self.far.is_some_and(agrees) {
            self.far = Some(sample.offset_us);
            return Verdict::Doubt(Doubt::Far(sample.offset_us / 1_000_000));
        }
        Verdict::Step
    }

    /// The clock agrees with a believed answer now.
    pub fn believe(&mut self) {
        self.synced = true;
        self.far = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUILD: u64 = 1_790_000_000;
    const NOW: i64 = 1_795_000_000_000_000;

    fn sample(offset_us: i64) -> Sample {
        Sample {
            offset_us,
            roundtrip_us: 20_000,
            stratum: 2,
            unsynchronized: false,
        }
    }

    #[test]
    fn small_errors_stay_and_large_ones_are_stepped() {
        let mut judge = Judge::new(BUILD);
        assert_eq!(judge.judge(&sample(127_000), NOW), Verdict::Close);
        assert_eq!(judge.judge(&sample(-127_000), NOW), Verdict::Close);
        assert_eq!(judge.judge(&sample(-128_000), NOW), Verdict::Step);
        assert_eq!(
            judge.judge(&sample(86_400_000_000), NOW),
            Verdict::Step,
            "the first answer may be far"
        );
        let slow = Sample {
            roundtrip_us: 1_000_000,
            ..sample(300_000)
        };
        assert_eq!(
            judge.judge(&slow, NOW),
            Verdict::Close,
            "less than the error of the measurement"
        );
    }

    #[test]
    fn bad_servers_are_not_believed() {
        let mut judge = Judge::new(BUILD);
        let doubts = [
            (
                Sample {
                    unsynchronized: true,
                    ..sample(0)
                },
                Doubt::Unsynchronized,
            ),
            (
                Sample {
                    stratum: 0,
                    ..sample(0)
                },
                Doubt::Unsynchronized,
            ),
            (
                Sample {
                    stratum: 16,
                    ..sample(0)
                },
                Doubt::Unsynchronized,
            ),
            (
                Sample {
                    roundtrip_us: 3_000_000,
                    ..sample(0)
                },
                Doubt::Slow(3000),
            ),
            (sample(-6_000_000_000_000), Doubt::Past),
            (sample(i64::MIN), Doubt::Past),
            (sample(i64::MAX), Doubt::Future),
        ];
        for (sample, doubt) in doubts {
            assert_eq!(
                judge.judge(&sample, NOW),
                Verdict::Doubt(doubt),
                "{sample:?}"
            );
        }
    }

    #[test]
    fn a_far_leap_of_a_right_clock_wants_a_second_opinion() {
        let mut judge = Judge::new(BUILD);
        judge.believe();
        let far = sample(3_600_000_000);
        assert_eq!(judge.judge(&far, NOW), Verdict::Doubt(Doubt::Far(3600)));
        assert_eq!(
            judge.judge(&sample(7_200_000_000), NOW),
            Verdict::Doubt(Doubt::Far(7200)),
            "they disagree"
        );
        assert_eq!(
            judge.judge(&sample(7_200_400_000), NOW),
            Verdict::Step,
            "they agree"
        );
        judge.believe();
        assert_eq!(
            judge.judge(&far, NOW),
            Verdict::Doubt(Doubt::Far(3600)),
            "agreement is not kept"
        );
    }
}
