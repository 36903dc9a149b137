//! Checks that no figure rises, between two reboots and across all of them.

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

/// A figure that may not rise: its name, the unit by which it changes, and the function that reads it. The slope of its
/// fitted line has to be zero by the line's own error. One unit more, once in all turns, is no slope either
/// ([`Slope::floor`]): a figure that never changes but for this once has next to no error.
type Fitted = (&'static str, f64, fn(&Left) -> f64);

const PAGE_KIB: f64 = 4.0;
/// The kernel takes memory for its small objects in slabs of up to eight pages.
const SLAB_KIB: f64 = 32.0;
/// The kernel's own worker threads come and go by several, and end only after minutes without work.
const WORKERS: f64 = 4.0;

/// The figures that a reboot does not reset.
const ON_DISK: [Fitted; 2] = [
    ("KiB of the disk", PAGE_KIB, |left| left.disk_kib as f64),
    ("inodes of the disk", 1.0, |left| left.inodes as f64),
];

const IN_MEMORY: [Fitted; 6] = [
    ("KiB of memory in use", SLAB_KIB, |left| {
        -(left.free_kib as f64)
    }),
    ("KiB of shared memory", PAGE_KIB, |left| {
        left.shmem_kib as f64
    }),
    ("KiB of slabs", SLAB_KIB, |left| left.slab_kib as f64),
    ("threads", WORKERS, |left| left.threads as f64),
    ("dying cgroups", 1.0, |left| left.dying_cgroups as f64),
    ("descriptors", 1.0, |left| {
        (left.counted.descriptors + left.counted.descriptors_of_init) as f64
    }),
];

/// The turn after a reboot whose figures are compared with those of the same turn after all other reboots.
const SAME_TURN: usize = *EARLY.end();
/// A line through fewer reboots has too large an error to prove anything.
const ENOUGH_REBOOTS: usize = 5;

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
        none_rises(&self.all, IN_MEMORY.iter().chain(&ON_DISK))
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
}

/// The figures of the same turn after each reboot, the first boot included.
#[derive(Default)]
pub(super) struct AcrossReboots(Vec<(usize, Left)>);

impl AcrossReboots {
    /// Notes the figures if this is the turn. `number` counts all turns, `turn` those since the reboot.
    pub(super) fn note(&mut self, number: usize, turn: usize, left: &Left) {
        if turn == SAME_TURN {
            self.0.push((number, left.clone()));
        }
    }

    pub(super) fn judge(&self) -> Outcome {
        if self.0.len() < ENOUGH_REBOOTS {
            return Ok(());
        }
        println!("across {} reboots:", self.0.len());
        none_rises(&self.0, ON_DISK.iter())
    }
}

fn none_rises<'a>(figures: &[(usize, Left)], fitted: impl Iterator<Item = &'a Fitted>) -> Outcome {
    let complaints: anyhow::Result<Vec<_>> = fitted.map(|fitted| rises(figures, fitted)).collect();
    let complaints: Vec<_> = complaints?.into_iter().flatten().collect();
    ensure!(complaints.is_empty(), "{}", complaints.join("; "));
    Ok(())
}

/// Returns a complaint about a figure that rises with the turns.
fn rises(
    figures: &[(usize, Left)],
    (what, unit, figure): &Fitted,
) -> anyhow::Result<Option<String>> {
    let points: Vec<(f64, f64)> = figures
        .iter()
        .map(|(turn, left)| (*turn as f64, figure(left)))
        .collect();
    let slope = Slope::through(&points).context("too few figures")?;
    let floor = Slope::floor(*unit, &points);
    let told = format!(
        "{what}: {:+.3} a turn, standard error {:.3}, one unit more would be {floor:.3}",
        slope.per_step, slope.error
    );
    println!("{told}");
    Ok(slope.rises(floor).then(|| format!("rises: {told}")))
}

fn is_late(before_end: usize) -> bool {
    before_end < EARLY.count()
}
