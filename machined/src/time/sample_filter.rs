//! Decides whether a time server's reply is accepted, and whether the clock is set.

use std::time::Duration;

use super::STEP;

/// The measurement from one reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// The server's time minus the machine's, in microseconds.
    pub offset_us: i64,
    /// Round trip, in microseconds.
    pub roundtrip_us: u64,
    /// Stratum: the distance from a reference clock, 1 to 15.
    pub stratum: u8,
    /// The server reports that it is not synchronized itself.
    pub unsynchronized: bool,
}

/// The decision on a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The clock is right.
    Close,
    /// Set the clock.
    Step,
    /// Rejected: do nothing, ask another server.
    Rejection(Rejection),
}

/// Why a reply is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// The server is not synchronized itself.
    #[error("it is not synchronized itself")]
    Unsynchronized,
    /// The reply took too long for a measurement.
    #[error("it took {0} ms to answer")]
    Slow(u64),
    /// The time is before the build of this system.
    #[error("it says a time before this system was built")]
    Past,
    /// The time is long after the build of this system.
    #[error("it says a time more than 50 years after this system was built")]
    Future,
    /// The offset is so large that a second reply has to confirm it.
    #[error(
        "it is {0} s away from a time that was about right; waiting for an answer that agrees, of another server where more than one is configured"
    )]
    Far(i64),
}

/// Limit on the round trip; slower replies are worthless.
const SLOWEST: Duration = Duration::from_secs(2);
/// Limit on the offset of a clock that was right before, in microseconds: it does not go more wrong by itself; ntpd's panic threshold.
const FAR_US: i64 = 1_000_000_000;
/// Limit on the offset of a clock that was not set by a server yet but has a rough time, in microseconds: a year.
const YEAR_US: i64 = 365 * 86_400 * 1_000_000;
/// Difference within which two servers agree, in microseconds.
const AGREE_US: i64 = 1_000_000;
/// Fifty years, in microseconds.
const FIFTY_YEARS_US: i64 = 50 * 365 * 86_400 * 1_000_000;

/// Accepts or rejects replies, with a memory of earlier ones.
#[derive(Debug)]
pub struct SampleFilter {
    floor_us: i64,
    /// The knowledge about the time without servers.
    before: Beforehand,
    /// Whether the clock was right once.
    synced: bool,
    /// A large offset that waits for confirmation, and the server that reported it.
    far: Option<(i64, String)>,
}

/// The knowledge about the time before a server has answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beforehand {
    /// None: the clock shows the build date.
    Nothing,
    /// A rough time: there is a hardware clock, or files and certificates prove an earliest time.
    Roughly,
}

/// The server of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Witness<'a> {
    /// The server's name, as configured.
    pub server: &'a str,
    /// Whether it is the only configured server.
    pub is_alone: bool,
}

impl SampleFilter {
    /// `floor`: the build date in seconds since 1970.
    pub fn new(floor: u64) -> Self {
        Self {
            floor_us: i64::try_from(floor).unwrap_or(0).saturating_mul(1_000_000),
            before: Beforehand::Nothing,
            synced: false,
            far: None,
        }
    }

    /// Sets the knowledge about the time without servers.
    pub fn know(&mut self, before: Beforehand) {
        self.before = before;
    }

    /// Decides on `sample` from `witness`, at `now_us` (microseconds since 1970 by the machine's clock).
    pub fn judge(&mut self, sample: &Sample, witness: Witness<'_>, now_us: i64) -> Verdict {
        if sample.unsynchronized || !(1..=15).contains(&sample.stratum) {
            return Verdict::Rejection(Rejection::Unsynchronized);
        }
        if u128::from(sample.roundtrip_us) > SLOWEST.as_micros() {
            return Verdict::Rejection(Rejection::Slow(sample.roundtrip_us / 1000));
        }
        let target = now_us.saturating_add(sample.offset_us);
        if target < self.floor_us {
            return Verdict::Rejection(Rejection::Past);
        }
        if target > self.floor_us.saturating_add(FIFTY_YEARS_US) {
            return Verdict::Rejection(Rejection::Future);
        }
        let size = sample.offset_us.unsigned_abs();
        // Half of the round trip is the error of the measurement.
        if u128::from(size) < STEP.as_micros() || size <= sample.roundtrip_us / 2 {
            return Verdict::Close;
        }
        let believable = match (self.synced, self.before) {
            (true, _) => FAR_US,
            (false, Beforehand::Roughly) => YEAR_US,
            (false, Beforehand::Nothing) => return Verdict::Step,
        };
        if size <= believable.unsigned_abs() {
            return Verdict::Step;
        }
        // A server that is wrong, or impersonated, agrees with itself but not with another one.
        let agrees = self.far.as_ref().is_some_and(|(other, server)| {
            other.abs_diff(sample.offset_us) <= AGREE_US.unsigned_abs()
                && (witness.is_alone || server != witness.server)
        });
        if agrees {
            return Verdict::Step;
        }
        self.far = Some((sample.offset_us, witness.server.to_owned()));
        Verdict::Rejection(Rejection::Far(sample.offset_us / 1_000_000))
    }

