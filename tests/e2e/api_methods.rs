//! The methods that look at a node: by instarctl, by plain calls, and by a client that learns them from the node.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use instar_api::common::{ContainerDriver, Data, Metadata};
use instar_api::machine::image_service_client::ImageServiceClient;
use instar_api::machine::machine_service_client::MachineServiceClient;
use instar_api::machine::{
    ContainersRequest, CopyRequest, DiskUsageRequest, ListRequest, ReadRequest,
};
use instar_pki::Role;
use instar_tests::{
    GREETER, Greeter, Grpcio, Instarctl, Machine, Node, Outcome, Registry, Scratch, Test,
    WrongTimeServer, chapters, plan_with_greeter, tests,
};
use serde_json::{Value, json};
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Status, Streaming};

use crate::PATIENCE;

/// What the time server is ahead of the host.
const AHEAD: Duration = Duration::from_secs(1000);

pub(crate) fn tests() -> Vec<Test> {
    tests![methods_that_look_show_the_node_and_none_of_its_secrets]
}

/// One boot for all: nothing here changes what another chapter looks at.
async fn methods_that_look_show_the_node_and_none_of_its_secrets(scratch: Scratch) -> Outcome {
    let grpcio = Grpcio::ready(&scratch)?;
    let asked = AskedNode::boot(scratch).await?;
    chapters![
        the_machine_is_shown(&asked),
        what_it_runs_is_shown(&asked),
        its_files_are_shown(&asked),
        clients_are_served(&asked),
        apid_has_given_everything_up(&asked.node),
        support_collects_what_there_is(&asked),
        secrets_stay(&asked.node, &asked.greeter),
        readers_see_less(&asked.node),
        several_nodes_may_be_named(&asked.node),
        the_node_teaches_its_methods(&grpcio, &asked.node),
    ]
    .await
}

async fn the_machine_is_shown(asked: &AskedNode) -> Outcome {
    let node = &asked.node;
    chapters![
        memory_has_figures(asked),
        processes_have_their_programs(asked),
        the_api_listens(asked),
        our_own_connection_is_listed(asked),
        the_load_is_the_kernels(node),
        every_processor_has_figures(node),
        the_card_has_figures(node),
        the_disk_has_figures(node),
    ]
    .await
}

async fn what_it_runs_is_shown(asked: &AskedNode) -> Outcome {
    chapters![
        the_container_is_listed(asked),
        the_container_has_figures(asked),
        the_disk_is_listed(asked),
        var_is_mounted_from_the_disk(asked),
    ]
    .await
}

async fn its_files_are_shown(asked: &AskedNode) -> Outcome {
    chapters![
        directories_are_listed(asked),
        a_file_is_printed(asked),
        directories_are_copied_whole(asked),
        files_are_copied(asked),
        disk_usage_adds_up(asked),
    ]
    .await
}

async fn clients_are_served(asked: &AskedNode) -> Outcome {
    chapters![
        the_clock_is_compared_with_a_time_server(asked),
        images_are_listed_and_pulled(asked),
        images_that_are_needed_or_absent_are_refused(asked),
        the_node_is_healthy(asked),
        values_are_written_and_deleted(asked),
        a_new_client_config_lets_a_reader_look(asked),
        tables_and_yaml_say_the_same(asked),
    ]
    .await
}

/// A node with a greeter, and those around it.
struct AskedNode {
    scratch: Scratch,
    registry: Registry,
    node: Node,
    greeter: Greeter,
    instarctl: Instarctl,
}

impl AskedNode {
    async fn boot(scratch: Scratch) -> Result<Self> {
        let registry = Registry::start(&scratch)?;
        let plan = plan_with_greeter(&scratch, &registry, |config| config)?;
        let node = plan.memory_mib(512).blank_disk()?.boot().await?;
        let greeter = Greeter::of(&node)?;
        node.wait_until("the greeter answers", PATIENCE, async || greeter.greets())
            .await?;
        Ok(Self {
            instarctl: Instarctl::of(&node, &scratch)?,
            scratch,
            registry,
            node,
            greeter,
        })
    }

