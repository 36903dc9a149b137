//! Counts of everything that an upgrade could leave behind.

use std::fmt;

use anyhow::Context;
use instar_api::machine::storage_service_client::StorageServiceClient;
use instar_api::machine::{DiskUsageRequest, StorageServiceStatfsRequest};
use instar_tests::{Greeter, Machine, Node};

/// Directories where the greeter sees the node's processes and the kernel's memory settings.
pub(super) const PROCESSES: &str = "host-proc";
pub(super) const MEMORY: &str = "host-vm";

/// The figures at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Left {
    pub(super) free_kib: u64,
    pub(super) shmem_kib: u64,
    pub(super) slab_kib: u64,
    /// In use on /var, without logs, which grow up to their limit.
    pub(super) disk_kib: u64,
    /// Inodes in use on /var, without those of logs.
    pub(super) inodes: u64,
    /// All threads, the kernel's own included.
    pub(super) threads: u64,
    pub(super) dying_cgroups: u64,
    pub(super) counted: Counted,
}

/// Counts that may not grow, not by one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Counted {
    mounts: usize,
    mounts_of_init: usize,
    loops: usize,
    /// Descriptors of machined.
    pub(super) descriptors: usize,
    pub(super) descriptors_of_init: usize,
    processes: usize,
    cgroups: u64,
    /// Mounted ext4 filesystems, whichever process holds them.
    superblocks: usize,
}

impl Counted {
    async fn look(node: &Node, cgroups: &str) -> anyhow::Result<Self> {
        let (greeter, mut machine) = (Greeter::of(node)?, node.machine().await?);
        let stat = node.read("/proc/self/stat").await?;
        let machined = stat.split(' ').next().unwrap_or_default();
        Ok(Self {
            mounts: lines(node, "/proc/self/mountinfo").await?,
            mounts_of_init: lines(node, "/proc/2/mountinfo").await?,
            loops: present(node, &mut machine, 16, backing_file).await?,
            descriptors: descriptors(&greeter, machined)?,
            descriptors_of_init: descriptors(&greeter, "1")?,
            processes: processes(node)?,
            cgroups: number_after(cgroups, "nr_descendants")?,
            superblocks: superblocks(node, &mut machine).await?,
        })
    }

    pub(super) fn most(some: impl Iterator<Item = Self>) -> Self {
        let larger = |one: Self, other: Self| Self {
            mounts: one.mounts.max(other.mounts),
            mounts_of_init: one.mounts_of_init.max(other.mounts_of_init),
            loops: one.loops.max(other.loops),
            descriptors: one.descriptors.max(other.descriptors),
            descriptors_of_init: one.descriptors_of_init.max(other.descriptors_of_init),
            processes: one.processes.max(other.processes),
            cgroups: one.cgroups.max(other.cgroups),
            superblocks: one.superblocks.max(other.superblocks),
        };
        some.fold(Self::default(), larger)
    }

    pub(super) fn is_within(self, most: Self) -> bool {
        Self::most([self, most].into_iter()) == most
    }
}

impl Left {
    pub(super) async fn look(node: &Node) -> anyhow::Result<Self> {
        // Memory in caches is not lost.
        Greeter::of(node)?.get(&format!("/write/{MEMORY}/drop_caches?3"))?;
        let mut machine = node.machine().await?;
        let cgroups = node.read("/sys/fs/cgroup/cgroup.stat").await?;
        let memory = node.read("/proc/meminfo").await?;
        let logs = Logs::look(&mut machine).await?;
        Ok(Self {
            free_kib: free_kib(node).await?,
            shmem_kib: number_after(&memory, "Shmem:")?,
            slab_kib: number_after(&memory, "SUnreclaim:")?,
            disk_kib: disk_kib(&mut machine).await?.saturating_sub(logs.kib),
            inodes: inodes(node).await?.saturating_sub(logs.inodes),
            threads: threads(node).await?,
            dying_cgroups: number_after(&cgroups, "nr_dying_descendants")?,
            counted: Counted::look(node, &cgroups).await?,
        })
    }

    /// Returns the least of several counts: temporary objects do not count as left behind.
    pub(super) fn least(some: &[Self]) -> anyhow::Result<Self> {
        let counted = some.iter().map(|left| left.counted).min();
        let least = |of: fn(&Left) -> u64| some.iter().map(of).min().unwrap_or(0);
        Ok(Self {
            shmem_kib: least(|left| left.shmem_kib),
            slab_kib: least(|left| left.slab_kib),
            disk_kib: least(|left| left.disk_kib),
            inodes: least(|left| left.inodes),
            threads: least(|left| left.threads),
            free_kib: some.iter().map(|left| left.free_kib).max().unwrap_or(0),
            dying_cgroups: least(|left| left.dying_cgroups),
            counted: counted.context("nothing was measured")?,
        })
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            free_kib,
            shmem_kib,
            slab_kib,
            disk_kib,
            inodes,
            threads,
            dying_cgroups,
            counted,
        } = self;
        write!(
            f,
            "{free_kib} KiB free, {shmem_kib} shared, {slab_kib} in slabs, {disk_kib} and {inodes} inodes on /var without logs, {threads} threads, {dying_cgroups} dying cgroups, {counted:?}"
        )
    }
}

