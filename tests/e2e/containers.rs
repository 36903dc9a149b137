//! Containers of the config: pulled, kept running, heard, and kept to themselves.

use std::time::{Duration, Instant};

use anyhow::ensure;
use instar_tests::{
    GREETER, GREETER_PORT, Greeter, HttpsRegistry, ImageUnderTest, Instarctl, MachineConfig, Node,
    Outcome, Registry, Scratch, Test, chapters, push_greeter, tests,
};

use crate::PATIENCE;

/// A second greeter listens here; it sees nothing of the node.
const ENCLOSED_PORT: u16 = 8081;
const ENCLOSED: &str = "enclosed";

pub(crate) fn tests() -> Vec<Test> {
    tests![containers_run_alone_and_are_started_again]
}

/// A third comes by HTTPS, a fourth from there without its authority being known.
const BY_HTTPS: &str = "by-https";
const BY_HTTPS_PORT: u16 = 8082;
const NOT_BELIEVED: &str = "not-believed";
/// A fifth has no network.
const ALONE: &str = "alone";

/// Where images come from, as a guest names it: the second registry is known by its authority, the third is not.
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

/// A container of the host's network that listens on this port.
fn listening(port: u16) -> String {
    format!("args: [\"{port}\"]\nnetwork: {{mode: host}}\n")
}

/// One boot for all: the chapters don't touch each other's containers.
async fn containers_run_alone_and_are_started_again(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    let digest = push_greeter(&registry)?;
    let https = HttpsRegistry::over(&registry, &scratch)?;
    let impostor = HttpsRegistry::over(&registry, &scratch.below("impostor")?)?;
    let sources = Sources {
        by_digest: format!("{}/greeter@{digest}", registry.host_for_guest()),
        host: registry.host_for_guest(),
        https: https.host_for_guest(),
        authority: https.authority_certificate(),
        not_believed: impostor.host_for_guest(),
    };
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .blank_disk()?
        .forward(GREETER_PORT)
        .forward(ENCLOSED_PORT)
        .forward(BY_HTTPS_PORT)
        .configure(move |config| sources.with_containers(config))
        .boot()
        .await?;
    let (by_tag, enclosed) = (Greeter::of(&node)?, Greeter::at(&node, ENCLOSED_PORT)?);
    chapters![
        greeters_answer(&node, [&by_tag, &enclosed]),
        come_by_https(&node),
        reaches_nobody(&node),
        sees_its_own_files_alone(&node, &by_tag, &enclosed),
        reads_nothing_of_the_nodes(&node, &enclosed),
        sees_its_own_processes_alone(&enclosed),
        changes_nothing_of_the_nodes(&node, &by_tag, &enclosed),
        is_heard(&node, &enclosed),
        starts_anew_when_told(&node, &scratch),
        starts_again_later_each_time(&node, &enclosed),
        starts_without_its_registry(&node, registry, &by_tag),
    ]
    .await
}

/// By tag and by digest.
async fn greeters_answer(node: &Node, greeters: [&Greeter; 2]) -> Outcome {
    for greeter in greeters {
        node.wait_until("the greeter answers", PATIENCE, async || greeter.greets())
            .await?;
    }
    Ok(())
}

