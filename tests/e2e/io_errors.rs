//! A disk that fails while it is written to: an upgrade reports the failure, the running version goes on, boots again,
//! and can be upgraded later. The same for images that come and go by pulls, bundles and pins (`store`).

mod failing_disk;
mod store;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use instar_esp::{FileDigest, State, Volume as _};
use instar_qemu::{Drive, VmSpec, WriteFault};
use instar_tests::{
    ContainerWriter, EspImage, Fat, GREETER_PORT, Greeter, ImageUnderTest, Instarctl, Node,
    Outcome, Registry, Said, Scratch, Test, chapters, push_greeter, tests, uefi,
};
use serde_json::json;

use crate::PATIENCE;
use failing_disk::{Defect, FailingDisk, GIVEN_UP, failures, which_writes, writes};
use store::{
    a_torn_write_of_a_pin_and_a_collection_leaves_whole_images,
    a_torn_write_of_a_pull_leaves_whole_images, a_torn_write_of_an_import_leaves_whole_images,
    an_io_error_at_any_write_of_a_pin_and_a_collection_leaves_whole_images,
    an_io_error_at_any_write_of_a_pull_leaves_whole_images,
    an_io_error_at_any_write_of_an_import_leaves_whole_images,
};

/// Room for both versions, and for an installer's image in /var.
const DISK_BYTES: u64 = 512 << 20;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        io_errors_in_an_upgrade_leave_the_version_that_runs,
        an_io_error_at_any_write_of_an_upgrade_leaves_a_version_that_boots,
        a_full_disk_at_any_write_of_an_upgrade_leaves_a_version_that_boots,
        a_torn_write_of_an_upgrade_leaves_a_version_that_boots,
        an_io_error_under_a_container_that_lives_on_leaves_a_version_that_boots,
        an_io_error_at_any_write_of_a_pull_leaves_whole_images,
        a_torn_write_of_a_pull_leaves_whole_images,
        an_io_error_at_any_write_of_an_import_leaves_whole_images,
        a_torn_write_of_an_import_leaves_whole_images,
        an_io_error_at_any_write_of_a_pin_and_a_collection_leaves_whole_images,
        a_torn_write_of_a_pin_and_a_collection_leaves_whole_images,
    ]
}

/// The place on the disk where an upgrade's writes fail.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// This many bytes into the new UKI.
    Uki(u64),
    /// The FAT's entry for the cluster that is this many bytes into the new UKI.
    Table(u64),
    /// The folder with the slots.
    Slots,
    /// The folder with the entries.
    Entries,
}

/// The way in which the writes fail.
#[derive(Debug, Clone, Copy)]
enum Trouble {
    BadSector(Place),
    Torn(Place),
}

const TROUBLES: [Trouble; 6] = [
    Trouble::BadSector(Place::Uki(4 << 20)),
    Trouble::Torn(Place::Uki(4 << 20)),
    Trouble::Torn(Place::Uki((9 << 20) + 1024)),
    Trouble::BadSector(Place::Table(12 << 20)),
    Trouble::BadSector(Place::Slots),
    Trouble::BadSector(Place::Entries),
];

impl Trouble {
    /// Returns the fault for the disk as it is now.
    fn fault(self, disk: &Path) -> Result<WriteFault> {
        Ok(match self {
            Self::BadSector(place) => WriteFault::BadSector(place.sector(&Fat::read(disk)?)?),
            Self::Torn(place) => WriteFault::Torn(place.sector(&Fat::read(disk)?)?),
        })
    }
}

impl Place {
    fn sector(self, fat: &Fat) -> Result<u64> {
        Ok(match self {
            Self::Uki(bytes) => fat.sector_of(fat.next_free(bytes)?),
            Self::Table(bytes) => fat.table_sector_of(fat.next_free(bytes)?),
            Self::Slots => fat.sector_with(b"A       EFI").context("no slot a")?,
            Self::Entries => fat.sector_with(b"INSTAR~1CON").context("no entry")?,
        })
    }
}

