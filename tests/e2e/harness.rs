//! The VM harness itself, with a real kernel and the smallest PID 1.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use instar_qemu::{Ended, Error, Timing, Vm, VmSpec};
use instar_tests::{
    BareBoot, BareMemory, Outcome, Scratch, Test, chapters, kernel_under_test, tests, trivial_boot,
};

/// Timeout for a boot under TCG, on a host that runs others too.
const PATIENCE: Duration = Duration::from_secs(240);
const COMMAND_LINE: &str = "console=ttyS0 panic=10 cryptomgr.notests";

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_vm_powers_off_by_itself,
        a_reboot_ends_a_vm_when_asked,
        a_reset_boots_a_vm_again,
        a_panic_is_noticed,
        a_power_cut_ends_a_vm_at_once,
        a_deadline_ends_a_vm,
        waiting_in_vain_shows_the_console,
        one_directory_one_machine,
        two_counted_boots_are_the_same,
        the_host_reads_the_guests_clock,
        bare_memory_is_counted,
    ]
}

fn spec(scratch: &Scratch, wish: &str) -> anyhow::Result<VmSpec> {
    Ok(trivial_boot(scratch, &kernel_under_test()?)?
        .command_line(format!("{COMMAND_LINE} {wish}"))
        .deadline(PATIENCE))
}

async fn a_vm_powers_off_by_itself(scratch: Scratch) -> Outcome {
    let vm = Vm::start(&spec(&scratch, "")?, &scratch.join("vm"))?;
    vm.wait_for_line("floor boottime_ns=", PATIENCE)?;
    ensure!(vm.wait_for_end(PATIENCE)?.is_clean());
    let directory = vm.directory().to_owned();
    vm.discard()?;
    ensure!(!directory.exists());
    Ok(())
}

async fn a_reboot_ends_a_vm_when_asked(scratch: Scratch) -> Outcome {
    let vm = Vm::start(
        &spec(&scratch, "trivial-reboot")?.end_on_reboot(),
        &scratch.join("vm"),
    )?;
    ensure!(vm.wait_for_end(PATIENCE)?.is_clean());
    ensure!(vm.console().matches("floor boottime_ns=").count() == 1);
    Ok(())
}

async fn a_reset_boots_a_vm_again(scratch: Scratch) -> Outcome {
    let vm = Vm::start(&spec(&scratch, "trivial-idle")?, &scratch.join("vm"))?;
    let first = vm.wait_for_line("floor boottime_ns=", PATIENCE)?;
    vm.reset()?;
    vm.wait_for_line_after(first.end, "floor boottime_ns=", PATIENCE)?;
    vm.qmp().wait_event("RESET", Duration::from_secs(10))?;
    ensure!(vm.quit()?.is_clean());
    Ok(())
}

async fn a_panic_is_noticed(scratch: Scratch) -> Outcome {
    let vm = Vm::start(&spec(&scratch, "trivial-panic")?, &scratch.join("vm"))?;
    let error = vm.wait_for_line("what never comes", PATIENCE).unwrap_err();
    ensure!(
        matches!(&error, Error::Panicked { line, .. } if line.contains("Attempted to kill init")),
        "{error}"
    );
    Ok(())
}

async fn a_power_cut_ends_a_vm_at_once(scratch: Scratch) -> Outcome {
    let vm = Vm::start(&spec(&scratch, "trivial-idle")?, &scratch.join("vm"))?;
    let process = format!("/proc/{}", vm.pid());
    ensure!(std::path::Path::new(&process).exists());
    ensure!(vm.cut_power() == Ended::PowerCut);
    ensure!(!std::path::Path::new(&process).exists());
    Ok(())
}

async fn a_deadline_ends_a_vm(scratch: Scratch) -> Outcome {
    let short = spec(&scratch, "trivial-idle")?.deadline(Duration::from_secs(10));
    let vm = Vm::start(&short, &scratch.join("vm"))?;
    let error = vm.wait_for_line("what never comes", PATIENCE).unwrap_err();
    ensure!(
        matches!(
            error,
            Error::EndedEarly {
                ended: Ended::Deadline,
                ..
            }
        ),
        "{error}"
    );
    Ok(())
}

async fn waiting_in_vain_shows_the_console(scratch: Scratch) -> Outcome {
    let vm = Vm::start(&spec(&scratch, "trivial-idle")?, &scratch.join("vm"))?;
    vm.wait_for_line("floor boottime_ns=", PATIENCE)?;
    let error = vm
        .wait_for_line("what never comes", Duration::from_millis(100))
        .unwrap_err()
        .to_string();
    ensure!(error.contains("| floor boottime_ns="), "{error}");
    Ok(())
}

async fn one_directory_one_machine(scratch: Scratch) -> Outcome {
    let spec = spec(&scratch, "trivial-idle")?;
    let first = Vm::start(&spec, &scratch.join("vm"))?;
    ensure!(Vm::start(&spec, &scratch.join("vm")).is_err());
    drop(first);
    Vm::start(&spec, &scratch.join("vm"))?;
    Ok(())
}

async fn two_counted_boots_are_the_same(scratch: Scratch) -> Outcome {
    let kernel = kernel_under_test()?;
    let first = BareBoot::measure(&scratch.below("first")?, &kernel, COMMAND_LINE, 256)?;
    let second = BareBoot::measure(&scratch.below("second")?, &kernel, COMMAND_LINE, 256)?;
    ensure!(
        first.instructions.abs_diff(second.instructions) < first.instructions / 1000,
        "{first:?} {second:?}"
    );
    println!("{first:?}");
    Ok(())
}

async fn the_host_reads_the_guests_clock(scratch: Scratch) -> Outcome {
    let counted = spec(&scratch, "trivial-idle")?.timing(Timing::InstructionsIdleOnHost);
    let vm = Vm::start(&counted, &scratch.join("vm"))?;
    let line = vm.wait_for_line("floor boottime_ns=", PATIENCE)?.text;
    let (_, seen) = line.rsplit_once("tsc=").context("no tsc")?;
    vm.pause()?;
    chapters![
        the_clock_stands_while_the_machine_is_paused(&vm),
        the_clock_is_not_before_what_the_guest_saw(&vm, seen.parse()?),
        the_clock_goes_on_with_the_machine(&vm),
    ]
    .await
}

async fn the_clock_stands_while_the_machine_is_paused(vm: &Vm) -> Outcome {
    let (one, two) = (vm.guest_clock()?, vm.guest_clock()?);
    ensure!(
        one == two,
        "it runs while the machine is paused: {one:?} {two:?}"
    );
    Ok(())
}

async fn the_clock_is_not_before_what_the_guest_saw(vm: &Vm, nanoseconds: u64) -> Outcome {
    let now = vm.guest_clock()?;
    ensure!(
        now >= Duration::from_nanos(nanoseconds),
        "{now:?} is before {nanoseconds} ns, which the guest saw"
    );
    Ok(())
}

async fn the_clock_goes_on_with_the_machine(vm: &Vm) -> Outcome {
    let before = vm.guest_clock()?;
    vm.resume()?;
    let until = Instant::now() + PATIENCE;
    while vm.guest_clock()? <= before {
        let stands_still = Instant::now() >= until;
        ensure!(!stands_still, "it stands still while the machine runs");
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

async fn bare_memory_is_counted(scratch: Scratch) -> Outcome {
    let memory = BareMemory::measure(&scratch, &kernel_under_test()?, COMMAND_LINE, 256)?;
    ensure!((5_000..100_000).contains(&memory.used_kib()), "{memory:?}");
    println!("{memory:?}");
    Ok(())
}