    /// Notes that the clock agrees with an accepted reply now.
    pub fn confirm(&mut self) {
        self.synced = true;
        self.far = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUILD: u64 = 1_790_000_000;
    const NOW: i64 = 1_795_000_000_000_000;
    /// The only server that is configured.
    const ONE: Witness<'static> = Witness {
        server: "one",
        is_alone: true,
    };

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
        let mut judge = SampleFilter::new(BUILD);
        assert_eq!(judge.judge(&sample(127_000), ONE, NOW), Verdict::Close);
        assert_eq!(judge.judge(&sample(-127_000), ONE, NOW), Verdict::Close);
        assert_eq!(judge.judge(&sample(-128_000), ONE, NOW), Verdict::Step);
        assert_eq!(
            judge.judge(&sample(86_400_000_000), ONE, NOW),
            Verdict::Step,
            "the first answer may be far"
        );
        let slow = Sample {
            roundtrip_us: 1_000_000,
            ..sample(300_000)
        };
        assert_eq!(
            judge.judge(&slow, ONE, NOW),
            Verdict::Close,
            "less than the error of the measurement"
        );
    }

    #[test]
    fn bad_servers_are_not_believed() {
        let mut judge = SampleFilter::new(BUILD);
        let doubts = [
            (
                Sample {
                    unsynchronized: true,
                    ..sample(0)
                },
                Rejection::Unsynchronized,
            ),
            (
                Sample {
                    stratum: 0,
                    ..sample(0)
                },
                Rejection::Unsynchronized,
            ),
            (
                Sample {
                    stratum: 16,
                    ..sample(0)
                },
                Rejection::Unsynchronized,
            ),
            (
                Sample {
                    roundtrip_us: 3_000_000,
                    ..sample(0)
                },
                Rejection::Slow(3000),
            ),
            (sample(-6_000_000_000_000), Rejection::Past),
            (sample(i64::MIN), Rejection::Past),
            (sample(i64::MAX), Rejection::Future),
        ];
        for (sample, doubt) in doubts {
            assert_eq!(
                judge.judge(&sample, ONE, NOW),
                Verdict::Rejection(doubt),
                "{sample:?}"
            );
        }
    }

    #[test]
    fn a_far_leap_of_a_right_clock_wants_a_second_opinion() {
        let mut judge = SampleFilter::new(BUILD);
        judge.confirm();
        let far = sample(3_600_000_000);
        assert_eq!(
            judge.judge(&far, ONE, NOW),
            Verdict::Rejection(Rejection::Far(3600))
        );
        assert_eq!(
            judge.judge(&sample(7_200_000_000), ONE, NOW),
            Verdict::Rejection(Rejection::Far(7200)),
            "they disagree"
        );
        assert_eq!(
            judge.judge(&sample(7_200_400_000), ONE, NOW),
            Verdict::Step,
            "they agree"
        );
        judge.confirm();
        assert_eq!(
            judge.judge(&far, ONE, NOW),
            Verdict::Rejection(Rejection::Far(3600)),
            "agreement is not kept"
        );
    }

    #[test]
    fn a_first_leap_of_more_than_a_year_wants_two_servers() {
        let [a, b] = ["a", "b"].map(|server| Witness {
            server,
            is_alone: false,
        });
        let days = |days: i64| sample(days * 86_400_000_000);
        let far = Verdict::Rejection(Rejection::Far(3000 * 86_400));
        let mut judge = SampleFilter::new(BUILD);
        assert_eq!(judge.judge(&days(3000), a, NOW), Verdict::Step, "who knows");
        judge.know(Beforehand::Roughly);
        assert_eq!(judge.judge(&days(300), a, NOW), Verdict::Step);
        // However often one server repeats it.
        for _ in 0..3 {
            assert_eq!(judge.judge(&days(3000), a, NOW), far);
        }
        assert_eq!(judge.judge(&days(3000), b, NOW), Verdict::Step);
        // Without another server, the same one is asked twice.
        let mut judge = SampleFilter::new(BUILD);
        judge.know(Beforehand::Roughly);
        assert_eq!(judge.judge(&days(3000), ONE, NOW), far);
        assert_eq!(judge.judge(&days(3000), ONE, NOW), Verdict::Step);
    }
}