async fn io_errors_in_an_upgrade_leave_the_version_that_runs(scratch: Scratch) -> Outcome {
    let registry = Registry::with_both_installers(&scratch)?;
    let upgraded = Upgraded::begin(&scratch, &registry).await?;
    chapters![each_upgrade_on_a_failing_disk_leaves_the_version_that_runs(
        &upgraded
    )]
    .await?;
    let upgraded = upgraded.power_cycle(&scratch).await?;
    chapters![
        the_version_of_before_runs_after_a_power_cut(&upgraded),
        an_upgrade_is_staged_on_a_disk_that_works_again(&upgraded),
        a_version_that_cannot_be_blessed_tries_until_it_can(&upgraded),
        the_staged_version_runs(&upgraded),
        the_new_version_is_blessed_and_boots_next(&upgraded.disk),
    ]
    .await
}

async fn each_upgrade_on_a_failing_disk_leaves_the_version_that_runs(
    upgraded: &Upgraded,
) -> Outcome {
    let (first, kernel) = (
        ImageUnderTest::first()?,
        upgraded.node.kernel_boot_id().await?,
    );
    for trouble in TROUBLES {
        an_upgrade_says_that_the_disk_fails(upgraded, trouble).await?;
        the_version_that_runs_goes_on(upgraded, &kernel).await?;
        boots(&upgraded.disk, &first).with_context(|| format!("{trouble:?}"))?;
    }
    Ok(())
}

async fn the_version_of_before_runs_after_a_power_cut(upgraded: &Upgraded) -> Outcome {
    has_version(upgraded, "v0.1.0").await
}

async fn the_staged_version_runs(upgraded: &Upgraded) -> Outcome {
    has_version(upgraded, "v0.2.0").await
}

async fn has_version(upgraded: &Upgraded, version: &str) -> Outcome {
    let now = upgraded.node.version().await?.tag;
    ensure!(now == version, "{now} runs");
    Ok(())
}

async fn on_a_breakable_disk(scratch: &Scratch, registry: &Registry, disk: &Path) -> Result<Node> {
    let host = registry.host_for_guest();
    let spec = VmSpec::uefi(uefi()?).drive(Drive::raw(disk).breakable());
    Node::plan_from(scratch, spec)
        .configure(move |config| config.registry(&host).install_disk("/dev/vda"))
        .boot_until_ready(PATIENCE)
        .await
}

/// A node, its disk, and the image that it is upgraded to.
struct Upgraded {
    node: Node,
    client: Instarctl,
    disk: PathBuf,
    image: String,
}

impl Upgraded {
    async fn begin(scratch: &Scratch, registry: &Registry) -> Result<Self> {
        let disk = scratch.join("disk.img");
        ImageUnderTest::first()?.put_on_disk(&disk, DISK_BYTES)?;
        let node = on_a_breakable_disk(scratch, registry, &disk).await?;
        Ok(Self {
            client: Instarctl::of(&node, scratch)?,
            node,
            disk,
            image: registry.installer_for_guest("v0.2.0"),
        })
    }

    async fn power_cycle(self, scratch: &Scratch) -> Result<Self> {
        let node = self.node.power_cycle().await?;
        node.wait_until_ready(PATIENCE).await?;
        Ok(Self {
            client: Instarctl::of(&node, scratch)?,
            node,
            ..self
        })
    }
}

async fn an_upgrade_says_that_the_disk_fails(upgraded: &Upgraded, trouble: Trouble) -> Outcome {
    let Upgraded { node, image, .. } = upgraded;
    node.vm().fail_write(0, &trouble.fault(&upgraded.disk)?)?;
    let upgrade = ["upgrade", "--image", image, "--reboot-mode", "powercycle"];
    let said = upgraded.client.run(&upgrade).await?;
    let mut words = said.complaint.lines();
    let why = words.find(|line| line.contains("I/O error"));
    println!("{trouble:?}: {}", why.unwrap_or_default());
    ensure!(said.code != Some(0), "{trouble:?}: it succeeded");
    ensure!(
        said.complaint.contains("I/O error"),
        "{trouble:?}: {said:?}"
    );
    Ok(())
}

