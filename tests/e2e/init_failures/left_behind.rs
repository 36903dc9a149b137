//! A generation that leaves the machine different from a freshly booted one is followed by a boot.

use instar_tests::{Outcome, Scratch, Test, tests};

use super::Chapter;

pub(super) fn tests() -> Vec<Test> {
    tests![
        a_loop_device_that_is_left_ends_in_a_reboot,
        a_sysctl_that_cannot_be_restored_ends_in_a_reboot,
    ]
}

async fn a_loop_device_that_is_left_ends_in_a_reboot(scratch: Scratch) -> Outcome {
    A_LOOP_DEVICE_THAT_IS_LEFT.is_told(&scratch)
}

const A_LOOP_DEVICE_THAT_IS_LEFT: Chapter = Chapter {
    does: "
        hello
        healthy
        leave-loop
        next self v2 60
    ",
    says: "
        init: generation 1 starts, boot id …
        double: welcome generation=1 start=boot deadline=… kept=[] failed=- cause=-
        init: generation 1 is healthy and committed
        double: ok healthy
        double: attached /dev/loop1
        init: generation 1: not as freshly booted: the block device loop1 is left; rebooting in 10 seconds
        reboot: Restarting system
    ",
};

/// Only a reboot can switch this sysctl off again.
async fn a_sysctl_that_cannot_be_restored_ends_in_a_reboot(scratch: Scratch) -> Outcome {
    A_SYSCTL_THAT_STAYS.is_told(&scratch)
}

const A_SYSCTL_THAT_STAYS: Chapter = Chapter {
    does: "
        hello
        healthy
        leave-sysctl /proc/sys/kernel/kexec_load_disabled 1
        give-up no luck
    ",
    says: "
        init: generation 1 starts, boot id …
        double: welcome generation=1 start=boot deadline=… kept=[] failed=- cause=-
        init: generation 1 is healthy and committed
        double: ok healthy
        double: /proc/sys/kernel/kexec_load_disabled is 1
        init: generation 1: machined gave up: no luck; starting its image again in a fresh generation
        init: generation 1: /proc/sys/kernel/kexec_load_disabled does not take its old value; rebooting in 10 seconds
        reboot: Restarting system
    ",
};
