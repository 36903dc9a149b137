//! The methods that look at a node: by instarctl, by plain calls, and by a client that learns them from the node.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use instar_api::common::{ContainerDriver, Data};
use instar_api::machine::{
    ContainersRequest, CopyRequest, DiskUsageRequest, ListRequest, ReadRequest,
};
use instar_pki::Role;
use instar_tests::{
    GREETER, Greeter, Grpcio, Instarctl, Machine, Node, Outcome, Registry, Scratch, Test,
    WrongTimeServer, plan_with_greeter, tests,
};
use serde_json::{Value, json};
use tonic::{Code, Status, Streaming};

use crate::PATIENCE;

/// What the time server is ahead of the host.
const AHEAD: Duration = Duration::from_secs(1000);

pub(crate) fn tests() -> Vec<Test> {
    tests![methods_that_look_show_the_node_and_none_of_its_secrets]
}

/// One boot for all: nothing here changes what another step looks at.
async fn methods_that_look_show_the_node_and_none_of_its_secrets(scratch: Scratch) -> Outcome {
    let grpcio = Grpcio::ready(&scratch)?;
    let registry = Registry::start(&scratch)?;
    let node = plan_with_greeter(&scratch, &registry, |config| config)?
        .memory_mib(512)
        .blank_disk()?
        .boot()
        .await?;
    let greeter = Greeter::of(&node)?;
    node.wait_until("the greeter answers", PATIENCE, async || greeter.greets())
        .await?;
    let instarctl = Instarctl::of(&node, &scratch)?;

    let told = Told {
        instarctl: &instarctl,
    };
    told.figures().await?;
    let apid = told.processes_with_their_programs().await?;
    told.sockets_with_their_processes(&apid).await?;
    the_load_is_the_kernels(&node).await?;
    every_processor_has_figures(&node).await?;
    the_card_and_the_disk_have_figures(&node).await?;
    told.containers().await?;
    told.disks_and_mounts().await?;
    told.files(&scratch, &greeter).await?;
    told.time().await?;
    told.images(&registry).await?;
    told.health_and_values(&scratch).await?;
    told.forms().await?;
    apid_has_given_everything_up(&node).await?;
    told.support(&node, &scratch).await?;
    secrets_stay(&node, &greeter).await?;
    readers_see_less(&node).await?;
    several_nodes_at_once(&node).await?;
    learned_by_reflection(&grpcio, &node)
}

/// The part that strangers talk to is nobody on the machine, as the kernel sees it (proc_pid_status(5)).
async fn apid_has_given_everything_up(node: &Node) -> Outcome {
    let apid = node.service_pid("apid").await?;
    let status = node.read(&format!("/proc/{apid}/status")).await?;
    for (field, expected) in [
        ("Uid:", "50 50 50 50"),
        ("Gid:", "50 50 50 50"),
        ("Groups:", ""),
        ("CapInh:", "0000000000000000"),
        ("CapPrm:", "0000000000000000"),
        ("CapEff:", "0000000000000000"),
        ("CapBnd:", "0000000000000000"),
        ("CapAmb:", "0000000000000000"),
        ("NoNewPrivs:", "1"),
        // A filter, and not the strict mode.
        ("Seccomp:", "2"),
        ("Seccomp_filters:", "1"),
    ] {
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        let words: Vec<&str> = line
            .with_context(|| format!("no {field} in {status}"))?
            .split_whitespace()
            .collect();
        ensure!(words.join(" ") == expected, "{field} {words:?}");
    }
    // One directory, which cannot be written, is all that it sees: what of its filesystem, where, and how (proc_pid_mountinfo(5)).
    let mounts = node.read(&format!("/proc/{apid}/mountinfo")).await?;
    let fields: Vec<&str> = mounts.split(' ').collect();
    ensure!(
        mounts.lines().count() == 1
            && fields[3..5] == ["/apid", "/"]
            && fields[5].starts_with("ro,nosuid,nodev,noexec"),
        "{mounts}"
    );
    // Half a gibibyte of memory, and a quarter of it: what a caller may have it hold.
    let limit = node
        .read("/sys/fs/cgroup/generation.1/apid/memory.max")
        .await?;
    let limit: u64 = limit.trim().parse().context("apid may hold all memory")?;
    ensure!((64 << 20..=128 << 20).contains(&limit), "{limit}");
    Ok(())
}

/// instarctl and what it was told.
struct Told<'a> {
    instarctl: &'a Instarctl,
}

