//! Power cuts at every write of an upgrade, whose first writes free the room that earlier cuts have taken. `make
//! powercut` does the same for all of a node's writes, and boots more of the states.

use std::io::Cursor;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use instar_esp::{Slot, Volume as _};
use instar_pki::Role;
use instar_power_cuts::DiskState;
use instar_qemu::{Drive, VmSpec};
use instar_tests::power_cuts::{
    BEFORE_CHANGE, IMAGES, IMPORTED, JudgedScenario, Medium, PINNED, Recorded, RecordedNode,
    Sample, Scenario, Tears, boot_samples, import, pin, push_images_on_one_base,
};
use instar_tests::{
    EspImage, Fat, GREETER_PORT, Identity, ImageUnderTest, Instarctl, MachineConfig, Node, Outcome,
    Registry, Scratch, Test, bundle, chapters, push_greeter, tests, uefi,
};

use crate::PATIENCE;

/// Room for both versions, and for an installer's image in /var.
const DISK_BYTES: u64 = 512 << 20;
/// Number of states of each stage that are really booted.
const SAMPLES: usize = 1;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        power_cuts_in_an_upgrade_leave_a_machine_that_boots_with_its_config,
        power_cuts_under_a_container_that_lives_on_leave_a_machine_that_boots,
        power_cuts_in_pulls_and_removals_leave_whole_images,
        power_cuts_in_imports_pins_and_collections_leave_whole_images,
    ]
}

async fn power_cuts_in_an_upgrade_leave_a_machine_that_boots_with_its_config(
    scratch: Scratch,
) -> Outcome {
    let registry = registry(&scratch)?;
    let mut recorded = start(&scratch, &registry)?;
    let config = recorded.node().config().to_owned();
    chapters![an_upgrade_is_recorded(&scratch, &mut recorded, &registry)].await?;
    let recorded = recorded.end()?;
    come_back_from_all(&scratch, recorded, config, 500).await
}

/// A registry with the version that machines are upgraded to.
fn registry(scratch: &Scratch) -> Result<Registry> {
    let registry = Registry::start(scratch)?;
    registry.push_installer(&ImageUnderTest::second()?)?;
    Ok(registry)
}

/// Changes the operating system under a container that writes all the time.
async fn power_cuts_under_a_container_that_lives_on_leave_a_machine_that_boots(
    scratch: Scratch,
) -> Outcome {
    let registry = registry(&scratch)?;
    let mut recorded = start_with_a_greeter(&scratch, &registry)?;
    let config = recorded.node().config().to_owned();
    chapters![a_change_under_a_writer_is_recorded(
        &scratch,
        &mut recorded,
        &registry
    )]
    .await?;
    let mut recorded = recorded.end()?;
    // The stage before the change is the same in every upgrade.
    recorded.scenarios.retain(|it| it.name != BEFORE_CHANGE);
    ensure!(recorded.scenarios.len() == 2);
    come_back_from_all(&scratch, recorded, config, 100).await
}

/// Pulls two images on one base, and removes the first.
async fn power_cuts_in_pulls_and_removals_leave_whole_images(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    push_images_on_one_base(&registry)?;
    let mut recorded = start_on(&scratch, &registry, |_| Ok(()))?;
    chapters![pulls_are_recorded(&scratch, &mut recorded, &registry)].await?;
    let recorded = recorded.end()?;
    let again = async |scratch: &Scratch, node: &Node| pull_all(scratch, node, &registry).await;
    come_back_with_whole_images(&scratch, recorded, again).await
}

/// Imports a bundle, pins an image, and has it collected.
async fn power_cuts_in_imports_pins_and_collections_leave_whole_images(
    scratch: Scratch,
) -> Outcome {
    let registry = Registry::start(&scratch)?;
    push_images_on_one_base(&registry)?;
    let file = bundle(&registry, &scratch, "store.bundle", &[IMPORTED]).await?;
    let recorded = imports_and_pins(&scratch, &registry, &file).await?;
    let again = async |scratch: &Scratch, node: &Node| {
        import_and_pin(scratch, node, &registry, &file).await
    };
    come_back_with_whole_images(&scratch, recorded, again).await
}

async fn imports_and_pins(scratch: &Scratch, registry: &Registry, file: &Path) -> Result<Recorded> {
    let mut recorded = start_on(scratch, registry, |_| Ok(()))?;
    chapters![imports_and_pins_are_recorded(
        scratch,
        &mut recorded,
        registry,
        file
    )]
    .await?;
    recorded.end()
}

async fn import_and_pin(
    scratch: &Scratch,
    node: &Node,
    registry: &Registry,
    file: &Path,
) -> Outcome {
    let client = Instarctl::of(node, scratch)?;
    import(&client, file).await?;
    pin(node, &client, &registry.image_for_guest(PINNED)).await
}

