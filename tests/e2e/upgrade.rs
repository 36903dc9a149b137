//! Upgrades from one version to the next, without a reboot where none is needed.

use anyhow::{Context, Result, ensure};
use instar_tests::{
    Ending, GREETER, Greeter, INSTALLER, ImageUnderTest, Instarctl, MachineConfig, Node, OciImage,
    Outcome, Registry, Scratch, Test, chapters, plan_with_greeter, tests, upgrade_and_follow,
};
use tonic::Code;

use crate::PATIENCE;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        an_upgrade_keeps_the_kernel_and_the_data,
        an_upgrade_reboots_where_kernel_or_init_differ
    ]
}

/// A node with a disk and a greeter, which has written a file of this name.
async fn with_a_greeter(scratch: &Scratch, registry: &Registry, file: &str) -> Result<Node> {
    let plan = plan_with_greeter(scratch, registry, |config| config)?.blank_disk()?;
    let node = plan.boot_until_ready(PATIENCE).await?;
    let greeter = Greeter::of(&node)?;
    greeter.greets()?;
    greeter.write_to_var(file)?;
    Ok(node)
}

/// The node has reported readiness, so the container must run.
async fn the_container_has_its_data(node: &Node, file: &str) -> Outcome {
    let greeter = Greeter::of(node)?;
    greeter.greets()?;
    ensure!(greeter.read_from_var(file)? == "written by greeter\n");
    node.service_pid(GREETER).await?;
    Ok(())
}

async fn an_upgrade_keeps_the_kernel_and_the_data(scratch: Scratch) -> Outcome {
    let registry = Registry::with_both_installers(&scratch)?;
    let file = "kept-over-upgrades";
    let node = with_a_greeter(&scratch, &registry, file).await?;
    let instarctl = Instarctl::of(&node, &scratch)?;
    let (kernel, generation) = (node.kernel_boot_id().await?, node.boot_id().await?);
    chapters![
        a_second_upgrade_meanwhile_is_refused(&node, &registry),
        the_new_version_runs_under_the_same_kernel(&node, &kernel, &generation),
        the_container_has_its_data(&node, file),
        confirms_its_lease(&node),
        the_certificate_changes_for_a_reason_only(&node, &registry, &instarctl),
        the_container_has_its_data(&node, file),
        has_not_rebooted(&node, &kernel),
    ]
    .await
}

async fn has_not_rebooted(node: &Node, kernel: &str) -> Outcome {
    ensure!(
        node.kernel_boot_id().await? == kernel,
        "the kernel rebooted"
    );
    Ok(())
}

/// The first upgrade may be in any step; a client follows it and waits as clients of Talos do.
async fn a_second_upgrade_meanwhile_is_refused(node: &Node, registry: &Registry) -> Outcome {
    let image = registry.installer_for_guest("v0.2.0");
    let second = async {
        the_first_upgrade_has_begun(node).await?;
        anyhow::Ok(node.upgrade(&image).await?)
    };
    let (followed, second) = tokio::join!(upgrade_and_follow(node, &image, PATIENCE), second);
    let (second, followed) = (second?, followed?);
    ensure!(followed.ending == Ending::Done, "{followed:#?}");
    println!("upgraded in {:.1} s", followed.took.as_secs_f64());
    let refused = second.err().context("two upgrades at once")?;
    let is_busy = refused.code() == Code::FailedPrecondition && refused.message().contains("busy");
    ensure!(is_busy, "the second upgrade: {refused}");
    Ok(())
}

/// Waits until the console shows that the upgrade has begun.
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
    has_not_rebooted(node, kernel).await?;
    ensure!(
        node.boot_id().await? != generation,
        "the generation's boot id is the old one"
    );
    let told_kernel = node.read("/run/kernel-boot-id").await?;
    ensure!(told_kernel == kernel, "it tells {told_kernel}");
    let told_generation = node.read("/run/generation").await?;
    ensure!(told_generation == "2\n", "it tells {told_generation:?}");
    Ok(())
}