async fn starts_anew_when_told(node: &Node, scratch: &Scratch) -> Outcome {
    let client = Instarctl::of(node, scratch)?;
    let before = node.service_pid(BY_HTTPS).await?;
    let said = client.run(&["restart", BY_HTTPS]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    let by_https = Greeter::at(node, BY_HTTPS_PORT)?;
    node.wait_until("it answers as another process", PATIENCE, async || {
        ensure!(node.service_pid(BY_HTTPS).await? != before);
        by_https.greets()
    })
    .await?;
    // A service, and no container.
    let said = client.run(&["restart", "apid"]).await?;
    ensure!(
        said.code != Some(0) && said.complaint.contains("no container \"apid\""),
        "{said:?}"
    );
    Ok(())
}

/// Without a network there is itself, and nobody else: neither the node's own services nor anybody beyond.
async fn reaches_nobody(node: &Node) -> Outcome {
    let seen = node
        .wait_until("it has looked around", PATIENCE, async || {
            let log = node.log(ALONE).await?;
            ensure!(log.contains("greeter: looked"), "{log}");
            Ok(log)
        })
        .await?;
    println!("{seen}");
    ensure!(seen.contains("links: lo\n"), "{seen}");
    ensure!(seen.contains("greeter: reaches itself\n"), "{seen}");
    ensure!(
        seen.matches("greeter: does not reach ").count() == 2,
        "{seen}"
    );
    // The greeter of the node's network answers there, as this one would find out if it were in it.
    node.wait_until("its check by a command passes", PATIENCE, async || {
        let health = node.service(ALONE).await?.health.unwrap_or_default();
        ensure!(health.healthy, "{health:?}");
        Ok(())
    })
    .await
}

/// From whom the config believes, and from nobody else.
async fn come_by_https(node: &Node) -> Outcome {
    let by_https = Greeter::at(node, BY_HTTPS_PORT)?;
    node.wait_until("the greeter by HTTPS answers", PATIENCE, async || {
        by_https.greets()
    })
    .await?;
    node.wait_until("the other registry is refused", PATIENCE, async || {
        let refused = node.service(NOT_BELIEVED).await?;
        let events = refused.events.unwrap_or_default().events;
        ensure!(
            events
                .iter()
                .any(|event| event.state == "Failed" && event.msg.contains("certificate")),
            "{events:#?}"
        );
        ensure!(
            events.iter().all(|event| event.state != "Running"),
            "{events:#?}"
        );
        Ok(())
    })
    .await
}

/// The node's files are out of sight and out of reach, but for what the config mounts.
async fn sees_its_own_files_alone(node: &Node, with_var: &Greeter, enclosed: &Greeter) -> Outcome {
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

/// Files of the node, and whether callers of the API are given them.
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

/// The node has the files, or the container could not fail to see them.
async fn reads_nothing_of_the_nodes(node: &Node, enclosed: &Greeter) -> Outcome {
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

/// This one is the first of them.
async fn sees_its_own_processes_alone(enclosed: &Greeter) -> Outcome {
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

/// A name that is not there, such as `/dev/kmsg`, is made in the container's own memory, and the node does not see that.
async fn changes_nothing_of_the_nodes(
    node: &Node,
    with_var: &Greeter,
    enclosed: &Greeter,
) -> Outcome {
    for path in OUT_OF_REACH {
        let written = enclosed.get(&format!("/write{path}"));
        ensure!(written.is_err(), "it writes {path}: {written:?}");
    }
    let hostname = node.hostname().await?;
    ensure!(
        !hostname.contains("greeter"),
        "the host's name is {hostname}"
    );
    enclosed.get("/write/dev/kmsg").ok();
    ensure!(!node.vm().console().contains("written by greeter"));
    enclosed.get("/write/own")?;
    ensure!(enclosed.get("/read/own")? == "written by greeter\n");
    ensure!(node.read("/own").await.is_err());
    ensure!(with_var.get("/read/own").is_err());
    Ok(())
}

/// Its output is in its log.
async fn is_heard(node: &Node, enclosed: &Greeter) -> Outcome {
    // There is no such file: what counts is that it was asked for.
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

/// Each end makes the next start wait twice as long.
async fn starts_again_later_each_time(node: &Node, enclosed: &Greeter) -> Outcome {
    let mut pauses = Vec::new();
    let first = node.service_pid(ENCLOSED).await?;
    for code in [3, 4, 5] {
        let asked = Instant::now();
        enclosed.exit(code);
        node.wait_until("it has started again", PATIENCE, async || enclosed.greets())
            .await?;
        pauses.push(asked.elapsed());
    }
    ensure!(node.service_pid(ENCLOSED).await? != first);
    // What came off its file system in its last life is gone.
    ensure!(enclosed.get("/read/own").is_err(), "its files outlive it");
    let events = node.service(ENCLOSED).await?.events.unwrap_or_default();
    let failures: Vec<String> = events
        .events
        .iter()
        .filter(|event| event.state == "Failed")
        .map(|event| event.msg.clone())
        .collect();
    for (failure, (code, pause)) in failures.iter().zip([(3, "0.5"), (4, "1.0"), (5, "2.0")]) {
        ensure!(
            failure.contains(&format!("code {code}"))
                && failure.ends_with(&format!("next start in {pause} s")),
            "{failures:#?}"
        );
    }
    ensure!(failures.len() == 3, "{failures:#?}");
    ensure!(
        pauses.last() >= Some(&Duration::from_secs(2)),
        "it said so, but started after {pauses:?}"
    );
    Ok(())
}

/// What a node has pulled runs whether the registry is there or not.
async fn starts_without_its_registry(node: &Node, registry: Registry, by_tag: &Greeter) -> Outcome {
    let before = node.service_pid(GREETER).await?;
    drop(registry);
    by_tag.exit(1);
    node.wait_until("it runs from the copy on the node", PATIENCE, async || {
        ensure!(node.service_pid(GREETER).await? != before);
        by_tag.greets()
    })
    .await
}