/// Judges all states of these stages, and does the work again on a machine that was booted from one state of each.
async fn come_back_with_whole_images(
    scratch: &Scratch,
    recorded: Recorded,
    again: impl AsyncFn(&Scratch, &Node) -> Outcome,
) -> Outcome {
    let judge = |scenario| Scenario::judge(scenario, scratch, Tears::FewOfLong);
    let judged = recorded.scenarios.into_iter().map(judge);
    let judged: Vec<_> = judged.collect::<Result<_, _>>()?;
    let identity = recorded.identity;
    chapters![
        every_state_is_one_that_boots(&judged, 100),
        the_work_ends_well_when_it_is_done_again(scratch, &judged, &identity, again),
    ]
    .await
}

async fn imports_and_pins_are_recorded(
    scratch: &Scratch,
    recorded: &mut RecordedNode,
    registry: &Registry,
    bundle: &Path,
) -> Outcome {
    recorded.node().wait_for_api(PATIENCE).await?;
    recorded.node().wait_until_ready(PATIENCE).await?;
    let client = Instarctl::of(recorded.node(), scratch)?;
    let config = recorded.node().config().to_owned();
    let recording = recorded.import_pin_and_collect(&client, registry, bundle, &config);
    recording.await
}

async fn pulls_are_recorded(
    scratch: &Scratch,
    recorded: &mut RecordedNode,
    registry: &Registry,
) -> Outcome {
    recorded.node().wait_for_api(PATIENCE).await?;
    recorded.node().wait_until_ready(PATIENCE).await?;
    let client = Instarctl::of(recorded.node(), scratch)?;
    let config = recorded.node().config().to_owned();
    recorded.pull_and_remove(&client, registry, &config).await
}

/// Boots one state of each stage, and does the work there once more.
async fn the_work_ends_well_when_it_is_done_again(
    scratch: &Scratch,
    judged: &[JudgedScenario],
    identity: &Identity,
    again: impl AsyncFn(&Scratch, &Node) -> Outcome,
) -> Outcome {
    for judged in judged {
        let scenario = &judged.scenario;
        let verdicts = &judged.judged.verdicts;
        let (state, _) = verdicts.get(verdicts.len() / 2).context("no state")?;
        let own = scratch.below(&scenario.name.replace(' ', "-"))?;
        let node = boot(&own, scenario, state, identity).await?;
        let done = again(&own, &node).await;
        done.with_context(|| format!("after a cut in {}", scenario.name))?;
    }
    Ok(())
}

async fn boot(
    scratch: &Scratch,
    scenario: &Scenario,
    state: &DiskState,
    identity: &Identity,
) -> Result<Node> {
    let identity = identity.with_role(Role::Admin)?;
    let disk = scratch.join("disk.img");
    scenario.recording.make_disk(&disk, state)?;
    let firmware = uefi()?.variables(&scenario.variables);
    let spec = VmSpec::uefi(firmware).drive(Drive::raw(&disk));
    let plan = Node::plan_from(scratch, spec).without_config(identity);
    plan.boot_until_ready(PATIENCE).await
}

async fn pull_all(scratch: &Scratch, node: &Node, registry: &Registry) -> Outcome {
    let client = Instarctl::of(node, scratch)?;
    for image in IMAGES {
        let image = registry.image_for_guest(image);
        let said = client.run(&["image", "pull", &image]).await?;
        ensure!(said.code == Some(0), "{image}: {said:?}");
    }
    Ok(())
}

fn start_with_a_greeter(scratch: &Scratch, registry: &Registry) -> Result<RecordedNode> {
    push_greeter(registry)?;
    let base = scratch.join("base.img");
    ImageUnderTest::first()?.put_on_disk(&base, DISK_BYTES)?;
    let host = registry.host_for_guest();
    let with_greeter = move |config: MachineConfig| {
        let config = config.registry(&host).install_disk("/dev/vda");
        config.greeter(&host)
    };
    RecordedNode::start(scratch, "node", &base, |drive| {
        let spec = VmSpec::uefi(uefi()?).drive(drive).forward(GREETER_PORT);
        Ok(Node::plan_from(scratch, spec).configure(with_greeter))
    })
}

async fn a_change_under_a_writer_is_recorded(
    scratch: &Scratch,
    recorded: &mut RecordedNode,
    registry: &Registry,
) -> Outcome {
    recorded.node().wait_for_api(PATIENCE).await?;
    recorded.node().wait_until_ready(PATIENCE).await?;
    let client = Instarctl::of(recorded.node(), scratch)?;
    let image = registry.installer_for_guest("v0.2.0");
    let config = recorded.node().config().to_owned();
    recorded.change_under(&client, &image, &config).await
}