/// Checks the node after the disk works again.
async fn the_version_that_runs_goes_on(upgraded: &Upgraded, kernel: &str) -> Outcome {
    let node = &upgraded.node;
    node.vm().fail_write(0, &WriteFault::None)?;
    ensure!(node.kernel_boot_id().await? == kernel, "it rebooted");
    node.wait_until_ready(PATIENCE).await
}

async fn an_upgrade_is_staged_on_a_disk_that_works_again(upgraded: &Upgraded) -> Outcome {
    let upgrade = ["upgrade", "--image", &upgraded.image, "--stage"];
    let said = upgraded.client.run(&upgrade).await?;
    ensure!(said.code == Some(0), "the upgrade afterwards: {said:?}");
    Ok(())
}

/// The disk fails from the start of the new version until that version has reported it.
async fn a_version_that_cannot_be_blessed_tries_until_it_can(upgraded: &Upgraded) -> Outcome {
    let vm = upgraded.node.vm();
    let before = vm.console().len();
    let meanwhile = async {
        the_loader_has_counted_the_start(&upgraded.node, before).await?;
        let trouble = Trouble::BadSector(Place::Entries);
        vm.fail_write(0, &trouble.fault(&upgraded.disk)?)?;
        the_node_tells_that_its_version_is_not_blessed(upgraded).await?;
        anyhow::Ok(vm.fail_write(0, &WriteFault::None)?)
    };
    let reboot = ["reboot", "--mode", "powercycle"];
    let (said, told) = tokio::join!(upgraded.client.run(&reboot), meanwhile);
    told?;
    let said = said?;
    ensure!(said.code == Some(0), "{said:?}");
    Ok(())
}

async fn the_loader_has_counted_the_start(node: &Node, before: usize) -> Outcome {
    node.wait_until("it is started", PATIENCE, async || {
        let console = node.vm().console();
        let since = console.get(before..).context("a shorter console")?;
        ensure!(since.contains("EFI stub"), "the loader is not done");
        Ok(())
    })
    .await
}

async fn the_node_tells_that_its_version_is_not_blessed(
    Upgraded { node, client, .. }: &Upgraded,
) -> Outcome {
    node.wait_until("it tells that it tries again", PATIENCE, async || {
        let said = client.run(&["get", "machinestatus", "-o", "yaml"]).await?;
        let is_told = said.output.contains("ready: false")
            && said.output.contains("name: boot entry")
            && node.vm().console().contains("is still not blessed");
        ensure!(is_told, "{said:?}");
        print!("{}", said.output);
        Ok(())
    })
    .await
}

async fn the_new_version_is_blessed_and_boots_next(disk: &Path) -> Outcome {
    let state = State::read(&EspImage::of_disk(disk))?;
    let next = state.next_boot().context("nothing boots")?;
    ensure!(
        next.name.is_blessed() && next.name.version.to_string() == "v0.2.0",
        "{} boots next",
        next.name
    );
    Ok(())
}

/// Checks that the loader would start this version, and that its UKI is whole.
fn boots(disk: &Path, version: &ImageUnderTest) -> Result<()> {
    let esp = EspImage::of_disk(disk);
    let state = State::read(&esp)?;
    let next = state.next_boot().context("nothing boots")?;
    ensure!(
        next.name.version.to_string() == version.version(),
        "{} would be booted",
        next.name
    );
    let found = FileDigest::of(&esp.read(&next.slot.uki_path())?);
    let whole = FileDigest::of(&std::fs::read(version.uki())?);
    ensure!(found == whole, "its UKI is {found}, expected {whole}");
    Ok(())
}

