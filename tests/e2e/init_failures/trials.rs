//! A version on trial that fails, for any reason, is replaced by the one before it.

use instar_tests::{DoubleRootfs, Outcome, Scratch, ScriptedInit, Test, tests};

use super::{Chapter, told};

pub(super) fn tests() -> Vec<Test> {
    tests![a_trial_that_fails_brings_the_previous_image_back]
}

/// Seven upgrades: to versions that crash, hang, exit, cannot be started, give up and have no machined, and to one that
/// works.
async fn a_trial_that_fails_brings_the_previous_image_back(scratch: Scratch) -> Outcome {
    let (script, expected) = told(TRIALS);
    let image = DoubleRootfs::new(&scratch, "rootfs", &script)?
        .file("unstartable.squashfs", &unstartable(&scratch)?, 0o644)?
        .file("empty.squashfs", &empty(&scratch)?, 0o644)?
        .squashfs()?;
    let digest = blake3::hash(&image).to_string();
    ScriptedInit::boot_image(&scratch, "", &image, Some(&digest))?.says_until_its_end(&expected)
}

/// A version whose machined nothing can start.
fn unstartable(scratch: &Scratch) -> anyhow::Result<Vec<u8>> {
    DoubleRootfs::new(scratch, "unstartable", "")?
        .file("sbin/machined", b"no program", 0o644)?
        .squashfs()
}

/// A version that has no machined.
fn empty(scratch: &Scratch) -> anyhow::Result<Vec<u8>> {
    DoubleRootfs::new(scratch, "empty", "")?
        .without("sbin/machined")?
        .squashfs()
}

const TRIALS: &[Chapter] = &[
    A_VERSION_THAT_IS_GOOD,
    A_TRIAL_THAT_CRASHES,
    A_TRIAL_THAT_HANGS,
    A_TRIAL_THAT_EXITS,
    A_TRIAL_THAT_CANNOT_BE_STARTED,
    A_TRIAL_THAT_GIVES_UP,
    A_TRIAL_WITHOUT_A_MACHINED,
    A_TRIAL_THAT_WORKS,
];

/// The version that each trial goes back to.
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
        =3 next self v3 5
        =4 hang
        =5 healthy
    ",
    says: "
        init: generation 4 starts, boot id …
        double: welcome generation=4 start=next deadline=… kept=[] failed=- cause=-
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
