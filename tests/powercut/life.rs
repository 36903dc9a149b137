//! The recorded life of a node: from the medium to its end.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use instar_pki::Role;
use instar_qemu::{Bus, DiskFormat, Drive, VmSpec, create_blank_disk};
use instar_tests::power_cuts::{
    IMPORTED, Recorded, RecordedNode, Setting, push_images_on_one_base, seen,
};
use instar_tests::{
    GREETER_PORT, ImageUnderTest, Instarctl, MachineConfig, Node, Registry, Scratch, bundle,
    push_greeter, uefi,
};

const PATIENCE: Duration = Duration::from_secs(180);
/// Room for both versions, and for an installer's image in /var.
const DISK_BYTES: u64 = 640 << 20;
/// Number of changes of the config.
const CONFIGS: usize = 4;

/// An installed machine.
pub(crate) struct Installation {
    pub(crate) recorded: Recorded,
    /// The config that it was installed with.
    pub(crate) config: String,
}

/// Installs a blank disk from the ISO.
pub(crate) async fn install(scratch: &Scratch, registry: &Registry) -> Result<Installation> {
    for image in [ImageUnderTest::first()?, ImageUnderTest::second()?] {
        registry.push_installer(&image)?;
    }
    let blank = scratch.join("blank.img");
    create_blank_disk(&blank, DiskFormat::Raw, DISK_BYTES)?;
    let host = registry.host_for_guest();
    let image = registry.installer_for_guest("v0.1.0");
    let iso = Drive::raw(ImageUnderTest::first()?.iso()).on(Bus::Cd);
    let plan = |drive: Drive| {
        let spec = VmSpec::uefi(uefi()?).drive(drive).drive(iso);
        Ok(Node::plan_from(scratch, spec)
            .configure(move |config| config.registry(&host).install("/dev/vda", &image)))
    };
    let mut recorded = RecordedNode::start(scratch, "install", &blank, plan)?;
    let config = recorded.node().config().to_owned();
    let setting = Setting {
        has_medium: true,
        ..Setting::with_config(&config)
    };
    recorded.enter("install", setting)?;
    let node = recorded.node();
    node.wait_until_installed("v0.1.0", PATIENCE).await?;
    let recorded = recorded.end()?;
    Ok(Installation { recorded, config })
}

/// Records the life of an installed machine, on its disk alone.
pub(crate) async fn live(
    scratch: &Scratch,
    registry: &Registry,
    installed: &Recorded,
) -> Result<Recorded> {
    let identity = installed.identity.with_role(Role::Admin)?;
    let plan = |drive: Drive| {
        let spec = VmSpec::uefi(uefi()?.variables(&installed.variables)).drive(drive);
        Ok(Node::plan_from(scratch, spec).without_config(identity))
    };
    let mut recorded = RecordedNode::start(scratch, "life", &installed.disk, plan)?;
    recorded.node().wait_for_api(PATIENCE).await?;
    recorded.node().wait_until_ready(PATIENCE).await?;
    let config = apply_configs(&mut recorded, scratch, first_config(installed)?).await?;
    let image = registry.installer_for_guest("v0.2.0");
    let client = Instarctl::of(recorded.node(), scratch)?;
    recorded.upgrade(&client, &image, &config).await?;
    roll_back(&mut recorded, scratch, &config).await?;
    reset(&mut recorded, scratch, &config).await?;
    recorded.end()
}

/// Records a machine whose operating system changes under a container that writes.
pub(crate) async fn live_on(
    scratch: &Scratch,
    registry: &Registry,
    installed: &Recorded,
) -> Result<Recorded> {
    push_greeter(registry)?;
    let identity = installed.identity.with_role(Role::Admin)?;
    let plan = |drive: Drive| {
        let spec = VmSpec::uefi(uefi()?.variables(&installed.variables)).drive(drive);
        Ok(Node::plan_from(scratch, spec.forward(GREETER_PORT)).without_config(identity))
    };
    let mut recorded = RecordedNode::start(scratch, "swap", &installed.disk, plan)?;
    recorded.node().wait_for_api(PATIENCE).await?;
    recorded.node().wait_until_ready(PATIENCE).await?;
    let client = Instarctl::of(recorded.node(), scratch)?;
    let config = first_config(installed)?;
    let config = MachineConfig::from_yaml(config).greeter(&registry.host_for_guest());
    let config = config.to_yaml();
    apply(&client, scratch, &config).await?;
    recorded.node().wait_until_ready(PATIENCE).await?;
    let image = registry.installer_for_guest("v0.2.0");
    recorded.change_under(&client, &image, &config).await?;
    recorded.end()
}

