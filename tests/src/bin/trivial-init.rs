//! The smallest useful PID 1: it measures a boot before any program of ours runs.
//!
//! It says the time and ends the machine. Without the standard library's crates around it, so that `rustc` alone builds it
//! for musl (see `bare_boot.rs`). Kernel arguments of the form `trivial-DO` choose what it does after that:
//!
//! | argument | what |
//! | --- | --- |
//! | none | power off |
//! | `trivial-serve` | bind TCP 50000 as the barest service would, wait, say how much memory is free, power off |
//! | `trivial-panic` | end, which makes the kernel panic |
//! | `trivial-reboot` | reboot |
//! | `trivial-idle` | sleep for ever |

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::time::Duration;

fn main() {
    let (boottime_ns, tsc) = (sys::boottime_ns(), sys::tsc());
    // Through the kernel's log as well: it stamps the line with its own clock, which is not quite the other two. First,
    // because the kernel writes at once and would write into the middle of the other line.
    let _ = fs::write("/dev/kmsg", "floor in the kernel's log\n");
    say(&format!("floor boottime_ns={boottime_ns} tsc={tsc}"));
    // The serial port has that line before anything ends.
    std::thread::sleep(Duration::from_millis(20));
    let choice =
        std::env::args().find_map(|argument| argument.strip_prefix("trivial-").map(str::to_owned));
    match choice.as_deref() {
        None => sys::power_off(),
        Some("serve") => {
            serve();
            sys::power_off();
        }
        Some("reboot") => sys::reboot(),
        Some("panic") => return,
        Some(_) => {}
    }
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

/// Binds the port of the API and reports memory once the boot's own garbage is gone.
fn serve() {
    let listener = TcpListener::bind("0.0.0.0:50000");
    std::thread::sleep(Duration::from_secs(5));
    if let Err(error) = &listener {
        say(&format!("memory: cannot bind: {error}"));
    }
    if !sys::mount_proc() {
        say("memory: cannot mount /proc");
        return;
    }
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let field = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split_whitespace().next())
            .unwrap_or("0")
            .to_owned()
    };
    say(&format!(
        "memory total_kib={} free_kib={} percpu_kib={}",
        field("MemTotal:"),
        field("MemFree:"),
        percpu_pages() * 4
    ));
}

/// Free pages that wait on per-CPU lists, which MemFree leaves out.
fn percpu_pages() -> u64 {
    let zoneinfo = fs::read_to_string("/proc/zoneinfo").unwrap_or_default();
    let counts = zoneinfo
        .lines()
        .filter_map(|line| line.trim().strip_prefix("count:"));
    counts
        .filter_map(|count| count.trim().parse::<u64>().ok())
        .sum()
}

/// Prints a line. Nothing can be done when the console is gone.
fn say(text: &str) {
    // The caller sees the machine's end in any case.
    let _ = writeln!(std::io::stdout(), "{text}");
}

#[allow(unsafe_code)]
mod sys {
    use std::ffi::{c_char, c_int, c_long, c_ulong};

    #[repr(C)]
    struct Timespec {
        seconds: c_long,
        nanoseconds: c_long,
    }

    const CLOCK_BOOTTIME: c_int = 7;
    const RB_POWER_OFF: c_int = 0x4321_fedc;
    const RB_AUTOBOOT: c_int = 0x0123_4567;

    // SAFETY: the C library's own functions, declared as its headers do for x86-64 Linux.
    unsafe extern "C" {
        fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int;
        fn mount(
            source: *const c_char,
            target: *const c_char,
            kind: *const c_char,
            flags: c_ulong,
            data: *const c_char,
        ) -> c_int;
        #[link_name = "reboot"]
        fn libc_reboot(command: c_int) -> c_int;
    }

    /// Nanoseconds since the kernel started its clock.
    pub(super) fn boottime_ns() -> i64 {
        let mut time = Timespec {
            seconds: 0,
            nanoseconds: 0,
        };
        // SAFETY: writes one timespec to memory that we own.
        unsafe { clock_gettime(CLOCK_BOOTTIME, &mut time) };
        time.seconds * 1_000_000_000 + time.nanoseconds
    }

    /// Ticks since reset; under `-icount shift=0` one per instruction or nanosecond.
    pub(super) fn tsc() -> u64 {
        // SAFETY: reads a register that every x86-64 has and Linux lets programs read.
        unsafe { core::arch::x86_64::_rdtsc() }
    }

    pub(super) fn mount_proc() -> bool {
        let (name, target) = (c"proc", c"/proc");
        // SAFETY: three strings that end in NUL; no data.
        unsafe {
            mount(
                name.as_ptr(),
                target.as_ptr(),
                name.as_ptr(),
                0,
                std::ptr::null(),
            ) == 0
        }
    }

    pub(super) fn power_off() {
        // SAFETY: no memory is involved.
        unsafe { libc_reboot(RB_POWER_OFF) };
    }

    pub(super) fn reboot() {
        // SAFETY: no memory is involved.
        unsafe { libc_reboot(RB_AUTOBOOT) };
    }
}
