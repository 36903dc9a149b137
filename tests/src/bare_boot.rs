//! The floor: a boot of the same kernel with the smallest PID 1, counted in guest instructions.
//!
//! A deterministic machine counts one nanosecond per instruction, so clocks in the guest are instruction counts. They
//! start at different moments: the processor's counter at reset, CLOCK_BOOTTIME and the kernel's log (10 ms apart) when
//! the kernel has set up its time. The time before is the same for every guest of the same kernel and machine, so one
//! boot of `trivial-init` gives the number to add to either.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use instar_base::lock::Lock as _;
use instar_qemu::{Timing, Vm, VmSpec};

use crate::initramfs::Initramfs;
use crate::scratch::Scratch;
use crate::workspace::{target_directory, workspace_root};

/// Real time for a boot that takes three times the host's CPU of a usual one.
const PATIENCE: Duration = Duration::from_secs(300);

/// Results of one boot of the smallest PID 1, in guest instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BareBoot {
    /// From reset to the first instruction of PID 1's `main`.
    pub instructions: u64,
    /// From reset to the zero of CLOCK_BOOTTIME.
    pub boottime_starts_at: u64,
    /// From reset to the zero of the kernel's log.
    pub kernel_log_starts_at: u64,
}

impl BareBoot {
    /// Boots the smallest PID 1. The command line is that of the machine it is compared with.
    pub fn measure(
        scratch: &Scratch,
        kernel: &Path,
        command_line: &str,
        memory_mib: u32,
    ) -> Result<Self> {
        let spec = trivial_boot(scratch, kernel)?
            .command_line(command_line)
            .memory_mib(memory_mib)
            .timing(Timing::Instructions);
        let vm = Vm::start(&spec, &scratch.join("bare-boot"))?;
        let line = vm.wait_for_line("floor boottime_ns=", PATIENCE)?;
        let in_log = vm.wait_for_line("floor in the kernel's log", PATIENCE)?;
        let ended = vm.wait_for_end(PATIENCE)?;
        ensure!(
            ended.is_clean(),
            "the bare machine did not power off: {ended}"
        );
        let (boottime, instructions) = (
            number(&line.text, "boottime_ns=")?,
            number(&line.text, "tsc=")?,
        );
        let kernel_time = in_log
            .kernel_time()
            .context("the kernel's log has no time stamps")?;
        vm.discard()?;
        Ok(Self {
            instructions,
            boottime_starts_at: instructions - boottime,
            // The two lines are a few microseconds apart.
            kernel_log_starts_at: instructions - instructions_in(kernel_time),
        })
    }

    /// Instructions since reset at a time of the guest's CLOCK_BOOTTIME.
    pub fn at_boottime(&self, boottime: Duration) -> u64 {
        self.boottime_starts_at + instructions_in(boottime)
    }

    /// Instructions since reset at a time stamp of the kernel's log. True from PID 1 on: earlier the kernel
    /// still corrects its clock.
    pub fn at_kernel_time(&self, kernel_time: Duration) -> u64 {
        self.kernel_log_starts_at + instructions_in(kernel_time)
    }
}

/// Memory of a machine whose PID 1 is nothing but a static service on a TCP port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BareMemory {
    /// Memory of the guest, without the part that the kernel keeps from the start.
    pub total_kib: u64,
    /// Not in use, pages on per-CPU lists included.
    pub free_kib: u64,
}

impl BareMemory {
    /// Boots the service, and measures its memory after 5 s.
    pub fn measure(
        scratch: &Scratch,
        kernel: &Path,
        command_line: &str,
        memory_mib: u32,
    ) -> Result<Self> {
        let spec = trivial_boot(scratch, kernel)?
            .command_line(format!("{command_line} trivial-serve"))
            .memory_mib(memory_mib)
            .timing(Timing::Instructions);
        let vm = Vm::start(&spec, &scratch.join("bare-memory"))?;
        let line = vm.wait_for_line("memory total_kib=", PATIENCE)?.text;
        vm.wait_for_end(PATIENCE)?;
        vm.discard()?;
        Ok(Self {
            total_kib: number(&line, "total_kib=")?,
            free_kib: number(&line, "free_kib=")? + number(&line, "percpu_kib=")?,
        })
    }

