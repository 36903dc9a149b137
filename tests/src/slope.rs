//! The growth of a figure with a count: a straight line through measured points, and its error.

/// A line by least squares.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slope {
    /// The rise of the figure per step of the count.
    pub per_step: f64,
    /// The standard error of the rise.
    pub error: f64,
}

impl Slope {
    /// Fits a line through at least three points (count, figure) with different counts; else returns none.
    pub fn through(points: &[(f64, f64)]) -> Option<Self> {
        let many = points.len() as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / many;
        let (x_mean, y_mean) = (mean(|point| point.0), mean(|point| point.1));
        let spread: f64 = points.iter().map(|(x, _)| (x - x_mean).powi(2)).sum();
        if points.len() < 3 || spread == 0.0 {
            return None;
        }
        let products = points.iter().map(|(x, y)| (x - x_mean) * (y - y_mean));
        let per_step = products.sum::<f64>() / spread;
        let off = |(x, y): &(f64, f64)| (y - y_mean - per_step * (x - x_mean)).powi(2);
        let rest: f64 = points.iter().map(off).sum();
        let error = (rest / (many - 2.0) / spread).sqrt();
        Some(Self { per_step, error })
    }

    /// Whether the figure rises: its slope is more than three standard errors above zero, which chance gives about once in a thousand fits. A
    /// slope within `floor` is none: that is for figures that change by whole units only.
    pub fn rises(self, floor: f64) -> bool {
        self.per_step > 3.0 * self.error && self.per_step > floor
    }

    /// Returns the slope per step that a single change by one unit can give to these points, the floor of [`Self::rises`]: a unit more from the
    /// middle on tilts the line by one and a half units from end to end.
    pub fn floor(unit: f64, points: &[(f64, f64)]) -> f64 {
        let ends = points.first().zip(points.last());
        let length = ends.map_or(0.0, |(first, last)| last.0 - first.0);
        // A little more, as points may crowd at one end.
        if length > 0.0 {
            1.6 * unit / length
        } else {
            0.0
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Returns points around a line: every second one is above it by as much as the next is below.
    fn points(per_step: f64, noise: f64) -> Vec<(f64, f64)> {
        let at = |step: u32| {
            let off = if step.is_multiple_of(2) {
                noise
            } else {
                -noise
            };
            (f64::from(step), 1000.0 + per_step * f64::from(step) + off)
        };
        (0..20).map(at).collect()
    }

    #[test]
    fn a_leak_is_told_from_noise() {
        let flat = Slope::through(&points(0.0, 50.0)).unwrap();
        assert!(!flat.rises(0.0), "{flat:?}");
        // The noise is far larger than the rise of one step.
        let leak = Slope::through(&points(9.0, 50.0)).unwrap();
        assert!(leak.rises(0.0), "{leak:?}");
        let too_noisy = Slope::through(&points(1.0, 50.0)).unwrap();
        assert!(!too_noisy.rises(0.0), "{too_noisy:?}");
        let exact = Slope::through(&points(7.0, 0.0)).unwrap();
        assert!((exact.per_step - 7.0).abs() < 1e-9 && exact.error < 1e-9);
        let falls = Slope::through(&points(-9.0, 1.0)).unwrap();
        assert!(!falls.rises(0.0), "{falls:?}");
    }

    /// A figure without noise has no error, so that only the floor tells one unit more from growth.
    #[test]
    fn one_unit_more_is_no_growth() {
        let steps = |many: f64| -> Vec<_> {
            let at = |step: u32| (f64::from(step), if step < 10 { 0.0 } else { many });
            (0..20).map(at).collect()
        };
        let floor = Slope::floor(1.0, &steps(1.0));
        let once = Slope::through(&steps(1.0)).unwrap();
        assert!(once.rises(0.0) && !once.rises(floor), "{once:?}, {floor}");
        let twice = Slope::through(&steps(2.0)).unwrap();
        assert!(twice.rises(floor), "{twice:?}, {floor}");
        assert_eq!(Slope::floor(1.0, &[]), 0.0);
    }

    #[test]
    fn two_points_prove_nothing() {
        assert_eq!(Slope::through(&[(1.0, 1.0), (2.0, 5.0)]), None);
        assert_eq!(Slope::through(&[(1.0, 1.0); 4]), None);
    }
}
