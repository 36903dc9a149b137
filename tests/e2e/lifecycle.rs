//! Upgrades in two steps, with newer clients: the node prepares a version while everything runs, and a reboot starts
//! it, without a boot if the kernel is the same.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use instar_api::machine::lifecycle_service_client::LifecycleServiceClient;
use instar_api::machine::{CopyRequest, LifecycleServiceInstallRequest};
use instar_tests::{
    Ending, Greeter, INSTALLER, Identity, ImageUnderTest, Instarctl, MachineConfig, Node, OciImage,
    Outcome, Prepared, Registry, Scratch, Test, WITH_CGROUPS, chapters, plan_with_greeter,
    prepare_upgrade, push_greeter, reboot_and_follow, tests,
};
use tonic::Code;

use crate::PATIENCE;
use crate::installed::{OTHER_PORT, install_with};

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_reboot_starts_what_was_prepared_without_the_kernel,
        an_installed_machine_boots_what_was_prepared,
        a_staged_config_comes_with_the_version_that_a_reboot_starts,
        a_forced_reboot_gives_no_container_its_time_to_end,
    ]
}

/// State that must not change while a version is prepared, or when its preparation fails.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    version: String,
    generation: String,
    kernel: String,
}

impl Seen {
    async fn of(node: &Node) -> anyhow::Result<Self> {
        Ok(Self {
            version: node.version().await?.tag,
            generation: node.boot_id().await?,
            kernel: node.kernel_boot_id().await?,
        })
    }
}

/// Prepares a version, and checks that everything stays as it is.
async fn prepare(node: &Node, registry: &Registry, tag: &str) -> anyhow::Result<Prepared> {
    let before = Seen::of(node).await?;
    let image = registry.installer_for_guest(tag);
    let prepared = prepare_upgrade(node, &image).await?;
    let prepared = prepared.with_context(|| format!("{tag} was refused"))?;
    print!(
        "{tag}: exit code {}\n{}",
        prepared.exit_code, prepared.output
    );
    let after = Seen::of(node).await?;
    ensure!(before == after, "{before:?} became {after:?}");
    ensure!(prepared.output.ends_with('\n'), "{prepared:?}");
    Ok(prepared)
}

/// Reboots the node; the prepared version then runs, in a generation of its own under the same kernel.
async fn starts_softly(node: &Node, version: &str) -> Outcome {
    let before = Seen::of(node).await?;
    let followed = reboot_and_follow(node, PATIENCE).await?;
    ensure!(followed.ending == Ending::Done, "{followed:#?}");
    println!("{version} after {:.1} s", followed.took.as_secs_f64());
    let after = Seen::of(node).await?;
    ensure!(
        after.version == version
            && after.kernel == before.kernel
            && after.generation != before.generation,
        "{before:?} became {after:?}"
    );
    Ok(())
}

async fn a_reboot_starts_what_was_prepared_without_the_kernel(scratch: Scratch) -> Outcome {
    let registry = registry(&scratch)?;
    let node = with_greeters(&scratch, &registry).await?;
    let client = Instarctl::of(&node, &scratch)?;
    chapters![
        what_cannot_be_prepared_ends_with_an_exit_code(&node, &registry),
        what_is_not_there_is_refused(&node, &registry),
        what_is_prepared_starts_although_machined_was_killed(&node, &registry),
        the_container_has_its_data(&node),
        the_config_in_force_outlives_machined(&scratch, &client, &node),
        who_asked_for_a_reboot_is_told_why_it_failed(&node, &registry),
        instarctl_prepares_a_version_and_starts_it(&node, &registry, &client),
        instarctl_tells_why_nothing_can_be_prepared(&registry, &client),
        the_container_has_its_data(&node),
    ]
    .await
}

fn registry(scratch: &Scratch) -> anyhow::Result<Registry> {
    let registry = Registry::with_both_installers(scratch)?;
    let good = OciImage::read(&ImageUnderTest::second()?.installer())?;
    push_bad_ones(scratch, &registry, &good)?;
    Ok(registry)
}