impl Told<'_> {
    /// The command's JSON, one value per line.
    async fn lines(&self, arguments: &[&str]) -> anyhow::Result<Vec<Value>> {
        let said = self
            .instarctl
            .run(&[&["--output", "json"], arguments].concat())
            .await?;
        ensure!(said.code == Some(0), "{arguments:?}: {said:?}");
        said.output
            .lines()
            .map(|line| serde_json::from_str(line).context("not JSON"))
            .collect()
    }

    async fn one(&self, arguments: &[&str]) -> anyhow::Result<Value> {
        let mut lines = self.lines(arguments).await?;
        ensure!(lines.len() == 1, "{arguments:?}: {lines:?}");
        Ok(lines.remove(0))
    }

    /// The words of a refusal.
    async fn refused(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let said = self.instarctl.run(arguments).await?;
        ensure!(said.code != Some(0), "{arguments:?}: {said:?}");
        Ok(said.complaint)
    }

    async fn figures(&self) -> Outcome {
        let memory = self.one(&["memory"]).await?;
        let kib = |name: &str| memory["kib"][name].as_u64().unwrap_or(0);
        ensure!(
            (400_000..=524_288).contains(&kib("memtotal")) && kib("memavailable") > 0,
            "{memory}"
        );
        Ok(())
    }

    /// Returns apid's number.
    async fn processes_with_their_programs(&self) -> anyhow::Result<Value> {
        let listed = self.one(&["processes"]).await?;
        let processes = listed["processes"].as_array().context("no processes")?;
        let named = |name: &str| {
            processes
                .iter()
                .find(|process| process["command"] == name)
                .with_context(|| format!("no process {name}: {listed}"))
        };
        ensure!(named("init")?["pid"] == 1, "{listed}");
        let machined = named("machined")?;
        ensure!(
            machined["executable"] == "/usr/sbin/machined"
                && machined["resident_bytes"].as_u64() > Some(1 << 20),
            "{machined}"
        );
        ensure!(named("kthreadd")?["args"] == "");
        Ok(named("apid")?["pid"].clone())
    }

    async fn sockets_with_their_processes(&self, apid: &Value) -> Outcome {
        let listening = self
            .one(&["netstat", "--listening", "--programs", "--tcp"])
            .await?;
        let sockets = listening["sockets"].as_array().context("no sockets")?;
        let api = sockets
            .iter()
            .find(|socket| {
                socket["local"]
                    .as_str()
                    .is_some_and(|local| local.ends_with(":50000"))
            })
            .with_context(|| listening.to_string())?;
        // machined and init hold it too; the lowest of them is as good a name for it.
        ensure!(
            api["state"] == "LISTEN" && api["pid"].as_u64() > Some(0),
            "{api}"
        );
        let connected = self.one(&["netstat", "--programs"]).await?;
        ensure!(
            connected["sockets"]
                .as_array()
                .is_some_and(|sockets| sockets
                    .iter()
                    .any(|socket| socket["state"] == "ESTABLISHED" && socket["pid"] == *apid)),
            "our own connection is not there: {connected}"
        );
        Ok(())
    }

    async fn containers(&self) -> Outcome {
        let listed = self.one(&["containers"]).await?;
        let greeter = &listed["containers"][0];
        ensure!(
            greeter["id"] == GREETER
                && greeter["status"] == "RUNNING"
                && greeter["pid"].as_u64() > Some(2)
                && greeter["image"]
                    .as_str()
                    .is_some_and(|image| image.contains("/greeter:v1")),
            "{listed}"
        );
        let stats = self.one(&["stats"]).await?;
        let greeter = &stats["stats"][0];
        ensure!(
            greeter["id"] == GREETER
                && greeter["memory_bytes"].as_u64() > Some(10_000)
                && greeter["cpu_nanoseconds"].as_u64() > Some(0),
            "{stats}"
        );
        Ok(())
    }

    async fn disks_and_mounts(&self) -> Outcome {
        let disks = self.one(&["disks"]).await?;
        let disk = &disks["disks"][0];
        ensure!(
            disks["disks"].as_array().map(Vec::len) == Some(1)
                && disk["device"] == "/dev/vda"
                && disk["size"] == 4_u64 << 30
                && disk["system_disk"] == true,
            "{disks}"
        );
        let mounts = self.one(&["mounts"]).await?;
        let var = mounts["mounts"].as_array().into_iter().flatten();
        let var: Vec<_> = var.filter(|mount| mount["mounted_on"] == "/var").collect();
        ensure!(
            var.len() == 1
                && var[0]["filesystem"] == "/dev/vda3"
                && var[0]["size"].as_u64() > Some(3 << 30),
            "{mounts}"
        );
        Ok(())
    }

    async fn files(&self, scratch: &Scratch, greeter: &Greeter) -> Outcome {
        let names = async |arguments: &[&str]| {
            let lines = self.lines(arguments).await?;
            let name = |line: &Value| line["relative_name"].as_str().unwrap_or("").to_owned();
            anyhow::Ok(lines.iter().map(name).collect::<Vec<_>>())
        };
        let root = names(&["ls", "/"]).await?;
        ensure!(
            root[0] == "."
                && ["etc", "proc", "usr", "var"]
                    .iter()
                    .all(|name| root.contains(&(*name).to_owned())),
            "{root:?}"
        );
        // A name may be seen; what is under it may not.
        let system = names(&["ls", "/system", "--recurse"]).await?;
        ensure!(system == [".", "state"], "{system:?}");
        let links = names(&["ls", "/etc", "--type", "l"]).await?;
        ensure!(links.contains(&"os-release".to_owned()), "{links:?}");
        let said = self.instarctl.run(&["ls", "-l", "/dev/null"]).await?;
        ensure!(said.output.starts_with("crw"), "{said:?}");

        let release = self.instarctl.run(&["cat", "/etc/os-release"]).await?;
        ensure!(release.output.contains("ID=instar"), "{release:?}");

        greeter.write_to_var("copied")?;
        let target = scratch.join("copied");
        let into = target.to_string_lossy().into_owned();
        self.lines(&["cp", "/var", &into]).await?;
        ensure!(std::fs::read_to_string(target.join("copied"))? == "written by greeter\n");
        // Whole images, links and owners included, come along.
        ensure!(target.join("lib/instar/images").is_dir());
        self.lines(&["cp", "/usr/lib/instar/image.json", &into])
            .await?;
        ensure!(std::fs::read_to_string(target.join("image.json"))?.contains("\"version\":"));
        // Statistics of the kernel have their content, whatever their size says.
        self.lines(&["cp", "/sys/fs/cgroup", &into]).await?;
        ensure!(std::fs::read_to_string(target.join("cgroup.controllers"))?.contains("memory"));

        let usage = self.lines(&["du", "--depth", "1", "/var"]).await?;
        let bytes = |line: &Value| line["bytes"].as_u64().unwrap_or(0);
        let (whole, parts) = usage.split_last().context("du said nothing")?;
        ensure!(
            whole["name"] == "/var"
                && bytes(whole) > 100_000
                && parts.iter().map(bytes).sum::<u64>() <= bytes(whole)
                && parts.iter().any(|line| line["name"] == "/var/lib"),
            "{usage:?}"
        );
        Ok(())
    }

    /// Everything in one file, and no secret in it.
    async fn support(&self, node: &Node, scratch: &Scratch) -> Outcome {
        let filesystems = self.one(&["diskfree"]).await?;
        let var = filesystems["filesystems"]
            .as_array()
            .and_then(|all| all.iter().find(|one| one["mounted_on"] == "/var"))
            .with_context(|| filesystems.to_string())?;
        ensure!(
            var["size"].as_u64() > Some(1 << 30) && var["inodes_used"].as_u64() > Some(0),
            "{var}"
        );
        let logs = self.one(&["logs"]).await?;
        ensure!(
            logs["logs"]
                .as_array()
                .is_some_and(|logs| logs.contains(&json!("apid"))),
            "{logs}"
        );
        let edges = self.one(&["inspect", "dependencies"]).await?;
        ensure!(edges["edges"] == json!([]), "{edges}");

        let file = scratch.join("support.tar.gz");
        let path = file.display().to_string();
        let said = self.one(&["support", "--file", &path]).await?;
        ensure!(said["missing"] == json!([]), "{said}");
        let refused = self.refused(&["support", "--file", &path]).await?;
        ensure!(refused.contains("exists"), "{refused}");
        let packed = flate2::read::GzDecoder::new(std::fs::File::open(&file)?);
        let mut parts = std::collections::BTreeMap::new();
        for entry in tar::Archive::new(packed).entries()? {
            let mut entry = entry?;
            let mut text = String::new();
            std::io::Read::read_to_string(&mut entry, &mut text)?;
            parts.insert(entry.path()?.display().to_string(), text);
        }
        for (name, word) in [
            ("version.txt", "v0.1.0"),
            ("kernel.log", "machined: booted v0.1.0"),
            ("services.txt", GREETER),
            ("logs/machined.log", "boot"),
            ("events.txt", "SequenceEvent"),
            ("processes.txt", "/usr/sbin/machined"),
            (
                "resources/MachineStatuses.runtime.talos.dev.yaml",
                "stage: running",
            ),
        ] {
            let text = parts.get(&format!("127.0.0.1/{name}"));
            let text = text.with_context(|| format!("no {name}: {:?}", parts.keys()))?;
            ensure!(text.contains(word), "no {word} in {name}: {text}");
        }
        let secrets = [node.identity().authority_key(), node.identity().key.clone()];
        for secret in secrets {
            let encoded = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, &secret);
            for (name, text) in &parts {
                ensure!(
                    !text.contains(&secret) && !text.contains(&encoded),
                    "a key is in {name}"
                );
            }
        }
        Ok(())
    }

    async fn time(&self) -> Outcome {
        let server = WrongTimeServer::start(AHEAD)?;
        let name = server.host_for_guest();
        let time = self.one(&["time", "--check", &name]).await?;
        let behind = time["behind_seconds"].as_f64().unwrap_or(0.0);
        ensure!(
            time["server"] == name.as_str() && (behind - AHEAD.as_secs_f64()).abs() < 60.0,
            "{time}"
        );
        drop(server);
        let refused = self.refused(&["time", "--check", &name]).await?;
        ensure!(refused.contains("gives no time"), "{refused}");
        Ok(())
    }

    async fn images(&self, registry: &Registry) -> Outcome {
        let names = async || {
            let listed = self.one(&["image", "list"]).await?;
            let images = listed["images"].as_array().cloned().unwrap_or_default();
            let name = |image: &Value| image["name"].as_str().unwrap_or("").to_owned();
            anyhow::Ok(images.iter().map(name).collect::<Vec<_>>())
        };
        let in_use = registry.image_for_guest("greeter:v1");
        ensure!(names().await? == std::slice::from_ref(&in_use));
        let pulled = self.one(&["image", "pull", &in_use]).await?;
        ensure!(
            pulled["image"]
                .as_str()
                .is_some_and(|name| name.contains("/greeter@sha256:")),
            "{pulled}"
        );
        let refused = self.refused(&["image", "remove", &in_use]).await?;
        ensure!(
            refused.contains("is needed by the container greeter"),
            "{refused}"
        );
        let absent = registry.image_for_guest("nothing:v1");
        let refused = self.refused(&["image", "pull", &absent]).await?;
        ensure!(refused.contains("nothing:v1"), "{refused}");
        let refused = self.refused(&["image", "remove", &absent]).await?;
        ensure!(refused.contains("there is no image"), "{refused}");
        Ok(())
    }

    async fn health_and_values(&self, scratch: &Scratch) -> Outcome {
        let health = self.lines(&["health", "--wait-timeout", "2m"]).await?;
        ensure!(
            health.last().is_some_and(|line| line["message"]
                .as_str()
                .is_some_and(|message| message.starts_with("healthy"))),
            "{health:?}"
        );
        self.one(&["meta", "write", "0x0a", "value"]).await?;
        self.one(&["meta", "delete", "10"]).await?;
        let refused = self.refused(&["meta", "delete", "10"]).await?;
        ensure!(
            refused.contains("there is no value under key 10"),
            "{refused}"
        );

        let file = scratch.join("reader.yaml");
        let path = file.to_string_lossy().into_owned();
        self.one(&[
            "config",
            "new",
            &path,
            "--roles",
            "os:reader",
            "--crt-ttl",
            "1h",
        ])
        .await?;
        let made = std::fs::read_to_string(&file)?;
        ensure!(
            made.contains("endpoints:") && made.contains("key:"),
            "{made}"
        );
        // The new client gets in, and may look only.
        let reader = self.instarctl.with_config(file);
        let version = reader.run(&["version"]).await?;
        ensure!(version.code == Some(0), "{version:?}");
        let read = reader.run(&["read", "/etc/os-release"]).await?;
        ensure!(read.code == Some(4), "{read:?}");
        let refused = self
            .refused(&["config", "new", "-", "--roles", "os:everything"])
            .await?;
        ensure!(refused.contains("is no role"), "{refused}");
        Ok(())
    }

    /// Tables and YAML say the same.
    async fn forms(&self) -> Outcome {
        let table = self.instarctl.run(&["disks"]).await?;
        ensure!(
            table.output.starts_with("NODE") && table.output.contains("/dev/vda"),
            "{table:?}"
        );
        let yaml = self.instarctl.run(&["-o", "yaml", "disks"]).await?;
        ensure!(
            yaml.output.starts_with("---\n") && yaml.output.contains("device: /dev/vda"),
            "{yaml:?}"
        );
        Ok(())
    }
}

