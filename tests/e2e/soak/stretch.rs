//! Checks that no figure rises between two reboots.

use std::ops::RangeInclusive;

use anyhow::{Context, ensure};
use instar_tests::{Outcome, Slope};

use super::left::{Counted, Left};

/// The turns whose figures are compared: the first few after everything has happened once, and as many of the last.
const EARLY: RangeInclusive<usize> = 2..=5;
/// Between them the figures of every fifth turn are taken.
const LOOK_EACH: usize = 5;
/// Caches are dropped before memory is counted, but some fill again at once; so the best of each few turns is compared.
/// A leak of 50 KiB with each of fifty upgrades (of 80 with each of thirty) would exceed this.
const MEMORY_TOLERANCE_KIB: u64 = 2 << 10;
/// The kernel frees removed cgroups in batches: between 7 and 25 of them wait at any time. One cgroup left with each of
/// fifty upgrades would be 42 more at the end.
const DYING_CGROUPS: u64 = 30;
/// A line is fitted through all figures from the turn `SETTLED` on, if there are `ENOUGH` turns: removed cgroups and
/// caches grow at first, up to their own limits.
const SETTLED: usize = 20;
const ENOUGH: usize = 50;

/// A figure that may not rise: its name and unit, the limit on its fitted line's rise per turn beyond the line's own
/// error, and the function that reads it.
type Fitted = (&'static str, f64, fn(&Left) -> f64);

/// The limit is two pages of memory, or one in twenty turns for a count. Logs and records fill the disk up to their
/// limits.
const FITTED: [Fitted; 8] = [
    ("KiB of memory in use", 8.0, |left| -(left.free_kib as f64)),
    ("KiB of shared memory", 8.0, |left| left.shmem_kib as f64),
    ("KiB of slabs", 8.0, |left| left.slab_kib as f64),
    ("KiB of the disk", 64.0, |left| left.disk_kib as f64),
    ("inodes of the disk", 0.05, |left| left.inodes as f64),
    ("threads", 0.05, |left| left.threads as f64),
    ("dying cgroups", 0.05, |left| left.dying_cgroups as f64),
    ("descriptors", 0.05, |left| {
        (left.counted.descriptors + left.counted.descriptors_of_init) as f64
    }),
];

/// The figures between two reboots.
#[derive(Default)]
pub(super) struct Stretch {
    early: Vec<Left>,
    late: Vec<Left>,
    all: Vec<(usize, Left)>,
}

impl Stretch {
    /// Whether the figures of a turn are needed; `before_end` is the number of turns left in the stretch.
    pub(super) fn wants(turn: usize, before_end: usize) -> bool {
        EARLY.contains(&turn) || is_late(before_end) || turn.is_multiple_of(LOOK_EACH)
    }

    pub(super) fn note(&mut self, turn: usize, before_end: usize, left: Left) {
        if EARLY.contains(&turn) {
            self.early.push(left.clone());
        } else if is_late(before_end) {
            self.late.push(left.clone());
        }
        self.all.push((turn, left));
    }

    pub(super) fn judge(mut self) -> Outcome {
        // A stretch of a few turns has no beginning that its end could be compared with.
        if self.early.is_empty() || self.late.is_empty() {
            return Ok(());
        }
        self.the_end_is_as_the_beginning()?;
        self.all.retain(|(turn, _)| *turn >= SETTLED);
        if self.all.last().is_none_or(|(turn, _)| *turn < ENOUGH) {
            return Ok(());
        }
        let rising: anyhow::Result<Vec<_>> =
            FITTED.iter().map(|fitted| self.rises(fitted)).collect();
        let rising: Vec<_> = rising?.into_iter().flatten().collect();
        ensure!(rising.is_empty(), "{}", rising.join("; "));
        Ok(())
    }

    fn the_end_is_as_the_beginning(&self) -> Outcome {
        // A count of descriptors can be too low, if one changes its number during the walk, and never too high.
        let most = Counted::most(self.early.iter().map(|left| left.counted));
        let (early, late) = (Left::least(&self.early)?, Left::least(&self.late)?);
        ensure!(
            late.free_kib + MEMORY_TOLERANCE_KIB >= early.free_kib,
            "memory is lost: {early} became {late}"
        );
        ensure!(
            late.dying_cgroups <= early.dying_cgroups + DYING_CGROUPS,
            "cgroups are left: {early} became {late}"
        );
        ensure!(
            late.counted.is_within(most),
            "something is left: {early}, at most {most:?}, became {late}"
        );
        Ok(())
    }

    /// Returns a complaint about a figure that rises with the turns.
    fn rises(&self, (what, most, figure): &Fitted) -> anyhow::Result<Option<String>> {
        let points: Vec<(f64, f64)> = self
            .all
            .iter()
            .map(|(turn, left)| (*turn as f64, figure(left)))
            .collect();
        let slope = Slope::through(&points).context("too few figures")?;
        println!(
            "{what}: {:+.3} a turn, give or take {:.3}, at most {most}",
            slope.per_step, slope.error
        );
        Ok(slope
            .exceeds(*most)
            .then(|| format!("{what}: rise by {slope:?}")))
    }
}

fn is_late(before_end: usize) -> bool {
    before_end < EARLY.count()
}
