//! Upgrade after upgrade under a container that lives through all of them: nothing of the versions before is left.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use instar_api::machine::{EventsRequest, RebootRequest};
use instar_tests::{
    Ending, GREETER, GREETER_PORT, Greeter, ImageUnderTest, Machine, MachineConfig, Node, OciImage,
    Outcome, Registry, Scratch, Slope, Test, push_greeter, rootfs_with_script, tests,
    upgrade_and_follow,
};

use crate::workloads::Life;
use crate::{PATIENCE, is_one_named};

/// As many as fit in a run of all tests are fewer.
const UPGRADES: usize = 50;
const FEWER_UPGRADES: usize = 30;
/// Which figures are compared in each stretch between two reboots: those of the first few upgrades, when everything has happened once, and
/// as many of the last. Between them every tenth is looked at.
const EARLY: std::ops::RangeInclusive<usize> = 2..=5;
const LOOK_EACH: usize = 10;
/// Every tenth upgrade fails, every hundredth turn is a reboot.
const ROLLBACK_EACH: usize = 10;
const REBOOT_EACH: usize = 100;
/// Caches are dropped before memory is counted, but some fill again at once; the best of each few is compared, and a
/// leak of 50 KiB with each of fifty upgrades (of 80 with each of thirty) would cost more than this.
const MEMORY_TOLERANCE_KIB: u64 = 2 << 10;
/// The kernel lets go of removed cgroups in batches: between 7 and 25 of them wait at any time. One that stayed for good
/// with each of fifty upgrades would be 42 more at the end.
const DYING_CGROUPS: u64 = 30;
/// What a line through all figures may rise by with each upgrade, beyond its own error, in KiB: pages of one slab. Logs and records fill
/// the disk up to their limits. It goes through figures from the upgrade `SETTLED` on, and is drawn where there are `FITTED` upgrades.
const SETTLED: usize = 20;
const FITTED: usize = 50;
const MEMORY_SLOPE: f64 = 8.0;
const DISK_SLOPE: f64 = 64.0;
/// Where the greeter sees the node's processes and the kernel's settings of memory.
const PROCESSES: &str = "host-proc";
const MEMORY: &str = "host-vm";

pub(crate) fn tests() -> Vec<Test> {
    tests![leave_nothing_behind]
}

/// What is done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Upgrade,
    Rollback,
    Reboot,
}

impl Turn {
    fn of(number: usize) -> Self {
        match number {
            _ if number.is_multiple_of(REBOOT_EACH) => Turn::Reboot,
            _ if number.is_multiple_of(ROLLBACK_EACH) => Turn::Rollback,
            _ => Turn::Upgrade,
        }
    }
}

/// `make soak N=…`, or what fits.
fn turns() -> anyhow::Result<usize> {
    match std::env::var("INSTAR_SOAK") {
        Ok(text) => text.parse().context("INSTAR_SOAK is no number"),
        Err(_) if is_one_named() => Ok(UPGRADES),
        Err(_) => Ok(FEWER_UPGRADES),
    }
}

/// A node that is upgraded again and again.
struct Soak {
    node: Node,
    registry: Registry,
    scratch: Scratch,
    /// Those that are upgraded to by turns, the one that runs last.
    images: [ImageUnderTest; 2],
    /// The container, which lives for as long as the kernel.
    life: Life,
    /// From an upgrade's call to the readiness that follows, by the host's clock.
    took: Vec<Duration>,
}

async fn leave_nothing_behind(scratch: Scratch) -> Outcome {
    let mut soak = Soak::begin(scratch).await?;
    let turns = turns()?;
    let mut stretch = Stretch::default();
    for number in 1..=turns {
        let turn = Turn::of(number);
        let done = soak.take(turn, number).await;
        done.with_context(|| format!("{turn:?}, {number} of {turns}"))?;
        if turn == Turn::Reboot {
            std::mem::take(&mut stretch).judge()?;
            continue;
        }
        let before_reboot = (turns - number).min(REBOOT_EACH - 1 - number % REBOOT_EACH);
        let place = number % REBOOT_EACH;
        let is_late = before_reboot < EARLY.count();
        if EARLY.contains(&place) || is_late || place.is_multiple_of(LOOK_EACH) {
            let left = Left::look(&soak.node).await?;
            println!("after {number:2} upgrades: {left}");
            stretch.note(place, is_late, left);
        }
    }
    stretch.judge()?;
    soak.took.sort();
    let at = |share: usize| soak.took.get(soak.took.len() * share / 100);
    println!(
        "from the call to ready: half within {:?}, 99 of 100 within {:?}",
        at(50),
        at(99)
    );
    Ok(())
}