/// Limit on the whole test: all writes take hours. Each single upgrade has the limit [`PATIENCE`].
const LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// Reasons for refusing an upgrade after a failed write: the write itself, the filesystem that gave up, or the version
/// that found the filesystem so.
const REASONS: [&str; 4] = [
    "I/O error",
    "No space left on device",
    "Read-only file system",
    "was given up",
];
/// Arguments for an upgrade that ends when its version waits for the next start.
const STAGED: [&str; 1] = ["--stage"];
/// Arguments for an upgrade that starts its version at once.
const AT_ONCE: [&str; 2] = ["--reboot-mode", "powercycle"];
/// How long a container goes on writing after the upgrade.
const AFTER: Duration = Duration::from_secs(5);
/// One in this many staged versions is also started.
const STARTED: usize = 10;
async fn an_io_error_at_any_write_of_an_upgrade_leaves_a_version_that_boots(
    scratch: Scratch,
) -> Outcome {
    fail_each_write_in_turn(scratch, Defect::Broken).await
}

async fn a_full_disk_at_any_write_of_an_upgrade_leaves_a_version_that_boots(
    scratch: Scratch,
) -> Outcome {
    fail_each_write_in_turn(scratch, Defect::Full).await
}

async fn a_torn_write_of_an_upgrade_leaves_a_version_that_boots(scratch: Scratch) -> Outcome {
    fail_each_write_in_turn(scratch, Defect::Tearing).await
}

/// machined's message when the installer is done and the change of generations begins.
const INSTALLED: &str = "machined: upgrade: upgrade: done";

/// A write fails during the change of generations, or right after it, under a container that writes all the time: one
/// write in each of several upgrades without a reboot. Whether the upgrade succeeds or not, the machine starts again by
/// itself from a whole version, and the container writes.
async fn an_io_error_under_a_container_that_lives_on_leaves_a_version_that_boots(
    scratch: Scratch,
) -> Outcome {
    let registry = Registry::with_both_installers(&scratch)?;
    push_greeter(&registry)?;
    let mut story = Story::begin(&scratch, &registry, Defect::Broken, true).await?;
    let all = an_undisturbed_upgrade_is_counted(&mut story).await?;
    let mut tally = Tally::default();
    for write in which_writes(all)? {
        let name = format!("write {write} of {all}");
        let tried = an_upgrade_under_a_writer_loses_a_write(&story, write).await;
        tally.add(&tried.with_context(|| name.clone())?);
        story = a_whole_version_starts_again(story).await.context(name)?;
    }
    let (failed, refused) = (tally.failed, tally.refused);
    println!("{failed} writes failed, {refused} upgrades were refused");
    ensure!(failed > 0, "no write failed");
    Ok(())
}

/// Counts the disk's writes in an upgrade under a writing container.
async fn an_undisturbed_upgrade_is_counted(story: &mut Story<'_>) -> Result<u64> {
    let (said, all) = an_upgrade_under_a_writer(story, None).await?;
    ensure!(said.code == Some(0), "{said:?}");
    story.runs = 1 - story.runs;
    Ok(all)
}

async fn an_upgrade_under_a_writer_loses_a_write(story: &Story<'_>, write: u64) -> Result<Tried> {
    let (said_before, before) = (story.node.vm().console().len(), failures(&story.node)?);
    let (said, _) = an_upgrade_under_a_writer(story, Some(write)).await?;
    let failed = failures(&story.node)? > before;
    let last = said.complaint.lines().next_back().unwrap_or_default();
    let code = said.code;
    println!("write {write}: failed: {failed}, the upgrade: {code:?} {last}");
    ensure!(failed || code == Some(0), "{said:?}");
    Ok(Tried {
        how: &[],
        said_before,
        said,
        resets: 0,
        failed,
    })
}

async fn a_whole_version_starts_again<'a>(mut story: Story<'a>) -> Result<Story<'a>> {
    let whole = |version: usize| boots(&story.disk, &story.images[version]).is_ok();
    let next = (0..2).find(|version| whole(*version));
    story.runs = next.context("nothing whole would be booted")?;
    story.waits = false;
    let story = story.power_cycle().await?;
    story.is_ready_with_what_it_should_run().await?;
    Greeter::of(&story.node)?.write_to_var("after-all")?;
    Ok(story)
}