    /// The JSON of a command of instarctl, one value per line.
    async fn lines(&self, arguments: &[&str]) -> Result<Vec<Value>> {
        let in_json = [&["--output", "json"], arguments].concat();
        let said = self.instarctl.run(&in_json).await?;
        ensure!(said.code == Some(0), "{arguments:?}: {said:?}");
        said.output
            .lines()
            .map(|line| serde_json::from_str(line).context("not JSON"))
            .collect()
    }

    /// The JSON of a command that answers with one value.
    async fn one(&self, arguments: &[&str]) -> Result<Value> {
        let mut lines = self.lines(arguments).await?;
        ensure!(lines.len() == 1, "{arguments:?}: {lines:?}");
        Ok(lines.remove(0))
    }

    /// Names that `ls` gives.
    async fn names(&self, arguments: &[&str]) -> Result<Vec<String>> {
        let lines = self.lines(arguments).await?;
        let name = |line: &Value| text(&line["relative_name"]).to_owned();
        Ok(lines.iter().map(name).collect())
    }

    /// A command is refused with these words.
    async fn refuses(&self, arguments: &[&str], words: &str) -> Outcome {
        let said = self.instarctl.run(arguments).await?;
        ensure!(said.code != Some(0), "{arguments:?}: {said:?}");
        let complaint = said.complaint;
        ensure!(complaint.contains(words), "{arguments:?}: {complaint}");
        Ok(())
    }
}

/// A JSON string, or nothing.
fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The members of a JSON array, or none.
fn members(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The member of an array whose field says this.
fn member<'a>(array: &'a Value, field: &str, says: &str) -> Result<&'a Value> {
    let found = members(array).iter().find(|one| one[field] == says);
    found.with_context(|| format!("none has the {field} {says}: {array}"))
}

async fn memory_has_figures(asked: &AskedNode) -> Outcome {
    let memory = asked.one(&["memory"]).await?;
    let kib = |name: &str| memory["kib"][name].as_u64().unwrap_or(0);
    let total = kib("memtotal");
    ensure!((400_000..=524_288).contains(&total), "{memory}");
    ensure!(kib("memavailable") > 0, "{memory}");
    Ok(())
}

async fn processes_have_their_programs(asked: &AskedNode) -> Outcome {
    let listed = asked.one(&["processes"]).await?;
    let named = |name: &str| member(&listed["processes"], "command", name);
    ensure!(named("init")?["pid"] == 1, "{listed}");
    let machined = named("machined")?;
    ensure!(machined["executable"] == "/usr/sbin/machined", "{machined}");
    let resident = machined["resident_bytes"].as_u64();
    ensure!(resident > Some(1 << 20), "{machined}");
    ensure!(named("kthreadd")?["args"] == "", "{listed}");
    Ok(())
}

async fn the_api_listens(asked: &AskedNode) -> Outcome {
    let arguments = ["netstat", "--listening", "--programs", "--tcp"];
    let listening = asked.one(&arguments).await?;
    let is_api = |socket: &&Value| text(&socket["local"]).ends_with(":50000");
    let api = members(&listening["sockets"]).iter().find(is_api);
    let api = api.with_context(|| listening.to_string())?;
    ensure!(api["state"] == "LISTEN", "{api}");
    // machined and init hold it too; the lowest of them is as good a name for it.
    ensure!(api["pid"].as_u64() > Some(0), "{api}");
    Ok(())
}

async fn our_own_connection_is_listed(asked: &AskedNode) -> Outcome {
    let listed = asked.one(&["processes"]).await?;
    let apid = &member(&listed["processes"], "command", "apid")?["pid"];
    let connected = asked.one(&["netstat", "--programs"]).await?;
    let is_ours = |socket: &Value| socket["state"] == "ESTABLISHED" && socket["pid"] == *apid;
    ensure!(
        members(&connected["sockets"]).iter().any(is_ours),
        "our own connection is not there: {connected}"
    );
    Ok(())
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
    ensure!(stat.boot_time > 1_700_000_000, "{stat:?}");
    ensure!(!stat.cpu.is_empty(), "{stat:?}");
    ensure!(stat.process_created > 10, "{stat:?}");
    let cpus = machine.cpu_info(()).await?.into_inner();
    let cpus = cpus.messages.first().context("no processors")?;
    ensure!(cpus.cpu_info.len() == stat.cpu.len(), "{cpus:?}");
    ensure!(cpus.cpu_info[0].flags.iter().any(|flag| flag == "fpu"));
    // A virtual machine has no frequencies to tell; the answer is there.
    let frequencies = machine.cpu_freq_stats(()).await?.into_inner();
    ensure!(frequencies.messages.len() == 1);
    Ok(())
}