/// Unless it changes in between.
async fn the_load_is_the_kernels(node: &Node) -> Outcome {
    node.wait_until("it tells the kernel's load", PATIENCE, async || {
        let load = node.machine().await?.load_avg(()).await?.into_inner();
        let load = load.messages.first().context("no load")?;
        let told = format!("{:.2} {:.2} {:.2} ", load.load1, load.load5, load.load15);
        let kernel = node.read("/proc/loadavg").await?;
        ensure!(kernel.starts_with(&told), "{load:?}, and {kernel}");
        Ok(())
    })
    .await
}

async fn every_processor_has_figures(node: &Node) -> Outcome {
    let mut machine = node.machine().await?;
    let stat = machine.system_stat(()).await?.into_inner();
    let stat = stat.messages.first().context("no figures")?;
    ensure!(
        stat.boot_time > 1_700_000_000 && !stat.cpu.is_empty() && stat.process_created > 10,
        "{stat:?}"
    );
    let cpus = machine.cpu_info(()).await?.into_inner();
    let cpus = cpus.messages.first().context("no processors")?;
    ensure!(cpus.cpu_info.len() == stat.cpu.len(), "{cpus:?}");
    ensure!(cpus.cpu_info[0].flags.iter().any(|flag| flag == "fpu"));
    // A virtual machine has no frequencies to tell; the answer is there.
    let frequencies = machine.cpu_freq_stats(()).await?.into_inner();
    ensure!(frequencies.messages.len() == 1);
    Ok(())
}