impl Soak {
    async fn begin(scratch: Scratch) -> anyhow::Result<Self> {
        let registry = Registry::start(&scratch)?;
        push_greeter(&registry)?;
        let images = [ImageUnderTest::second()?, ImageUnderTest::first()?];
        for image in &images {
            // Kernel and initramfs are in the second layer: without a reboot nobody wants them, and pulls are the longest part.
            OciImage::read(&image.installer())?
                .first_layer_alone()
                .push(&registry, "instar/installer", image.version())?;
        }
        let host = registry.host_for_guest();
        let node = Node::plan(&scratch, &ImageUnderTest::first()?)
            .blank_disk()?
            .forward(GREETER_PORT)
            .configure(move |config| with_a_privileged_greeter(config, &host))
            .spec(|spec| spec.without_deadline())
            .boot()
            .await?;
        node.wait_until_ready(PATIENCE).await?;
        let life = Life::of(&node, GREETER).await?;
        Ok(Self {
            node,
            registry,
            scratch,
            images,
            life,
            took: Vec::new(),
        })
    }

    async fn take(&mut self, turn: Turn, number: usize) -> Outcome {
        match turn {
            Turn::Upgrade => {
                let begun = Instant::now();
                upgrade(&self.node, &self.registry, &self.images[0]).await?;
                self.took.push(begun.elapsed());
                self.images.swap(0, 1);
            }
            Turn::Rollback => self.roll_back(number).await?,
            Turn::Reboot => return self.reboot().await,
        }
        let life = Life::of(&self.node, GREETER).await?;
        ensure!(life == self.life, "{:#?}, and now {life:#?}", self.life);
        Greeter::of(&self.node)?.greets()
    }

    /// An image that failed once is not tried again, so each is another one.
    async fn roll_back(&self, number: usize) -> Outcome {
        let tag = format!("v0.3.{number}");
        let script = "hello\ngive-up the soak wants it so\n";
        let rootfs = rootfs_with_script(&self.scratch, &tag, script)?;
        OciImage::read(&ImageUnderTest::second()?.installer())?
            .installing(&tag, &rootfs)?
            .first_layer_alone()
            .push(&self.registry, "instar/installer", &tag)?;
        let image = self
            .registry
            .image_for_guest(&format!("instar/installer:{tag}"));
        let followed = upgrade_and_follow(&self.node, &image, PATIENCE).await?;
        ensure!(
            matches!(&followed.ending, Ending::Failed(why) if why.contains("the soak wants it so")),
            "{followed:#?}"
        );
        self.node.wait_until_ready(PATIENCE).await?;
        let version = self.node.version().await?.tag;
        ensure!(version == self.images[1].version(), "{version}");
        Ok(())
    }

    async fn reboot(&mut self) -> Outcome {
        let kernel = self.node.kernel_boot_id().await?;
        let mut machine = self.node.machine().await?;
        machine.reboot(RebootRequest::default()).await?;
        self.node
            .wait_until("it has rebooted", PATIENCE, async || {
                ensure!(self.node.kernel_boot_id().await? != kernel);
                Ok(())
            })
            .await?;
        self.node.wait_until_ready(PATIENCE).await?;
        Greeter::of(&self.node)?.greets()?;
        self.life = Life::of(&self.node, GREETER).await?;
        // QEMU boots the kernel that it was given.
        if self.node.version().await?.tag != self.images[1].version() {
            self.images.swap(0, 1);
        }
        Ok(())
    }
}