async fn the_card_has_figures(node: &Node) -> Outcome {
    let mut machine = node.machine().await?;
    let network = machine.network_device_stats(()).await?.into_inner();
    let network = network.messages.first().context("no figures of cards")?;
    let mut cards = network.devices.iter().filter(|card| card.name != "lo");
    ensure!(cards.any(|card| card.rx_bytes > 1000), "{network:?}");
    Ok(())
}

async fn the_disk_has_figures(node: &Node) -> Outcome {
    let disks = node.machine().await?.disk_stats(()).await?.into_inner();
    let disks = disks.messages.first().context("no figures of disks")?;
    let mut vda = disks.devices.iter().filter(|disk| disk.name == "vda");
    ensure!(vda.any(|disk| disk.write_sectors > 1000), "{disks:?}");
    Ok(())
}

async fn the_container_is_listed(asked: &AskedNode) -> Outcome {
    let listed = asked.one(&["containers"]).await?;
    let greeter = &listed["containers"][0];
    ensure!(greeter["id"] == GREETER, "{listed}");
    ensure!(greeter["status"] == "RUNNING", "{listed}");
    ensure!(greeter["pid"].as_u64() > Some(2), "{listed}");
    ensure!(text(&greeter["image"]).contains("/greeter:v1"), "{listed}");
    Ok(())
}

async fn the_container_has_figures(asked: &AskedNode) -> Outcome {
    let stats = asked.one(&["stats"]).await?;
    let greeter = &stats["stats"][0];
    ensure!(greeter["id"] == GREETER, "{stats}");
    ensure!(greeter["memory_bytes"].as_u64() > Some(10_000), "{stats}");
    ensure!(greeter["cpu_nanoseconds"].as_u64() > Some(0), "{stats}");
    Ok(())
}

async fn the_disk_is_listed(asked: &AskedNode) -> Outcome {
    let disks = asked.one(&["disks"]).await?;
    let [disk] = members(&disks["disks"]) else {
        bail!("one disk is there, and not {disks}");
    };
    ensure!(disk["device"] == "/dev/vda", "{disk}");
    ensure!(disk["size"] == 4_u64 << 30, "{disk}");
    ensure!(disk["system_disk"] == true, "{disk}");
    Ok(())
}

async fn var_is_mounted_from_the_disk(asked: &AskedNode) -> Outcome {
    let mounts = asked.one(&["mounts"]).await?;
    let on_var = |mount: &&Value| mount["mounted_on"] == "/var";
    let var: Vec<_> = members(&mounts["mounts"]).iter().filter(on_var).collect();
    ensure!(var.len() == 1, "{mounts}");
    ensure!(var[0]["filesystem"] == "/dev/vda3", "{mounts}");
    ensure!(var[0]["size"].as_u64() > Some(3 << 30), "{mounts}");
    Ok(())
}

async fn directories_are_listed(asked: &AskedNode) -> Outcome {
    let root = asked.names(&["ls", "/"]).await?;
    ensure!(root[0] == ".", "{root:?}");
    for name in ["etc", "proc", "usr", "var"] {
        ensure!(root.iter().any(|other| other == name), "{name}: {root:?}");
    }
    // A name may be seen; what is under it may not.
    let system = asked.names(&["ls", "/system", "--recurse"]).await?;
    ensure!(system == [".", "state"], "{system:?}");
    let links = asked.names(&["ls", "/etc", "--type", "l"]).await?;
    ensure!(links.contains(&"os-release".to_owned()), "{links:?}");
    let said = asked.instarctl.run(&["ls", "-l", "/dev/null"]).await?;
    ensure!(said.output.starts_with("crw"), "{said:?}");
    Ok(())
}

async fn a_file_is_printed(asked: &AskedNode) -> Outcome {
    let release = asked.instarctl.run(&["cat", "/etc/os-release"]).await?;
    ensure!(release.output.contains("ID=instar"), "{release:?}");
    Ok(())
}

