//! A machined that fails is started again, then its image in a fresh generation, then the machine.

use std::time::Duration;

use anyhow::{bail, ensure};
use instar_tests::{Outcome, Scratch, ScriptedInit, Test, tests};

use super::Chapter;

pub(super) fn tests() -> Vec<Test> {
    tests![
        a_machined_that_dies_walks_down_the_ladder,
        a_machined_that_hangs_is_late,
        a_machined_that_gives_up_gets_one_fresh_generation,
    ]
}

/// Aborts, exits with an error, closes its link, is killed: each counts as a death. Three restarts, then a fresh
/// generation, three more, then a reboot.
async fn a_machined_that_dies_walks_down_the_ladder(scratch: Scratch) -> Outcome {
    DEATH_AFTER_DEATH.is_told(&scratch)
}

const DEATH_AFTER_DEATH: Chapter = Chapter {
    does: "
        hello
        @boot abort
        @restart =1 exit 3
        @fresh shut-link
        @fresh hang
        @restart =2 kill
    ",
    says: "
        init: generation 1 starts, boot id …
        double: welcome generation=1 start=boot deadline=… kept=[] failed=- cause=-
        init: generation 1: machined was killed by signal 6; starting machined again
        double: welcome generation=1 start=restart deadline=… kept=[] failed=- cause=machined was killed by signal 6
        init: generation 1: machined exited with code 3; starting machined again
        double: welcome generation=1 start=restart deadline=… kept=[] failed=- cause=machined exited with code 3
        init: generation 1: machined exited with code 3; starting machined again
        double: welcome generation=1 start=restart deadline=… kept=[] failed=- cause=machined exited with code 3
        init: generation 1: machined exited with code 3; starting its image again in a fresh generation
        init: generation 2 starts, boot id …
        double: welcome generation=2 start=fresh deadline=… kept=[] failed=- cause=machined exited with code 3
        init: generation 2: machined was killed by signal 9; starting machined again
        double: welcome generation=2 start=restart deadline=… kept=[] failed=- cause=machined was killed by signal 9
        init: generation 2: machined was killed by signal 9; starting machined again
        double: welcome generation=2 start=restart deadline=… kept=[] failed=- cause=machined was killed by signal 9
        init: generation 2: machined was killed by signal 9; starting machined again
        double: welcome generation=2 start=restart deadline=… kept=[] failed=- cause=machined was killed by signal 9
        init: generation 2: machined was killed by signal 9; rebooting in 10 seconds
        reboot: Restarting system
    ",
};

/// The deadline comes from the kernel argument, and a restart does not extend it. A machined that does not read its
/// messages delays nothing either.
async fn a_machined_that_hangs_is_late(scratch: Scratch) -> Outcome {
    let arguments = "instar.boot-deadline=10";
    let init = ScriptedInit::boot(&scratch, arguments, HANGS_AND_IS_DEAF)?;
    init.vm().wait_for_end(Duration::from_secs(120))?;
    let deaf = init.vm().console().matches(DEAF).count();
    ensure!(deaf > 0, "all 280 answers fit into the socket: send more");
    let deaf = format!("{DEAF}: Resource temporarily unavailable (os error 11)\n").repeat(deaf);
    init.says_until_its_end(&[IS_LATE_ONCE, &deaf, IS_LATE_AGAIN].concat())?;
    a_restart_had_what_was_left(&init)?;
    each_generation_got_its_ten_seconds(&init)
}

const HANGS_AND_IS_DEAF: &str = "
        hello
        @boot sleep 6000
        @boot exit 0
        @restart hang
        @fresh deaf 280
        @fresh hang
    ";

/// The beginning of init's line about an answer that does not fit into the socket.
const DEAF: &str = "init: machined does not take a message";

const IS_LATE_ONCE: &str = "
        init: generation 1 starts, boot id …
        double: welcome generation=1 start=boot deadline=… kept=[] failed=- cause=-
        init: generation 1: machined exited with code 0; starting machined again
        double: welcome generation=1 start=restart deadline=… kept=[] failed=- cause=machined exited with code 0
        init: generation 1: machined did not report healthy in time; starting its image again in a fresh generation
        init: generation 2 starts, boot id …
        double: welcome generation=2 start=fresh deadline=… kept=[] failed=- cause=machined did not report healthy in time
    ";

const IS_LATE_AGAIN: &str = "
        init: generation 2: machined did not report healthy in time; rebooting in 10 seconds
        reboot: Restarting system
    ";

/// The first machined slept for six seconds.
fn a_restart_had_what_was_left(init: &ScriptedInit) -> Outcome {
    let told = init.deadlines();
    let [boot, restart, fresh] = told[..] else {
        bail!("three were welcomed, with other deadlines: {told:?}");
    };
    ensure!(boot.max(fresh) <= 10 && restart + 6 <= boot, "{told:?}");
    Ok(())
}

fn each_generation_got_its_ten_seconds(init: &ScriptedInit) -> Outcome {
    let started = init.times_of("starts, boot id");
    let late = init.times_of("did not report healthy in time;");
    for (started, late) in started.into_iter().zip(late) {
        let given = late.saturating_sub(started);
        // A restart that extended the deadline would make it 16; a busy host may make it a little more than 10.
        ensure!(
            (9.8..16.0).contains(&given.as_secs_f64()),
            "it got {given:?} of 10 s"
        );
    }
    Ok(())
}

/// A committed version and an uncommitted one are treated alike if there is none to go back to.
async fn a_machined_that_gives_up_gets_one_fresh_generation(scratch: Scratch) -> Outcome {
    TWO_THAT_GIVE_UP.is_told(&scratch)
}

const TWO_THAT_GIVE_UP: Chapter = Chapter {
    does: "
        hello
        @boot healthy
        @boot give-up no luck
        @fresh give-up still none
    ",
    says: "
        init: generation 1 starts, boot id …
        double: welcome generation=1 start=boot deadline=… kept=[] failed=- cause=-
        init: generation 1 is healthy and committed
        double: ok healthy
        init: generation 1: machined gave up: no luck; starting its image again in a fresh generation
        init: generation 2 starts, boot id …
        double: welcome generation=2 start=fresh deadline=… kept=[] failed=- cause=machined gave up: no luck
        init: generation 2: machined gave up: still none; rebooting in 10 seconds
        reboot: Restarting system
    ",
};