/// What was seen between two reboots.
#[derive(Default)]
struct Stretch {
    early: Vec<Left>,
    late: Vec<Left>,
    all: Vec<(usize, Left)>,
}

impl Stretch {
    fn note(&mut self, place: usize, is_late: bool, left: Left) {
        if EARLY.contains(&place) {
            self.early.push(left.clone());
        } else if is_late {
            self.late.push(left.clone());
        }
        self.all.push((place, left));
    }

    fn judge(mut self) -> Outcome {
        if self.late.is_empty() {
            return Ok(());
        }
        // A descriptor that gets another number while they are walked through is missed: no look says more than there is.
        let most = Counted::most(self.early.iter().map(|left| left.counted));
        let (early, late) = (Left::least(&self.early)?, Left::least(&self.late)?);
        ensure!(
            late.free_kib + MEMORY_TOLERANCE_KIB >= early.free_kib,
            "memory is lost: {early} became {late}"
        );
        ensure!(
            late.dying_cgroups <= early.dying_cgroups + DYING_CGROUPS,
            "cgroups are left: {early} became {late}"
        );
        ensure!(
            late.counted.is_within(most),
            "something is left: {early}, at most {most:?}, became {late}"
        );
        // Removed cgroups and caches grow at first, up to their own limits; a line through few figures shows nothing else.
        self.all.retain(|(place, _)| *place >= SETTLED);
        if self.all.last().is_none_or(|(place, _)| *place < FITTED) {
            return Ok(());
        }
        self.rises("memory in use", MEMORY_SLOPE, |left| {
            -(left.free_kib as f64)
        })?;
        self.rises("shared memory", MEMORY_SLOPE, |left| left.shmem_kib as f64)?;
        self.rises("slabs", MEMORY_SLOPE, |left| left.slab_kib as f64)?;
        self.rises("disk in use", DISK_SLOPE, |left| left.disk_kib as f64)
    }

    /// An error where a figure rises with the upgrades.
    fn rises(&self, what: &str, most: f64, figure: impl Fn(&Left) -> f64) -> Outcome {
        let points: Vec<(f64, f64)> = self
            .all
            .iter()
            .map(|(place, left)| (*place as f64, figure(left)))
            .collect();
        let slope = Slope::through(&points).context("too few figures")?;
        println!(
            "{what}: {:.2} KiB an upgrade, give or take {:.2}",
            slope.per_step, slope.error
        );
        ensure!(!slope.exceeds(most), "{what} grows: {slope:?}");
        Ok(())
    }
}

/// The greeter, which sees and may do what the test needs.
fn with_a_privileged_greeter(config: MachineConfig, host: &str) -> MachineConfig {
    let mounts = format!(
        "mounts:\n  - hostPath: {{source: /proc, destination: /{PROCESSES}}}\n  - hostPath: {{source: /proc/sys/vm, destination: /{MEMORY}, options: [rw]}}\n"
    );
    config.install_disk("/dev/vda").registry(host).greeter_at(
        "greeter",
        &format!("{host}/greeter:v1"),
        GREETER_PORT,
        &mounts,
    )
}

async fn upgrade(node: &Node, registry: &Registry, image: &ImageUnderTest) -> Outcome {
    let name = registry.image_for_guest(&format!("instar/installer:{}", image.version()));
    let mut machine = node.machine().await?;
    let mut events = machine.events(EventsRequest::default()).await?.into_inner();
    node.upgrade(&name).await??;
    let until_it_ends = async { while let Ok(Some(_)) = events.message().await {} };
    tokio::time::timeout(PATIENCE, until_it_ends)
        .await
        .context("the old generation does not end")?;
    node.wait_until_ready(PATIENCE).await?;
    let version = node.version().await?;
    ensure!(version.tag == image.version(), "{version:?}");
    Greeter::of(node)?.greets()
}

/// What there is of everything that an upgrade could leave behind.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Left {
    free_kib: u64,
    shmem_kib: u64,
    slab_kib: u64,
    disk_kib: u64,
    dying_cgroups: u64,
    counted: Counted,
}