/// A node with one greeter that has data, and one that can kill machined.
async fn with_greeters(scratch: &Scratch, registry: &Registry) -> anyhow::Result<Node> {
    let image = registry.image_for_guest("greeter:v1");
    let plan = plan_with_greeter(scratch, registry, move |config| {
        config.greeter_at("other", &image, OTHER_PORT, WITH_CGROUPS)
    })?;
    let plan = plan.blank_disk()?.forward(OTHER_PORT);
    let node = plan.boot_until_ready(PATIENCE).await?;
    let greeter = Greeter::of(&node)?;
    greeter.greets()?;
    greeter.write_to_var("kept-over-upgrades")?;
    Ok(node)
}

async fn the_container_has_its_data(node: &Node) -> Outcome {
    let greeter = Greeter::of(node)?;
    greeter.greets()?;
    ensure!(greeter.read_from_var("kept-over-upgrades")? == "written by greeter\n");
    Ok(())
}

/// A version that cannot be prepared changes nothing.
async fn what_cannot_be_prepared_ends_with_an_exit_code(
    node: &Node,
    registry: &Registry,
) -> Outcome {
    for (tag, code, why) in [
        ("arm64", 3, "the image is for arm64"),
        ("kernel", 4, "there is nowhere to keep it"),
        ("other-digest", 7, "of digest"),
    ] {
        let prepared = prepare(node, registry, tag).await?;
        ensure!(
            prepared.exit_code == code && prepared.output.contains(why),
            "{tag}: {prepared:#?}"
        );
    }
    Ok(())
}

async fn what_is_not_there_is_refused(node: &Node, registry: &Registry) -> Outcome {
    let image = registry.installer_for_guest("nowhere");
    let refused = prepare_upgrade(node, &image).await?.err();
    let refused = refused.context("there is no such image")?;
    ensure!(refused.code() == Code::FailedPrecondition, "{refused}");
    Ok(())
}

async fn what_is_prepared_starts_although_machined_was_killed(
    node: &Node,
    registry: &Registry,
) -> Outcome {
    let prepared = prepare(node, registry, "v0.2.0").await?;
    ensure!(
        prepared.exit_code == 0 && prepared.output.contains("v0.2.0 is ready"),
        "{prepared:#?}"
    );
    machined_is_killed(node, 1).await?;
    starts_softly(node, "v0.2.0").await
}

/// The prepared version gives itself up.
async fn who_asked_for_a_reboot_is_told_why_it_failed(node: &Node, registry: &Registry) -> Outcome {
    node.wait_until_ready(PATIENCE).await?;
    ensure!(prepare(node, registry, "v0.3.4").await?.exit_code == 0);
    let kernel = node.kernel_boot_id().await?;
    let followed = reboot_and_follow(node, PATIENCE).await?;
    let Ending::Failed(why) = &followed.ending else {
        anyhow::bail!("it was kept: {followed:#?}");
    };
    ensure!(why.contains("the moon is full"), "{why}");
    node.wait_until_ready(PATIENCE).await?;
    ensure!(node.version().await?.tag == "v0.2.0");
    ensure!(node.kernel_boot_id().await? == kernel, "it rebooted");
    Ok(())
}

async fn instarctl_prepares_a_version_and_starts_it(
    node: &Node,
    registry: &Registry,
    client: &Instarctl,
) -> Outcome {
    let kernel = node.kernel_boot_id().await?;
    let image = registry.installer_for_guest("v0.1.0");
    let upgrade = ["upgrade", "--image", &image, "--no-reboot"];
    let said = client.run(&upgrade).await?;
    ensure!(
        said.code == Some(0) && said.output.contains("v0.1.0 is ready"),
        "{said:#?}"
    );
    ensure!(node.version().await?.tag == "v0.2.0");
    let said = client.run(&["reboot"]).await?;
    ensure!(said.code == Some(0), "{said:#?}");
    ensure!(node.version().await?.tag == "v0.1.0");
    ensure!(node.kernel_boot_id().await? == kernel, "it rebooted");
    Ok(())
}