async fn the_card_and_the_disk_have_figures(node: &Node) -> Outcome {
    let mut machine = node.machine().await?;
    let network = machine.network_device_stats(()).await?.into_inner();
    let network = network.messages.first().context("no figures of cards")?;
    let has_received = network
        .devices
        .iter()
        .any(|device| device.name != "lo" && device.rx_bytes > 1000);
    ensure!(has_received, "{network:?}");
    let disks = machine.disk_stats(()).await?.into_inner();
    let disks = disks.messages.first().context("no figures of disks")?;
    let was_written = disks
        .devices
        .iter()
        .any(|disk| disk.name == "vda" && disk.write_sectors > 1000);
    ensure!(was_written, "{disks:?}");
    Ok(())
}

async fn all<T>(stream: Result<tonic::Response<Streaming<T>>, Status>) -> Result<Vec<T>, Status> {
    let mut stream = stream?.into_inner();
    let mut messages = Vec::new();
    while let Some(message) = stream.message().await? {
        messages.push(message);
    }
    Ok(messages)
}

/// Names of secrets, and ways around: through links of a container, and through processes.
const SECRETS: [&str; 23] = [
    "/system/state",
    "/system/state/config.yaml",
    "/usr/../system/./state/config.yaml",
    "/proc/self/root/system/state/config.yaml",
    "/proc/1/root/system/state/config.yaml",
    "/proc/2/root/proc/sys/kernel/random/boot_id",
    "/proc/self/cwd/system/state/config.yaml",
    "/proc/self/fd/3",
    "/proc/self/environ",
    "/proc/1/environ",
    "/proc/1/mem",
    "/proc/self/task/1/mem",
    "/proc/kmsg",
    "/proc/keys",
    "/proc/kallsyms",
    "/proc/sys/net/ipv4/tcp_fastopen_key",
    "/run/workloads",
    "/run/workloads/crun",
    // The config that the firmware handed over.
    "/sys/firmware/qemu_fw_cfg/by_name/opt/dev.instar/config/raw",
    "/var/link-to-state",
    "/var/link-to-root",
    "/var/link-to-root/etc/os-release",
    "/var/link-out",
];

