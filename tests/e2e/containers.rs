//! Containers of the config: pulled, kept running, logged, and isolated.

use std::time::{Duration, Instant};

use anyhow::ensure;
use instar_api::machine::ServiceEvent;
use instar_tests::{
    GREETER, GREETER_PORT, Greeter, HttpsRegistry, ImageUnderTest, Instarctl, MachineConfig, Node,
    NodePlan, Outcome, Registry, Scratch, Test, chapters, push_greeter, tests,
};

use crate::PATIENCE;

/// The port of a second greeter, which sees nothing of the node.
const ENCLOSED_PORT: u16 = 8081;
const ENCLOSED: &str = "enclosed";

pub(crate) fn tests() -> Vec<Test> {
    tests![containers_run_alone_and_are_started_again]
}

/// A third greeter is pulled by HTTPS, a fourth by HTTPS from a registry whose authority the node does not know.
const BY_HTTPS: &str = "by-https";
const BY_HTTPS_PORT: u16 = 8082;
const NOT_BELIEVED: &str = "not-believed";
/// A fifth greeter has no network.
const ALONE: &str = "alone";

/// Registries as a guest names them: the node knows the second one's authority, and not the third one's.
struct Sources {
    host: String,
    by_digest: String,
    https: String,
    authority: String,
    not_believed: String,
}

impl Sources {
    fn with_containers(&self, config: MachineConfig) -> MachineConfig {
        let config = config
            .install_disk("/dev/vda")
            .registry(&self.host)
            .greeter(&self.host)
            .container(ENCLOSED, &self.by_digest, &listening(ENCLOSED_PORT));
        self.with_one_alone(self.with_https(config))
    }

    fn with_https(&self, config: MachineConfig) -> MachineConfig {
        let image = |host: &str| format!("{host}/greeter:v1");
        config
            .registry_authority(&self.https, &self.authority)
            .container(BY_HTTPS, &image(&self.https), &listening(BY_HTTPS_PORT))
            .registry_authority(&self.not_believed, &self.authority)
            .container(NOT_BELIEVED, &image(&self.not_believed), "")
    }

    fn with_one_alone(&self, config: MachineConfig) -> MachineConfig {
        let looks = format!(
            "args: [look, \"127.0.0.1:{GREETER_PORT}\", \"{}\"]\n",
            self.host
        );
        config
            .container(ALONE, &self.by_digest, &looks)
            .document(&format!(
                "apiVersion: instar.dev/v1alpha1\nkind: ContainerHealthConfig\nname: {ALONE}\nexec: {{command: [/greeter, has, /sys/class/net/lo]}}\n"
            ))
    }
}

/// The config of a container in the host's network that listens on this port.
fn listening(port: u16) -> String {
    format!("args: [\"{port}\"]\nnetwork: {{mode: host}}\n")
}

/// One boot serves all chapters, as they don't touch each other's containers.
async fn containers_run_alone_and_are_started_again(scratch: Scratch) -> Outcome {
    let registries = Registries::start(&scratch)?;
    let sources = registries.sources();
    let node = plan(&scratch)?
        .configure(move |config| sources.with_containers(config))
        .boot()
        .await?;
    let (by_tag, enclosed) = (Greeter::of(&node)?, Greeter::at(&node, ENCLOSED_PORT)?);
    chapters![
        images_come_from_whom_the_config_believes(&node, [&by_tag, &enclosed]),
        containers_are_kept_apart(&node, &by_tag, &enclosed),
        containers_start_again(&node, &scratch, &enclosed),
        a_container_starts_without_its_registry(&node, registries.usual, &by_tag),
    ]
    .await
}

/// The same images at one registry by HTTP, and at two by HTTPS.
struct Registries {
    usual: Registry,
    /// The digest of the greeter's image.
    digest: String,
    https: HttpsRegistry,
    impostor: HttpsRegistry,
}