async fn the_certificate_changes_for_a_reason_only(
    node: &Node,
    registry: &Registry,
    instarctl: &Instarctl,
) -> Outcome {
    chapters![
        the_certificate_stays_as_instarctl_goes_back(node, registry, instarctl),
        a_further_name_means_another_certificate(node),
    ]
    .await
}

/// The API shows the previous certificate, which its next generation got with the hand-over.
async fn the_certificate_stays_as_instarctl_goes_back(
    node: &Node,
    registry: &Registry,
    instarctl: &Instarctl,
) -> Outcome {
    let shown = node.shown_certificate().await?;
    instarctl_goes_back_to_the_older_version(node, registry, instarctl).await?;
    ensure!(
        node.shown_certificate().await? == shown,
        "it shows another certificate"
    );
    Ok(())
}

async fn a_further_name_means_another_certificate(node: &Node) -> Outcome {
    let shown = node.shown_certificate().await?;
    let config = MachineConfig::from_yaml(node.config()).extra_name("lamp.example");
    node.apply_as(node.identity(), config.to_yaml()).await?;
    let is_another = async || {
        ensure!(node.shown_certificate().await? != shown, "it is the same");
        Ok(())
    };
    node.wait_until("it shows another certificate", PATIENCE, is_another)
        .await
}

async fn instarctl_goes_back_to_the_older_version(
    node: &Node,
    registry: &Registry,
    instarctl: &Instarctl,
) -> Outcome {
    let image = registry.installer_for_guest("v0.1.0");
    let upgrade = ["upgrade", "--image", &image, "--wait"];
    let said = instarctl.run(&upgrade).await?;
    ensure!(
        said.code == Some(0) && said.output.contains("upgraded from v0.2.0 to v0.1.0"),
        "{said:#?}"
    );
    ensure!(node.version().await?.tag == "v0.1.0");
    Ok(())
}

/// The server confirms the previous generation's address; the node does not ask for a new one.
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
    push_other_kernel_and_init(&registry)?;
    let file = "kept-over-reboots";
    let node = with_a_greeter(&scratch, &registry, file).await?;
    let instarctl = Instarctl::of(&node, &scratch)?;
    chapters![
        a_client_that_waits_sees_another_boot(&node, &registry),
        the_firmware_has_loaded_what_it_always_loads(&node),
        the_container_has_its_data(&node, file),
        instarctl_sees_that_another_version_runs(&node, &registry, &instarctl),
    ]
    .await
}

fn push_other_kernel_and_init(registry: &Registry) -> Outcome {
    let image = OciImage::read(&ImageUnderTest::second()?.installer())?;
    let other = "0".repeat(64);
    for (label, tag) in [
        ("dev.instar.kernel.blake3", "v0.2.0-kernel"),
        ("dev.instar.init.blake3", "v0.2.0-init"),
    ] {
        let image = image.clone().label(label, &other);
        image.push(registry, INSTALLER, tag)?;
    }
    Ok(())
}

/// Waits for readiness as clients of Talos do.
async fn a_client_that_waits_sees_another_boot(node: &Node, registry: &Registry) -> Outcome {
    let kernel = node.kernel_boot_id().await?;
    let image = registry.installer_for_guest("v0.2.0-kernel");
    let followed = upgrade_and_follow(node, &image, PATIENCE).await?;
    ensure!(followed.ending == Ending::Done, "{followed:#?}");
    ensure!(
        node.kernel_boot_id().await? != kernel,
        "the kernel did not reboot"
    );
    Ok(())
}

async fn the_firmware_has_loaded_what_it_always_loads(node: &Node) -> Outcome {
    ensure!(node.version().await?.tag == "v0.1.0");
    node.wait_until_ready(PATIENCE).await
}

/// Another version runs than the requested one.
async fn instarctl_sees_that_another_version_runs(
    node: &Node,
    registry: &Registry,
    instarctl: &Instarctl,
) -> Outcome {
    let kernel = node.kernel_boot_id().await?;
    let image = registry.installer_for_guest("v0.2.0-init");
    let upgrade = ["upgrade", "--image", &image, "--wait"];
    let said = instarctl.run(&upgrade).await?;
    ensure!(said.code == Some(6), "{said:#?}");
    ensure!(node.kernel_boot_id().await? != kernel);
    Ok(())
}