/// Not even an administrator gets at them: not by another name, not by a link, not through another process.
async fn secrets_stay(node: &Node, greeter: &Greeter) -> Outcome {
    let mut machine = node.machine().await?;
    // The container has /var of the node, and could be anybody's.
    for (name, target) in [
        ("link-to-state", "/system/state/config.yaml"),
        ("link-to-root", "/proc/1/root"),
        ("link-out", "../system/state/config.yaml"),
    ] {
        greeter.link_in_var(name, target)?;
    }
    for path in SECRETS {
        no_method_gives_a_secret_away(&mut machine, path).await?;
    }
    secrets_do_not_come_along_with_what_is_around_them(&mut machine).await?;
    what_is_no_secret_can_still_be_read(node).await
}

async fn no_method_gives_a_secret_away(machine: &mut Machine, path: &str) -> Outcome {
    for (method, refused) in asked_by_every_method(machine, path).await {
        let code = refused.as_ref().err().map(Status::code);
        // What a process does not have, nobody sees.
        let absent = path == "/proc/self/task/1/mem" && code == Some(Code::NotFound);
        ensure!(
            code == Some(Code::PermissionDenied) || absent,
            "{method} of {path}: {refused:?}"
        );
    }
    Ok(())
}

/// The methods that look at files, and how each ended.
async fn asked_by_every_method(
    machine: &mut Machine,
    path: &str,
) -> [(&'static str, Result<(), Status>); 4] {
    let root = || path.to_owned();
    let read = machine.read(ReadRequest { path: root() }).await;
    let read: Result<Vec<Data>, _> = all(read).await;
    let copied = machine.copy(CopyRequest { root_path: root() }).await;
    let copied = all(copied).await;
    let list = ListRequest {
        root: root(),
        recurse: true,
        ..ListRequest::default()
    };
    let listed = all(machine.list(list).await).await;
    let count = DiskUsageRequest {
        paths: vec![root()],
        all: true,
        ..DiskUsageRequest::default()
    };
    let counted = all(machine.disk_usage(count).await).await;
    [
        ("Read", read.map(drop)),
        ("Copy", copied.map(drop)),
        ("List", listed.map(drop)),
        ("DiskUsage", counted.map(drop)),
    ]
}

async fn secrets_do_not_come_along_with_what_is_around_them(machine: &mut Machine) -> Outcome {
    let around = CopyRequest {
        root_path: "/system".to_owned(),
    };
    let packed = all(machine.copy(around).await).await?.into_iter();
    let packed: Vec<u8> = packed.flat_map(|piece| piece.bytes).collect();
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(packed.as_slice()));
    let mut names = Vec::new();
    for entry in archive.entries()? {
        names.push(entry?.path()?.into_owned());
    }
    ensure!(
        names.iter().all(|name| name.components().count() <= 2
            && (name == Path::new(".") || name.ends_with("state"))),
        "{names:?}"
    );
    Ok(())
}