    /// Memory in use.
    pub fn used_kib(&self) -> u64 {
        self.total_kib.saturating_sub(self.free_kib)
    }
}

/// Plans a machine with `trivial-init` as its PID 1; the kernel argument `trivial-DO` selects its action (see the
/// program).
pub fn trivial_boot(scratch: &Scratch, kernel: &Path) -> Result<VmSpec> {
    let program = build_trivial_init()?;
    let content =
        std::fs::read(&program).with_context(|| format!("cannot read {}", program.display()))?;
    let archive = scratch.write(
        "trivial.cpio",
        Initramfs::new().program("init", &content).finish(),
    )?;
    Ok(VmSpec::kernel(kernel, archive).memory_mib(256))
}

/// Compiles the program for musl with rustc alone: cargo would build this package's dependencies for musl as well.
fn build_trivial_init() -> Result<PathBuf> {
    let source = workspace_root().join("tests/src/bin/trivial-init.rs");
    let folder = target_directory().join("trivial-init");
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot make {}", folder.display()))?;
    let output = folder.join("trivial-init");
    // Tests run at once, in this process and in others. rustc's own files have fixed names beside its output: each
    // process builds in a folder of its own, and one test at a time.
    static BUILDING: Mutex<()> = Mutex::new(());
    let _building = BUILDING.locked();
    let fresh = std::fs::metadata(&output)
        .and_then(|built| built.modified())
        .ok();
    let changed = std::fs::metadata(&source)
        .and_then(|source| source.modified())
        .ok();
    if fresh.is_some() && fresh > changed {
        return Ok(output);
    }
    let own = folder.join(format!("part.{}", std::process::id()));
    std::fs::create_dir_all(&own).with_context(|| format!("cannot make {}", own.display()))?;
    let part = own.join("trivial-init");
    let status = Command::new("rustc")
        .current_dir(workspace_root())
        .args(["--edition", "2024", "--target", "x86_64-unknown-linux-musl"])
        .args([
            "-C",
            "opt-level=z",
            "-C",
            "panic=abort",
            "-C",
            "strip=symbols",
            "-C",
            "relocation-model=static",
        ])
        .arg("-o")
        .arg(&part)
        .arg(&source)
        .status()
        .context("cannot run rustc: it is on the PATH of `make test`")?;
    ensure!(
        status.success(),
        "rustc cannot build {}: is its musl target installed?",
        source.display()
    );
    std::fs::rename(&part, &output).with_context(|| format!("cannot rename {}", part.display()))?;
    std::fs::remove_dir(&own).with_context(|| format!("cannot remove {}", own.display()))?;
    Ok(output)
}

fn instructions_in(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the number after a key in a line of `key=value` words.
fn number(line: &str, key: &str) -> Result<u64> {
    let value = line
        .split_whitespace()
        .find_map(|word| word.strip_prefix(key));
    value
        .and_then(|value| value.parse().ok())
        .with_context(|| format!("no number {key} in {line:?}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn reads_numbers_by_key() {
        let line = "floor boottime_ns=979713659 tsc=1562743508";
        assert_eq!(number(line, "tsc=").unwrap(), 1_562_743_508);
        assert!(number(line, "free_kib=").is_err());
        assert!(number("tsc=fast", "tsc=").is_err());
    }

    #[test]
    fn clocks_become_instructions_since_reset() {
        let boot = BareBoot {
            instructions: 1_600,
            boottime_starts_at: 600,
            kernel_log_starts_at: 610,
        };
        assert_eq!(boot.at_boottime(Duration::from_nanos(1_000)), 1_600);
        assert_eq!(boot.at_kernel_time(Duration::from_nanos(990)), 1_600);
    }
}