/// Upgrades without a reboot under a container that writes. The write with this number, counted from the change of
/// generations, fails. Returns the number of writes from then until a while after the upgrade's end.
async fn an_upgrade_under_a_writer(story: &Story<'_>, write: Option<u64>) -> Result<(Said, u64)> {
    let node = &story.node;
    let writer = ContainerWriter::start(Greeter::of(node)?);
    let fail = fail_from_the_change_on(story, write);
    let (said, begin) = tokio::join!(story.upgrade(&[]), fail);
    let (said, begin) = (said?, begin?);
    tokio::time::sleep(AFTER).await;
    let all = writes(node)? - begin;
    story.failing.fail(node.vm(), None)?;
    let written = writer.end();
    if write.is_none() {
        println!("{all} writes of the disk, {} of the container", written?);
    }
    Ok((said, all))
}

/// Waits for the installer's end; returns the number of writes by then.
async fn fail_from_the_change_on(story: &Story<'_>, write: Option<u64>) -> Result<u64> {
    let node = &story.node;
    let said_before = node.vm().console().len();
    node.wait_until("the installer is done", PATIENCE, async || {
        let console = node.vm().console();
        let since = console.get(said_before..).context("a shorter console")?;
        ensure!(since.contains(INSTALLED), "it works");
        Ok(())
    })
    .await?;
    story.failing.fail(node.vm(), write)?;
    writes(node)
}

/// Fails one write of an upgrade, somewhere from the first of the image in /var to the last of the new version's start.
/// A staged upgrade writes the same up to that start and is over sooner.
async fn fail_each_write_in_turn(scratch: Scratch, defect: Defect) -> Outcome {
    let registry = Registry::with_both_installers(&scratch)?;
    let mut story = Story::begin(&scratch, &registry, defect, false).await?;
    let counted = undisturbed_upgrades_are_counted(&mut story).await?;
    let wanted = which_writes(counted.all)?;
    let mut tally = Tally::default();
    for (number, write) in wanted.iter().enumerate() {
        let starts = number % STARTED == STARTED - 1;
        story = a_write_is_lost(story, &counted, *write, starts, &mut tally).await?;
    }
    what_waits_starts(story).await?;
    tally.print(counted.all, wanted.len());
    ensure!(tally.refused > 0, "no upgrade noticed");
    Ok(())
}

/// The lost write belongs to this upgrade, or to the one before it if the kernel reported it late.
async fn a_write_is_lost<'a>(
    mut story: Story<'a>,
    counted: &Counted,
    write: u64,
    starts: bool,
    tally: &mut Tally,
) -> Result<Story<'a>> {
    let name = format!("write {write} of {}", counted.all);
    loop {
        let tried = an_upgrade_loses_a_write(&story, write, counted.how_to_come_to(write)).await?;
        let is_told_late = tally.is_told_late(&tried);
        tally.add(&tried);
        an_upgrade_succeeds_or_has_a_reason(&name, &tried, is_told_late)?;
        let goes_on = the_machine_goes_on(story, &tried, starts).await;
        story = goes_on.with_context(|| name.clone())?;
        if !is_told_late {
            return Ok(story);
        }
    }
}

/// Starts a staged version, at the end of the upgrades.
async fn what_waits_starts(story: Story<'_>) -> Outcome {
    if !story.waits {
        return Ok(());
    }
    let story = story.power_cycle().await?;
    story.is_ready_with_what_it_should_run().await
}

/// The machine runs on; it is restarted if the filesystem was given up, or if the staged version is to start.
async fn the_machine_goes_on<'a>(
    mut story: Story<'a>,
    tried: &Tried,
    starts: bool,
) -> Result<Story<'a>> {
    what_starts_next_is_whole(&mut story, tried).await?;
    if story.is_given_up(tried)? || (story.waits && starts) {
        story = story.power_cycle().await?;
    }
    story.is_ready_with_what_it_should_run().await?;
    Ok(story)
}

/// A node with a disk on which one write fails, and two versions that take turns on it.
struct Story<'a> {
    scratch: &'a Scratch,
    registry: &'a Registry,
    node: Node,
    images: [ImageUnderTest; 2],
    disk: PathBuf,
    failing: FailingDisk,
    /// Index of the image that runs.
    runs: usize,
    /// Whether the other image starts next.
    waits: bool,
}