async fn directories_are_copied_whole(asked: &AskedNode) -> Outcome {
    asked.greeter.write_to_var("copied")?;
    let target = asked.scratch.join("copied");
    let into = target.to_string_lossy().into_owned();
    asked.lines(&["cp", "/var", &into]).await?;
    let copied = std::fs::read_to_string(target.join("copied"))?;
    ensure!(copied == "written by greeter\n", "{copied}");
    // Whole images, links and owners included, come along.
    ensure!(target.join("lib/instar/images").is_dir());
    // Statistics of the kernel have their content, whatever their size says.
    asked.lines(&["cp", "/sys/fs/cgroup", &into]).await?;
    let controllers = std::fs::read_to_string(target.join("cgroup.controllers"))?;
    ensure!(controllers.contains("memory"), "{controllers}");
    Ok(())
}

async fn files_are_copied(asked: &AskedNode) -> Outcome {
    let target = asked.scratch.join("copied");
    let into = target.to_string_lossy().into_owned();
    let file = "/usr/lib/instar/image.json";
    asked.lines(&["cp", file, &into]).await?;
    let copied = std::fs::read_to_string(target.join("image.json"))?;
    ensure!(copied.contains("\"version\":"), "{copied}");
    Ok(())
}

async fn disk_usage_adds_up(asked: &AskedNode) -> Outcome {
    let usage = asked.lines(&["du", "--depth", "1", "/var"]).await?;
    let bytes = |line: &Value| line["bytes"].as_u64().unwrap_or(0);
    let (whole, parts) = usage.split_last().context("du said nothing")?;
    ensure!(whole["name"] == "/var", "{usage:?}");
    ensure!(bytes(whole) > 100_000, "{usage:?}");
    let sum: u64 = parts.iter().map(bytes).sum();
    ensure!(sum <= bytes(whole), "{usage:?}");
    let has_lib = parts.iter().any(|line| line["name"] == "/var/lib");
    ensure!(has_lib, "{usage:?}");
    Ok(())
}

async fn the_clock_is_compared_with_a_time_server(asked: &AskedNode) -> Outcome {
    let server = WrongTimeServer::start(AHEAD)?;
    let name = server.host_for_guest();
    let check = ["time", "--check", &name];
    let time = asked.one(&check).await?;
    ensure!(time["server"] == name.as_str(), "{time}");
    let behind = time["behind_seconds"].as_f64().unwrap_or(0.0);
    let off = (behind - AHEAD.as_secs_f64()).abs();
    ensure!(off < 60.0, "{time}");
    drop(server);
    asked.refuses(&check, "gives no time").await
}

async fn images_are_listed_and_pulled(asked: &AskedNode) -> Outcome {
    let in_use = asked.registry.image_for_guest("greeter:v1");
    let listed = asked.one(&["image", "list"]).await?;
    let images = members(&listed["images"]).iter();
    let names: Vec<&str> = images.map(|image| text(&image["name"])).collect();
    ensure!(names == [in_use.as_str()], "{listed}");
    let pulled = asked.one(&["image", "pull", &in_use]).await?;
    let name = text(&pulled["image"]);
    ensure!(name.contains("/greeter@sha256:"), "{pulled}");
    Ok(())
}

async fn images_that_are_needed_or_absent_are_refused(asked: &AskedNode) -> Outcome {
    let in_use = asked.registry.image_for_guest("greeter:v1");
    let absent = asked.registry.image_for_guest("nothing:v1");
    for (verb, image, words) in [
        ("remove", &in_use, "is needed by the container greeter"),
        ("pull", &absent, "nothing:v1"),
        ("remove", &absent, "there is no image"),
    ] {
        asked.refuses(&["image", verb, image], words).await?;
    }
    Ok(())
}

async fn the_node_is_healthy(asked: &AskedNode) -> Outcome {
    let health = asked.lines(&["health", "--wait-timeout", "2m"]).await?;
    let last = health.last().context("health said nothing")?;
    ensure!(text(&last["message"]).starts_with("healthy"), "{health:?}");
    Ok(())
}

async fn values_are_written_and_deleted(asked: &AskedNode) -> Outcome {
    asked.one(&["meta", "write", "0x0a", "value"]).await?;
    asked.one(&["meta", "delete", "10"]).await?;
    let again = ["meta", "delete", "10"];
    asked
        .refuses(&again, "there is no value under key 10")
        .await
}