impl Registries {
    fn start(scratch: &Scratch) -> anyhow::Result<Self> {
        let usual = Registry::start(scratch)?;
        Ok(Self {
            digest: push_greeter(&usual)?,
            https: HttpsRegistry::over(&usual, scratch)?,
            impostor: HttpsRegistry::over(&usual, &scratch.below("impostor")?)?,
            usual,
        })
    }

    fn sources(&self) -> Sources {
        let host = self.usual.host_for_guest();
        Sources {
            by_digest: format!("{host}/greeter@{}", self.digest),
            host,
            https: self.https.host_for_guest(),
            authority: self.https.authority_certificate(),
            not_believed: self.impostor.host_for_guest(),
        }
    }
}

fn plan(scratch: &Scratch) -> anyhow::Result<NodePlan> {
    Ok(Node::plan(scratch, &ImageUnderTest::first()?)
        .blank_disk()?
        .forward(GREETER_PORT)
        .forward(ENCLOSED_PORT)
        .forward(BY_HTTPS_PORT))
}

async fn images_come_from_whom_the_config_believes(
    node: &Node,
    greeters: [&Greeter; 2],
) -> Outcome {
    chapters![
        images_come_by_http(node, greeters),
        images_come_by_https(node),
        images_do_not_come_from_a_registry_of_another_authority(node),
    ]
    .await
}

async fn containers_are_kept_apart(node: &Node, with_var: &Greeter, enclosed: &Greeter) -> Outcome {
    chapters![
        a_container_without_a_network_reaches_nobody(node),
        a_container_is_checked_by_a_command_of_its_own(node),
        a_container_sees_its_own_files_alone(node, with_var, enclosed),
        a_container_reads_nothing_of_the_nodes(node, enclosed),
        a_container_sees_its_own_processes_alone(enclosed),
        a_container_changes_nothing_of_the_nodes(node, enclosed),
        a_container_writes_into_its_own_memory_alone(node, with_var, enclosed),
        a_containers_output_is_in_its_log(node, enclosed),
    ]
    .await
}

async fn containers_start_again(node: &Node, scratch: &Scratch, enclosed: &Greeter) -> Outcome {
    let client = Instarctl::of(node, scratch)?;
    chapters![
        a_container_starts_anew_when_told(node, &client),
        a_service_is_no_container_to_restart(&client),
        a_container_starts_again_later_each_time(node, enclosed),
    ]
    .await
}

/// The greeters were pulled by tag and by digest.
async fn images_come_by_http(node: &Node, greeters: [&Greeter; 2]) -> Outcome {
    for greeter in greeters {
        node.wait_until("the greeter answers", PATIENCE, async || greeter.greets())
            .await?;
    }
    Ok(())
}