/// What may not grow, not by one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Counted {
    mounts: usize,
    mounts_of_init: usize,
    loops: usize,
    descriptors: usize,
    descriptors_of_init: usize,
    processes: usize,
    cgroups: u64,
    /// Mounted ext4 filesystems, whoever holds them.
    superblocks: usize,
}

impl Counted {
    fn most(some: impl Iterator<Item = Self>) -> Self {
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

    fn is_within(self, most: Self) -> bool {
        Self::most([self, most].into_iter()) == most
    }
}

impl Left {
    async fn look(node: &Node) -> anyhow::Result<Self> {
        // What is in caches is not lost.
        Greeter::of(node)?.get(&format!("/write/{MEMORY}/drop_caches?3"))?;
        let mut machine = node.machine().await?;
        let lines = async |path: &str| anyhow::Ok(node.read(path).await?.lines().count());
        let cgroups = node.read("/sys/fs/cgroup/cgroup.stat").await?;
        let memory = node.read("/proc/meminfo").await?;
        Ok(Self {
            free_kib: free_kib(node).await?,
            shmem_kib: number_after(&memory, "Shmem:")?,
            slab_kib: number_after(&memory, "SUnreclaim:")?,
            disk_kib: disk_kib(&mut machine).await?,
            dying_cgroups: number_after(&cgroups, "nr_dying_descendants")?,
            counted: Counted {
                mounts: lines("/proc/self/mountinfo").await?,
                mounts_of_init: lines("/proc/2/mountinfo").await?,
                loops: present(node, &mut machine, 16, |number| {
                    format!("/sys/block/loop{number}/loop/backing_file")
                })
                .await?,
                descriptors: present(node, &mut machine, 128, |number| {
                    format!("/proc/self/fdinfo/{number}")
                })
                .await?,
                descriptors_of_init: present(node, &mut machine, 64, |number| {
                    format!("/proc/1/fdinfo/{number}")
                })
                .await?,
                processes: processes(node)?,
                cgroups: number_after(&cgroups, "nr_descendants")?,
                superblocks: superblocks(node, &mut machine).await?,
            },
        })
    }

    /// The best of some: what comes and goes is not what is left.
    fn least(some: &[Self]) -> anyhow::Result<Self> {
        let counted = some.iter().map(|left| left.counted).min();
        let least = |of: fn(&Left) -> u64| some.iter().map(of).min().unwrap_or(0);
        Ok(Self {
            shmem_kib: least(|left| left.shmem_kib),
            slab_kib: least(|left| left.slab_kib),
            disk_kib: least(|left| left.disk_kib),
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
            dying_cgroups,
            counted,
        } = self;
        write!(
            f,
            "{free_kib} KiB free, {shmem_kib} shared, {slab_kib} in slabs, {disk_kib} on /var, {dying_cgroups} dying cgroups, {counted:?}"
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

/// What is in use on /var.
async fn disk_kib(machine: &mut Machine) -> anyhow::Result<u64> {
    let mounts = machine.mounts(()).await?.into_inner().messages;
    let mut stats = mounts.into_iter().flat_map(|list| list.stats);
    let var = stats.find(|stat| stat.mounted_on == "/var");
    let var = var.context("/var is not mounted")?;
    Ok((var.size - var.available) / 1024)
}

/// ext4 keeps a folder for each device that it has mounted.
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

/// How many of the files are there.
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

/// Processes that are no threads of the kernel: those have no command line.
fn processes(node: &Node) -> anyhow::Result<usize> {
    let greeter = Greeter::of(node)?;
    let names = greeter.get(&format!("/list/{PROCESSES}"))?;
    let numbers = names.lines().filter(|name| name.parse::<u32>().is_ok());
    let lines = numbers.map(|number| {
        // One that has ended meanwhile is none.
        let line = greeter.get(&format!("/read/{PROCESSES}/{number}/cmdline"));
        line.is_ok_and(|line| !line.is_empty())
    });
    Ok(lines.filter(|is_one| *is_one).count())
}
