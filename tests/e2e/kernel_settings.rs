//! What a config asks of the kernel, of /etc and of its services' environment: live, undone when the config drops it, and gone with the
//! generation.

use anyhow::{Context, ensure};
use instar_tests::{
    Ending, GREETER, Greeter, Identity, ImageUnderTest, Instarctl, MachineConfig, Node, OciImage,
    Outcome, Registry, Scratch, Test, WITH_CGROUPS, push_greeter, tests, upgrade_and_follow,
};

use crate::PATIENCE;
use crate::installed::OTHER_PORT;
use crate::one_at_a_time::start;

/// A parameter of the kernel's memory, which init restores as well.
const MAPS: &str = "/proc/sys/vm/max_map_count";
/// One of the network, which only machined does.
const FORWARD: &str = "/proc/sys/net/ipv4/ip_forward";
/// One below /sys, shown as a choice.
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// A version that does not stay.
const GIVES_UP: &str = "v0.3.4";

const SETTINGS: &str = r"
apiVersion: v1alpha1
kind: SysctlConfig
params:
  net.ipv4.ip_forward: 1
  vm/max_map_count: 262155
---
apiVersion: v1alpha1
kind: SysfsConfig
params:
  kernel.mm.transparent_hugepage.enabled: always
---
apiVersion: v1alpha1
kind: KernelModuleConfig
name: dummy
parameters: [numdummies=2]
---
apiVersion: v1alpha1
kind: EtcFileConfig
name: app/conf.d/settings.json
mode: 416
contents: '{}'
---
apiVersion: v1alpha1
kind: EnvironmentConfig
variables: {SITE: harbour, PATH: /of/the/machine}
";

pub(crate) fn tests() -> Vec<Test> {
    tests![kernel_settings_are_in_force_at_once_and_end_with_the_config]
}

/// The node with one config, and the same without the settings.
struct Configs {
    plain: String,
    with_settings: String,
}

/// One boot for all: each chapter begins where the one before ended.
async fn kernel_settings_are_in_force_at_once_and_end_with_the_config(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    for image in [ImageUnderTest::first()?, ImageUnderTest::second()?] {
        registry.push_layout(&image.installer(), "instar/installer", image.version())?;
    }
    push_one_that_gives_up(&scratch, &registry)?;
    push_greeter(&registry)?;
    let host = registry.host_for_guest();
    let identity = Identity::administrator()?;
    let plain = MachineConfig::new(&identity)
        .install_disk("/dev/vda")
        .registry(&host)
        .greeter(&host)
        .greeter_at(
            "killer",
            &registry.image_for_guest("greeter:v1"),
            OTHER_PORT,
            WITH_CGROUPS,
        )
        .to_yaml();
    // Its config is in no firmware, which would come before the one that is staged.
    let node = start(&scratch, identity, &plain).await?;
    let configs = Configs {
        with_settings: format!("{plain}---{SETTINGS}"),
        plain,
    };
    let before = values(&node).await?;
    ensure!(!before.join(" ").contains("262155"), "{before:?}");
    settings_come_while_the_machine_runs(&node, &scratch, &configs).await?;
    the_greeter_has_the_machines_variables(&node, &configs).await?;
    what_cannot_be_done_is_named_and_the_rest_is_done(&node, &scratch, &configs).await?;
    a_kept_container_sees_no_change(&node, &registry).await?;
    they_stay_when_machined_is_killed(&node).await?;
    it_sees_what_the_next_generation_does_not_set(&node, &scratch, &registry, &configs, &before)
        .await?;
    they_go_with_the_config(&node, &scratch, &configs, &before).await?;
    a_rollback_leaves_none_of_them(&node, &scratch, &registry, &configs, &before).await?;
    they_end_with_the_generation(&node, &scratch, &registry, &configs, &before).await
}

async fn apply(node: &Node, scratch: &Scratch, yaml: &str, mode: &str) -> anyhow::Result<String> {
    let file = scratch.write("next.yaml", yaml)?.display().to_string();
    let client = Instarctl::of(node, scratch)?;
    let said = client
        .run(&["apply-config", "--file", &file, "--mode", mode])
        .await?;
    ensure!(said.code == Some(0), "{said:?}");
    Ok(said.output)
}

/// The kernel's parameters as they are.
async fn values(node: &Node) -> anyhow::Result<Vec<String>> {
    let mut values = Vec::new();
    for path in [MAPS, FORWARD, HUGE_PAGES] {
        values.push(node.read(path).await?.trim_end().to_owned());
    }
    Ok(values)
}

