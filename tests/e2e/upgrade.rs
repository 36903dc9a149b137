//! From one version to the next, without a reboot where none is needed.

use anyhow::{Context, ensure};
use instar_tests::{
    Ending, GREETER, Greeter, ImageUnderTest, Instarctl, Node, NodePlan, OciImage, Outcome,
    Registry, Scratch, Test, plan_with_greeter, tests, upgrade_and_follow,
};
use tonic::Code;

use crate::PATIENCE;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        an_upgrade_keeps_the_kernel_and_the_data,
        an_upgrade_reboots_where_kernel_or_init_differ
    ]
}

/// A node with a disk and a greeter.
fn plan(scratch: &Scratch, registry: &Registry) -> anyhow::Result<NodePlan> {
    plan_with_greeter(scratch, registry, |config| config)?.blank_disk()
}

async fn an_upgrade_keeps_the_kernel_and_the_data(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    for image in [ImageUnderTest::first()?, ImageUnderTest::second()?] {
        registry.push_layout(&image.installer(), "instar/installer", image.version())?;
    }
    let node = plan(&scratch, &registry)?.boot().await?;
    node.wait_until_ready(PATIENCE).await?;
    Greeter::of(&node)?.greets()?;
    let greeter = Greeter::of(&node)?;
    greeter.write_to_var("kept-over-upgrades")?;
    let kernel = node.kernel_boot_id().await?;
    let generation = node.boot_id().await?;
    a_second_upgrade_meanwhile_is_refused(&node, &registry).await?;
    the_new_version_runs_under_the_same_kernel(&node, &kernel, &generation).await?;
    // Ready was told: it must be true.
    greeter.greets()?;
    confirms_its_lease(&node).await?;
    ensure!(greeter.read_from_var("kept-over-upgrades")? == "written by greeter\n");
    let instarctl = Instarctl::of(&node, &scratch)?;
    instarctl_goes_back_to_the_older_version(&node, &registry, &instarctl).await?;
    greeter.greets()?;
    ensure!(greeter.read_from_var("kept-over-upgrades")? == "written by greeter\n");
    ensure!(
        node.kernel_boot_id().await? == kernel,
        "the kernel rebooted"
    );
    node.service_pid(GREETER).await?;
    Ok(())
}

/// In whatever step the first one is, which a client follows that waits as others do.
async fn a_second_upgrade_meanwhile_is_refused(node: &Node, registry: &Registry) -> Outcome {
    let image = registry.image_for_guest("instar/installer:v0.2.0");
    let second = async {
        the_first_upgrade_has_begun(node).await?;
        anyhow::Ok(node.upgrade(&image).await?)
    };
    let (followed, second) = tokio::join!(upgrade_and_follow(node, &image, PATIENCE), second);
    let second = second?;
    let followed = followed?;
    ensure!(followed.ending == Ending::Done, "{followed:#?}");
    let refused = second.err().context("two upgrades at once")?;
    ensure!(
        refused.code() == Code::FailedPrecondition && refused.message().contains("busy"),
        "the second upgrade: {refused}"
    );
    println!("upgraded in {:.1} s", followed.took.as_secs_f64());
    Ok(())
}

/// It has once the node tells of it.
async fn the_first_upgrade_has_begun(node: &Node) -> Outcome {
    let words = "instar/installer:v0.2.0 asked for by";
    node.wait_until("the first upgrade was asked for", PATIENCE, async || {
        ensure!(node.vm().console().contains(words));
        Ok(())
    })
    .await
}

async fn the_new_version_runs_under_the_same_kernel(
    node: &Node,
    kernel: &str,
    generation: &str,
) -> Outcome {
    let version = node.version().await?;
    ensure!(version.tag == "v0.2.0", "it says {version:?}");
    ensure!(
        node.kernel_boot_id().await? == kernel,
        "the kernel rebooted"
    );
    ensure!(
        node.boot_id().await? != generation,
        "the generation's boot id is the old one"
    );
    let told = (
        node.read("/run/kernel-boot-id").await?,
        node.read("/run/generation").await?,
    );
    ensure!(
        told == (kernel.to_owned(), "2\n".to_owned()),
        "it tells {told:?}"
    );
    Ok(())
}

async fn instarctl_goes_back_to_the_older_version(
    node: &Node,
    registry: &Registry,
    instarctl: &Instarctl,
) -> Outcome {
    let image = registry.image_for_guest("instar/installer:v0.1.0");
    let upgrade = ["upgrade", "--image", &image, "--wait"];
    let said = instarctl.run(&upgrade).await?;
    ensure!(
        said.code == Some(0) && said.output.contains("upgraded from v0.2.0 to v0.1.0"),
        "{said:#?}"
    );
    ensure!(node.version().await?.tag == "v0.1.0");
    Ok(())
}

/// The address that the previous generation had is the server's word again, and it was not asked for a new one.
async fn confirms_its_lease(node: &Node) -> Outcome {
    let log = node
        .wait_until("its lease is confirmed", PATIENCE, async || {
            let log = node.log("machined").await?;
            let (_, now) = log
                .rsplit_once("as generation ")
                .context("no generation in the log")?;
            ensure!(now.contains("DHCP lease"), "{now}");
            Ok(now.to_owned())
        })
        .await?;
    ensure!(!log.contains("does not acknowledge"), "{log}");
    Ok(())
}

async fn an_upgrade_reboots_where_kernel_or_init_differ(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    let image = OciImage::read(&ImageUnderTest::second()?.installer())?;
    let other = "0".repeat(64);
    for (label, tag) in [
        ("dev.instar.kernel.blake3", "v0.2.0-kernel"),
        ("dev.instar.init.blake3", "v0.2.0-init"),
    ] {
        let image = image.clone().label(label, &other);
        image.push(&registry, "instar/installer", tag)?;
    }
    let node = plan(&scratch, &registry)?.boot().await?;
    node.wait_until_ready(PATIENCE).await?;
    Greeter::of(&node)?.greets()?;
    Greeter::of(&node)?.write_to_var("kept-over-reboots")?;

    // A client that waits as others do sees another boot, ready.
    let kernel = node.kernel_boot_id().await?;
    let image = registry.image_for_guest("instar/installer:v0.2.0-kernel");
    let followed = upgrade_and_follow(&node, &image, PATIENCE).await?;
    ensure!(followed.ending == Ending::Done, "{followed:#?}");
    let second_kernel = node.kernel_boot_id().await?;
    ensure!(second_kernel != kernel, "the kernel did not reboot");
    // This machine's firmware loads what it always loads.
    ensure!(node.version().await?.tag == "v0.1.0");
    node.wait_until_ready(PATIENCE).await?;
    Greeter::of(&node)?.greets()?;
    let kept = Greeter::of(&node)?.read_from_var("kept-over-reboots")?;
    ensure!(kept == "written by greeter\n");

    // instarctl sees that it is not the version that was asked for.
    let instarctl = Instarctl::of(&node, &scratch)?;
    let image = registry.image_for_guest("instar/installer:v0.2.0-init");
    let said = instarctl
        .run(&["upgrade", "--image", &image, "--wait"])
        .await?;
    ensure!(said.code == Some(6), "{said:#?}");
    ensure!(node.kernel_boot_id().await? != second_kernel);
    Ok(())
}
