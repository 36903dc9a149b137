//! Calls that change the machine run one at a time: a second one is refused with the name of the first, waits, or
//! replaces it.

use std::time::Duration;

use anyhow::{Context, ensure};
use instar_api::machine as wire;
use instar_api::machine::apply_configuration_request::Mode;
use instar_qemu::{DiskFormat, create_blank_disk};
use instar_tests::{
    GREETER_PORT, Greeter, HOST_FOR_GUEST, HangUp, INSTALLER, Identity, ImageUnderTest,
    ImpatientCaller, Instarctl, MachineConfig, Node, NodePlan, OciImage, Outcome, Registry,
    Scratch, Test, chapters, guest_program, push_greeter, tests,
};
use prost::Message;
use tonic::Code;

use crate::PATIENCE;
use crate::hang_ups::{SLOW, config_name, is_free, slow};
use crate::installed::OTHER_PORT;

pub(crate) fn tests() -> Vec<Test> {
    tests![calls_that_change_the_machine_go_one_at_a_time]
}

const UPGRADE: &str = "/machine.MachineService/Upgrade";

/// Configs by the names of their machines. A change from one to another stops the slow container, which takes seconds,
/// and starts it again.
struct Configs {
    one: String,
    two: String,
    three: String,
    /// Configs that cannot be applied.
    unusable: [String; 2],
}

/// One boot serves all chapters. The config is not in the firmware, so that a power cut shows which config was kept.
async fn calls_that_change_the_machine_go_one_at_a_time(scratch: Scratch) -> Outcome {
    let registry = registry(&scratch)?;
    let identity = Identity::administrator()?;
    let configs = Configs::of(&identity, &registry.host_for_guest())?;
    let node = start(&scratch, identity, &configs.one).await?;
    chapters![
        a_config_is_carried_out_for_who_has_hung_up(&node, &configs),
        a_trial_ends_while_the_next_config_comes(&node, &configs),
        a_config_waits_for_the_return_from_a_trial(&node, &configs),
        configs_that_cannot_be_used_are_refused(&node, &configs.unusable),
        an_installer_that_stays_is_ended(&node, &registry),
        a_pull_gives_way_to_a_forced_reboot(&node),
        a_pull_ends_with_its_caller(&node),
        the_last_config_is_in_force(&node),
    ]
    .await
}

fn registry(scratch: &Scratch) -> anyhow::Result<Registry> {
    let registry = Registry::start(scratch)?;
    push_greeter(&registry)?;
    lingering_installer()?.push(&registry, INSTALLER, "lingers")?;
    Ok(registry)
}

async fn the_last_config_is_in_force(node: &Node) -> Outcome {
    let name = config_name(&node.channel().await?, "v1alpha1").await?;
    ensure!(name == "three", "{name}");
    Ok(())
}

impl Configs {
    fn of(identity: &Identity, host: &str) -> anyhow::Result<Self> {
        let one = named("one", 15, identity, host).to_yaml();
        let bad = named("bad", 5, identity, host).document(
            "apiVersion: v1alpha1\nkind: RegistryAuthConfig\nname: registry.example\nauth: no base64\n",
        );
        let mismatched = with_a_key_of_another(identity, &one)?;
        Ok(Self {
            one,
            two: named("two", 4, identity, host).to_yaml(),
            three: named("three", 6, identity, host).to_yaml(),
            unusable: [bad.to_yaml(), mismatched],
        })
    }
}

/// Starts a node with a disk and the greeter's port in maintenance mode, and applies its config.
pub(crate) async fn start(
    scratch: &Scratch,
    identity: Identity,
    config: &str,
) -> anyhow::Result<Node> {
    let file = scratch.write("one.yaml", config)?.display().to_string();
    let node = plan(scratch)?.without_config(identity).start()?;
    let client = Instarctl::of(&node, scratch)?;
    node.wait_for_line("the API answers on port", PATIENCE)?;
    client.bring_first_config(&node, &file, PATIENCE).await?;
    node.wait_until_ready(PATIENCE).await?;
    Ok(node)
}