async fn instarctl_tells_why_nothing_can_be_prepared(
    registry: &Registry,
    client: &Instarctl,
) -> Outcome {
    let image = registry.installer_for_guest("arm64");
    let upgrade = ["upgrade", "--image", &image, "--no-reboot"];
    let said = client.run(&upgrade).await?;
    ensure!(
        said.code == Some(5) && said.complaint.contains("the image is for arm64"),
        "{said:#?}"
    );
    Ok(())
}

/// A config that was applied after an upgrade is not replaced by the one that the upgrade handed over.
async fn the_config_in_force_outlives_machined(
    scratch: &Scratch,
    client: &Instarctl,
    node: &Node,
) -> Outcome {
    node.wait_until_ready(PATIENCE).await?;
    let renamed = node.config().replace("hostname: node", "hostname: renamed");
    ensure!(renamed != node.config(), "{renamed}");
    let file = scratch.write("renamed.yaml", &renamed)?;
    let file = file.display().to_string();
    let said = client.run(&["apply-config", "--file", &file]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    machined_is_killed(node, 2).await?;
    let shown = ["get", "machineconfig", "v1alpha1", "-o", "yaml"];
    let said = client.run(&shown).await?;
    ensure!(said.output.contains("hostname: renamed"), "{said:?}");
    Ok(())
}

/// Kills machined; it is started again, and everything else goes on.
async fn machined_is_killed(node: &Node, generation: u32) -> Outcome {
    let before = Seen::of(node).await?;
    let mark = node.vm().console_mark()?;
    Greeter::at(node, OTHER_PORT)?.get(&format!(
        "/write/cgroup/generation.{generation}/machined/cgroup.kill?1"
    ))?;
    node.vm()
        .wait_for_line_after(mark, "starting machined again", PATIENCE)?;
    node.wait_for_api(PATIENCE).await?;
    node.wait_until_ready(PATIENCE).await?;
    let after = Seen::of(node).await?;
    ensure!(before == after, "{before:?} became {after:?}");
    Ok(())
}

/// Pushes images that are refused in the one or the other step.
fn push_bad_ones(scratch: &Scratch, registry: &Registry, good: &OciImage) -> Outcome {
    let other = "0".repeat(64);
    for (tag, label, value) in [
        ("arm64", "dev.instar.architecture", "arm64"),
        ("kernel", "dev.instar.kernel.blake3", other.as_str()),
        ("other-digest", "dev.instar.rootfs.blake3", other.as_str()),
    ] {
        good.clone()
            .label(label, value)
            .push(registry, INSTALLER, tag)?;
    }
    good.clone()
        .giving_up(scratch, "v0.3.4", "the moon is full")?
        .push(registry, INSTALLER, "v0.3.4")?;
    Ok(())
}

async fn an_installed_machine_boots_what_was_prepared(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    let node = installed_with_a_killer(&scratch, &registry).await?;
    chapters![
        what_is_installed_is_not_installed_again(&node),
        what_needs_a_reboot_is_given_one(&node, &registry),
        what_was_kept_is_not_on_trial_once_more(&node),
        what_needs_no_reboot_is_given_none(&node, &registry),
    ]
    .await?;
    let node = node.power_cycle().await?;
    chapters![
        what_was_started_last_boots_from_then_on(&node),
        a_reboot_that_is_to_be_one_tries_what_was_prepared(&node, &registry, &scratch),
    ]
    .await
}

/// A machine whose greeter can kill machined, and a version with another kernel for it.
async fn installed_with_a_killer(scratch: &Scratch, registry: &Registry) -> anyhow::Result<Node> {
    push_greeter(registry)?;
    let greeter = registry.image_for_guest("greeter:v1");
    let with_killer =
        move |config: MachineConfig| config.greeter_at("other", &greeter, OTHER_PORT, WITH_CGROUPS);
    let node = install_with(scratch, registry, with_killer).await?;
    let kernel = OciImage::read(&ImageUnderTest::second()?.installer())?;
    let kernel = kernel.label("dev.instar.kernel.blake3", &"0".repeat(64));
    kernel.push(registry, INSTALLER, "kernel")?;
    node.wait_until_ready(PATIENCE).await?;
    Ok(node)
}

async fn what_is_installed_is_not_installed_again(node: &Node) -> Outcome {
    let mut client = LifecycleServiceClient::new(node.channel().await?);
    let install = LifecycleServiceInstallRequest::default();
    let refused = client.install(install).await.err();
    let refused = refused.context("it installed itself")?;
    ensure!(refused.code() == Code::AlreadyExists, "{refused}");
    Ok(())
}

async fn what_needs_a_reboot_is_given_one(node: &Node, registry: &Registry) -> Outcome {
    let prepared = prepare(node, registry, "kernel").await?;
    ensure!(
        prepared.exit_code == 0 && prepared.output.contains("the kernel is another one"),
        "{prepared:#?}"
    );
    let before = Seen::of(node).await?;
    let followed = reboot_and_follow(node, PATIENCE).await?;
    ensure!(followed.ending == Ending::Done, "{followed:#?}");
    let after = Seen::of(node).await?;
    ensure!(
        after.version == "v0.2.0" && after.kernel != before.kernel,
        "{before:?} became {after:?}"
    );
    Ok(())
}

/// The death of machined does not start the trial again, though the loader counted its start.
async fn what_was_kept_is_not_on_trial_once_more(node: &Node) -> Outcome {
    node.wait_until_ready(PATIENCE).await?;
    let counted = "the boot loader counts this start";
    let before = node.vm().console().matches(counted).count();
    machined_is_killed(node, 1).await?;
    let after = node.vm().console().matches(counted).count();
    ensure!(before == after, "it is on trial again");
    Ok(())
}

async fn what_needs_no_reboot_is_given_none(node: &Node, registry: &Registry) -> Outcome {
    ensure!(prepare(node, registry, "v0.1.0").await?.exit_code == 0);
    starts_softly(node, "v0.1.0").await?;
    node.wait_until_ready(PATIENCE).await
}

async fn what_was_started_last_boots_from_then_on(node: &Node) -> Outcome {
    ensure!(node.version().await?.tag == "v0.1.0");
    node.wait_until_ready(PATIENCE).await
}

async fn a_reboot_that_is_to_be_one_tries_what_was_prepared(
    node: &Node,
    registry: &Registry,
    scratch: &Scratch,
) -> Outcome {
    ensure!(prepare(node, registry, "v0.2.0").await?.exit_code == 0);
    let client = Instarctl::of(node, scratch)?;
    let kernel = node.kernel_boot_id().await?;
    let said = client.run(&["reboot", "--mode", "powercycle"]).await?;
    ensure!(said.code == Some(0), "{said:#?}");
    ensure!(node.version().await?.tag == "v0.2.0");
    ensure!(node.kernel_boot_id().await? != kernel, "it did not reboot");
    Ok(())
}

/// A machine without a config in its firmware, and configs with other names for it.
struct Renamed<'a> {
    scratch: &'a Scratch,
    node: Node,
    client: Instarctl,
    registry: Registry,
    config: MachineConfig,
}