async fn what_is_no_secret_can_still_be_read(node: &Node) -> Outcome {
    ensure!(node.boot_id().await? != node.kernel_boot_id().await?);
    ensure!(node.read("/proc/1/status").await?.contains("init"));
    ensure!(!node.read("/proc/cmdline").await?.is_empty());
    Ok(())
}

async fn readers_see_less(node: &Node) -> Outcome {
    let reader = node.identity().with_role(Role::Reader)?;
    let channel = node.channel_as(&reader).await?;
    let mut machine =
        instar_api::machine::machine_service_client::MachineServiceClient::new(channel);
    ensure!(machine.processes(()).await.is_ok());
    let request = ReadRequest {
        path: "/etc/os-release".to_owned(),
    };
    let refused = all(machine.read(request).await).await.map(drop);
    ensure!(
        refused.as_ref().err().map(Status::code) == Some(Code::PermissionDenied),
        "{refused:?}"
    );
    Ok(())
}

/// Older clients name any number of nodes; what cannot be told apart is refused.
async fn several_nodes_at_once(node: &Node) -> Outcome {
    let mut machine = node.machine().await?;
    let ask = |node: &'static str| {
        let mut request = tonic::Request::new(ContainersRequest {
            namespace: "system".to_owned(),
            driver: ContainerDriver::Containerd.into(),
        });
        request
            .metadata_mut()
            .insert("nodes", tonic::metadata::MetadataValue::from_static(node));
        request
    };
    let answer = machine.containers(ask("127.0.0.1")).await?.into_inner();
    let named = answer.messages[0].metadata.clone().unwrap_or_default();
    ensure!(named.hostname == "127.0.0.1", "{named:?}");
    // What names no node is said in that one's place.
    let elsewhere = machine.containers(ask("elsewhere:1")).await?.into_inner();
    let named = elsewhere.messages[0].metadata.clone().unwrap_or_default();
    let status = named.status.clone().unwrap_or_default();
    ensure!(
        named.hostname == "elsewhere:1" && status.code == i32::from(Code::InvalidArgument),
        "{named:?}"
    );
    let mut images =
        instar_api::machine::image_service_client::ImageServiceClient::new(node.channel().await?);
    let mut request = tonic::Request::new(Default::default());
    request.metadata_mut().insert(
        "nodes",
        tonic::metadata::MetadataValue::from_static("127.0.0.1"),
    );
    let refused = all(images.list(request).await).await.map(drop);
    ensure!(
        refused.as_ref().err().map(Status::code) == Some(Code::InvalidArgument),
        "{refused:?}"
    );
    Ok(())
}

