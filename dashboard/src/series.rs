//! Figures over time: the last samples of a figure, and rates of counters.

use std::collections::VecDeque;
use std::time::Duration;

/// Limit on the samples kept: more than the widest terminal has columns.
const SAMPLES: usize = 400;

/// The last samples of a figure, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Series {
    samples: VecDeque<f64>,
}

impl Series {
    pub(crate) fn push(&mut self, sample: f64) {
        if self.samples.len() == SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
    }

    /// The newest sample.
    pub(crate) fn last(&self) -> Option<f64> {
        self.samples.back().copied()
    }

    /// The newest `count` samples as whole numbers, padded with zeros at the begin.
    pub(crate) fn tail(&self, count: usize) -> Vec<u64> {
        let missing = count.saturating_sub(self.samples.len());
        let skipped = self.samples.len().saturating_sub(count);
        let samples = self.samples.iter().skip(skipped);
        // A figure is never negative, and a rate is far below the limit of u64.
        std::iter::repeat_n(0, missing)
            .chain(samples.map(|sample| sample.round() as u64))
            .collect()
    }
}

/// A growing counter as its growth per second.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rate {
    last: Option<(Duration, f64)>,
    /// Growth per second, sample by sample.
    pub(crate) series: Series,
}

impl Rate {
    /// Takes the counter's value at this time. A smaller one than before means a reboot: there is no rate then.
    pub(crate) fn count(&mut self, at: Duration, counter: f64) {
        if let Some((before, old)) = self.last {
            let seconds = at.saturating_sub(before).as_secs_f64();
            if counter >= old && seconds > 0.0 {
                self.series.push((counter - old) / seconds);
            }
        }
        self.last = Some((at, counter));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_growth_by_time() {
        let mut rate = Rate::default();
        rate.count(Duration::from_secs(1), 100.0);
        assert_eq!(rate.series.last(), None);
        rate.count(Duration::from_secs(3), 300.0);
        assert_eq!(rate.series.last(), Some(100.0));
        // The counter after a boot.
        rate.count(Duration::from_secs(5), 10.0);
        assert_eq!(rate.series.last(), Some(100.0));
        rate.count(Duration::from_secs(6), 15.0);
        assert_eq!(rate.series.last(), Some(5.0));
    }

    #[test]
    fn a_tail_is_as_long_as_asked() {
        let mut series = Series::default();
        for sample in [1.0, 2.4, 3.6] {
            series.push(sample);
        }
        assert_eq!(series.tail(5), [0, 0, 1, 2, 4]);
        assert_eq!(series.tail(2), [2, 4]);
    }
}
