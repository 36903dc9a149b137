//! Versions that wait for the next boot, and versions that fail at a boot: the disk's content afterwards.

use anyhow::{Context, ensure};
use instar_esp::State;
use instar_tests::{
    EspImage, HttpServer, INSTALLER, ImageUnderTest, Instarctl, MachineConfig, Node, OPEN_GATE,
    OciImage, Outcome, Registry, Release, SHUT_GATE, Said, Scratch, Talosctl, Test, chapters,
    tests,
};

use crate::PATIENCE;
use crate::installed::{ROLLED_BACK, install_with, with_uki_text};

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_staged_version_starts_at_the_next_boot_unless_another_takes_its_place,
        a_version_without_a_config_goes_back_and_one_that_was_forced_is_forgiven,
    ]
}

/// The node of a test, its client and its registry.
struct Installed {
    node: Node,
    client: Instarctl,
    registry: Registry,
}

impl Installed {
    /// Installs a node with additions to its config.
    async fn with(
        scratch: &Scratch,
        more: impl FnOnce(MachineConfig) -> MachineConfig + 'static,
    ) -> anyhow::Result<Self> {
        let registry = Registry::start(scratch)?;
        let node = install_with(scratch, &registry, more).await?;
        Ok(Self {
            client: Instarctl::of(&node, scratch)?,
            node,
            registry,
        })
    }

    async fn upgrade(&self, tag: &str, more: &[&str]) -> anyhow::Result<Said> {
        let image = self.registry.installer_for_guest(tag);
        let arguments = [&["upgrade", "--image", &image], more].concat();
        self.client.run(&arguments).await
    }

    /// Stages a version for the next boot; the running version stays.
    async fn stage(&self, tag: &str) -> Outcome {
        let before = (self.node.boot_id().await?, self.node.version().await?.tag);
        let said = self.upgrade(tag, &["--stage"]).await?;
        ensure!(
            said.code == Some(0) && said.output.contains(&format!("{tag} is staged")),
            "{said:?}"
        );
        let after = (self.node.boot_id().await?, self.node.version().await?.tag);
        ensure!(before == after, "{before:?} became {after:?}");
        Ok(())
    }

    async fn runs(&self, version: &str) -> Outcome {
        let runs = self.node.version().await?.tag;
        ensure!(runs == version, "{runs} runs");
        self.node.wait_until_ready(PATIENCE).await
    }

    async fn has_not_rebooted(&self, kernel: &str) -> Outcome {
        ensure!(
            self.node.kernel_boot_id().await? == kernel,
            "the kernel started anew"
        );
        Ok(())
    }

    /// Cuts the power and turns it on again.
    async fn power_cycle(self) -> anyhow::Result<Self> {
        let node = self.node.power_cycle().await?;
        Ok(Self { node, ..self })
    }
}

async fn a_staged_version_starts_at_the_next_boot_unless_another_takes_its_place(
    scratch: Scratch,
) -> Outcome {
    let installed = Installed::with(&scratch, |config| config).await?;
    push_the_first_version_again(&installed.registry)?;
    let installed = an_upgrade_at_once_takes_the_place_of_a_staged_one(installed).await?;
    chapters![
        a_rollback_takes_the_place_of_a_staged_version(&installed),
        a_reboot_starts_a_staged_version_without_the_kernel(&installed),
        a_client_that_waits_for_the_boot_sees_one(&installed),
        a_reboot_goes_through_the_firmware_if_asked_to(&installed),
    ]
    .await?;
    let installed = a_power_cut_starts_a_staged_version(installed).await?;
    installed.node.end();
    all_versions_that_started_are_blessed(&scratch)
}

fn push_the_first_version_again(registry: &Registry) -> Outcome {
    let again = OciImage::read(&ImageUnderTest::first()?.installer())?;
    let again = again.label("dev.instar.test", "again");
    again.push(registry, INSTALLER, "again")?;
    Ok(())
}

