//! A node with one fault after another while its versions change all the time: it recovers without help.
//!
//! Each fault is caused, and ends; then the node has to become well by itself, with all that it had, and with the same
//! processes of all containers that the fault was not done to. The API's view of it and the time of the recovery are
//! printed as a table.

mod changes;
mod counting;
mod faults;
mod living;
mod shown;
mod wellness;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use instar_tests::{
    Course, FlakyRegistry, GREETER_PORT, Greeter, ImageUnderTest, Instarctl, Length, MachineConfig,
    Node, NodePlan, OciImage, Outcome, Registry, Saboteur, Scratch, Test, chapters, commit_number,
    push_greeter, rootfs_with_saboteur, rootfs_with_script, tests,
};
use tokio::sync::Mutex;

use crate::PATIENCE;
use crate::installed::INSTALLER;
use changes::Changes;
use counting::Counting;
use faults::Fault;
use living::Living;
use shown::Shown;
use wellness::Belongings;

/// Duration, unless `INSTAR_CHAOS` sets another one in seconds; with `INSTAR_CHAOS=all` each fault happens once.
const TIME: Duration = Duration::from_secs(90);
/// The least and the longest duration of a run with all faults. One of them takes a minute or two on a busy host.
const ALL: Length = Length::Whole(Duration::from_secs(600), Duration::from_secs(2 * 3600));
/// Memory and disk are small, so that little is enough to fill them.
const MEMORY_MIB: u32 = 512;
/// A container without a network, and two that take all memory: all of their limit, and all of the machine's.
const ALONE: &str = "alone";
const HUNGRY: &str = "hungry";
const HUNGRY_PORT: u16 = 8081;
const STARVING: &str = "starving";
const STARVING_PORT: u16 = 8082;
/// A container that writes numbered lines.
const COUNTING: &str = "counting";
/// A version that gives itself up.
const GIVES_UP: &str = "v0.9.0";

pub(crate) fn tests() -> Vec<Test> {
    tests![needs_no_hands]
}

fn length() -> anyhow::Result<Length> {
    match std::env::var("INSTAR_CHAOS") {
        Ok(text) if text == "all" => Ok(ALL),
        Ok(text) => {
            let seconds = text
                .parse()
                .context("INSTAR_CHAOS is neither a number of seconds nor \"all\"")?;
            Ok(Length::For(Duration::from_secs(seconds)))
        }
        Err(_) => Ok(Length::For(TIME)),
    }
}

/// The node, and the means to disturb it.
struct Chaos {
    node: Arc<Node>,
    registry: FlakyRegistry,
    saboteur: Saboteur,
    greeter: Greeter,
    client: Instarctl,
    scratch: Scratch,
    /// Held by the test that changes the version, so that no other change begins meanwhile.
    changing: Mutex<()>,
    _registry: Registry,
}

async fn needs_no_hands(scratch: Scratch) -> Outcome {
    let chaos = Arc::new(Chaos::begin(&scratch).await?);
    let belongings = Belongings::of(&chaos).await?;
    let changes = Changes::begin(&chaos);
    chapters![is_well_again_after_each_fault(&chaos, &belongings)].await?;
    for (what, times) in changes.end().await? {
        println!("{times:3} x a change of versions: {what}");
    }
    chapters![can_still_be_upgraded_and_go_back(&chaos, &belongings)].await
}

async fn is_well_again_after_each_fault(chaos: &Arc<Chaos>, belongings: &Belongings) -> Outcome {
    let faults = Fault::chosen()?;
    let mut course = Course::new(faults.len(), length()?, commit_number());
    let (begun, mut table) = (Instant::now(), Vec::new());
    while let Some(number) = course.next(begun.elapsed()) {
        table.push(row(chaos, belongings, &faults[number]).await?);
    }
    println!("{} faults:\n{}", table.len(), table.join("\n"));
    let left_out = course.left_out();
    let left_out: Vec<_> = left_out.iter().map(|at| faults[*at].to_string()).collect();
    let told = format!("{} faults did not run: {left_out:?}", left_out.len());
    println!("{told}");
    ensure!(!course.is_whole() || left_out.is_empty(), "{told}");
    Ok(())
}

async fn can_still_be_upgraded_and_go_back(chaos: &Chaos, belongings: &Belongings) -> Outcome {
    for tag in ["v0.1.0", GIVES_UP, "v0.2.0"] {
        chaos.change_to(tag).await.context(tag)?;
        belongings.are_there(chaos).await?;
    }
    Ok(())
}

