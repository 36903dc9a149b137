//! A machine that hangs: nobody in it does anything any more, and its watchdog resets it.

use std::fs;
use std::io::{Cursor, Read};

use anyhow::{Context, Result, ensure};
use instar_esp::{
    DEFAULT_SLOTS, Entry, FileDigest, NewVersion, State, Tries, Volume as _, add, perform,
};
use instar_qemu::{Drive, VmSpec, WatchdogAction};
use instar_tests::{
    EspImage, GREETER_PORT, Greeter, ImageUnderTest, Node, Outcome, Registry, Scratch, Test,
    push_greeter, rootfs_that_hangs, tests, uefi,
};

use crate::PATIENCE;

pub(crate) fn tests() -> Vec<Test> {
    tests![resets_a_new_version_that_hangs_and_the_old_one_is_back]
}

/// The new version comes up, has its watchdog fed, and hangs with its first container: PID 1, machined and all else stand still.
async fn resets_a_new_version_that_hangs_and_the_old_one_is_back(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    push_greeter(&registry)?;
    let disk = scratch.join("disk.img");
    ImageUnderTest::first()?.put_on_disk(&disk, 512 << 20)?;
    let second = ImageUnderTest::second()?;
    let rootfs = rootfs_that_hangs(&scratch, "hanging", &second)?;
    add_with_one_try(&disk, &uki_with(&second, &rootfs)?)?;

    let host = registry.host_for_guest();
    let spec = VmSpec::uefi(uefi()?)
        .drive(Drive::raw(&disk))
        .watchdog(WatchdogAction::Reset);
    let node = Node::plan_from(&scratch, spec)
        .forward(GREETER_PORT)
        .configure(move |config| {
            config
                .registry(&host)
                .install_disk("/dev/vda")
                .greeter(&host)
        })
        .start()?;
    node.wait_for_line("v0.2.0 as generation 1", PATIENCE)?;
    node.wait_for_line("feeding /dev/watchdog0", PATIENCE)?;
    node.wait_for_line("double: everything stops now", PATIENCE)?;
    let mark = node.vm().console_mark()?;
    node.vm().qmp().wait_event("WATCHDOG", PATIENCE)?;
    let silence = node
        .vm()
        .wait_for_line_after(mark, "double: and goes on", PATIENCE / 60);
    ensure!(silence.is_err(), "it did not hang");

    node.vm()
        .wait_for_line_after(mark, "v0.1.0 as generation 1", PATIENCE)?;
    node.wait_for_api(PATIENCE).await?;
    node.wait_until_ready(PATIENCE).await?;
    ensure!(node.version().await?.tag == "v0.1.0");
    Greeter::of(&node)?.greets()?;
    // It is fed again, and not reset while it works.
    node.vm()
        .wait_for_line_after(mark, "feeding /dev/watchdog0", PATIENCE)?;
    Ok(())
}

/// Puts a UKI as v0.2.0 beside the version that is there, with the last of its tries left.
fn add_with_one_try(disk: &std::path::Path, uki: &[u8]) -> Result<()> {
    let mut esp = EspImage::of_disk(disk);
    let new = NewVersion {
        version: "v0.2.0".parse()?,
        uki: FileDigest::of(uki),
    };
    let plan = add(&State::read(&esp)?, &new, None, DEFAULT_SLOTS)?;
    perform(&plan, &mut esp, |_| {
        Ok(Box::new(Cursor::new(uki.to_vec())) as Box<dyn Read>)
    })?;
    let state = State::read(&esp)?;
    let entry = state.next_boot().context("no entry")?;
    let mut last = Entry {
        name: entry.name.clone(),
        ..entry.clone()
    };
    last.name.tries = Some(Tries { left: 1, done: 2 });
    esp.remove(&entry.name.path())?;
    esp.create(&last.name.path(), &mut Cursor::new(last.text()))?;
    Ok(())
}

/// An image's UKI with another root filesystem of the same size, which init expects.
fn uki_with(image: &ImageUnderTest, rootfs: &[u8]) -> Result<Vec<u8>> {
    let mut uki = fs::read(image.uki())?;
    let own = fs::read(image.rootfs())?;
    let place = |within: &[u8], what: &[u8]| {
        let (first, rest) = what.split_at(64.min(what.len()));
        within
            .windows(first.len())
            .enumerate()
            .filter(|(_, window)| *window == first)
            .map(|(at, _)| at)
            .find(|at| within[at + first.len()..].starts_with(rest))
    };
    let at = place(&uki, &own).context("the root filesystem is not in the UKI")?;
    uki[at..at + own.len()].copy_from_slice(rootfs);
    let (old, new) = (blake3::hash(&own).to_hex(), blake3::hash(rootfs).to_hex());
    let at = place(&uki, old.as_bytes()).context("its digest is not in the UKI")?;
    uki[at..at + old.len()].copy_from_slice(new.as_bytes());
    Ok(uki)
}