impl<'a> Renamed<'a> {
    async fn start(scratch: &'a Scratch) -> anyhow::Result<Self> {
        let registry = Registry::with_both_installers(scratch)?;
        let identity = Identity::administrator()?;
        let config = MachineConfig::new(&identity)
            .registry(&registry.host_for_guest())
            .install_disk("/dev/vda");
        let plan = Node::plan(scratch, &ImageUnderTest::first()?).blank_disk()?;
        let node = plan.without_config(identity).start()?;
        Ok(Self {
            client: Instarctl::of(&node, scratch)?,
            scratch,
            node,
            registry,
            config,
        })
    }

    /// Writes a config that gives the machine this name; returns the file.
    fn named(&self, name: &str) -> anyhow::Result<String> {
        self.write(name, &self.config.clone().hostname(name))
    }

    fn write(&self, name: &str, config: &MachineConfig) -> anyhow::Result<String> {
        let file = format!("{name}.yaml");
        let file = self.scratch.write(&file, config.clone().to_yaml())?;
        Ok(file.display().to_string())
    }

    async fn apply(&self, name: &str, config: &MachineConfig, mode: &str) -> Outcome {
        let file = self.write(name, config)?;
        let apply = ["apply-config", "--mode", mode, "--file", &file];
        let said = self.client.run(&apply).await?;
        ensure!(said.code == Some(0), "{said:?}");
        Ok(())
    }