async fn a_new_client_config_lets_a_reader_look(asked: &AskedNode) -> Outcome {
    let file = asked.scratch.join("reader.yaml");
    let path = file.to_string_lossy().into_owned();
    let for_an_hour = ["--roles", "os:reader", "--crt-ttl", "1h"];
    let new = [&["config", "new", &path][..], &for_an_hour].concat();
    asked.one(&new).await?;
    let made = std::fs::read_to_string(&file)?;
    ensure!(made.contains("endpoints:"), "{made}");
    ensure!(made.contains("key:"), "{made}");
    let reader = asked.instarctl.with_config(file);
    let version = reader.run(&["version"]).await?;
    ensure!(version.code == Some(0), "{version:?}");
    let read = reader.run(&["read", "/etc/os-release"]).await?;
    ensure!(read.code == Some(4), "{read:?}");
    let other = ["config", "new", "-", "--roles", "os:everything"];
    asked.refuses(&other, "is no role").await
}

async fn tables_and_yaml_say_the_same(asked: &AskedNode) -> Outcome {
    let table = asked.instarctl.run(&["disks"]).await?;
    ensure!(table.output.starts_with("NODE"), "{table:?}");
    ensure!(table.output.contains("/dev/vda"), "{table:?}");
    let yaml = asked.instarctl.run(&["-o", "yaml", "disks"]).await?;
    ensure!(yaml.output.starts_with("---\n"), "{yaml:?}");
    ensure!(yaml.output.contains("device: /dev/vda"), "{yaml:?}");
    Ok(())
}

/// The part that strangers talk to is nobody on the machine.
async fn apid_has_given_everything_up(node: &Node) -> Outcome {
    let apid = node.service_pid("apid").await?;
    chapters![
        apid_has_no_rights(node, apid),
        apid_sees_one_directory(node, apid),
        apid_is_given_little_memory(node),
    ]
    .await
}

/// What the kernel says of a process that has given everything up (proc_pid_status(5)).
const WITHOUT_RIGHTS: [(&str, &str); 11] = [
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
];

async fn apid_has_no_rights(node: &Node, apid: u32) -> Outcome {
    let status = node.read(&format!("/proc/{apid}/status")).await?;
    for (field, expected) in WITHOUT_RIGHTS {
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        let line = line.with_context(|| format!("no {field} in {status}"))?;
        let words: Vec<&str> = line.split_whitespace().collect();
        ensure!(words.join(" ") == expected, "{field} {words:?}");
    }
    Ok(())
}

/// A directory that cannot be written: what of its filesystem, where, and how (proc_pid_mountinfo(5)).
async fn apid_sees_one_directory(node: &Node, apid: u32) -> Outcome {
    let mounts = node.read(&format!("/proc/{apid}/mountinfo")).await?;
    ensure!(mounts.lines().count() == 1, "{mounts}");
    let fields: Vec<&str> = mounts.split(' ').collect();
    ensure!(fields[3..5] == ["/apid", "/"], "{mounts}");
    let options = fields[5];
    ensure!(options.starts_with("ro,nosuid,nodev,noexec"), "{mounts}");
    Ok(())
}

/// Of half a gibibyte of memory a quarter: what a caller may have it hold.
async fn apid_is_given_little_memory(node: &Node) -> Outcome {
    let file = "/sys/fs/cgroup/generation.1/apid/memory.max";
    let limit = node.read(file).await?;
    let limit: u64 = limit.trim().parse().context("apid may hold all memory")?;
    ensure!((64 << 20..=128 << 20).contains(&limit), "{limit}");
    Ok(())
}

async fn support_collects_what_there_is(asked: &AskedNode) -> Outcome {
    chapters![
        var_has_room(asked),
        logs_are_listed(asked),
        no_dependencies_are_told(asked),
        everything_is_in_one_file_and_no_secret(asked),
    ]
    .await
}

async fn var_has_room(asked: &AskedNode) -> Outcome {
    let filesystems = asked.one(&["diskfree"]).await?;
    let var = member(&filesystems["filesystems"], "mounted_on", "/var")?;
    ensure!(var["size"].as_u64() > Some(1 << 30), "{var}");
    ensure!(var["inodes_used"].as_u64() > Some(0), "{var}");
    Ok(())
}

