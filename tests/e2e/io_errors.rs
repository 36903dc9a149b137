//! A disk that fails while it is written to: an upgrade says so, and what runs goes on, boots again, and can be upgraded later.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use instar_esp::{FileDigest, State, Volume as _};
use instar_qemu::{Drive, VmSpec, WriteFailure, WriteFault};
use instar_tests::{
    EspImage, Fat, ImageUnderTest, Instarctl, Node, Outcome, Registry, Scratch, Test, tests, uefi,
};
use serde_json::{Value, json};

use crate::PATIENCE;

const INSTALLER: &str = "instar/installer";
/// Room for both versions, and for an installer's image in /var.
const DISK_BYTES: u64 = 512 << 20;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        in_an_upgrade_leave_the_version_that_runs,
        at_any_write_of_an_upgrade_leave_a_version_that_boots,
    ]
}

/// Where an upgrade's writes fail.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// So many bytes into the new UKI.
    Uki(u64),
    /// The FAT's entry of what is so many bytes into the new UKI.
    Table(u64),
    /// The folder of the slots.
    Slots,
    /// The folder of the entries.
    Entries,
}

/// How they do.
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
    /// As the disk is now.
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

async fn in_an_upgrade_leave_the_version_that_runs(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    let (first, second) = (ImageUnderTest::first()?, ImageUnderTest::second()?);
    registry.push_layout(&second.installer(), INSTALLER, second.version())?;
    let disk = scratch.join("disk.img");
    first.put_on_disk(&disk, DISK_BYTES)?;

    let host = registry.host_for_guest();
    let spec = VmSpec::uefi(uefi()?).drive(Drive::raw(&disk).breakable());
    let node = Node::plan_from(&scratch, spec)
        .configure(move |config| config.registry(&host).install_disk("/dev/vda"))
        .boot()
        .await?;
    node.wait_until_ready(PATIENCE).await?;
    let client = Instarctl::of(&node, &scratch)?;
    let image = registry.image_for_guest(&format!("{INSTALLER}:{}", second.version()));
    let upgrade = ["upgrade", "--image", &image, "--reboot-mode", "powercycle"];
    let kernel = node.kernel_boot_id().await?;
    for trouble in TROUBLES {
        node.vm().fail_write(0, &trouble.fault(&disk)?)?;
        let said = client.run(&upgrade).await?;
        let mut words = said.complaint.lines();
        let why = words.find(|line| line.contains("I/O error"));
        println!("{trouble:?}: {}", why.unwrap_or_default());
        ensure!(said.code != Some(0), "{trouble:?}: it succeeded");
        ensure!(
            said.complaint.contains("I/O error"),
            "{trouble:?}: {said:?}"
        );
        node.vm().fail_write(0, &WriteFault::None)?;
        ensure!(node.kernel_boot_id().await? == kernel, "it rebooted");
        node.wait_until_ready(PATIENCE).await?;
        boots(&disk, &first).with_context(|| format!("{trouble:?}"))?;
    }
    let node = node.power_cycle().await?;
    node.wait_until_ready(PATIENCE).await?;
    ensure!(node.version().await?.tag == first.version());
    // With a disk that works again.
    let client = Instarctl::of(&node, &scratch)?;
    let said = client.run(&upgrade).await?;
    ensure!(said.code == Some(0), "the upgrade afterwards: {said:?}");
    ensure!(node.version().await?.tag == second.version());
    Ok(())
}

/// What the loader would start is the whole UKI of this version.
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

/// How many of an upgrade's writes fail, each in an upgrade of its own: a number, or `all` of them.
const WRITES: &str = "INSTAR_WRITES";
/// Where nothing else is said.
const USUAL_WRITES: u64 = 6;
/// All writes take hours; each upgrade is waited for by [`PATIENCE`].
const LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// What refuses an upgrade because of a write that failed: itself, the filesystem that gave up, or the version that found it so.
const REASONS: [&str; 3] = ["I/O error", "Read-only file system", "was given up"];
/// What the kernel says of a filesystem that takes no more writes, until it is mounted anew.
const GIVEN_UP: &str = "EXT4-fs error";

