//! Objects that outlive a restart of machined, and a swap of generations.

use anyhow::{Context as _, ensure};
use instar_tests::{Outcome, Scratch, ScriptedInit, Test, tests};

use super::Chapter;

pub(super) fn tests() -> Vec<Test> {
    tests![
        what_is_kept_outlives_machined_and_what_is_not_is_gone,
        workloads_live_through_a_swap_and_back_when_they_are_kept,
        workloads_that_hold_on_to_an_image_end_instead_of_the_machine,
        machined_finishes_its_work_within_a_limit,
    ]
}

/// Tests a restart of machined and a swap: descriptors, a service, orphans and their exit codes, a sysctl.
async fn what_is_kept_outlives_machined_and_what_is_not_is_gone(scratch: Scratch) -> Outcome {
    let Chapter { does, says } = A_RESTART_AND_A_SWAP;
    let init = ScriptedInit::boot(&scratch, "", does)?;
    init.says_until_its_end(says)?;
    let console = init.vm().console();
    ensure!(
        console.contains("a line of machined's own"),
        "machined's output is not on the console"
    );
    let (_, rss) = console.split_once("init_rss=").context("no init_rss")?;
    let rss = rss.split_whitespace().next().unwrap_or_default();
    ensure!(rss.parse::<u32>()? <= 1024, "init has {rss} KiB resident");
    Ok(())
}

const A_RESTART_AND_A_SWAP: Chapter = Chapter {
    does: "
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
    ",
    says: "
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
    ",
};

/// Tests the time between the answer to `next` and the swap: machined ends by itself, crashes, hangs, or asks for too much.
async fn machined_finishes_its_work_within_a_limit(scratch: Scratch) -> Outcome {
    LAST_WORK.is_told(&scratch)
}

const LAST_WORK: Chapter = Chapter {
    does: "
        hello
        healthy
        =1 next self v2 60 finish=6
        =1 next self v2 60 finish=5
        =1 services
        =1 sleep 1000
        =1 services
        =1 exit 0
        =2 next self v3 60 finish=5
        =2 services
        =2 abort
        =3 services
        =3 next self v4 60 finish=5
        =3 hang
        reboot
    ",
    says: "
        init: generation 1 starts, boot id …
        double: welcome generation=1 start=boot deadline=… kept=[] failed=- cause=-
        init: generation 1 is healthy and committed
        double: ok healthy
        init: refused 'next': the key 'finish': not from 0 to 5
        double: error next bad-message: the key 'finish': not from 0 to 5
        double: ok next
        double: services 0
        double: services 0
        init: generation 2 starts, boot id …
        double: welcome generation=2 start=next deadline=… kept=[] failed=- cause=-
        init: generation 2 is healthy and committed
        double: ok healthy
        double: ok next
        double: services 0
        init: generation 3 starts, boot id …
        double: welcome generation=3 start=next deadline=… kept=[] failed=- cause=-
        init: generation 3 is healthy and committed
        double: ok healthy
        double: services 0
        double: ok next
        init: generation 4 starts, boot id …
        double: welcome generation=4 start=next deadline=… kept=[] failed=- cause=-
        init: generation 4 is healthy and committed
        double: ok healthy
        init: machined asks for reboot
        reboot: Restarting system
    ",
};

/// Workloads live through a swap, and through a failed swap and the way back; not through a swap that does not ask for
/// it, nor a fresh generation. Other processes end each time, also one that has left its cgroup.
async fn workloads_live_through_a_swap_and_back_when_they_are_kept(scratch: Scratch) -> Outcome {
    SWAPS_OF_FIVE_VERSIONS.is_told(&scratch)
}

/// The story, generation by generation.
const SWAPS_OF_FIVE_VERSIONS: Chapter = Chapter {
    does: "
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
    ",
    says: "
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
    ",
};

/// A workload that holds on to an old image is ended, and the swap goes on: keeping workloads is never worse than not
/// keeping them.
async fn workloads_that_hold_on_to_an_image_end_instead_of_the_machine(
    scratch: Scratch,
) -> Outcome {
    A_WORKLOAD_THAT_HOLDS_ON.is_told(&scratch)
}

const A_WORKLOAD_THAT_HOLDS_ON: Chapter = Chapter {
    does: "
        hello
        =1 stuck-workload
        =1 healthy
        =1 next self v2 60 keep
        look-at-workload
        reboot
    ",
    says: "
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
};