async fn logs_are_listed(asked: &AskedNode) -> Outcome {
    let logs = asked.one(&["logs"]).await?;
    ensure!(members(&logs["logs"]).contains(&json!("apid")), "{logs}");
    Ok(())
}

async fn no_dependencies_are_told(asked: &AskedNode) -> Outcome {
    let edges = asked.one(&["inspect", "dependencies"]).await?;
    ensure!(edges["edges"] == json!([]), "{edges}");
    Ok(())
}

async fn everything_is_in_one_file_and_no_secret(asked: &AskedNode) -> Outcome {
    let file = asked.scratch.join("support.tar.gz");
    let path = file.display().to_string();
    let support = ["support", "--file", &path];
    let said = asked.one(&support).await?;
    ensure!(said["missing"] == json!([]), "{said}");
    asked.refuses(&support, "exists").await?;
    let parts = unpack_texts(&file)?;
    every_part_is_there(&parts)?;
    no_key_is_in(&parts, &asked.node)
}

/// The files of a packed archive, by their paths.
type Texts = BTreeMap<String, String>;

fn unpack_texts(archive: &Path) -> Result<Texts> {
    let packed = flate2::read::GzDecoder::new(std::fs::File::open(archive)?);
    let mut texts = Texts::new();
    for entry in tar::Archive::new(packed).entries()? {
        let mut entry = entry?;
        let mut text = String::new();
        std::io::Read::read_to_string(&mut entry, &mut text)?;
        texts.insert(entry.path()?.display().to_string(), text);
    }
    Ok(texts)
}

/// Parts of a support file, and a word of each.
const SUPPORT_PARTS: [(&str, &str); 7] = [
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
];

fn every_part_is_there(parts: &Texts) -> Outcome {
    for (name, word) in SUPPORT_PARTS {
        let text = parts.get(&format!("127.0.0.1/{name}"));
        let text = text.with_context(|| format!("no {name}: {:?}", parts.keys()))?;
        ensure!(text.contains(word), "no {word} in {name}: {text}");
    }
    Ok(())
}

fn no_key_is_in(parts: &Texts, node: &Node) -> Outcome {
    let identity = node.identity();
    for secret in [identity.authority_key(), identity.key.clone()] {
        let encoded = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, &secret);
        for (name, text) in parts {
            ensure!(!text.contains(&secret), "a key is in {name}");
            ensure!(!text.contains(&encoded), "a key is in {name}");
        }
    }
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
    [
        ("Read", read(machine, path).await),
        ("Copy", copy(machine, path).await.map(drop)),
        ("List", list(machine, path).await),
        ("DiskUsage", count(machine, path).await),
    ]
}

async fn read(machine: &mut Machine, path: &str) -> Result<(), Status> {
    let request = ReadRequest {
        path: path.to_owned(),
    };
    all(machine.read(request).await).await.map(drop)
}

async fn copy(machine: &mut Machine, path: &str) -> Result<Vec<Data>, Status> {
    let request = CopyRequest {
        root_path: path.to_owned(),
    };
    all(machine.copy(request).await).await
}

async fn list(machine: &mut Machine, path: &str) -> Result<(), Status> {
    let request = ListRequest {
        root: path.to_owned(),
        recurse: true,
        ..ListRequest::default()
    };
    all(machine.list(request).await).await.map(drop)
}

async fn count(machine: &mut Machine, path: &str) -> Result<(), Status> {
    let request = DiskUsageRequest {
        paths: vec![path.to_owned()],
        all: true,
        ..DiskUsageRequest::default()
    };
    all(machine.disk_usage(request).await).await.map(drop)
}

