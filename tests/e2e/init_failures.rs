//! init's next step after every kind of failure, with the real init and a machined that fails on order.
//!
//! A test says what the stand-in for machined does (`tests/double`) and what init, the stand-in and the kernel have to say
//! from the first generation to the end of the machine: every line of theirs, in order.

use std::time::Duration;

use anyhow::ensure;
use instar_tests::{DoubleRootfs, Outcome, Scratch, ScriptedInit, Test, tests};

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_machined_that_dies_walks_down_the_ladder,
        a_machined_that_hangs_is_late,
        a_machined_that_gives_up_gets_one_fresh_generation,
        a_trial_that_fails_brings_the_previous_image_back,
        what_is_refused_changes_nothing,
        what_is_kept_outlives_machined_and_what_is_not_is_gone,
        workloads_live_through_a_swap_and_back_when_they_are_kept,
        workloads_that_hold_on_to_an_image_end_instead_of_the_machine,
        a_first_image_with_another_digest_is_not_started,
        a_first_image_that_is_cut_is_not_started,
        a_first_image_that_is_no_squashfs_is_not_started,
        a_first_image_without_a_digest_is_not_started,
        a_first_image_whose_machined_cannot_run_ends_in_a_reboot,
        a_loop_device_that_is_left_ends_in_a_reboot,
        a_sysctl_that_cannot_be_restored_ends_in_a_reboot,
    ]
}