/// Records a machine that pulls images and removes one, then imports a bundle, pins an image, and collects it.
pub(crate) async fn fill_the_store(
    scratch: &Scratch,
    registry: &Registry,
    installed: &Recorded,
) -> Result<Recorded> {
    push_images_on_one_base(registry)?;
    let identity = installed.identity.with_role(Role::Admin)?;
    let plan = |drive: Drive| {
        let spec = VmSpec::uefi(uefi()?.variables(&installed.variables)).drive(drive);
        Ok(Node::plan_from(scratch, spec).without_config(identity))
    };
    let mut recorded = RecordedNode::start(scratch, "store", &installed.disk, plan)?;
    recorded.node().wait_for_api(PATIENCE).await?;
    recorded.node().wait_until_ready(PATIENCE).await?;
    let client = Instarctl::of(recorded.node(), scratch)?;
    let config = first_config(installed)?;
    recorded.pull_and_remove(&client, registry, config).await?;
    let file = bundle(registry, scratch, "store.bundle", &[IMPORTED]).await?;
    let more = recorded.import_pin_and_collect(&client, registry, &file, config);
    more.await?;
    recorded.end()
}

fn first_config(installed: &Recorded) -> Result<&String> {
    let first = installed.scenarios.first();
    first
        .and_then(|scenario| scenario.setting.configs.first())
        .context("the installation had no config")
}

async fn apply(client: &Instarctl, scratch: &Scratch, config: &str) -> Result<()> {
    let file = scratch.write("config.yaml", config)?.display().to_string();
    let said = client
        .run(&["apply-config", "--file", &file, "--mode", "no-reboot"])
        .await?;
    ensure!(said.code == Some(0), "the config: {said:?}");
    Ok(())
}

/// Applies other configs; returns the last of them.
async fn apply_configs(
    recorded: &mut RecordedNode,
    scratch: &Scratch,
    first: &str,
) -> Result<String> {
    let configs: Vec<String> = (0..=CONFIGS)
        .map(|number| match number {
            0 => first.to_owned(),
            _ => first.replace("hostname: install", &format!("hostname: named-{number}")),
        })
        .collect();
    ensure!(configs[0] != configs[1], "no host name in\n{first}");
    let setting = Setting {
        configs: configs.clone(),
        ..Setting::default()
    };
    recorded.enter("config", setting)?;
    let client = Instarctl::of(recorded.node(), scratch)?;
    for (number, config) in configs.iter().enumerate().skip(1) {
        let applied = apply(&client, scratch, config).await;
        applied.with_context(|| format!("the config of number {number}"))?;
    }
    configs.into_iter().last().context("no configs")
}

async fn roll_back(recorded: &mut RecordedNode, scratch: &Scratch, config: &str) -> Result<()> {
    recorded.enter("rollback", Setting::with_config(config))?;
    let client = Instarctl::of(recorded.node(), scratch)?;
    let said = client.run(&["rollback"]).await?;
    ensure!(said.code == Some(0), "the rollback: {said:?}");
    recorded.node().wait_until_ready(PATIENCE).await?;
    let runs = recorded.node().version().await?.tag;
    ensure!(runs == "v0.1.0", "{runs} runs");
    Ok(())
}

/// Erases the machine's state, and reboots it into maintenance mode.
async fn reset(recorded: &mut RecordedNode, scratch: &Scratch, config: &str) -> Result<()> {
    let setting = Setting {
        is_reset: true,
        ..Setting::with_config(config)
    };
    recorded.enter("reset", setting)?;
    let client = Instarctl::of(recorded.node(), scratch)?;
    let labels = "STATE,EPHEMERAL";
    let command = [
        "reset",
        "--system-labels-to-wipe",
        labels,
        "--reboot",
        "--no-wait",
    ];
    let said = client.run(&command).await?;
    ensure!(said.code == Some(0), "the reset: {said:?}");
    seen(recorded.node(), "maintenance mode").await
}