fn plan(scratch: &Scratch) -> anyhow::Result<NodePlan> {
    let disk = scratch.join("disk.img");
    create_blank_disk(&disk, DiskFormat::Raw, 2 << 30)?;
    Ok(Node::plan(scratch, &ImageUnderTest::first()?)
        .disk(&disk)
        .forward(GREETER_PORT)
        .forward(OTHER_PORT))
}

/// The caller hangs up while the old container is being stopped.
async fn a_config_is_carried_out_for_who_has_hung_up(node: &Node, configs: &Configs) -> Outcome {
    let pid = node.service_pid(SLOW).await?;
    a_caller_hangs_up_while_a_config_is_applied(node, &configs.two).await?;
    a_reboot_is_told_what_runs(node).await?;
    let channel = node.channel().await?;
    node.wait_until("the new container runs", PATIENCE, async || {
        ensure!(node.service_pid(SLOW).await? != pid, "the old one");
        ensure!(config_name(&channel, "v1alpha1").await? == "two");
        is_free(&channel).await
    })
    .await
}

async fn a_caller_hangs_up_while_a_config_is_applied(node: &Node, config: &str) -> Outcome {
    let method = "/machine.MachineService/ApplyConfiguration";
    let message = apply(config, Mode::NoReboot).encode_to_vec();
    let mut caller = ImpatientCaller::connect(node).await?;
    let stops = node.wait_until("the old container stops", PATIENCE, async || {
        let state = node.service(SLOW).await?.state;
        ensure!(state == "Stopping", "it is {state}");
        Ok(())
    });
    let answer = caller.call_until(method, &message, stops, HangUp::Connection);
    let answer = answer.await?;
    ensure!(answer.is_none(), "answered at once: {answer:?}");
    Ok(())
}

async fn a_reboot_is_told_what_runs(node: &Node) -> Outcome {
    let mut machine = node.machine().await?;
    let busy = machine.reboot(wire::RebootRequest::default()).await;
    let busy = busy.err().context("it rebooted in the middle of it")?;
    println!("{busy}");
    ensure!(
        busy.code() == Code::FailedPrecondition
            && busy.message().contains("apply-config has been running for"),
        "{busy}"
    );
    Ok(())
}

/// A trial lasts long enough for the next call on a busy host, and is over before the first container has stopped.
fn apply(config: &str, mode: Mode) -> wire::ApplyConfigurationRequest {
    wire::ApplyConfigurationRequest {
        data: config.as_bytes().to_vec(),
        mode: mode.into(),
        try_mode_timeout: Some(prost_types::Duration {
            seconds: 10,
            nanos: 0,
        }),
        ..Default::default()
    }
}

/// A config with a greeter and a slow container, which takes this many seconds to stop.
fn named(name: &str, seconds: u8, identity: &Identity, host: &str) -> MachineConfig {
    let config = MachineConfig::new(identity)
        .hostname(name)
        .install_disk("/dev/vda")
        .registry(host)
        .greeter(host)
        .document(MAY_END_SLOWLY);
    slow(config, host, SLOW, seconds)
}

/// More than the slow container takes.
const MAY_END_SLOWLY: &str =
    "apiVersion: instar.dev/v1alpha1\nkind: ContainerStopConfig\nname: slow\ntimeout: 60s\n";

/// Returns the config with an authority's key that does not belong to its certificate.
fn with_a_key_of_another(identity: &Identity, config: &str) -> anyhow::Result<String> {
    let other = Identity::administrator()?;
    let (own, others) = (identity.authority_key(), other.authority_key());
    let mismatched = config.replace(&base64_of(&own), &base64_of(&others));
    ensure!(mismatched != config, "the key is not found");
    Ok(mismatched)
}

fn base64_of(pem: &str) -> String {
    use base64::Engine as _;
    base64::prelude::BASE64_STANDARD.encode(pem)
}

/// A config is applied to stay while the trial of another one ends: the applied one stays.
async fn a_trial_ends_while_the_next_config_comes(node: &Node, configs: &Configs) -> Outcome {
    let mut machine = node.machine().await?;
    for (config, mode) in [(&configs.one, Mode::Try), (&configs.two, Mode::NoReboot)] {
        machine.apply_configuration(apply(config, mode)).await?;
    }
    settles_on(node, "two").await
}