async fn on_a_failing_disk(
    scratch: &Scratch,
    registry: &Registry,
    disk: &Path,
    failing: &FailingDisk,
    greets: bool,
) -> Result<Node> {
    let (host, device) = (registry.host_for_guest(), failing.device());
    let spec = VmSpec::uefi(uefi()?).drive(failing.drive(disk));
    let spec = spec.deadline(LIFETIME).forward(GREETER_PORT);
    Node::plan_from(scratch, spec)
        .configure(move |config| {
            let config = config.registry(&host).install_disk(device);
            match greets {
                true => config.greeter(&host),
                false => config,
            }
        })
        .boot_until_ready(PATIENCE)
        .await
}

impl<'a> Story<'a> {
    async fn begin(
        scratch: &'a Scratch,
        registry: &'a Registry,
        defect: Defect,
        greets: bool,
    ) -> Result<Self> {
        let images = [ImageUnderTest::first()?, ImageUnderTest::second()?];
        let disk = scratch.join("disk.img");
        images[0].put_on_disk(&disk, DISK_BYTES)?;
        let failing = FailingDisk::of(&disk, defect)?;
        Ok(Self {
            scratch,
            registry,
            node: on_a_failing_disk(scratch, registry, &disk, &failing, greets).await?,
            images,
            disk,
            failing,
            runs: 0,
            waits: false,
        })
    }

    /// Upgrades to the version that does not run.
    async fn upgrade(&self, how: &[&str]) -> Result<Said> {
        let to = self.images[1 - self.runs].version();
        let image = self.registry.installer_for_guest(to);
        let upgrade = [&["upgrade", "--force", "--image", &image], how].concat();
        let client = Instarctl::of(&self.node, self.scratch)?;
        client.run(&upgrade).await
    }

    /// Index of the image that the next start uses.
    fn next(&self) -> usize {
        if self.waits { 1 - self.runs } else { self.runs }
    }

    async fn is_ready_with_what_it_should_run(&self) -> Outcome {
        self.node.wait_until_ready(PATIENCE).await?;
        self.runs_what_it_should().await
    }

    async fn runs_what_it_should(&self) -> Outcome {
        let now = self.node.version().await?.tag;
        ensure!(now == self.images[self.runs].version(), "{now} runs");
        Ok(())
    }

    /// Whether the filesystem has stopped taking writes since this upgrade began.
    fn is_given_up(&self, tried: &Tried) -> Result<bool> {
        let console = self.node.vm().console();
        let since = console.get(tried.said_before..);
        Ok(since.context("a shorter console")?.contains(GIVEN_UP))
    }

    async fn power_cycle(self) -> Result<Self> {
        Ok(Self {
            runs: self.next(),
            waits: false,
            node: self.node.power_cycle().await?,
            ..self
        })
    }
}

/// The numbers of an upgrade's writes.
struct Counted {
    all: u64,
    before_the_start: u64,
}

impl Counted {
    /// Returns the arguments of the quickest upgrade that reaches this write.
    fn how_to_come_to(&self, write: u64) -> &'static [&'static str] {
        if write <= self.before_the_start {
            &STAGED
        } else {
            &AT_ONCE
        }
    }
}

async fn undisturbed_upgrades_are_counted(story: &mut Story<'_>) -> Result<Counted> {
    let start = writes(&story.node)?;
    let said = story.upgrade(&STAGED).await?;
    ensure!(said.code == Some(0), "{said:?}");
    let before_the_start = writes(&story.node)? - start;
    let start = writes(&story.node)?;
    let said = story.upgrade(&AT_ONCE).await?;
    ensure!(said.code == Some(0), "{said:?}");
    story.node.wait_until_ready(PATIENCE).await?;
    story.runs = 1 - story.runs;
    let all = writes(&story.node)? - start;
    println!("{all} writes, {before_the_start} of them before the new version starts");
    Ok(Counted {
        all,
        before_the_start,
    })
}