/// One write of an upgrade with a reboot fails, somewhere from the first of the image in /var to the last of the new version's start.
async fn at_any_write_of_an_upgrade_leave_a_version_that_boots(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    let images = [ImageUnderTest::first()?, ImageUnderTest::second()?];
    for image in &images {
        registry.push_layout(&image.installer(), INSTALLER, image.version())?;
    }
    let disk = scratch.join("disk.img");
    images[0].put_on_disk(&disk, DISK_BYTES)?;
    let host = registry.host_for_guest();
    let drive = Drive::raw(&disk).breakable();
    let spec = VmSpec::uefi(uefi()?).drive(drive).deadline(LIFETIME);
    let mut node = Node::plan_from(&scratch, spec)
        .configure(move |config| config.registry(&host).install_disk("/dev/vda"))
        .boot()
        .await?;
    node.wait_until_ready(PATIENCE).await?;
    let upgrade = async |node: &Node, to: &ImageUnderTest| {
        let image = registry.image_for_guest(&format!("{INSTALLER}:{}", to.version()));
        let client = Instarctl::of(node, &scratch)?;
        let by = ["--force", "--reboot-mode", "powercycle"];
        client
            .run(&[&["upgrade", "--image", &image], &by[..]].concat())
            .await
    };

    // One that nothing disturbs.
    let before = writes(&node)?;
    let said = upgrade(&node, &images[1]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    node.wait_until_ready(PATIENCE).await?;
    let all = writes(&node)? - before;
    let wanted = match std::env::var(WRITES).as_deref() {
        Ok("all") => all,
        Ok(number) => number.parse().context(WRITES)?,
        Err(_) => USUAL_WRITES,
    };
    let (mut runs, mut refused) = (1, 0);
    for number in 1..=wanted.min(all) {
        let write = number * all / wanted.min(all);
        let (said_before, before) = (node.vm().console().len(), writes(&node)?);
        let fault = WriteFault::Nth(u32::try_from(write)?, WriteFailure::Io);
        node.vm().fail_write(0, &fault)?;
        let said = upgrade(&node, &images[1 - runs]).await?;
        let failed = writes(&node)? - before >= write;
        node.vm().fail_write(0, &WriteFault::None)?;
        if said.code == Some(0) {
            runs = 1 - runs;
        } else {
            refused += 1;
            let why = said.complaint.lines().find(|line| {
                let mut reasons = REASONS.iter();
                reasons.any(|reason| line.contains(reason))
            });
            println!(
                "write {write} of {all}: {}",
                why.with_context(|| format!("write {write} of {all}: {said:?}"))?
            );
        }
        ensure!(failed || said.code == Some(0), "{write}: {said:?}");
        let console = node.vm().console();
        let since = console.get(said_before..).context("a shorter console")?;
        if since.contains(GIVEN_UP) {
            node = node.power_cycle().await?;
        }
        node.wait_until_ready(PATIENCE).await?;
        let now = node.version().await?.tag;
        ensure!(now == images[runs].version(), "write {write}: {now} runs");
        boots(&disk, &images[runs]).with_context(|| format!("write {write} of {all}"))?;
    }
    println!(
        "{} of {all} writes failed, one in each of as many upgrades: {refused} upgrades were refused, the others did without",
        wanted.min(all)
    );
    ensure!(refused > 0, "no upgrade noticed");
    Ok(())
}

/// How often the node's disk was written to so far.
fn writes(node: &Node) -> Result<u64> {
    let all = node.vm().qmp().execute("query-blockstats", json!({}))?;
    let of_disk = |entry: &Value| {
        entry["qdev"]
            .as_str()?
            .contains("disk0")
            .then(|| entry["stats"]["wr_operations"].as_u64())?
    };
    all.as_array()
        .and_then(|entries| entries.iter().find_map(of_disk))
        .with_context(|| format!("no disk0 in {all}"))
}