    async fn stage(&self, name: &str) -> Outcome {
        let before = self.node.hostname().await?;
        let config = self.config.clone().hostname(name);
        self.apply(name, &config, "staged").await?;
        ensure!(
            self.node.hostname().await? == before,
            "it is in force already"
        );
        Ok(())
    }

    async fn is_called(&self, name: &str) -> Outcome {
        self.node.wait_until_ready(PATIENCE).await?;
        ensure!(self.node.hostname().await? == name);
        Ok(())
    }
}

async fn a_staged_config_comes_with_the_version_that_a_reboot_starts(scratch: Scratch) -> Outcome {
    let renamed = Renamed::start(&scratch).await?;
    chapters![
        the_first_config_is_taken(&renamed),
        a_reboot_into_a_prepared_version_takes_the_staged_config(&renamed),
        an_upgrade_takes_the_staged_config(&renamed),
        a_container_runs(&renamed),
        a_dry_run_names_a_container_that_the_staged_config_changes(&renamed),
        an_upgrade_ends_a_container_that_the_staged_config_drops(&renamed),
        a_reset_ends_those_who_read_the_disk(&renamed),
    ]
    .await
}

async fn the_first_config_is_taken(renamed: &Renamed<'_>) -> Outcome {
    let (client, first) = (&renamed.client, renamed.named("first")?);
    client
        .bring_first_config(&renamed.node, &first, PATIENCE)
        .await?;
    renamed.is_called("first").await
}

/// For its caller this reboot is a boot, so the next generation begins with the staged config.
async fn a_reboot_into_a_prepared_version_takes_the_staged_config(
    renamed: &Renamed<'_>,
) -> Outcome {
    let prepared = prepare(&renamed.node, &renamed.registry, "v0.2.0").await?;
    ensure!(prepared.exit_code == 0, "{prepared:#?}");
    renamed.stage("second").await?;
    starts_softly(&renamed.node, "v0.2.0").await?;
    renamed.is_called("second").await
}