async fn an_upgrade_at_once_takes_the_place_of_a_staged_one(
    installed: Installed,
) -> anyhow::Result<Installed> {
    installed.stage("v0.2.0").await?;
    let said = installed.upgrade("again", &[]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    installed.node.wait_until_ready(PATIENCE).await?;
    let installed = installed.power_cycle().await?;
    installed.runs("v0.1.0").await?;
    Ok(installed)
}

async fn a_rollback_takes_the_place_of_a_staged_version(installed: &Installed) -> Outcome {
    installed.stage("v0.2.0").await?;
    let said = installed.client.run(&["rollback"]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    installed.runs("v0.1.0").await?;
    let console = installed.node.vm().console();
    ensure!(!console.contains("v0.2.0 as generation"), "it was started");
    Ok(())
}

/// The staged version has the same kernel.
async fn a_reboot_starts_a_staged_version_without_the_kernel(installed: &Installed) -> Outcome {
    installed.stage("v0.2.0").await?;
    let kernel = installed.node.kernel_boot_id().await?;
    let said = installed.client.run(&["reboot"]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    installed.runs("v0.2.0").await?;
    installed.has_not_rebooted(&kernel).await
}

async fn a_client_that_waits_for_the_boot_sees_one(installed: &Installed) -> Outcome {
    let kernel = installed.node.kernel_boot_id().await?;
    let image = installed.registry.installer_for_guest("again");
    let talosctl = Talosctl::of(&installed.node, Release::V1_13).await?;
    let said = talosctl.run(&format!("upgrade -i {image} --stage")).await;
    ensure!(said.code == Some(0), "{said:#?}");
    installed.runs("v0.1.0").await?;
    installed.has_not_rebooted(&kernel).await
}

async fn a_reboot_goes_through_the_firmware_if_asked_to(installed: &Installed) -> Outcome {
    let kernel = installed.node.kernel_boot_id().await?;
    let powercycle = ["--stage", "--reboot-mode", "powercycle"];
    let said = installed.upgrade("v0.2.0", &powercycle).await?;
    ensure!(said.code == Some(0), "{said:?}");
    let said = installed.client.run(&["reboot"]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    installed.runs("v0.2.0").await?;
    ensure!(
        installed.node.kernel_boot_id().await? != kernel,
        "the kernel is the same"
    );
    Ok(())
}

async fn a_power_cut_starts_a_staged_version(installed: Installed) -> anyhow::Result<Installed> {
    let again = installed.upgrade("again", &["--stage"]).await?;
    ensure!(again.code == Some(0), "{again:?}");
    let installed = installed.power_cycle().await?;
    installed.runs("v0.1.0").await?;
    Ok(installed)
}

fn all_versions_that_started_are_blessed(scratch: &Scratch) -> Outcome {
    let entries = entries_on_disk(scratch)?;
    ensure!(
        entries.iter().all(|name| !name.contains('+')),
        "not blessed: {entries:?}"
    );
    Ok(())
}

/// Returns the loader's entries on the node's disk, in the loader's order.
fn entries_on_disk(scratch: &Scratch) -> anyhow::Result<Vec<String>> {
    let esp = EspImage::of_disk(&scratch.join("node.disk0.img"));
    let state = State::read(&esp).context("cannot read the EFI system partition")?;
    let order = state.boot_order().into_iter();
    Ok(order.map(|entry| entry.name.to_string()).collect())
}

async fn a_version_without_a_config_goes_back_and_one_that_was_forced_is_forgiven(
    scratch: Scratch,
) -> Outcome {
    let web = HttpServer::start()?;
    let healthz = web.url_for_guest("/healthz");
    let with_gate = move |config: MachineConfig| config.gate_asks_the_web(OPEN_GATE, &healthz);
    let installed = Installed::with(&scratch, with_gate).await?;
    push_one_that_finds_no_config(&installed.registry)?;
    chapters![
        a_version_without_a_config_is_tried_three_times_and_goes_back(&installed),
        a_version_without_an_answer_is_not_tried_again(&installed),
        a_version_that_was_forced_and_stayed_needs_no_force(&installed, &web),
    ]
    .await
}

/// Pushes a version whose command line names a source of the config that does not exist.
fn push_one_that_finds_no_config(registry: &Registry) -> Outcome {
    let (usual, lost) = ("transparent_hugepage=never", "instar.config=nowhere-real");
    let image = with_uki_text(&ImageUnderTest::second()?, usual, lost)?;
    image.push(registry, INSTALLER, "lost")?;
    Ok(())
}

async fn a_version_without_a_config_is_tried_three_times_and_goes_back(
    installed: &Installed,
) -> Outcome {
    let by_a_reboot = ["--reboot-mode", "powercycle"];
    let said = installed.upgrade("lost", &by_a_reboot).await?;
    ensure!(
        said.code == ROLLED_BACK && said.complaint.contains("instar.config is no URL"),
        "{said:?}"
    );
    installed.runs("v0.1.0").await?;
    let console = installed.node.vm().console();
    let tries = console.matches("v0.2.0 as generation 1 (boot)").count();
    ensure!(tries == 3, "it was tried {tries} times");
    Ok(())
}

/// Nothing answers the probe: the version fails, and is remembered.
async fn a_version_without_an_answer_is_not_tried_again(installed: &Installed) -> Outcome {
    installed.node.set_gate_timeout(SHUT_GATE).await?;
    let said = installed.upgrade("v0.2.0", &[]).await?;
    ensure!(said.code == ROLLED_BACK, "{said:?}");
    installed.runs("v0.1.0").await?;
    installed.node.set_gate_timeout(OPEN_GATE).await?;
    let said = installed.upgrade("v0.2.0", &[]).await?;
    ensure!(said.complaint.contains("failed here before"), "{said:?}");
    Ok(())
}

/// The version is forced, and a reboot later it has proved itself.
async fn a_version_that_was_forced_and_stayed_needs_no_force(
    installed: &Installed,
    web: &HttpServer,
) -> Outcome {
    web.serve("/healthz", "well");
    let forced = ["--force", "--reboot-mode", "powercycle"];
    for how in [&forced[..], &[]] {
        let said = installed.upgrade("v0.2.0", how).await?;
        ensure!(said.code == Some(0), "{how:?}: {said:?}");
        installed.runs("v0.2.0").await?;
    }
    Ok(())
}