async fn are_set(node: &Node) -> Outcome {
    let values = values(node).await?;
    ensure!(values[..2] == ["262155", "1"], "{values:?}");
    ensure!(values[2].contains("[always]"), "{values:?}");
    for link in ["dummy0", "dummy1"] {
        node.read(&format!("/sys/class/net/{link}/address")).await?;
    }
    let file = node.read("/etc/app/conf.d/settings.json").await?;
    ensure!(file == "{}", "{file}");
    // The image's files are there as before.
    let issued = node.read("/etc/os-release").await?;
    ensure!(issued.contains("Instar"), "{issued}");
    Ok(())
}

async fn are_undone(node: &Node, before: &[String]) -> Outcome {
    let values = values(node).await?;
    ensure!(values == before, "{values:?} instead of {before:?}");
    let link = node.read("/sys/class/net/dummy0/address").await;
    ensure!(link.is_err(), "the module is still there");
    let file = node.read("/etc/app/conf.d/settings.json").await;
    ensure!(file.is_err(), "the file is still there: {file:?}");
    Ok(())
}

async fn settings_come_while_the_machine_runs(
    node: &Node,
    scratch: &Scratch,
    configs: &Configs,
) -> Outcome {
    let said = apply(node, scratch, &configs.with_settings, "no-reboot").await?;
    let expected = "sysctls, sysfs, kernel modules, the environment, files below /etc";
    ensure!(said.contains(expected), "{said}");
    ensure!(!said.contains("Config: "), "warned of: {said}");
    are_set(node).await?;
    let client = Instarctl::of(node, scratch)?;
    let shown = client.run(&["get", "kernelparamstatus"]).await?;
    ensure!(
        shown.output.contains("proc.sys.vm.max_map_count") && shown.output.contains("262155"),
        "{shown:?}"
    );
    Ok(())
}

/// The image's and the container's own variables count more.
async fn the_greeter_has_the_machines_variables(node: &Node, configs: &Configs) -> Outcome {
    ensure!(!configs.plain.contains("harbour"));
    node.wait_until("the greeter runs again", PATIENCE, async || {
        let variables = Greeter::of(node)?.get("/read/proc/self/environ")?;
        let mut variables = variables.split('\0');
        ensure!(variables.any(|it| it == "SITE=harbour"));
        Ok(())
    })
    .await
}

async fn what_cannot_be_done_is_named_and_the_rest_is_done(
    node: &Node,
    scratch: &Scratch,
    configs: &Configs,
) -> Outcome {
    let client = Instarctl::of(node, scratch)?;
    let wrong = configs
        .with_settings
        .replace("vm/max_map_count", "vm.no_such_thing");
    let file = scratch.write("wrong.yaml", &wrong)?.display().to_string();
    let said = client.run(&["apply-config", "--file", &file]).await?;
    ensure!(
        said.code != Some(0) && said.complaint.contains("/proc/sys/vm/no_such_thing"),
        "{said:?}"
    );
    let status = client.run(&["get", "machinestatus", "-o", "yaml"]).await?;
    ensure!(status.output.contains("kernel settings"), "{status:?}");
    ensure!(node.read(FORWARD).await? == "1\n");
    // A name that leads elsewhere is refused before anything is done.
    let wrong = configs
        .with_settings
        .replace("vm/max_map_count", "vm/../../1/environ");
    let file = scratch.write("wrong.yaml", &wrong)?.display().to_string();
    let said = client.run(&["apply-config", "--file", &file]).await?;
    ensure!(
        said.code != Some(0) && said.complaint.contains("no name of a kernel parameter"),
        "{said:?}"
    );
    apply(node, scratch, &configs.with_settings, "no-reboot").await?;
    are_set(node).await?;
    node.wait_until_ready(PATIENCE).await
}

/// The same config in the next generation, without a reboot.
async fn an_upgrade_takes_them_along(node: &Node, registry: &Registry, version: &str) -> Outcome {
    let kernel = node.kernel_boot_id().await?;
    let image = registry.image_for_guest(&format!("instar/installer:{version}"));
    let followed = upgrade_and_follow(node, &image, PATIENCE).await?;
    ensure!(followed.ending == Ending::Done, "{followed:#?}");
    ensure!(node.version().await?.tag == version);
    ensure!(
        node.kernel_boot_id().await? == kernel,
        "the kernel rebooted"
    );
    Ok(())
}

/// The one that comes next knows from init's record what was there before: the chapter after this one has it all back.
async fn they_stay_when_machined_is_killed(node: &Node) -> Outcome {
    let mark = node.vm().console_mark()?;
    let generation = node.read("/run/generation").await?;
    let kill = format!(
        "/write/cgroup/generation.{}/machined/cgroup.kill?1",
        generation.trim()
    );
    Greeter::at(node, OTHER_PORT)?.get(&kill)?;
    node.vm()
        .wait_for_line_after(mark, "starting machined again", PATIENCE)?;
    node.wait_for_api(PATIENCE).await?;
    node.wait_until_ready(PATIENCE).await?;
    are_set(node).await
}

