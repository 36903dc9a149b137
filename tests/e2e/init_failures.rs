//! init's next step after every kind of failure, with the real init and a machined that fails on order.
//!
//! A test has a script for machined's stand-in (`tests/double`), and every line of init, the stand-in and the kernel
//! from the first generation to the end of the machine, in order.

mod first_image;
mod keeping;
mod ladder;
mod left_behind;
mod refusals;
mod trials;

use instar_tests::{Outcome, Scratch, ScriptedInit, Test};

pub(crate) fn tests() -> Vec<Test> {
    let areas = [
        ladder::tests(),
        trials::tests(),
        refusals::tests(),
        keeping::tests(),
        first_image::tests(),
        left_behind::tests(),
    ];
    areas.into_iter().flatten().collect()
}

/// A double's script or a part of it, and the lines that are printed while it runs.
struct Chapter {
    does: &'static str,
    says: &'static str,
}

impl Chapter {
    /// Runs a machine whose double has this script alone, and compares its lines.
    fn is_told(&self, scratch: &Scratch) -> Outcome {
        ScriptedInit::boot(scratch, "", self.does)?.says_until_its_end(self.says)
    }
}

/// Returns the whole script, and all lines.
fn told(chapters: &[Chapter]) -> (String, String) {
    let does = chapters.iter().map(|chapter| chapter.does);
    let says = chapters.iter().map(|chapter| chapter.says);
    (does.collect(), says.collect())
}