/// An upgrade with one failing write.
struct Tried {
    how: &'static [&'static str],
    /// Length of the console when the upgrade began.
    said_before: usize,
    said: Said,
    /// Number of resets at the firmware's prompt.
    resets: usize,
    /// Whether the write has failed.
    failed: bool,
}

impl Tried {
    fn succeeded(&self) -> bool {
        self.said.code == Some(0)
    }
}

async fn an_upgrade_loses_a_write(
    story: &Story<'_>,
    write: u64,
    how: &'static [&'static str],
) -> Result<Tried> {
    let Story { node, failing, .. } = story;
    let (said_before, before) = (node.vm().console().len(), failures(node)?);
    failing.fail(node.vm(), Some(write))?;
    let (said, resets) = reset_at_the_prompt(node, said_before, story.upgrade(how)).await?;
    let said = said?;
    let failed = failures(node)? > before;
    failing.fail(node.vm(), None)?;
    Ok(Tried {
        how,
        said_before,
        said,
        resets,
        failed,
    })
}

fn an_upgrade_succeeds_or_has_a_reason(name: &str, tried: &Tried, is_told_late: bool) -> Outcome {
    let said = &tried.said;
    if !tried.succeeded() {
        let mut lines = said.complaint.lines();
        let why = lines.find(|line| REASONS.iter().any(|reason| line.contains(reason)));
        let why = why.with_context(|| format!("{name}: {said:?}"))?;
        println!("{name}: {why}");
    }
    ensure!(
        tried.failed || tried.succeeded() || is_told_late,
        "{name}: {said:?}"
    );
    Ok(())
}

async fn what_starts_next_is_whole(story: &mut Story<'_>, tried: &Tried) -> Outcome {
    if tried.succeeded() && tried.how == AT_ONCE {
        story.runs = 1 - story.runs;
        story.waits = false;
    }
    story.runs_what_it_should().await?;
    // A version that was staged before may be gone if the next one could not take its place.
    let staged = tried.succeeded() && tried.how == STAGED;
    let running = &story.images[story.runs];
    story.waits = staged || (story.waits && boots(&story.disk, running).is_err());
    boots(&story.disk, &story.images[story.next()])
}

/// The results of the upgrades so far.
#[derive(Default)]
struct Tally {
    refused: u64,
    failed: u64,
    resets: usize,
    has_just_failed: bool,
}

impl Tally {
    /// The kernel reports a failed background write to the next caller: that can be the next upgrade, before its own write
    /// fails.
    fn is_told_late(&self, tried: &Tried) -> bool {
        self.has_just_failed && !tried.failed && !tried.succeeded()
    }

    fn add(&mut self, tried: &Tried) {
        self.refused += u64::from(!tried.succeeded());
        self.failed += u64::from(tried.failed);
        self.resets += tried.resets;
        self.has_just_failed = tried.failed;
    }

    fn print(&self, all: u64, upgrades: usize) {
        let Self {
            refused,
            failed,
            resets,
            ..
        } = self;
        println!(
            "{failed} of {all} writes failed, one in each of as many upgrades ({} came to their end before it): {refused} upgrades were refused, the others did without; {resets} times the machine had to be reset at the firmware's prompt",
            upgrades as u64 - failed
        );
    }
}

/// Resets a machine at the firmware's prompt, as a person would, until the work is done; returns the number of resets.
/// If the loader cannot write that it tries a version, EDK II's driver for FAT reads nothing more until the next reset.
async fn reset_at_the_prompt<T>(
    node: &Node,
    said_before: usize,
    work: impl Future<Output = T>,
) -> Result<(T, usize)> {
    const PROMPT: &str = "UEFI Interactive Shell";
    let mut resets = 0;
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return Ok((done, resets)),
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
        }
        let console = node.vm().console();
        let since = console.get(said_before..).context("a shorter console")?;
        if since.matches(PROMPT).count() > resets {
            resets += 1;
            node.vm().qmp().execute("system_reset", json!({}))?;
        }
    }
}