async fn secrets_do_not_come_along_with_what_is_around_them(machine: &mut Machine) -> Outcome {
    let pieces = copy(machine, "/system").await?.into_iter();
    let packed: Vec<u8> = pieces.flat_map(|piece| piece.bytes).collect();
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(packed.as_slice()));
    for entry in archive.entries()? {
        let name = entry?.path()?.into_owned();
        ensure!(name.components().count() <= 2, "{}", name.display());
        let is_known = name == Path::new(".") || name.ends_with("state");
        ensure!(is_known, "{}", name.display());
    }
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
    let mut machine = MachineServiceClient::new(node.channel_as(&reader).await?);
    ensure!(machine.processes(()).await.is_ok());
    let refused = read(&mut machine, "/etc/os-release").await;
    let code = refused.as_ref().err().map(Status::code);
    ensure!(code == Some(Code::PermissionDenied), "{refused:?}");
    Ok(())
}

/// Older clients name any number of nodes; what cannot be told apart is refused.
async fn several_nodes_may_be_named(node: &Node) -> Outcome {
    chapters![
        answers_have_the_name_that_was_asked_for(node),
        a_name_of_no_node_is_an_error_in_its_place(node),
        streams_of_several_are_refused(node),
    ]
    .await
}

/// A request to the nodes of these names.
fn to_nodes<T>(nodes: &'static str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    let names = MetadataValue::from_static(nodes);
    request.metadata_mut().insert("nodes", names);
    request
}

/// What is said of the node of this name, which is asked for its containers.
async fn metadata_of(node: &Node, name: &'static str) -> Result<Metadata> {
    let request = ContainersRequest {
        namespace: "system".to_owned(),
        driver: ContainerDriver::Containerd.into(),
    };
    let mut machine = node.machine().await?;
    let answer = machine.containers(to_nodes(name, request)).await?;
    let message = answer.into_inner().messages.into_iter().next();
    let message = message.context("an empty answer to Containers")?;
    Ok(message.metadata.unwrap_or_default())
}

async fn answers_have_the_name_that_was_asked_for(node: &Node) -> Outcome {
    let named = metadata_of(node, "127.0.0.1").await?;
    ensure!(named.hostname == "127.0.0.1", "{named:?}");
    Ok(())
}

async fn a_name_of_no_node_is_an_error_in_its_place(node: &Node) -> Outcome {
    let named = metadata_of(node, "elsewhere:1").await?;
    ensure!(named.hostname == "elsewhere:1", "{named:?}");
    let status = named.status.clone().unwrap_or_default();
    let code = Code::from_i32(status.code);
    ensure!(code == Code::InvalidArgument, "{named:?}");
    Ok(())
}

async fn streams_of_several_are_refused(node: &Node) -> Outcome {
    let mut images = ImageServiceClient::new(node.channel().await?);
    let listed = images.list(to_nodes("127.0.0.1", Default::default())).await;
    let refused = all(listed).await.map(drop);
    let code = refused.as_ref().err().map(Status::code);
    ensure!(code == Some(Code::InvalidArgument), "{refused:?}");
    Ok(())
}

/// A client that has never seen our protos.
async fn the_node_teaches_its_methods(grpcio: &Grpcio, node: &Node) -> Outcome {
    let learned = grpcio.reflect(node, &learned_calls())?;
    ensure!(learned["health"] == "SERVING", "{learned}");
    the_services_that_are_served_are_told(&learned)?;
    calls_of_learned_methods_are_answered(&learned["said"])?;
    calls_of_learned_methods_are_refused(&learned["said"])
}

/// The first five are answered, the others are refused.
fn learned_calls() -> Value {
    json!([
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
    ])
}

/// The services that a node serves, and no others that the protos know.
const SERVED: [&str; 11] = [
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
];

fn the_services_that_are_served_are_told(learned: &Value) -> Outcome {
    let services = members(&learned["services"]).iter();
    let services: Vec<&str> = services.filter_map(Value::as_str).collect();
    ensure!(services == SERVED, "{services:?}");
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
    for (index, code, words) in [
        (5, "INVALID_ARGUMENT", ""),
        (6, "UNIMPLEMENTED", "no Kubernetes"),
        (7, "UNIMPLEMENTED", "no Kubernetes"),
        (8, "UNIMPLEMENTED", "no Kubernetes"),
        // A service, and no container.
        (9, "NOT_FOUND", ""),
        (10, "INVALID_ARGUMENT", ""),
        (11, "PERMISSION_DENIED", ""),
    ] {
        let said = &said[index];
        ensure!(said["code"] == code, "{said}");
        ensure!(text(&said["details"]).contains(words), "{said}");
    }
    Ok(())
}