async fn a_container_starts_anew_when_told(node: &Node, client: &Instarctl) -> Outcome {
    let before = node.service_pid(BY_HTTPS).await?;
    let said = client.run(&["restart", BY_HTTPS]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    let by_https = Greeter::at(node, BY_HTTPS_PORT)?;
    node.wait_until("it answers as another process", PATIENCE, async || {
        ensure!(node.service_pid(BY_HTTPS).await? != before);
        by_https.greets()
    })
    .await
}

async fn a_service_is_no_container_to_restart(client: &Instarctl) -> Outcome {
    let said = client.run(&["restart", "apid"]).await?;
    ensure!(
        said.code != Some(0) && said.complaint.contains("no container \"apid\""),
        "{said:?}"
    );
    Ok(())
}

/// A container without a network reaches itself, and neither the node's own services nor any other machine.
async fn a_container_without_a_network_reaches_nobody(node: &Node) -> Outcome {
    let seen = node.wait_until("it has looked around", PATIENCE, async || {
        let log = node.log(ALONE).await?;
        ensure!(log.contains("greeter: looked"), "{log}");
        Ok(log)
    });
    let seen = seen.await?;
    println!("{seen}");
    ensure!(seen.contains("links: lo\n"), "{seen}");
    ensure!(seen.contains("greeter: reaches itself\n"), "{seen}");
    let unreached = seen.matches("greeter: does not reach ").count();
    ensure!(unreached == 2, "{seen}");
    Ok(())
}

/// The greeter in the node's network would answer the check from there, so a container in that network would be
/// noticed.
async fn a_container_is_checked_by_a_command_of_its_own(node: &Node) -> Outcome {
    node.wait_until("its check by a command passes", PATIENCE, async || {
        let health = node.service(ALONE).await?.health.unwrap_or_default();
        ensure!(health.healthy, "{health:?}");
        Ok(())
    })
    .await
}

async fn images_come_by_https(node: &Node) -> Outcome {
    let by_https = Greeter::at(node, BY_HTTPS_PORT)?;
    node.wait_until("the greeter by HTTPS answers", PATIENCE, async || {
        by_https.greets()
    })
    .await
}

async fn images_do_not_come_from_a_registry_of_another_authority(node: &Node) -> Outcome {
    node.wait_until("the other registry is refused", PATIENCE, async || {
        let refused = node.service(NOT_BELIEVED).await?;
        let events = refused.events.unwrap_or_default().events;
        let is_refusal =
            |event: &ServiceEvent| event.state == "Failed" && event.msg.contains("certificate");
        ensure!(events.iter().any(is_refusal), "{events:#?}");
        let has_run = events.iter().any(|event| event.state == "Running");
        ensure!(!has_run, "{events:#?}");
        Ok(())
    })
    .await
}

/// The container sees and reaches none of the node's files, except the config's mounts.
async fn a_container_sees_its_own_files_alone(
    node: &Node,
    with_var: &Greeter,
    enclosed: &Greeter,
) -> Outcome {
    with_var.write_to_var("secret")?;
    ensure!(node.read("/var/secret").await? == "written by greeter\n");
    let root = enclosed.get("/list/")?;
    let names: Vec<&str> = root.lines().filter(|name| *name != "run").collect();
    ensure!(
        names == ["dev", "etc", "greeter", "proc", "sys"],
        "it sees {root}"
    );
    for own in ["machined", "apid"] {
        ensure!(enclosed.get(&format!("/list/run/{own}")).is_err());
    }
    Ok(())
}

/// Files of the node, and whether the API gives them out.
const OUT_OF_SIGHT: [(&str, bool); 5] = [
    ("/var/secret", true),
    ("/usr/lib/instar/image.json", true),
    (
        "/sys/firmware/qemu_fw_cfg/by_name/opt/dev.instar/config/raw",
        false,
    ),
    ("/proc/keys", false),
    ("/proc/1/root/usr/lib/instar/image.json", false),
];

/// The node has these files: otherwise their absence in the container would prove nothing.
async fn a_container_reads_nothing_of_the_nodes(node: &Node, enclosed: &Greeter) -> Outcome {
    for (path, given_out) in OUT_OF_SIGHT {
        match node.read(path).await {
            Ok(_) => ensure!(given_out, "the node gives out {path}"),
            Err(error) => ensure!(
                !given_out && format!("{error:#}").contains("is not given out"),
                "the node's {path}: {error:#}"
            ),
        }
        let read = enclosed.get(&format!("/read{path}"));
        ensure!(
            read.as_ref().map_or(true, String::is_empty),
            "it reads {path}: {read:?}"
        );
    }
    Ok(())
}

/// The greeter is the first of the processes that it sees.
async fn a_container_sees_its_own_processes_alone(enclosed: &Greeter) -> Outcome {
    let processes = enclosed.get("/list/proc")?;
    let numbers = processes.lines().filter(|name| name.parse::<u32>().is_ok());
    ensure!(numbers.count() == 1, "it sees {processes}");
    Ok(())
}

const OUT_OF_REACH: [&str; 5] = [
    "/proc/sys/kernel/hostname",
    "/proc/sysrq-trigger",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/fs/cgroup/cgroup.procs",
    "/etc/resolv.conf",
];

async fn a_container_changes_nothing_of_the_nodes(node: &Node, enclosed: &Greeter) -> Outcome {
    for path in OUT_OF_REACH {
        let written = enclosed.get(&format!("/write{path}"));
        ensure!(written.is_err(), "it writes {path}: {written:?}");
    }
    let hostname = node.hostname().await?;
    ensure!(
        !hostname.contains("greeter"),
        "the host's name is {hostname}"
    );
    Ok(())
}

/// A new name, e.g. `/dev/kmsg`, is made in the container's own memory, and the node does not see it.
async fn a_container_writes_into_its_own_memory_alone(
    node: &Node,
    with_var: &Greeter,
    enclosed: &Greeter,
) -> Outcome {
    enclosed.get("/write/dev/kmsg").ok();
    ensure!(!node.vm().console().contains("written by greeter"));
    enclosed.get("/write/own")?;
    ensure!(enclosed.get("/read/own")? == "written by greeter\n");
    ensure!(node.read("/own").await.is_err());
    ensure!(with_var.get("/read/own").is_err());
    Ok(())
}

/// The container's output is in its log.
async fn a_containers_output_is_in_its_log(node: &Node, enclosed: &Greeter) -> Outcome {
    // The file does not exist: the request alone makes the greeter print it.
    let _ = enclosed.get("/read/a-word-for-the-log");
    node.wait_until("its words are in its log", PATIENCE, async || {
        let log = node.log(ENCLOSED).await?;
        ensure!(
            log.contains("listening on port 8081") && log.contains("GET /read/a-word-for-the-log"),
            "{log}"
        );
        Ok(())
    })
    .await
}

/// Each end doubles the pause before the next start.
async fn a_container_starts_again_later_each_time(node: &Node, enclosed: &Greeter) -> Outcome {
    let first = node.service_pid(ENCLOSED).await?;
    let mut pauses = Vec::new();
    for (code, _) in ENDS {
        pauses.push(pause_after_an_end(node, enclosed, code).await?);
    }
    ensure!(node.service_pid(ENCLOSED).await? != first);
    // The file that the container made in its last life is gone.
    ensure!(enclosed.get("/read/own").is_err(), "its files outlive it");
    each_end_is_told_with_the_pause_after_it(node).await?;
    ensure!(
        pauses.last() >= Some(&Duration::from_secs(2)),
        "it said so, but started after {pauses:?}"
    );
    Ok(())
}

/// Exit codes, and the seconds until the next start.
const ENDS: [(u8, &str); 3] = [(3, "0.5"), (4, "1.0"), (5, "2.0")];

async fn pause_after_an_end(node: &Node, enclosed: &Greeter, code: u8) -> anyhow::Result<Duration> {
    let asked = Instant::now();
    enclosed.exit(code);
    node.wait_until("it has started again", PATIENCE, async || enclosed.greets())
        .await?;
    Ok(asked.elapsed())
}

async fn each_end_is_told_with_the_pause_after_it(node: &Node) -> Outcome {
    let events = node.service(ENCLOSED).await?.events.unwrap_or_default();
    let failures = (events.events.into_iter()).filter(|event| event.state == "Failed");
    let failures: Vec<String> = failures.map(|event| event.msg).collect();
    for (failure, (code, pause)) in failures.iter().zip(ENDS) {
        ensure!(
            failure.contains(&format!("code {code}"))
                && failure.ends_with(&format!("next start in {pause} s")),
            "{failures:#?}"
        );
    }
    ensure!(failures.len() == ENDS.len(), "{failures:#?}");
    Ok(())
}

/// A pulled image runs without its registry.
async fn a_container_starts_without_its_registry(
    node: &Node,
    registry: Registry,
    by_tag: &Greeter,
) -> Outcome {
    let before = node.service_pid(GREETER).await?;
    drop(registry);
    by_tag.exit(1);
    node.wait_until("it runs from the copy on the node", PATIENCE, async || {
        ensure!(node.service_pid(GREETER).await? != before);
        by_tag.greets()
    })
    .await
}