async fn they_go_with_the_config(
    node: &Node,
    scratch: &Scratch,
    configs: &Configs,
    before: &[String],
) -> Outcome {
    are_set(node).await?;
    apply(node, scratch, &configs.plain, "no-reboot").await?;
    are_undone(node, before).await?;
    // Tried, and taken back.
    apply(node, scratch, &configs.with_settings, "try").await?;
    are_set(node).await?;
    apply(node, scratch, &configs.plain, "no-reboot").await?;
    are_undone(node, before).await
}

/// A version that gives itself up.
fn push_one_that_gives_up(scratch: &Scratch, registry: &Registry) -> Outcome {
    OciImage::read(&ImageUnderTest::second()?.installer())?
        .giving_up(scratch, GIVES_UP, "the moon is full")?
        .push(registry, "instar/installer", GIVES_UP)
        .map(drop)
}

/// The config that the next generation has leaves all of them out.
async fn are_set_and_dropped_by_the_next_config(
    node: &Node,
    scratch: &Scratch,
    configs: &Configs,
) -> Outcome {
    apply(node, scratch, &configs.with_settings, "no-reboot").await?;
    apply(node, scratch, &configs.plain, "staged").await?;
    are_set(node).await
}

/// The version that comes back has another config, and takes back what that drops.
async fn a_rollback_leaves_none_of_them(
    node: &Node,
    scratch: &Scratch,
    registry: &Registry,
    configs: &Configs,
    before: &[String],
) -> Outcome {
    are_set_and_dropped_by_the_next_config(node, scratch, configs).await?;
    let image = registry.image_for_guest(&format!("instar/installer:{GIVES_UP}"));
    let followed = upgrade_and_follow(node, &image, PATIENCE).await?;
    ensure!(
        matches!(followed.ending, Ending::Failed(_)),
        "{followed:#?}"
    );
    node.wait_until_ready(PATIENCE).await?;
    are_undone(node, before).await
}

/// The next generation has another config, and finds the kernel as after a boot.
async fn they_end_with_the_generation(
    node: &Node,
    scratch: &Scratch,
    registry: &Registry,
    configs: &Configs,
    before: &[String],
) -> Outcome {
    are_set_and_dropped_by_the_next_config(node, scratch, configs).await?;
    an_upgrade_takes_them_along(node, registry, "v0.2.0").await?;
    are_undone(node, before).await
}

/// How often the greeter, which looks a thousand times a second, has seen a parameter change since it was first asked.
async fn changes(node: &Node, parameter: &str) -> anyhow::Result<(u64, u64)> {
    let told = Greeter::of(node)?.get(&format!("/watch{parameter}"))?;
    let (readings, changes) = told.trim().split_once(' ').context("two numbers")?;
    Ok((readings.parse()?, changes.parse()?))
}

async fn a_kept_container_sees_no_change(node: &Node, registry: &Registry) -> Outcome {
    let watched = [MAPS, FORWARD];
    for parameter in watched {
        changes(node, parameter).await?;
    }
    let pid = node.service_pid(GREETER).await?;
    an_upgrade_takes_them_along(node, registry, "v0.2.0").await?;
    ensure!(node.service_pid(GREETER).await? == pid, "it was not kept");
    for parameter in watched {
        let (readings, changes) = changes(node, parameter).await?;
        println!("{parameter} over an upgrade: {readings} readings, {changes} changes");
        ensure!(readings > 500, "it hardly looked: {readings} readings");
        ensure!(changes == 0, "{parameter} has changed {changes} times");
    }
    Ok(())
}

/// The next config leaves one of the parameters out: that goes back, once, and the other one stays.
async fn it_sees_what_the_next_generation_does_not_set(
    node: &Node,
    scratch: &Scratch,
    registry: &Registry,
    configs: &Configs,
    before: &[String],
) -> Outcome {
    let line = "  vm/max_map_count: 262155\n";
    ensure!(configs.with_settings.contains(line));
    let without = configs.with_settings.replace(line, "");
    apply(node, scratch, &without, "staged").await?;
    let pid = node.service_pid(GREETER).await?;
    an_upgrade_takes_them_along(node, registry, "v0.1.0").await?;
    ensure!(node.service_pid(GREETER).await? == pid, "it was not kept");
    let (_, of_maps) = changes(node, MAPS).await?;
    let (_, of_forward) = changes(node, FORWARD).await?;
    ensure!(
        (of_maps, of_forward) == (1, 0),
        "{of_maps} and {of_forward}"
    );
    ensure!(node.read(MAPS).await?.trim_end() == before[0]);
    apply(node, scratch, &configs.with_settings, "no-reboot").await?;
    Ok(())
}