async fn an_upgrade_takes_the_staged_config(renamed: &Renamed<'_>) -> Outcome {
    let (node, client) = (&renamed.node, &renamed.client);
    renamed.stage("third").await?;
    let image = renamed.registry.installer_for_guest("v0.1.0");
    let kernel = node.kernel_boot_id().await?;
    let said = client.run(&["upgrade", "--image", &image]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    ensure!(node.kernel_boot_id().await? == kernel, "it rebooted");
    renamed.is_called("third").await
}

async fn a_container_runs(renamed: &Renamed<'_>) -> Outcome {
    push_greeter(&renamed.registry)?;
    let image = renamed.registry.image_for_guest("greeter:v1");
    let config = renamed.config.clone().hostname("third");
    let config = config.container(STUBBORN, &image, "args: [slow, \"1\"]\n");
    renamed.apply("third", &config, "no-reboot").await?;
    let node = &renamed.node;
    node.wait_until("the container runs", PATIENCE, async || {
        node.service_pid(STUBBORN).await.map(drop)
    })
    .await
}

/// It would not be taken over.
async fn a_dry_run_names_a_container_that_the_staged_config_changes(
    renamed: &Renamed<'_>,
) -> Outcome {
    let image = renamed.registry.image_for_guest("greeter:v1");
    let config = renamed.config.clone().hostname("third");
    let config = config.container(STUBBORN, &image, "args: [slow, \"2\"]\n");
    renamed.apply("third", &config, "staged").await?;
    let image = renamed.registry.installer_for_guest("v0.2.0");
    let dry = ["upgrade", "--dry-run", "--image", &image];
    let said = renamed.client.run(&dry).await?;
    ensure!(said.output.contains("it would be made anew"), "{said:?}");
    Ok(())
}

/// It has its time to end, and its events say why.
async fn an_upgrade_ends_a_container_that_the_staged_config_drops(
    renamed: &Renamed<'_>,
) -> Outcome {
    renamed.stage("fourth").await?;
    let image = renamed.registry.installer_for_guest("v0.2.0");
    let why = "the machine config of the next generation does not name it";
    let (dry, upgrade) = (["upgrade", "--dry-run", "--image"], ["upgrade", "--image"]);
    let said = renamed.client.run(&[&dry[..], &[&image]].concat()).await?;
    ensure!(said.output.contains(why), "{said:?}");
    let said = renamed
        .client
        .run(&[&upgrade[..], &[&image]].concat())
        .await?;
    ensure!(said.code == Some(0), "{said:?}");
    let line = format!("service {STUBBORN} ends with this upgrade: {why}");
    ensure!(renamed.node.vm().console().contains(&line), "{line}");
    renamed.is_called("fourth").await
}

/// The caller takes nothing of its stream: the node holds a file open for it.
async fn a_reset_ends_those_who_read_the_disk(renamed: &Renamed<'_>) -> Outcome {
    let (node, client) = (&renamed.node, &renamed.client);
    let root_path = "/var".to_owned();
    let mut caller = node.newcomer().await?;
    let mut unread = caller.copy(CopyRequest { root_path }).await?.into_inner();
    unread.message().await?.context("nothing is copied")?;
    let said = client.run(&["reset"]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    ensure!(node.vm().wait_for_end(PATIENCE)?.is_clean());
    Ok(())
}

/// A container that takes ten minutes to end, and has as long as that.
const STUBBORN: &str = "stubborn";
const TIME_TO_END: &str =
    "apiVersion: instar.dev/v1alpha1\nkind: ContainerStopConfig\nname: stubborn\ntimeout: 10m\n";

async fn a_forced_reboot_gives_no_container_its_time_to_end(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    let image = registry.image_for_guest("greeter:v1");
    let plan = plan_with_greeter(&scratch, &registry, move |config| {
        let stubborn = config.container(STUBBORN, &image, "args: [slow, \"600\"]\n");
        stubborn.document(TIME_TO_END)
    })?;
    let node = plan.blank_disk()?.boot_until_ready(PATIENCE).await?;
    let client = Instarctl::of(&node, &scratch)?;
    chapters![
        what_takes_its_time_is_killed(&node, &client),
        what_is_ending_already_is_killed(&node, &client),
    ]
    .await
}

async fn what_takes_its_time_is_killed(node: &Node, client: &Instarctl) -> Outcome {
    let (kernel, began) = (node.kernel_boot_id().await?, Instant::now());
    let said = client.run(&["reboot", "--mode", "force"]).await?;
    ensure!(said.code == Some(0), "{said:#?}");
    ensure!(node.kernel_boot_id().await? != kernel, "it did not reboot");
    ensure!(began.elapsed() < Duration::from_secs(300), "it waited");
    let not_unmounted = "left to init's teardown";
    ensure!(node.vm().console().matches(not_unmounted).count() == 0);
    Ok(())
}

/// An operator's stop has begun: the container was told to end, and takes its time.
async fn what_is_ending_already_is_killed(node: &Node, client: &Instarctl) -> Outcome {
    node.wait_until_ready(PATIENCE).await?;
    let _stop = client.follow(&["service", STUBBORN, "stop"])?;
    node.wait_until("it is ending", PATIENCE, async || {
        let said = client.run(&["service", STUBBORN]).await?;
        ensure!(said.output.contains("Stopping"), "{said:?}");
        Ok(())
    })
    .await?;
    what_takes_its_time_is_killed(node, client).await
}