/// Causes one fault and waits until the node is well again.
async fn row(chaos: &Arc<Chaos>, belongings: &Belongings, fault: &Fault) -> anyhow::Result<String> {
    let (shown, living) = (Shown::begin(&chaos.node).await?, Living::of(chaos).await?);
    let counting = Counting::of(&chaos.node).await?;
    let said = fault.strike(chaos).await.context(fault.to_string())?;
    let well = is_well_again(chaos, belongings, &living, *fault);
    let well = well.await.with_context(|| format!("after: {fault}"))?;
    let counted = counting.went_on(chaos, &living, *fault).await;
    let counted = counted.with_context(|| format!("the log of {COUNTING} after: {fault}"))?;
    let seen = shown.end(&chaos.node, said).await?;
    let row = format!("{fault} | {seen} | {well} | {counted}");
    println!("{row}");
    Ok(row)
}

/// Waits until the node is well, with all that it had. Returns how long that took, and how many containers have lived through it.
async fn is_well_again(
    chaos: &Chaos,
    belongings: &Belongings,
    living: &Living,
    fault: Fault,
) -> anyhow::Result<String> {
    let over = Instant::now();
    living.has_felt(chaos, fault).await?;
    chaos.is_well().await?;
    let took = over.elapsed().as_secs_f64();
    belongings.are_there(chaos).await?;
    let spared = living.has_spared(chaos, fault).await?;
    Ok(format!(
        "well again after {took:.1} s | {spared} containers lived on"
    ))
}

impl Chaos {
    async fn begin(scratch: &Scratch) -> anyhow::Result<Self> {
        let real = Registry::start(scratch)?;
        push_greeter(&real)?;
        let initramfs = push_versions(scratch, &real)?;
        let registry = FlakyRegistry::before(&real)?;
        let node = boot(scratch, &initramfs, &registry).await?;
        Ok(Self {
            saboteur: Saboteur::of(&node)?,
            greeter: Greeter::of(&node)?,
            client: Instarctl::of(&node, scratch)?,
            scratch: scratch.clone(),
            node: Arc::new(node),
            registry,
            changing: Mutex::default(),
            _registry: real,
        })
    }
}

async fn boot(
    scratch: &Scratch,
    initramfs: &Path,
    registry: &FlakyRegistry,
) -> anyhow::Result<Node> {
    let host = registry.host_for_guest();
    let plan = Node::plan_with(scratch, &ImageUnderTest::first()?, initramfs)
        .memory_mib(MEMORY_MIB)
        .blank_disk()?
        .configure(move |config| with_victims(config, &host))
        .spec(|spec| spec.without_deadline());
    let ports = [GREETER_PORT, HUNGRY_PORT, STARVING_PORT, Saboteur::PORT];
    let plan = ports.into_iter().fold(plan, NodePlan::forward);
    plan.boot_until_ready(PATIENCE).await
}

/// Adds the containers that faults are done to, or through.
fn with_victims(config: MachineConfig, host: &str) -> MachineConfig {
    let image = format!("{host}/greeter:v1");
    let little = "resources: {limits: {memory: 32MiB}}\n";
    let starving = "mounts:\n  - tmpfs: {destination: /memory, size: 1GiB}\n";
    config
        .install_disk("/dev/vda")
        .registry(host)
        .greeter(host)
        .container(ALONE, &image, "")
        .container(COUNTING, &image, &counting::arguments())
        .greeter_at(HUNGRY, &image, HUNGRY_PORT, little)
        .greeter_at(STARVING, &image, STARVING_PORT, starving)
}

/// Pushes two good versions with the saboteur in them, and one that fails. Returns the initramfs of the first.
fn push_versions(scratch: &Scratch, registry: &Registry) -> anyhow::Result<PathBuf> {
    let first = ImageUnderTest::first()?;
    let mut initramfs = None;
    for image in [&first, &ImageUnderTest::second()?] {
        let rootfs = rootfs_with_saboteur(scratch, image.version(), image, Saboteur::PORT)?;
        initramfs.get_or_insert(first.initramfs_with(&rootfs)?);
        push(registry, image.version(), &rootfs)?;
    }
    let rootfs = rootfs_with_script(scratch, GIVES_UP, "hello\ngive-up it is to fail\n")?;
    push(registry, GIVES_UP, &rootfs)?;
    scratch.write("initramfs", initramfs.context("no initramfs")?)
}

/// Pushes a version without its kernel, which changes without a reboot do not need.
fn push(registry: &Registry, version: &str, rootfs: &[u8]) -> Outcome {
    OciImage::read(&ImageUnderTest::second()?.installer())?
        .installing(version, rootfs)?
        .first_layer_alone()
        .push(registry, INSTALLER, version)?;
    Ok(())
}
