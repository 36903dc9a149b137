//! A config's settings of the kernel, of /etc and of the services' environment: applied at once, undone when the config
//! drops them, and gone with the generation.

use anyhow::{Context, Result, ensure};
use instar_tests::{
    Ending, GREETER, Greeter, Identity, ImageUnderTest, Instarctl, MachineConfig, Node, OciImage,
    Outcome, Registry, Said, Scratch, Test, WITH_CGROUPS, chapters, push_greeter, tests,
    upgrade_and_follow,
};

use crate::PATIENCE;
use crate::installed::{INSTALLER, OTHER_PORT};
use crate::one_at_a_time::start;

/// A parameter of the kernel's memory, which init restores as well as machined.
const MAPS: &str = "/proc/sys/vm/max_map_count";
/// A parameter of the network, which only machined restores.
const FORWARD: &str = "/proc/sys/net/ipv4/ip_forward";
/// A parameter below /sys, shown as a choice.
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

/// A node, its registry, and two configs that are applied in turn.
struct Story {
    scratch: Scratch,
    registry: Registry,
    node: Node,
    plain: String,
    with_settings: String,
    /// The kernel's parameters without the settings.
    before: Vec<String>,
}

impl Story {
    async fn begin(scratch: Scratch) -> Result<Self> {
        let registry = Registry::start(&scratch)?;
        push_images(&scratch, &registry)?;
        let identity = Identity::administrator()?;
        let plain = plain_config(&identity, &registry).to_yaml();
        // The node's config is not in the firmware, whose config would win over the staged one.
        let node = start(&scratch, identity, &plain).await?;
        let before = values(&node).await?;
        ensure!(!before.join(" ").contains("262155"), "{before:?}");
        Ok(Self {
            with_settings: format!("{plain}---{SETTINGS}"),
            scratch,
            registry,
            node,
            plain,
            before,
        })
    }
}

fn push_images(scratch: &Scratch, registry: &Registry) -> Outcome {
    registry.push_both_installers()?;
    push_one_that_gives_up(scratch, registry)?;
    push_greeter(registry)?;
    Ok(())
}

fn plain_config(identity: &Identity, registry: &Registry) -> MachineConfig {
    let host = registry.host_for_guest();
    let image = registry.image_for_guest("greeter:v1");
    MachineConfig::new(identity)
        .install_disk("/dev/vda")
        .registry(&host)
        .greeter(&host)
        .greeter_at("killer", &image, OTHER_PORT, WITH_CGROUPS)
}

/// One boot serves all chapters: each begins where the one before ended.
async fn kernel_settings_are_in_force_at_once_and_end_with_the_config(scratch: Scratch) -> Outcome {
    let story = Story::begin(scratch).await?;
    chapters![
        settings_come_while_the_machine_runs(&story),
        the_greeter_has_the_machines_variables(&story),
        what_cannot_be_done_is_named_and_the_rest_is_done(&story),
        a_name_that_leads_elsewhere_is_refused_before_anything_is_done(&story),
        a_kept_container_sees_no_change(&story),
        settings_stay_when_machined_is_killed(&story),
        a_kept_container_sees_what_the_next_generation_does_not_set(&story),
        settings_go_with_the_config(&story),
        a_rollback_leaves_no_settings(&story),
        settings_end_with_the_generation(&story),
    ]
    .await
}

async fn apply(story: &Story, yaml: &str, mode: &str) -> Result<String> {
    let said = run_apply(story, yaml, mode).await?;
    ensure!(said.code == Some(0), "{said:?}");
    Ok(said.output)
}

async fn run_apply(story: &Story, yaml: &str, mode: &str) -> Result<Said> {
    let file = story.scratch.write("next.yaml", yaml)?;
    let file = file.display().to_string();
    let client = Instarctl::of(&story.node, &story.scratch)?;
    let command = ["apply-config", "--file", &file, "--mode", mode];
    client.run(&command).await
}