/// A client that has never seen our protos.
fn learned_by_reflection(grpcio: &Grpcio, node: &Node) -> Outcome {
    let learned = grpcio.reflect(
        node,
        &json!([
            ["machine.MachineService", "LoadAvg", {}],
            ["machine.MachineService", "List", {"root": "/", "recursionDepth": 1}],
            ["machine.StorageService", "Statfs", {"path": "/var"}],
            ["storage.StorageService", "Disks", {}],
            ["inspect.InspectService", "ControllerRuntimeDependencies", {}],
            ["time.TimeService", "TimeCheck", {}],
            ["machine.MachineService", "Kubeconfig", {}],
            ["machine.MachineService", "Bootstrap", {}],
            ["machine.MachineService", "EtcdMemberList", {}],
            ["machine.MachineService", "Restart", {"id": "apid"}],
            ["storage.StorageService", "BlockDeviceWipe", {}],
            ["cosi.resource.State", "Destroy", {}],
        ]),
    )?;
    ensure!(learned["health"] == "SERVING", "{learned}");
    the_services_that_are_served_are_told(&learned)?;
    calls_of_learned_methods_are_answered(&learned["said"])?;
    calls_of_learned_methods_are_refused(&learned["said"])
}

/// And no others that the protos know.
fn the_services_that_are_served_are_told(learned: &Value) -> Outcome {
    let services: Vec<&str> = learned["services"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    ensure!(
        services
            == [
                "cluster.ClusterService",
                "cosi.resource.State",
                "grpc.health.v1.Health",
                "inspect.InspectService",
                "instar.UpgradeService",
                "machine.ImageService",
                "machine.LifecycleService",
                "machine.MachineService",
                "machine.StorageService",
                "storage.StorageService",
                "time.TimeService",
            ],
        "{services:?}"
    );
    Ok(())
}

fn calls_of_learned_methods_are_answered(said: &Value) -> Outcome {
    let load = &said[0]["answer"]["messages"][0];
    ensure!(load["load1"].is_number(), "{}", said[0]);
    let files = said[1]["answers"].as_array();
    ensure!(files.map(Vec::len) > Some(5), "{}", said[1]);
    ensure!(said[2]["answer"]["inodes"].is_string(), "{}", said[2]);
    let disk = &said[3]["answer"]["messages"][0]["disks"][0];
    ensure!(disk["deviceName"] == "/dev/vda", "{disk}");
    let edges = said[4]["answer"]["messages"].as_array();
    ensure!(edges.map(Vec::len) == Some(1), "{}", said[4]);
    Ok(())
}

fn calls_of_learned_methods_are_refused(said: &Value) -> Outcome {
    ensure!(said[5]["code"] == "INVALID_ARGUMENT", "{}", said[5]);
    for (index, words) in [
        (6, "no Kubernetes"),
        (7, "no Kubernetes"),
        (8, "no Kubernetes"),
    ] {
        let said = &said[index];
        let details = said["details"].as_str();
        ensure!(
            said["code"] == "UNIMPLEMENTED"
                && details.is_some_and(|details| details.contains(words)),
            "{said}"
        );
    }
    ensure!(said[10]["code"] == "INVALID_ARGUMENT", "{}", said[10]);
    // A service, and no container.
    ensure!(said[9]["code"] == "NOT_FOUND", "{}", said[9]);
    ensure!(said[11]["code"] == "PERMISSION_DENIED", "{}", said[11]);
    Ok(())
}