/// The return to the config before a trial is an operation like any other.
async fn a_config_waits_for_the_return_from_a_trial(node: &Node, configs: &Configs) -> Outcome {
    a_trial_is_over(node, &configs.one).await?;
    who_comes_before_the_return_is_told_of_it(node, &configs.three).await?;
    node.wait_until("it is applied", PATIENCE, async || {
        let again = apply(&configs.three, Mode::NoReboot);
        Ok(node.machine().await?.apply_configuration(again).await?)
    })
    .await?;
    settles_on(node, "three").await
}

async fn a_trial_is_over(node: &Node, config: &str) -> Outcome {
    let mark = node.vm().console_mark()?;
    let mut machine = node.machine().await?;
    machine
        .apply_configuration(apply(config, Mode::Try))
        .await?;
    let over = "the trial is over, the config before it is taken back";
    node.vm().wait_for_line_after(mark, over, PATIENCE)?;
    Ok(())
}

async fn who_comes_before_the_return_is_told_of_it(node: &Node, config: &str) -> Outcome {
    let mut machine = node.machine().await?;
    let early = machine.apply_configuration(apply(config, Mode::NoReboot));
    let busy = early.await.err();
    let busy = busy.context("it was applied between two configs")?;
    println!("{busy}");
    let says = "the return to the config before a trial has been running";
    ensure!(busy.message().contains(says), "{busy}");
    Ok(())
}

/// Waits until no operation runs, with this config in force and on STATE.
async fn settles_on(node: &Node, name: &str) -> Outcome {
    let channel = node.channel().await?;
    node.wait_until("the trial is over", PATIENCE, async || {
        is_free(&channel).await?;
        for id in ["v1alpha1", "persistent"] {
            let found = config_name(&channel, id).await?;
            ensure!(found == name, "{id}: {found}");
        }
        node.service_pid(SLOW).await
    })
    .await?;
    Ok(())
}

/// Configs that cannot be applied are refused in every mode, and not kept.
async fn configs_that_cannot_be_used_are_refused(node: &Node, unusable: &[String]) -> Outcome {
    let mut machine = node.machine().await?;
    for mode in [Mode::Staged, Mode::Reboot, Mode::NoReboot, Mode::Try] {
        for config in unusable {
            let refused = machine.apply_configuration(apply(config, mode)).await;
            let refused = refused.err().context("a config that cannot be used")?;
            let code = refused.code();
            ensure!(code == Code::InvalidArgument, "{mode:?}: {refused}");
        }
    }
    Ok(())
}

/// An installer whose program delivers as it should, and does not end.
fn lingering_installer() -> anyhow::Result<OciImage> {
    let program = guest_program("greeter")?;
    let image = OciImage::read(&ImageUnderTest::second()?.installer())?;
    let image = image.with_file("usr/bin/greeter", &program)?;
    Ok(image.entrypoint(&["/usr/bin/greeter", "stay", "/usr/bin/installer"]))
}

async fn an_installer_that_stays_is_ended(node: &Node, registry: &Registry) -> Outcome {
    let channel = node.channel().await?;
    let greeter = Greeter::of(node)?;
    greeter.greets()?;
    let image = registry.installer_for_guest("lingers");
    let actor = node.upgrade(&image).await??;
    a_forced_reboot_is_told_of_the_upgrade(node).await?;
    println!("{actor}");
    node.wait_for_line("did not end within 60 s and was killed", PATIENCE)?;
    node.wait_until("what was stopped runs again", PATIENCE, async || {
        is_free(&channel).await?;
        greeter.greets()
    })
    .await?;
    ensure!(node.version().await?.tag == "v0.1.0");
    Ok(())
}

/// After the installer has delivered, no other operation replaces the upgrade.
async fn a_forced_reboot_is_told_of_the_upgrade(node: &Node) -> Outcome {
    node.wait_until("the installer has delivered", PATIENCE, async || {
        let busy = reboot(node, wire::reboot_request::Mode::Force).await?;
        let busy = busy.err().context("it rebooted")?;
        ensure!(
            busy.message().contains("an upgrade has been running"),
            "{busy}"
        );
        Ok(())
    })
    .await
}