/// Free memory, pages on the processors' own lists included.
async fn free_kib(node: &Node) -> anyhow::Result<u64> {
    let free = number_after(&node.read("/proc/meminfo").await?, "MemFree:")?;
    let zones = node.read("/proc/zoneinfo").await?;
    let on_lists = zones.lines().filter_map(|line| {
        let count = line.trim().strip_prefix("count:")?;
        count.trim().parse::<u64>().ok()
    });
    Ok(free + on_lists.sum::<u64>() * 4)
}

/// KiB in use on /var.
async fn disk_kib(machine: &mut Machine) -> anyhow::Result<u64> {
    let mounts = machine.mounts(()).await?.into_inner().messages;
    let mut stats = mounts.into_iter().flat_map(|list| list.stats);
    let var = stats.find(|stat| stat.mounted_on == "/var");
    let var = var.context("/var is not mounted")?;
    Ok((var.size - var.available) / 1024)
}

/// The logs' part of /var.
struct Logs {
    kib: u64,
    inodes: u64,
}

impl Logs {
    async fn look(machine: &mut Machine) -> anyhow::Result<Self> {
        let request = DiskUsageRequest {
            all: true,
            paths: vec!["/var/log".to_owned()],
            ..DiskUsageRequest::default()
        };
        let mut entries = machine.disk_usage(request).await?.into_inner();
        let (mut inodes, mut bytes) = (0, 0);
        while let Some(entry) = entries.message().await? {
            // A file that was rotated away meanwhile has an error instead of a size.
            if entry.error.is_empty() {
                inodes += 1;
                // The directory comes after its contents, with their sum.
                bytes = entry.size;
            }
        }
        let kib = u64::try_from(bytes)? / 1024;
        Ok(Self { kib, inodes })
    }
}

/// Inodes in use on the disk.
async fn inodes(node: &Node) -> anyhow::Result<u64> {
    let mut storage = StorageServiceClient::new(node.kept_channel().await?);
    let request = StorageServiceStatfsRequest {
        path: "/var".to_owned(),
    };
    Ok(storage.statfs(request).await?.into_inner().inodes_used)
}

/// All threads that the scheduler knows (proc_loadavg(5): `RUNNABLE/ALL`).
async fn threads(node: &Node) -> anyhow::Result<u64> {
    let load = node.read("/proc/loadavg").await?;
    let all = load.split(' ').nth(3).and_then(|part| part.split_once('/'));
    let (_, all) = all.with_context(|| format!("no threads in {load:?}"))?;
    Ok(all.parse()?)
}

/// Number of a process's open descriptors, as the greeter sees it.
fn descriptors(greeter: &Greeter, process: &str) -> anyhow::Result<usize> {
    let listed = greeter.get(&format!("/list/{PROCESSES}/{process}/fd"))?;
    Ok(listed.lines().count())
}

/// Counts ext4 filesystems: ext4 keeps a folder for each device that it has mounted.
async fn superblocks(node: &Node, machine: &mut Machine) -> anyhow::Result<usize> {
    let mut count = 0;
    for number in 1..=8 {
        let path = format!("/sys/fs/ext4/vda{number}/mb_stats");
        count += usize::from(node.has_file(machine, &path).await?);
    }
    Ok(count)
}

fn number_after(text: &str, key: &str) -> anyhow::Result<u64> {
    let line = text
        .lines()
        .find_map(|line| line.trim().strip_prefix(key))
        .with_context(|| format!("no {key} in {text:?}"))?;
    let number = line.split_whitespace().next().unwrap_or_default();
    number.parse().with_context(|| format!("{key} {line:?}"))
}

/// Number of these files that exist.
async fn present(
    node: &Node,
    machine: &mut Machine,
    highest: usize,
    path: impl Fn(usize) -> String,
) -> anyhow::Result<usize> {
    let mut count = 0;
    for number in 0..highest {
        if node.has_file(machine, &path(number)).await? {
            count += 1;
        }
    }
    Ok(count)
}

/// Number of processes. The kernel's threads have no command line and do not count.
fn processes(node: &Node) -> anyhow::Result<usize> {
    let greeter = Greeter::of(node)?;
    let names = greeter.get(&format!("/list/{PROCESSES}"))?;
    let numbers = names.lines().filter(|name| name.parse::<u32>().is_ok());
    let lines = numbers.map(|number| {
        // A process that has ended meanwhile does not count.
        let line = greeter.get(&format!("/read/{PROCESSES}/{number}/cmdline"));
        line.is_ok_and(|line| !line.is_empty())
    });
    Ok(lines.filter(|is_one| *is_one).count())
}

async fn lines(node: &Node, path: &str) -> anyhow::Result<usize> {
    Ok(node.read(path).await?.lines().count())
}

/// The file that exists while a loop device is in use.
fn backing_file(number: usize) -> String {
    format!("/sys/block/loop{number}/loop/backing_file")
}
