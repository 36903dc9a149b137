//! Memory of an idle machine, compared with the same machine with only a static service as PID 1.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use instar_qemu::Timing;
use instar_tests::{BareMemory, ImageUnderTest, Node, Scratch};

use crate::table::{Limit, Table};
use crate::{COMMAND_LINE, MEMORY_MIB};

const PATIENCE: Duration = Duration::from_secs(240);
/// Pause before the measurement, by the guest's clock, which a busy host slows down: after it the kernel has freed the
/// memory of the boot, and machined the code of the work that follows it (`release_memory.rs`).
const SETTLING: Duration = Duration::from_secs(15);

pub(crate) async fn measure(
    scratch: &Scratch,
    image: &ImageUnderTest,
    table: &mut Table,
) -> Result<()> {
    let bare = BareMemory::measure(scratch, &image.kernel(), COMMAND_LINE, MEMORY_MIB)?;
    let node = Node::plan(&scratch.below("idle")?, image)
        .memory_mib(MEMORY_MIB)
        .spec(|spec| {
            spec.command_line(COMMAND_LINE)
                .timing(Timing::InstructionsIdleOnHost)
        })
        .boot()
        .await?;
    node.wait_until_ready(PATIENCE).await?;
    settle(&node).await?;

    let init = field(&node.read("/proc/1/status").await?, "VmRSS:")?;
    table.add("init_rss_kib", init, Limit::AtMost(512.0));
    let apid = node.service_pid("apid").await?;
    for (name, process) in [("machined", "self".to_owned()), ("apid", apid.to_string())] {
        let held = node.read(&format!("/proc/{process}/smaps_rollup")).await?;
        table.add(
            &format!("{name}_pss_kib"),
            field(&held, "Pss:")?,
            Limit::None,
        );
        for (part, key) in [("own", "Pss_Anon:"), ("program", "Pss_File:")] {
            table.add(
                &format!("{name}_{part}_kib"),
                field(&held, key)?,
                Limit::None,
            );
        }
    }
    add_parts(&node, image, table).await?;

    let used = used_kib(&node).await?;
    table.add("idle_used_kib", used, Limit::None);
    table.add("bare_service_used_kib", bare.used_kib() as f64, Limit::None);
    // 16 MB.
    table.add(
        "idle_over_bare_service_kib",
        used - bare.used_kib() as f64,
        Limit::AtMost(15_625.0).with_goal(Limit::AtMost(11_230.0)),
    );
    Ok(())
}

/// Waits for [`SETTLING`] by the guest's clock.
async fn settle(node: &Node) -> Result<()> {
    let until = node.uptime().await? + SETTLING;
    node.wait_until("the machine has settled", PATIENCE, async || {
        // The machine is idle between two questions.
        tokio::time::sleep(SETTLING).await;
        let now = node.uptime().await?;
        ensure!(now >= until, "{now:?} of {until:?}");
        Ok(())
    })
    .await
}

/// Adds the other parts of memory in use: the file system in memory, and the kernel's own.
async fn add_parts(node: &Node, image: &ImageUnderTest, table: &mut Table) -> Result<()> {
    let image = std::fs::metadata(image.rootfs())?.len() / 1024;
    table.add("idle_rootfs_image_kib", image as f64, Limit::None);
    let meminfo = node.read("/proc/meminfo").await?;
    for (name, key) in [
        ("page_cache", "Cached:"),
        ("files_in_memory", "Shmem:"),
        ("buffers", "Buffers:"),
        ("slabs", "Slab:"),
        ("page_tables", "PageTables:"),
        ("kernel_stacks", "KernelStack:"),
        ("per_cpu", "Percpu:"),
        ("vmalloc", "VmallocUsed:"),
    ] {
        table.add(
            &format!("idle_{name}_kib"),
            field(&meminfo, key)?,
            Limit::None,
        );
    }
    Ok(())
}

/// Returns all memory that is not free, pages on per-CPU lists counting as free.
async fn used_kib(node: &Node) -> Result<f64> {
    let meminfo = node.read("/proc/meminfo").await?;
    let zoneinfo = node.read("/proc/zoneinfo").await?;
    let per_cpu_pages: f64 = zoneinfo
        .lines()
        .filter_map(|line| line.trim().strip_prefix("count:"))
        .filter_map(|count| count.trim().parse::<f64>().ok())
        .sum();
    Ok(field(&meminfo, "MemTotal:")? - field(&meminfo, "MemFree:")? - per_cpu_pages * 4.0)
}

/// Returns the KiB after a key.
fn field(text: &str, key: &str) -> Result<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    let number = line.and_then(|rest| rest.split_whitespace().next());
    number
        .and_then(|number| number.parse().ok())
        .with_context(|| format!("no {key} in {text:?}"))
}