/// Returns the kernel's present parameters.
async fn values(node: &Node) -> Result<Vec<String>> {
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

async fn are_undone(Story { node, before, .. }: &Story) -> Outcome {
    let values = values(node).await?;
    ensure!(values == *before, "{values:?} instead of {before:?}");
    let link = node.read("/sys/class/net/dummy0/address").await;
    ensure!(link.is_err(), "the module is still there");
    let file = node.read("/etc/app/conf.d/settings.json").await;
    ensure!(file.is_err(), "the file is still there: {file:?}");
    Ok(())
}

async fn settings_come_while_the_machine_runs(story: &Story) -> Outcome {
    let said = apply(story, &story.with_settings, "no-reboot").await?;
    let expected = "sysctls, sysfs, kernel modules, the environment, files below /etc";
    ensure!(said.contains(expected), "{said}");
    ensure!(!said.contains("Config: "), "warned of: {said}");
    are_set(&story.node).await?;
    let client = Instarctl::of(&story.node, &story.scratch)?;
    let shown = client.run(&["get", "kernelparamstatus"]).await?;
    for expected in ["proc.sys.vm.max_map_count", "262155"] {
        ensure!(shown.output.contains(expected), "{shown:?}");
    }
    Ok(())
}

/// The image's and the container's own variables win.
async fn the_greeter_has_the_machines_variables(story: &Story) -> Outcome {
    ensure!(!story.plain.contains("harbour"));
    story
        .node
        .wait_until("the greeter runs again", PATIENCE, async || {
            let variables = Greeter::of(&story.node)?.get("/read/proc/self/environ")?;
            let mut variables = variables.split('\0');
            ensure!(variables.any(|it| it == "SITE=harbour"));
            Ok(())
        })
        .await
}

async fn what_cannot_be_done_is_named_and_the_rest_is_done(story: &Story) -> Outcome {
    is_refused(story, "vm.no_such_thing", "/proc/sys/vm/no_such_thing").await?;
    let client = Instarctl::of(&story.node, &story.scratch)?;
    let status = client.run(&["get", "machinestatus", "-o", "yaml"]).await?;
    ensure!(status.output.contains("kernel settings"), "{status:?}");
    ensure!(story.node.read(FORWARD).await? == "1\n");
    Ok(())
}

async fn a_name_that_leads_elsewhere_is_refused_before_anything_is_done(story: &Story) -> Outcome {
    let name = "vm/../../1/environ";
    is_refused(story, name, "no name of a kernel parameter").await?;
    apply(story, &story.with_settings, "no-reboot").await?;
    are_set(&story.node).await?;
    story.node.wait_until_ready(PATIENCE).await
}

/// The config is refused with this name instead of a good parameter's.
async fn is_refused(story: &Story, name: &str, words: &str) -> Outcome {
    let wrong = story.with_settings.replace("vm/max_map_count", name);
    let said = run_apply(story, &wrong, "auto").await?;
    ensure!(said.code != Some(0), "{said:?}");
    ensure!(said.complaint.contains(words), "{said:?}");
    Ok(())
}

/// The same config applies in the next generation, without a reboot.
async fn an_upgrade_takes_the_settings_along(story: &Story, version: &str) -> Outcome {
    let Story { node, registry, .. } = story;
    let kernel = node.kernel_boot_id().await?;
    let image = registry.image_for_guest(&format!("{INSTALLER}:{version}"));
    let followed = upgrade_and_follow(node, &image, PATIENCE).await?;
    ensure!(followed.ending == Ending::Done, "{followed:#?}");
    ensure!(node.version().await?.tag == version);
    let now = node.kernel_boot_id().await?;
    ensure!(now == kernel, "the kernel rebooted");
    Ok(())
}

/// The next machined learns the former values from init's record; the chapter after this one restores them.
async fn settings_stay_when_machined_is_killed(Story { node, .. }: &Story) -> Outcome {
    let mark = node.vm().console_mark()?;
    let generation = node.read("/run/generation").await?;
    let machined = format!("generation.{}/machined", generation.trim());
    let kill = format!("/write/cgroup/{machined}/cgroup.kill?1");
    Greeter::at(node, OTHER_PORT)?.get(&kill)?;
    let again = "starting machined again";
    node.vm().wait_for_line_after(mark, again, PATIENCE)?;
    node.wait_for_api(PATIENCE).await?;
    node.wait_until_ready(PATIENCE).await?;
    are_set(node).await
}

async fn settings_go_with_the_config(story: &Story) -> Outcome {
    are_set(&story.node).await?;
    apply(story, &story.plain, "no-reboot").await?;
    are_undone(story).await?;
    // The config is tried, and taken back.
    apply(story, &story.with_settings, "try").await?;
    are_set(&story.node).await?;
    apply(story, &story.plain, "no-reboot").await?;
    are_undone(story).await
}

/// A version that gives itself up.
fn push_one_that_gives_up(scratch: &Scratch, registry: &Registry) -> Outcome {
    OciImage::read(&ImageUnderTest::second()?.installer())?
        .giving_up(scratch, GIVES_UP, "the moon is full")?
        .push(registry, INSTALLER, GIVES_UP)
        .map(drop)
}

/// The config of the next generation drops all settings.
async fn are_set_and_dropped_by_the_next_config(story: &Story) -> Outcome {
    apply(story, &story.with_settings, "no-reboot").await?;
    apply(story, &story.plain, "staged").await?;
    are_set(&story.node).await
}

/// The version that comes back has another config, and undoes the settings that it drops.
async fn a_rollback_leaves_no_settings(story: &Story) -> Outcome {
    are_set_and_dropped_by_the_next_config(story).await?;
    let image = story
        .registry
        .image_for_guest(&format!("{INSTALLER}:{GIVES_UP}"));
    let followed = upgrade_and_follow(&story.node, &image, PATIENCE).await?;
    ensure!(
        matches!(followed.ending, Ending::Failed(_)),
        "{followed:#?}"
    );
    story.node.wait_until_ready(PATIENCE).await?;
    are_undone(story).await
}

/// The next generation has another config, and finds the kernel as after a boot.
async fn settings_end_with_the_generation(story: &Story) -> Outcome {
    are_set_and_dropped_by_the_next_config(story).await?;
    an_upgrade_takes_the_settings_along(story, "v0.2.0").await?;
    are_undone(story).await
}

/// Returns how often the greeter, which reads a thousand times a second, has read a parameter and seen it change.
async fn changes(node: &Node, parameter: &str) -> Result<(u64, u64)> {
    let told = Greeter::of(node)?.get(&format!("/watch{parameter}"))?;
    let (readings, changes) = told.trim().split_once(' ').context("two numbers")?;
    Ok((readings.parse()?, changes.parse()?))
}

async fn a_kept_container_sees_no_change(story: &Story) -> Outcome {
    let watched = [MAPS, FORWARD];
    for parameter in watched {
        changes(&story.node, parameter).await?;
    }
    the_greeter_is_kept_over_an_upgrade(story, "v0.2.0").await?;
    for parameter in watched {
        let (readings, changes) = changes(&story.node, parameter).await?;
        println!("{parameter} over an upgrade: {readings} readings, {changes} changes");
        ensure!(readings > 500, "it hardly looked: {readings} readings");
        ensure!(changes == 0, "{parameter} has changed {changes} times");
    }
    Ok(())
}

async fn the_greeter_is_kept_over_an_upgrade(story: &Story, version: &str) -> Outcome {
    let pid = story.node.service_pid(GREETER).await?;
    an_upgrade_takes_the_settings_along(story, version).await?;
    let now = story.node.service_pid(GREETER).await?;
    ensure!(now == pid, "it was not kept");
    Ok(())
}

/// The next config drops one of two parameters: that one goes back, once, and the other one stays.
async fn a_kept_container_sees_what_the_next_generation_does_not_set(story: &Story) -> Outcome {
    let line = "  vm/max_map_count: 262155\n";
    ensure!(story.with_settings.contains(line));
    let without = story.with_settings.replace(line, "");
    apply(story, &without, "staged").await?;
    the_greeter_is_kept_over_an_upgrade(story, "v0.1.0").await?;
    for (parameter, expected) in [(MAPS, 1), (FORWARD, 0)] {
        let (_, changes) = changes(&story.node, parameter).await?;
        ensure!(changes == expected, "{parameter}: {changes} changes");
    }
    let maps = story.node.read(MAPS).await?;
    ensure!(maps.trim_end() == story.before[0], "{maps}");
    apply(story, &story.with_settings, "no-reboot").await?;
    Ok(())
}
