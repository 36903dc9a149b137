//! A disk that fails while it is written to: an upgrade says so, and what runs goes on, boots again, and can be upgraded later.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use instar_esp::{FileDigest, State, Volume as _};
use instar_qemu::{Drive, VmSpec, WriteFailure, WriteFault};
use instar_tests::{
    EspImage, Fat, ImageUnderTest, Instarctl, Node, Outcome, Registry, Scratch, Test, tests, uefi,
};

use crate::PATIENCE;

const INSTALLER: &str = "instar/installer";
/// Room for both versions, and for an installer's image in /var.
const DISK_BYTES: u64 = 512 << 20;

pub(crate) fn tests() -> Vec<Test> {
    tests![in_an_upgrade_leave_the_version_that_runs]
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
    /// The write of this number.
    Nth(u32, WriteFailure),
}

const TROUBLES: [Trouble; 8] = [
    Trouble::BadSector(Place::Uki(4 << 20)),
    Trouble::Torn(Place::Uki(4 << 20)),
    Trouble::Torn(Place::Uki((9 << 20) + 1024)),
    Trouble::BadSector(Place::Table(12 << 20)),
    Trouble::BadSector(Place::Slots),
    Trouble::BadSector(Place::Entries),
    Trouble::Nth(150, WriteFailure::Io),
    Trouble::Nth(300, WriteFailure::NoRoom),
];

impl Trouble {
    /// As the disk is now.
    fn fault(self, disk: &Path) -> Result<WriteFault> {
        Ok(match self {
            Self::BadSector(place) => WriteFault::BadSector(place.sector(&Fat::read(disk)?)?),
            Self::Torn(place) => WriteFault::Torn(place.sector(&Fat::read(disk)?)?),
            Self::Nth(number, failure) => WriteFault::Nth(number, failure),
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
        boots_the_first(&disk, &first).with_context(|| format!("{trouble:?}"))?;
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

/// What the loader would start is the whole UKI of the first version.
fn boots_the_first(disk: &Path, first: &ImageUnderTest) -> Result<()> {
    let esp = EspImage::of_disk(disk);
    let state = State::read(&esp)?;
    let next = state.next_boot().context("nothing boots")?;
    ensure!(
        next.name.version.to_string() == first.version(),
        "{} would be booted",
        next.name
    );
    let found = FileDigest::of(&esp.read(&next.slot.uki_path())?);
    let whole = FileDigest::of(&std::fs::read(first.uki())?);
    ensure!(found == whole, "its UKI is {found}, expected {whole}");
    Ok(())
}
