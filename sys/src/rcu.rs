//! The kernel's waits until each CPU has passed a quiet moment (RCU grace periods): a process that moves into a cgroup, a mount, a packet
//! socket and a kernel module wait so, 10 to 30 ms each time.

use std::fs;

/// Documentation/admin-guide/kernel-parameters.txt, `rcupdate.rcu_expedited`: 1 or 0. init sets it at the start of the kernel.
const EXPEDITED: &str = "/sys/kernel/rcu_expedited";

/// Makes these waits short, at the price of an interrupt of every CPU; for a boot and a change of generations.
pub fn hurry() {
    set("1");
}

/// Gives the kernel its time again: containers are not interrupted.
pub fn take_time() {
    set("0");
}

fn set(value: &str) {
    // A kernel without it takes its time, and all works.
    let _ = fs::write(EXPEDITED, value);
}
