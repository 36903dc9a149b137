//! A machine under QEMU, which notes each address of code that it runs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use instar_tests::{ImageUnderTest, Node, Scratch, target_directory};

const PATIENCE: Duration = Duration::from_secs(300);
/// Time after the boot in which machined lets go of the code that only the boot needed.
const SETTLING: Duration = Duration::from_secs(20);
/// Time for which the idle machine is watched.
const IDLE: Duration = Duration::from_secs(60);
/// Programs are at the same addresses in each process.
const COMMAND_LINE: &str = "console=ttyS0 panic=10 printk.devkmsg=on norandmaps";
/// Addresses of programs, not of the kernel.
const PROGRAMS: &str = "0x1000..0x7fffffffffff";

/// Addresses of code of all programs, in the order of their first use.
pub(crate) struct Ran {
    pub(crate) idle: Vec<u64>,
    pub(crate) boot: Vec<u64>,
}

/// machined with its symbols, as in the image.
pub(crate) fn symbols() -> PathBuf {
    target_directory().join("code-order/machined.symbols")
}

/// Boots a machine, waits until it is idle, and watches it.
pub(crate) async fn run(scratch: &Scratch) -> Result<Ran> {
    let (boot, idle) = (scratch.path().join("boot"), scratch.path().join("idle"));
    let log = boot.to_str().context("a path that is no text")?;
    let node = Node::plan(scratch, &ImageUnderTest::for_code_order()?)
        .spec(|spec| {
            let arguments = ["-d", "in_asm", "-dfilter", PROGRAMS, "-D", log];
            let spec = spec.command_line(COMMAND_LINE);
            arguments
                .into_iter()
                .fold(spec, instar_qemu::VmSpec::extra_argument)
        })
        .boot()
        .await?;
    node.wait_until_ready(PATIENCE).await?;
    tokio::time::sleep(SETTLING).await;
    watch_from_now(&node, &idle)?;
    use_it(&node).await?;
    tokio::time::sleep(IDLE).await;
    use_it(&node).await?;
    node.vm().quit()?;
    Ok(Ran {
        idle: addresses(&idle)?,
        boot: addresses(&boot)?,
    })
}

/// Has QEMU translate all code again: it notes code when it translates it.
fn watch_from_now(node: &Node, log: &Path) -> Result<()> {
    let vm = node.vm();
    let mut qmp = vm.qmp();
    for command in [&format!("logfile {}", log.display()), "singlestep on"] {
        let said = qmp.human(command)?;
        ensure!(said.trim().is_empty(), "{command}: {said}");
    }
    Ok(())
}

/// The calls by which a machine is watched.
async fn use_it(node: &Node) -> Result<()> {
    node.version().await?;
    node.read("/proc/meminfo").await?;
    Ok(())
}

/// Returns the addresses that QEMU has noted.
fn addresses(log: &Path) -> Result<Vec<u64>> {
    let text = std::fs::read(log).with_context(|| format!("cannot read {}", log.display()))?;
    let text = String::from_utf8_lossy(&text);
    let addresses = text.lines().filter_map(|line| {
        let (address, _) = line.strip_prefix("0x")?.split_once(':')?;
        u64::from_str_radix(address, 16).ok()
    });
    Ok(addresses.collect())
}