type Rebooted = Result<tonic::Response<wire::RebootResponse>, tonic::Status>;

async fn reboot(node: &Node, mode: wire::reboot_request::Mode) -> anyhow::Result<Rebooted> {
    let mut machine = node.machine().await?;
    let request = wire::RebootRequest { mode: mode.into() };
    Ok(machine.reboot(request).await)
}

/// The pull is from a registry that accepts connections and sends nothing.
async fn a_pull_gives_way_to_a_forced_reboot(node: &Node) -> Outcome {
    let silent = std::net::TcpListener::bind("127.0.0.1:0")?;
    let port = silent.local_addr()?.port();
    let image = format!("{HOST_FOR_GUEST}:{port}/nothing:v1");
    let kernel = node.kernel_boot_id().await?;
    let rebooting = force_alone_reboots_in_a_pull(node, &image);
    let (given_up, rebooting) = tokio::join!(node.upgrade(&image), rebooting);
    rebooting?;
    an_upgrade_was_given_up_for_a_reboot(given_up?)?;
    node.wait_until("it has rebooted", PATIENCE, async || {
        ensure!(node.kernel_boot_id().await? != kernel);
        Ok(())
    })
    .await?;
    node.wait_until_ready(PATIENCE).await
}

/// Whoever gives an upgrade up before its image is here can rely on it: the node does not begin it later.
async fn a_pull_ends_with_its_caller(node: &Node) -> Outcome {
    let silent = std::net::TcpListener::bind("127.0.0.1:0")?;
    let port = silent.local_addr()?.port();
    let image = format!("{HOST_FOR_GUEST}:{port}/nothing:v2");
    for how in [HangUp::Call, HangUp::Connection] {
        an_upgrade_ends_with_its_caller(node, &image, how).await?;
        let channel = node.channel().await?;
        node.wait_until("no upgrade is under way", PATIENCE, async || {
            is_free(&channel).await
        })
        .await?;
    }
    Ok(())
}

/// The caller leaves a moment after the node has heard of it, while the registry says nothing.
async fn an_upgrade_ends_with_its_caller(node: &Node, image: &str, how: HangUp) -> Outcome {
    let mark = node.vm().console_mark()?;
    let request = wire::UpgradeRequest {
        image: image.to_owned(),
        preserve: true,
        ..Default::default()
    };
    let message = request.encode_to_vec();
    let mut caller = ImpatientCaller::connect(node).await?;
    let asked = is_asked_for(node, image, times_asked_for(node, image));
    let answer = caller.call_until(UPGRADE, &message, asked, how).await?;
    ensure!(answer.is_none(), "answered: {answer:?}");
    let left = "the caller of the upgrade left before the image was here; nothing has changed";
    node.vm().wait_for_line_after(mark, left, PATIENCE)?;
    Ok(())
}

/// How often the node has been asked for this image.
fn times_asked_for(node: &Node, image: &str) -> usize {
    let asked_for = format!("{image} asked for by");
    node.vm().console().matches(&asked_for).count()
}

/// Waits until the node has been asked for this image more often than before, and a moment, so that it asks the registry.
async fn is_asked_for(node: &Node, image: &str, before: usize) -> Outcome {
    node.wait_until("the upgrade is asked for", PATIENCE, async || {
        ensure!(times_asked_for(node, image) > before);
        Ok(())
    })
    .await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    Ok(())
}

async fn force_alone_reboots_in_a_pull(node: &Node, image: &str) -> Outcome {
    is_asked_for(node, image, 0).await?;
    let busy = reboot(node, wire::reboot_request::Mode::Default).await?;
    let busy = busy.err().context("it rebooted without force")?;
    println!("{busy}");
    ensure!(busy.message().contains("with force"), "{busy}");
    reboot(node, wire::reboot_request::Mode::Force).await??;
    Ok(())
}

fn an_upgrade_was_given_up_for_a_reboot(answer: Result<String, tonic::Status>) -> Outcome {
    let given_up = answer.err().context("an upgrade to nothing")?;
    println!("{given_up}");
    ensure!(
        given_up.code() == Code::Aborted && given_up.message().contains("a reboot took its place"),
        "{given_up}"
    );
    Ok(())
}
