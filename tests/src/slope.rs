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

    /// Whether the figure rises by more than this per step, beyond three standard errors.
    pub fn exceeds(self, per_step: f64) -> bool {
        self.per_step - 3.0 * self.error > per_step
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
        assert!(!flat.exceeds(0.0), "{flat:?}");
        let leak = Slope::through(&points(50.0, 50.0)).unwrap();
        assert!(leak.exceeds(30.0) && !leak.exceeds(50.0), "{leak:?}");
        let exact = Slope::through(&points(7.0, 0.0)).unwrap();
        assert!((exact.per_step - 7.0).abs() < 1e-9 && exact.error < 1e-9);
        let falls = Slope::through(&points(-9.0, 1.0)).unwrap();
        assert!(!falls.exceeds(0.0), "{falls:?}");
    }

    #[test]
    fn two_points_prove_nothing() {
        assert_eq!(Slope::through(&[(1.0, 1.0), (2.0, 5.0)]), None);
        assert_eq!(Slope::through(&[(1.0, 1.0); 4]), None);
    }
}