/// Judges all states of these stages, checks that there are more than `more_than`, and boots some of them.
async fn come_back_from_all(
    scratch: &Scratch,
    recorded: Recorded,
    config: String,
    more_than: usize,
) -> Outcome {
    let medium = Medium {
        config,
        identity: recorded.identity,
    };
    let judge = |scenario| Scenario::judge(scenario, scratch, Tears::FewOfLong);
    let judged = recorded.scenarios.into_iter().map(judge);
    let judged: Vec<_> = judged.collect::<Result<_, _>>()?;
    chapters![
        every_state_is_one_that_boots(&judged, more_than),
        samples_really_boot(scratch, &judged, &medium),
    ]
    .await
}

/// Starts a machine whose writes are recorded, with leftovers of earlier cuts on its EFI system partition.
fn start(scratch: &Scratch, registry: &Registry) -> Result<RecordedNode> {
    start_on(scratch, registry, take_room)
}

/// Starts a machine whose writes are recorded, on a disk that this has prepared.
fn start_on(
    scratch: &Scratch,
    registry: &Registry,
    prepare: impl FnOnce(&Path) -> Outcome,
) -> Result<RecordedNode> {
    let base = scratch.join("base.img");
    ImageUnderTest::first()?.put_on_disk(&base, DISK_BYTES)?;
    prepare(&base)?;
    let host = registry.host_for_guest();
    RecordedNode::start(scratch, "node", &base, |drive| {
        let spec = VmSpec::uefi(uefi()?).drive(drive);
        Ok(Node::plan_from(scratch, spec)
            .configure(move |config| config.registry(&host).install_disk("/dev/vda")))
    })
}

async fn an_upgrade_is_recorded(
    scratch: &Scratch,
    recorded: &mut RecordedNode,
    registry: &Registry,
) -> Outcome {
    recorded.node().wait_for_api(PATIENCE).await?;
    recorded.node().wait_until_ready(PATIENCE).await?;
    let client = Instarctl::of(recorded.node(), scratch)?;
    let image = registry.installer_for_guest("v0.2.0");
    let config = recorded.node().config().to_owned();
    recorded.upgrade(&client, &image, &config).await?;
    gives_room_back(&recorded.node().vm().console())
}

async fn every_state_is_one_that_boots(judged: &[JudgedScenario], more_than: usize) -> Outcome {
    let states: usize = judged.iter().map(JudgedScenario::states).sum();
    println!("{states} states");
    ensure!(states > more_than, "there are only {states} states");
    for judged in judged {
        if let Some((state, why)) = judged.failures().next() {
            let count = judged.failures().count();
            let name = &judged.scenario.name;
            anyhow::bail!("{count} states of {name} do not boot; {state}: {why}");
        }
    }
    Ok(())
}

async fn samples_really_boot(
    scratch: &Scratch,
    judged: &[JudgedScenario],
    medium: &Medium,
) -> Outcome {
    let samples: Vec<Sample<'_>> = judged.iter().flat_map(|it| it.sample(SAMPLES)).collect();
    let failed = boot_samples(scratch, &samples, medium, |_, _| {})?;
    if let Some((sample, error)) = failed.first() {
        anyhow::bail!("{} {}: {error:#}", sample.scenario.name, sample.state);
    }
    Ok(())
}

/// Leaves on the EFI system partition the leftovers of cut upgrades: a part of a UKI, of which the FAT knows half, and
/// clusters that belong to no file, all but a MiB.
fn take_room(disk: &Path) -> Outcome {
    let part = vec![0x5A; 3 << 20];
    let slot = Slot::from_letter('b').context("no slot b")?;
    let cluster = Fat::read(disk)?.next_free(1 << 20)?;
    EspImage::of_disk(disk).create(&slot.uki_path(), &mut Cursor::new(part))?;
    let lost = Fat::read(disk)?.lose_room(disk, 1 << 20)?;
    Fat::read(disk)?.lose_entry(disk, cluster)?;
    println!("{lost} bytes lost");
    Ok(())
}

/// Checks that the room is free again.
fn gives_room_back(console: &str) -> Outcome {
    // The kernel meets the part of a UKI, and goes on.
    ensure!(
        console.contains("deleting FAT entry beyond EOF")
            && !console.contains("Filesystem has been set read-only"),
        "{console}"
    );
    let words = "bytes were lost to changes that did not end, and are free again";
    let found = console.lines().find(|line| line.contains(words));
    println!("{}", found.context("nothing was given back")?);
    Ok(())
}