/// Aborts, exits with an error, closes its link, is killed: each is a death. Three restarts, then a fresh generation,
/// three more, then a reboot.
async fn a_machined_that_dies_walks_down_the_ladder(scratch: Scratch) -> Outcome {
    let script = "
        hello
        @boot abort
        @restart =1 exit 3
        @fresh shut-link
        @fresh hang
        @restart =2 kill
    ";
    ScriptedInit::boot(&scratch, "", script)?.says_until_its_end("
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
    ")
}

/// The deadline comes from the kernel argument, and a restart does not extend it. A machined that does not read its
/// messages delays nothing either.
async fn a_machined_that_hangs_is_late(scratch: Scratch) -> Outcome {
    let script = "
        hello
        @boot sleep 3000
        @boot exit 0
        @restart hang
        @fresh deaf 280
        @fresh hang
    ";
    let init = ScriptedInit::boot(&scratch, "instar.boot-deadline=5", script)?;
    init.vm().wait_for_end(Duration::from_secs(120))?;
    let console = init.vm().console();
    let deaf = console
        .matches("init: machined does not take a message")
        .count();
    ensure!(deaf > 0, "all 280 answers fit into the socket: send more");
    let deaf =
        "init: machined does not take a message: Resource temporarily unavailable (os error 11)\n"
            .repeat(deaf);
    init.says_until_its_end(&format!("
        init: generation 1 starts, boot id …
        double: welcome generation=1 start=boot deadline=4 kept=[] failed=- cause=-
        init: generation 1: machined exited with code 0; starting machined again
        double: welcome generation=1 start=restart deadline=1 kept=[] failed=- cause=machined exited with code 0
        init: generation 1: machined did not report healthy in time; starting its image again in a fresh generation
        init: generation 2 starts, boot id …
        double: welcome generation=2 start=fresh deadline=4 kept=[] failed=- cause=machined did not report healthy in time
        {deaf}
        init: generation 2: machined did not report healthy in time; rebooting in 10 seconds
        reboot: Restarting system
    "))?;
    let started = init.times_of("starts, boot id");
    let late = init.times_of("did not report healthy in time;");
    for (started, late) in started.into_iter().zip(late) {
        let given = late.saturating_sub(started);
        // With what the restart could have added it would be 8.
        ensure!(
            (4.8..7.0).contains(&given.as_secs_f64()),
            "it got {given:?} of 5 s"
        );
    }
    Ok(())
}

/// Committed or not makes no difference when there is nothing to go back to.
async fn a_machined_that_gives_up_gets_one_fresh_generation(scratch: Scratch) -> Outcome {
    let script = "
        hello
        @boot healthy
        @boot give-up no luck
        @fresh give-up still none
    ";
    ScriptedInit::boot(&scratch, "", script)?.says_until_its_end("
        init: generation 1 starts, boot id …
        double: welcome generation=1 start=boot deadline=… kept=[] failed=- cause=-
        init: generation 1 is healthy and committed
        double: ok healthy
        init: generation 1: machined gave up: no luck; starting its image again in a fresh generation
        init: generation 2 starts, boot id …
        double: welcome generation=2 start=fresh deadline=… kept=[] failed=- cause=machined gave up: no luck
        init: generation 2: machined gave up: still none; rebooting in 10 seconds
        reboot: Restarting system
    ")
}

/// A part of a double's script, and the lines that are said while it runs.
struct Chapter {
    does: &'static str,
    says: &'static str,
}

/// The whole script, and all lines.
fn told(chapters: &[Chapter]) -> (String, String) {
    let does = chapters.iter().map(|chapter| chapter.does);
    let says = chapters.iter().map(|chapter| chapter.says);
    (does.collect(), says.collect())
}

/// Seven upgrades: to versions that crash, hang, exit, cannot be started, give up and have no machined, and to one that
/// works.
async fn a_trial_that_fails_brings_the_previous_image_back(scratch: Scratch) -> Outcome {
    let unstartable = DoubleRootfs::new(&scratch, "unstartable", "")?
        .file("sbin/machined", b"no program", 0o644)?
        .squashfs()?;
    let empty = DoubleRootfs::new(&scratch, "empty", "")?
        .without("sbin/machined")?
        .squashfs()?;
    let (script, expected) = told(&[
        A_VERSION_THAT_IS_GOOD,
        A_TRIAL_THAT_CRASHES,
        A_TRIAL_THAT_HANGS,
        A_TRIAL_THAT_EXITS,
        A_TRIAL_THAT_CANNOT_BE_STARTED,
        A_TRIAL_THAT_GIVES_UP,
        A_TRIAL_WITHOUT_A_MACHINED,
        A_TRIAL_THAT_WORKS,
    ]);
    let image = DoubleRootfs::new(&scratch, "rootfs", &script)?
        .file("unstartable.squashfs", &unstartable, 0o644)?
        .file("empty.squashfs", &empty, 0o644)?
        .squashfs()?;
    let digest = blake3::hash(&image).to_string();
    ScriptedInit::boot_image(&scratch, "", &image, Some(&digest))?.says_until_its_end(&expected)
}

/// What each trial goes back to.
const A_VERSION_THAT_IS_GOOD: Chapter = Chapter {
    does: "
        hello
        =1 healthy
    ",
    says: "
        init: generation 1 starts, boot id …
        double: welcome generation=1 start=boot deadline=… kept=[] failed=- cause=-
        init: generation 1 is healthy and committed
        double: ok healthy
    ",
};

const A_TRIAL_THAT_CRASHES: Chapter = Chapter {
    does: "
        =1 next self v2 60
        =2 abort
        =3 healthy
    ",
    says: "
        init: generation 2 starts, boot id …
        double: welcome generation=2 start=next deadline=… kept=[] failed=- cause=-
        init: generation 2: machined was killed by signal 6; starting machined again
        double: welcome generation=2 start=restart deadline=… kept=[] failed=- cause=machined was killed by signal 6
        init: generation 2: machined was killed by signal 6; starting machined again
        double: welcome generation=2 start=restart deadline=… kept=[] failed=- cause=machined was killed by signal 6
        init: generation 2: machined was killed by signal 6; starting machined again
        double: welcome generation=2 start=restart deadline=… kept=[] failed=- cause=machined was killed by signal 6
        init: generation 2: machined was killed by signal 6; going back from v2 to the previous image
        init: generation 3 starts, boot id …
        double: welcome generation=3 start=rollback deadline=… kept=[] failed=v2 cause=machined was killed by signal 6
        init: generation 3 is healthy and committed
        double: ok healthy
    ",
};

const A_TRIAL_THAT_HANGS: Chapter = Chapter {
    does: "
        =3 next self v3 2
        =4 hang
        =5 healthy
    ",
    says: "
        init: generation 4 starts, boot id …
        double: welcome generation=4 start=next deadline=1 kept=[] failed=- cause=-
        init: generation 4: machined did not report healthy in time; going back from v3 to the previous image
        init: generation 5 starts, boot id …
        double: welcome generation=5 start=rollback deadline=… kept=[] failed=v3 cause=machined did not report healthy in time
        init: generation 5 is healthy and committed
        double: ok healthy
    ",
};

const A_TRIAL_THAT_EXITS: Chapter = Chapter {
    does: "
        =5 next self v4 60
        =6 exit 3
        =7 healthy
    ",
    says: "
        init: generation 6 starts, boot id …
        double: welcome generation=6 start=next deadline=… kept=[] failed=- cause=-
        init: generation 6: machined exited with code 3; starting machined again
        double: welcome generation=6 start=restart deadline=… kept=[] failed=- cause=machined exited with code 3
        init: generation 6: machined exited with code 3; starting machined again
        double: welcome generation=6 start=restart deadline=… kept=[] failed=- cause=machined exited with code 3
        init: generation 6: machined exited with code 3; starting machined again
        double: welcome generation=6 start=restart deadline=… kept=[] failed=- cause=machined exited with code 3
        init: generation 6: machined exited with code 3; going back from v4 to the previous image
        init: generation 7 starts, boot id …
        double: welcome generation=7 start=rollback deadline=… kept=[] failed=v4 cause=machined exited with code 3
        init: generation 7 is healthy and committed
        double: ok healthy
    ",
};

const A_TRIAL_THAT_CANNOT_BE_STARTED: Chapter = Chapter {
    does: "
        =7 next /unstartable.squashfs v5 60
        =9 healthy
    ",
    says: "
        init: generation 8 starts, boot id …
        init: generation 8: cannot start /sbin/machined: Permission denied (os error 13); going back from v5 to the previous image
        init: generation 9 starts, boot id …
        double: welcome generation=9 start=rollback deadline=… kept=[] failed=v5 cause=cannot start /sbin/machined: Permission denied (os error 13)
        init: generation 9 is healthy and committed
        double: ok healthy
    ",
};

const A_TRIAL_THAT_GIVES_UP: Chapter = Chapter {
    does: "
        =9 next self v6 60
        =10 give-up the disk is gone
        =11 healthy
    ",
    says: "
        init: generation 10 starts, boot id …
        double: welcome generation=10 start=next deadline=… kept=[] failed=- cause=-
        init: generation 10: machined gave up: the disk is gone; going back from v6 to the previous image
        init: generation 11 starts, boot id …
        double: welcome generation=11 start=rollback deadline=… kept=[] failed=v6 cause=machined gave up: the disk is gone
        init: generation 11 is healthy and committed
        double: ok healthy
    ",
};

const A_TRIAL_WITHOUT_A_MACHINED: Chapter = Chapter {
    does: "
        =11 next /empty.squashfs v7 60
        =13 healthy
    ",
    says: "
        init: generation 12 starts, boot id …
        init: generation 12: cannot start /sbin/machined: No such file or directory (os error 2); going back from v7 to the previous image
        init: generation 13 starts, boot id …
        double: welcome generation=13 start=rollback deadline=… kept=[] failed=v7 cause=cannot start /sbin/machined: No such file or directory (os error 2)
        init: generation 13 is healthy and committed
        double: ok healthy
    ",
};

const A_TRIAL_THAT_WORKS: Chapter = Chapter {
    does: "
        =13 next self v8 60
        =14 healthy
        =14 poweroff
    ",
    says: "
        init: generation 14 starts, boot id …
        double: welcome generation=14 start=next deadline=… kept=[] failed=- cause=-
        init: generation 14 is healthy and committed
        double: ok healthy
        init: machined asks for poweroff
        reboot: Power down
    ",
};

/// Requests that make no sense, and images that are not what they are said to be. The generation goes on through all of
/// it, and nothing of it is left.
async fn what_is_refused_changes_nothing(scratch: Scratch) -> Outcome {
    let (script, expected) = told(&[
        ARGUMENTS_OF_THE_KERNEL_THAT_MAKE_NO_SENSE,
        A_GENERATION_THAT_STARTS,
        WHAT_COMES_TOO_EARLY_OR_FROM_ELSEWHERE,
        OTHER_THAN_ONE_IMAGE,
        IMAGES_WITHOUT_ALL_SEALS,
        IMAGES_OF_ANOTHER_DIGEST,
        IMAGES_THAT_ARE_NO_SQUASHFS,
        WHAT_WAS_NOT_PREPARED,
        MESSAGES_THAT_ARE_NONE,
        A_MESSAGE_THAT_IS_TOO_LONG,
        THE_STATE_OF_BEFORE,
    ]);
    let arguments = "instar.boot-deadline=soon instar.watchdog=on";
    ScriptedInit::boot(&scratch, arguments, &script)?.says_until_it_halts(&expected)
}

const ARGUMENTS_OF_THE_KERNEL_THAT_MAKE_NO_SENSE: Chapter = Chapter {
    does: "",
    says: "
        init: instar.boot-deadline=soon: not a number of seconds from 1 to 86400; ignored
        init: instar.watchdog=on: can only be 'off'; ignored
    ",
};

const A_GENERATION_THAT_STARTS: Chapter = Chapter {
    does: "
        hello
    ",
    says: "
        init: generation 1 starts, boot id …
        double: welcome generation=1 start=boot deadline=299 kept=[] failed=- cause=-
    ",
};

const WHAT_COMES_TOO_EARLY_OR_FROM_ELSEWHERE: Chapter = Chapter {
    does: "
        next self v2 60
        healthy-elsewhere
        healthy
    ",
    says: "
        init: refused 'next': this generation has not reported healthy yet
        double: error next wrong-state: this generation has not reported healthy yet
        init: refused 'healthy': this is the boot id of another generation
        double: error healthy other-boot-id: this is the boot id of another generation
        init: generation 1 is healthy and committed
        double: ok healthy
    ",
};

const OTHER_THAN_ONE_IMAGE: Chapter = Chapter {
    does: "
        next self v2 60 none
        next self v2 60 twice
    ",
    says: "
        init: refused 'next': 0 descriptors came with the message, not 1
        double: error next descriptors: 0 descriptors came with the message, not 1
        init: refused 'next': 2 descriptors came with the message, not 1
        double: error next descriptors: 2 descriptors came with the message, not 1
    ",
};

const IMAGES_WITHOUT_ALL_SEALS: Chapter = Chapter {
    does: "
        next self v2 60 unsealed
        next self v2 60 half-sealed
        next self v2 60 file
    ",
    says: "
        init: refused 'next': the image lacks the seals …
        double: error next not-sealed: the image lacks the seals …
        init: refused 'next': the image lacks the seals …
        double: error next not-sealed: the image lacks the seals …
        init: refused 'next': the image lacks the seals …
        double: error next not-sealed: the image lacks the seals …
    ",
};

const IMAGES_OF_ANOTHER_DIGEST: Chapter = Chapter {
    does: "
        next self v2 60 flipped
        next self v2 60 truncated
    ",
    says: "
        init: refused 'next': the image hashes to …, not to …
        double: error next wrong-digest: the image hashes to …, not to …
        init: refused 'next': the image hashes to …, not to …
        double: error next wrong-digest: the image hashes to …, not to …
    ",
};

const IMAGES_THAT_ARE_NO_SQUASHFS: Chapter = Chapter {
    does: "
        next self v2 60 empty
        next self v2 60 garbage
        next self v2 60 short
    ",
    says: "
        init: refused 'next': cannot mount the image as a squashfs: …
        double: error next not-mountable: cannot mount the image as a squashfs: …
        init: refused 'next': cannot mount the image as a squashfs: …
        double: error next not-mountable: cannot mount the image as a squashfs: …
        init: refused 'next': cannot mount the image as a squashfs: …
        double: error next not-mountable: cannot mount the image as a squashfs: …
    ",
};

const WHAT_WAS_NOT_PREPARED: Chapter = Chapter {
    does: "
        keep-nothing api
        drop api
        kexec
    ",
    says: "
        init: refused 'keep': 0 descriptors came with the message, not 1
        double: error keep descriptors: 0 descriptors came with the message, not 1
        init: refused 'drop': nothing is kept under the name 'api'
        double: error drop not-kept: nothing is kept under the name 'api'
        init: refused 'kexec': no kernel is loaded for kexec
        double: error kexec kernel: no kernel is loaded for kexec
    ",
};

const MESSAGES_THAT_ARE_NONE: Chapter = Chapter {
    does: "
        raw hello
        raw instar 2 hello
        raw instar 1 explode
        raw instar 1 drop
        raw instar 1 next\\nblake3 a5\\nversion v2\\ndeadline 60
    ",
    says: "
        init: refused '-': the first line is not 'instar 1 VERB'
        double: error - bad-message: the first line is not 'instar 1 VERB'
        init: refused 'hello': version '2', but only 1 is spoken here
        double: error hello other-version: version '2', but only 1 is spoken here
        init: refused 'explode': unknown verb
        double: error explode unknown-verb: unknown verb
        init: refused 'drop': the key 'name' is missing
        double: error drop bad-message: the key 'name' is missing
        init: refused 'next': the key 'blake3': not 64 lower-case hex digits
        double: error next bad-message: the key 'blake3': not 64 lower-case hex digits
    ",
};

const A_MESSAGE_THAT_IS_TOO_LONG: Chapter = Chapter {
    does: "
        flood 5000
    ",
    says: "
        init: refused '-': more than 4096 bytes
        double: error - bad-message: more than 4096 bytes
    ",
};

const THE_STATE_OF_BEFORE: Chapter = Chapter {
    does: "
        state
        halt
    ",
    says: "
        double: state … loops=1 cgroups=2
        init: machined asks for halt
        reboot: System halted
    ",
};

/// Over a restart of machined and over a swap: descriptors, a service, orphans and their ends, a sysctl.
async fn what_is_kept_outlives_machined_and_what_is_not_is_gone(scratch: Scratch) -> Outcome {
    let script = "
        sleep 500
        hello
        @boot keep log.a generation
        @boot keep api machine
        @boot service
        @boot orphan 50
        @boot await-exit
        @boot leave-sysctl /proc/sys/vm/overcommit_memory 1
        @boot leave-sysctl /proc/sys/vm/dirty_bytes 8192000
        @boot orphan 600000
        @boot abort
        @restart await-exit
        @restart services
        @restart kill-init
        @restart healthy
        @restart print a line of machined's own
        @restart next self v2 60
        @next services
        @next cat /proc/sys/vm/overcommit_memory
        @next cat /proc/sys/vm/dirty_bytes
        @next cat /proc/sys/vm/dirty_ratio
        @next healthy
        @next state
        @next reboot
    ";
    let init = ScriptedInit::boot(&scratch, "", script)?;
    init.says_until_its_end("
        init: generation 1 starts, boot id …
        double: welcome generation=1 start=boot deadline=… kept=[] failed=- cause=-
        double: ok keep
        double: ok keep
        double: service in /sys/fs/cgroup/generation.1/service with cpu io memory pids
        double: the orphan exited with status 0x700
        double: /proc/sys/vm/overcommit_memory is 1
        double: /proc/sys/vm/dirty_bytes is 8192000
        init: generation 1: machined was killed by signal 6; starting machined again
        double: welcome generation=1 start=restart deadline=… kept=[api='kept as api' log.a='kept as log.a'] failed=- cause=machined was killed by signal 6
        double: a process of before exited with status 0x9
        double: services 1
        init: generation 1 is healthy and committed
        double: ok healthy
        init: generation 2 starts, boot id …
        double: welcome generation=2 start=next deadline=… kept=[api='kept as api'] failed=- cause=-
        double: services 0
        double: /proc/sys/vm/overcommit_memory: 0
        double: /proc/sys/vm/dirty_bytes: 0
        double: /proc/sys/vm/dirty_ratio: 20
        init: generation 2 is healthy and committed
        double: ok healthy
        double: state free_kib=… init_rss=… kB init_fds=… mounts=… loops=1 cgroups=2
        init: machined asks for reboot
        reboot: Restarting system
    ")?;
    let console = init.vm().console();
    ensure!(
        console.contains("a line of machined's own"),
        "machined's output is not on the console"
    );
    let rss = console
        .split("init_rss=")
        .nth(1)
        .unwrap()
        .split_whitespace()
        .next()
        .unwrap();
    ensure!(rss.parse::<u32>()? <= 1024, "init has {rss} KiB resident");
    Ok(())
}

/// What machined does in `workloads_live_through_a_swap_and_back_when_they_are_kept`, generation by generation.
const KEEPS_WORKLOADS: &str = "
        hello
        =1 workload
        =1 service
        =1 stray
        =1 keep log.one workloads
        =1 keep log.a generation
        =1 healthy
        =1 next self v2 60 keep
        look-at-workload
        services
        =2 healthy
        =2 next self v3 60 keep
        =3 give-up v3 is no good
        =4 healthy
        =4 next self v4 60
        =5 healthy
        =5 workload
        =5 next self v5 60 keep
        =6 healthy
        =6 end-workload
        =6 await-exit
        =6 workload
        =6 give-up v5 has had enough
        state
        reboot
    ";

/// What is said then.
const WORKLOADS_KEPT: &str = "
        init: generation 1 starts, boot id …
        double: welcome generation=1 start=boot deadline=… kept=[] failed=- cause=-
        double: a workload runs
        double: service in /sys/fs/cgroup/generation.1/service with cpu io memory pids
        double: a stray runs
        double: ok keep
        double: ok keep
        init: generation 1 is healthy and committed
        double: ok healthy
        init: generation 2 starts, boot id …
        double: welcome generation=2 start=next deadline=… kept=[log.one='kept as log.one'] failed=- cause=-
        double: the workloads are kept
        double: the workload lives, cgroups=1
        double: services 0
        init: generation 2 is healthy and committed
        double: ok healthy
        init: generation 3 starts, boot id …
        double: welcome generation=3 start=next deadline=… kept=[log.one='kept as log.one'] failed=- cause=-
        double: the workloads are kept
        double: the workload lives, cgroups=1
        double: services 0
        init: generation 3: machined gave up: v3 is no good; going back from v3 to the previous image
        init: generation 4 starts, boot id …
        double: welcome generation=4 start=rollback deadline=… kept=[log.one='kept as log.one'] failed=v3 cause=machined gave up: v3 is no good
        double: the workloads are kept
        double: the workload lives, cgroups=1
        double: services 0
        init: generation 4 is healthy and committed
        double: ok healthy
        init: generation 5 starts, boot id …
        double: welcome generation=5 start=next deadline=… kept=[] failed=- cause=-
        double: the workload is gone, cgroups=0
        double: services 0
        init: generation 5 is healthy and committed
        double: ok healthy
        double: a workload runs
        init: generation 6 starts, boot id …
        double: welcome generation=6 start=next deadline=… kept=[] failed=- cause=-
        double: the workloads are kept
        double: the workload lives, cgroups=1
        double: services 0
        init: generation 6 is healthy and committed
        double: ok healthy
        double: a process of before exited with status 0x9
        double: a workload runs
        init: generation 6: machined gave up: v5 has had enough; starting its image again in a fresh generation
        init: generation 7 starts, boot id …
        double: welcome generation=7 start=fresh deadline=… kept=[] failed=- cause=machined gave up: v5 has had enough
        double: the workload is gone, cgroups=0
        double: services 0
        double: state … loops=1 cgroups=2
        init: machined asks for reboot
        reboot: Restarting system
    ";

/// Through a swap, through a swap that fails and the way back, and not through one that does not ask for it or a fresh generation.
/// Others end each time, one that has left its cgroup as well.
async fn workloads_live_through_a_swap_and_back_when_they_are_kept(scratch: Scratch) -> Outcome {
    ScriptedInit::boot(&scratch, "", KEEPS_WORKLOADS)?.says_until_its_end(WORKLOADS_KEPT)
}

/// Keeping is never worse than not keeping: what keeps the machine from being as freshly booted ends, and the swap goes on.
async fn workloads_that_hold_on_to_an_image_end_instead_of_the_machine(
    scratch: Scratch,
) -> Outcome {
    let script = "
        hello
        =1 stuck-workload
        =1 healthy
        =1 next self v2 60 keep
        look-at-workload
        reboot
    ";
    ScriptedInit::boot(&scratch, "", script)?.says_until_its_end(
        "
        init: generation 1 starts, boot id …
        double: welcome generation=1 start=boot deadline=… kept=[] failed=- cause=-
        double: a workload runs
        init: generation 1 is healthy and committed
        double: ok healthy
        init: not as freshly booted: the block device loop0 is left; the workloads end as well
        init: generation 2 starts, boot id …
        double: welcome generation=2 start=next deadline=… kept=[] failed=- cause=-
        double: the workload is gone, cgroups=0
        init: machined asks for reboot
        reboot: Restarting system
    ",
    )
}

async fn a_first_image_with_another_digest_is_not_started(scratch: Scratch) -> Outcome {
    let image = DoubleRootfs::new(&scratch, "rootfs", "hello")?.squashfs()?;
    let zeros = "0".repeat(64);
    ScriptedInit::boot_image(&scratch, "", &image, Some(&zeros))?.says_until_its_end(&format!(
        "
        init: generation 1: the image hashes to {}, not to {zeros}; rebooting in 10 seconds
        reboot: Restarting system
    ",
        blake3::hash(&image)
    ))
}

/// Cut before its digest was made, so that only the filesystem can tell.
async fn a_first_image_that_is_cut_is_not_started(scratch: Scratch) -> Outcome {
    let image = DoubleRootfs::new(&scratch, "rootfs", "hello")?.squashfs()?;
    let half = &image[..image.len() / 2];
    let digest = blake3::hash(half).to_string();
    ScriptedInit::boot_image(&scratch, "", half, Some(&digest))?.says_until_its_end(
        "
        init: generation 1: cannot mount the image as a squashfs: …; rebooting in 10 seconds
        reboot: Restarting system
    ",
    )
}

async fn a_first_image_that_is_no_squashfs_is_not_started(scratch: Scratch) -> Outcome {
    let noise = vec![0x5a; 1 << 20];
    let digest = blake3::hash(&noise).to_string();
    ScriptedInit::boot_image(&scratch, "", &noise, Some(&digest))?.says_until_its_end(
        "
        init: generation 1: cannot mount the image as a squashfs: Invalid argument (os error 22) (Can't find a SQUASHFS superblock on loop0); rebooting in 10 seconds
        reboot: Restarting system
    ",
    )
}

async fn a_first_image_without_a_digest_is_not_started(scratch: Scratch) -> Outcome {
    let image = DoubleRootfs::new(&scratch, "rootfs", "hello")?.squashfs()?;
    ScriptedInit::boot_image(&scratch, "", &image, None)?.says_until_its_end("
        init: cannot read /rootfs.b3: No such file or directory (os error 2); rebooting in 10 seconds
        reboot: Restarting system
    ")
}

async fn a_first_image_whose_machined_cannot_run_ends_in_a_reboot(scratch: Scratch) -> Outcome {
    let image = DoubleRootfs::new(&scratch, "rootfs", "")?
        .file("sbin/machined", b"no program", 0o755)?
        .squashfs()?;
    let digest = blake3::hash(&image).to_string();
    ScriptedInit::boot_image(&scratch, "", &image, Some(&digest))?.says_until_its_end("
        init: generation 1 starts, boot id …
        init: generation 1: cannot start /sbin/machined: Exec format error (os error 8); rebooting in 10 seconds
        reboot: Restarting system
    ")
}

async fn a_loop_device_that_is_left_ends_in_a_reboot(scratch: Scratch) -> Outcome {
    let script = "
        hello
        healthy
        leave-loop
        next self v2 60
    ";
    ScriptedInit::boot(&scratch, "", script)?.says_until_its_end("
        init: generation 1 starts, boot id …
        double: welcome generation=1 start=boot deadline=… kept=[] failed=- cause=-
        init: generation 1 is healthy and committed
        double: ok healthy
        double: attached /dev/loop1
        init: generation 1: not as freshly booted: the block device loop1 is left; rebooting in 10 seconds
        reboot: Restarting system
    ")
}

/// This one cannot be switched off again but by a reboot.
async fn a_sysctl_that_cannot_be_restored_ends_in_a_reboot(scratch: Scratch) -> Outcome {
    let script = "
        hello
        healthy
        leave-sysctl /proc/sys/kernel/kexec_load_disabled 1
        give-up no luck
    ";
    ScriptedInit::boot(&scratch, "", script)?.says_until_its_end("
        init: generation 1 starts, boot id …
        double: welcome generation=1 start=boot deadline=… kept=[] failed=- cause=-
        init: generation 1 is healthy and committed
        double: ok healthy
        double: /proc/sys/kernel/kexec_load_disabled is 1
        init: generation 1: machined gave up: no luck; starting its image again in a fresh generation
        init: generation 1: /proc/sys/kernel/kexec_load_disabled does not take its old value; rebooting in 10 seconds
        reboot: Restarting system
    ")
}
