//! `support` and `fleet support`: collect facts that may explain a problem, in one file.

use std::fmt::Debug;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flate2::Compression;
use flate2::write::GzEncoder;
use indicatif::{ProgressBar, ProgressStyle};
use instar_api::common::{ContainerDriver, Data};
use instar_api::machine::{ContainersRequest, DmesgRequest, LogsRequest};
use instar_client::{Failure, FailureKind, Node, event_history};
use instar_values::config_argument::without_config_urls;
use serde_json::{Value, json};
use tokio::time::timeout;
use tonic::{Response, Status, Streaming};

use super::get;
use crate::cli::Global;
use crate::each_node;
use crate::output::{Output, tell, yaml};
use crate::private_file::{self, PrivateFile};
use crate::target;

/// The namespace of the node's own services and containers.
const NAMESPACE: &str = "system";
/// Limit on the collection from one node.
const ONE: Duration = Duration::from_secs(300);
/// Timeout for a node to say that it is there.
const SIGN_OF_LIFE: Duration = Duration::from_secs(30);

/// A node, and the name of its folder in the file.
pub(super) struct Source {
    name: String,
    /// The connection to it, or why it cannot be asked.
    node: Result<Node, Failure>,
}

impl Source {
    /// Asks a node whether it is there, before each part of the file waits for it in vain: another node may pass the calls on.
    pub(super) async fn reach(name: String, node: Result<Node, Failure>) -> Self {
        let node = match node {
            Ok(node) => match timeout(SIGN_OF_LIFE, node.version()).await {
                Ok(Err(failure)) if failure.kind() == FailureKind::Unreachable => Err(failure),
                // One that only refuses may answer other calls.
                Ok(_) => Ok(node),
                Err(_) => {
                    let why = format!("{name}: no answer within {} s", SIGN_OF_LIFE.as_secs());
                    Err(Failure::new(FailureKind::TimedOut, why))
                }
            },
            Err(failure) => Err(failure),
        };
        Self { name, node }
    }
}

pub(super) async fn run(global: &Global, path: &Path, force: bool) -> Result<(), Failure> {
    let mut sources = Vec::new();
    for (name, node) in target::each(global).await? {
        sources.push(Source::reach(name, node).await);
    }
    let all = sources.len();
    // One node alone fails as with any other command.
    if let [Source { node: Err(_), .. }] = sources.as_slice() {
        return sources.remove(0).node.map(drop);
    }
    let away = collect(global, sources, path, force).await?;
    each_node::end(away, all)
}

/// Writes the file. What cannot be read is named in it, and on standard error. Returns the nodes that were not reached.
pub(super) async fn collect(
    global: &Global,
    sources: Vec<Source>,
    path: &Path,
    force: bool,
) -> Result<Vec<(String, Failure)>, Failure> {
    let mut bundle = Bundle::create(path, force)?;
    // On standard error, and only on a terminal: indicatif finds that out by itself.
    let bar = match global.output {
        Output::Table => ProgressBar::new_spinner(),
        Output::Json | Output::Yaml => ProgressBar::hidden(),
    };
    if let Ok(style) = ProgressStyle::with_template("{spinner} {pos} parts, {wide_msg}") {
        bar.set_style(style);
    }
    let (mut missing, mut away) = (Vec::new(), Vec::new());
    for Source { name, node } in sources {
        let node = match node {
            Ok(node) => node,
            Err(failure) => {
                let why = failure.chain();
                let why = why.strip_prefix(&format!("{name}: ")).unwrap_or(&why);
                missing.push(format!("{name}: {why}"));
                bundle.put(&format!("{name}/missing.txt"), why.as_bytes())?;
                away.push((name, failure));
                continue;
            }
        };
        let mut of_node = OfNode {
            name: &name,
            node: &node,
            bundle: &mut bundle,
            bar: &bar,
            missing: Vec::new(),
        };
        match timeout(ONE, of_node.collect()).await {
            Ok(collected) => collected?,
            Err(_) => of_node.missing.push(format!(
                "{name}: the rest, as the node took more than {} s",
                ONE.as_secs()
            )),
        }
        let lines = of_node.missing.join("\n");
        of_node.put("missing.txt", lines.as_bytes())?;
        missing.append(&mut of_node.missing);
    }
    bar.finish_and_clear();
    bundle.finish()?;
    for part in &missing {
        tell(&format!("missing: {part}"));
    }
    let path = path.display().to_string();
    global.output.show(
        || format!("wrote {path}; look through it before you give it to others"),
        || json!({ "file": path, "missing": missing }),
    )?;
    Ok(away)
}

/// The collection from one node.
struct OfNode<'a> {
    name: &'a str,
    node: &'a Node,
    bundle: &'a mut Bundle,
    bar: &'a ProgressBar,
    missing: Vec<String>,
}

impl OfNode<'_> {
    async fn collect(&mut self) -> Result<(), Failure> {
        let node = self.node;
        /// Adds the unchanged reply of a method without arguments.
        macro_rules! ask {
            ($name:literal, $method:ident) => {
                let reply = node.machine().$method(node.request(())).await;
                self.message($name, reply)?;
            };
        }
        ask!("version", version);
        ask!("services", service_list);
        ask!("processes", processes);
        ask!("memory", memory);
        ask!("mounts", mounts);
        ask!("load-average", load_avg);
        ask!("system-statistics", system_stat);
        ask!("disk-statistics", disk_stats);
        ask!("network-statistics", network_device_stats);
        ask!("processors", cpu_info);
        let request = ContainersRequest {
            namespace: NAMESPACE.to_owned(),
            driver: ContainerDriver::Containerd.into(),
        };
        let reply = node.machine().containers(node.request(request)).await;
        self.message("containers", reply)?;

        let request = DmesgRequest {
            follow: false,
            tail: false,
        };
        let reply = node.machine().dmesg(node.request(request)).await;
        self.stream("kernel.log", reply).await?;
        let listed = node.machine().logs_containers(node.request(())).await;
        let names: Vec<String> = listed.as_ref().map_or_else(
            |_| Vec::new(),
            |listed| {
                let lists = listed.get_ref().messages.iter();
                lists.flat_map(|list| list.ids.clone()).collect()
            },
        );
        self.message("logs", listed)?;
        for name in names {
            let request = LogsRequest {
                namespace: NAMESPACE.to_owned(),
                id: name.clone(),
                driver: ContainerDriver::Containerd.into(),
                follow: false,
                tail_lines: -1,
            };
            let reply = node.machine().logs(node.request(request)).await;
            self.stream(&format!("logs/{name}.log"), reply).await?;
        }
        self.events().await?;
        self.resources().await
    }

    async fn events(&mut self) -> Result<(), Failure> {
        let (events, whole) = event_history(self.node).await;
        if let Err(status) = whole {
            self.lacks("events", &status)?;
        }
        let lines = events.iter().map(|event| format!("{event:#?}\n"));
        let text: String = lines.collect();
        self.put("events.txt", text.as_bytes())
    }

    async fn resources(&mut self) -> Result<(), Failure> {
        let types = match get::everything(self.node).await {
            Ok(types) => types,
            Err(failure) => {
                self.missing.push(failure.to_string());
                return Ok(());
            }
        };
        for (name, resources) in types {
            match resources {
                Ok(resources) => {
                    let mut resources = Value::Array(resources);
                    hide_config_urls(&mut resources);
                    let text = yaml(&resources);
                    self.put(&format!("resources/{name}.yaml"), text.as_bytes())?;
                }
                Err(failure) => self.missing.push(failure.to_string()),
            }
        }
        Ok(())
    }

    /// Adds the fields of a reply.
    fn message<T: Debug>(
        &mut self,
        name: &str,
        reply: Result<Response<T>, Status>,
    ) -> Result<(), Failure> {
        match reply {
            Ok(reply) => {
                let text = format!("{:#?}\n", reply.into_inner());
                self.put(&format!("{name}.txt"), text.as_bytes())
            }
            Err(status) => self.lacks(name, &status),
        }
    }

    /// Adds all bytes of a stream, or the bytes before it broke.
    async fn stream(
        &mut self,
        name: &str,
        reply: Result<Response<Streaming<Data>>, Status>,
    ) -> Result<(), Failure> {
        let mut stream = match reply {
            Ok(reply) => reply.into_inner(),
            Err(status) => return self.lacks(name, &status),
        };
        let mut bytes = Vec::new();
        loop {
            match stream.message().await {
                Ok(Some(data)) => bytes.extend(data.bytes),
                Ok(None) => break,
                Err(status) => {
                    self.lacks(name, &status)?;
                    break;
                }
            }
        }
        self.put(name, &lines_without_config_urls(&bytes))
    }

    fn lacks(&mut self, name: &str, status: &Status) -> Result<(), Failure> {
        let words = match status.message() {
            "" => status.code().to_string(),
            words => words.to_owned(),
        };
        self.missing.push(format!("{}: {name}: {words}", self.name));
        Ok(())
    }

    fn put(&mut self, name: &str, content: &[u8]) -> Result<(), Failure> {
        let place = format!("{}/{name}", self.name);
        self.bar.set_message(place.clone());
        self.bar.inc(1);
        self.bundle.put(&place, content)
    }
}

/// Hides the URL of the machine config, which a node shows to administrators: whoever gets the file need not be one.
fn hide_config_urls(value: &mut Value) {
    match value {
        Value::String(text) => *text = without_config_urls(std::mem::take(text)),
        Value::Array(all) => all.iter_mut().for_each(hide_config_urls),
        Value::Object(all) => all.values_mut().for_each(hide_config_urls),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// The same for the lines of a log. Bytes that are no text stay as they are.
fn lines_without_config_urls(log: &[u8]) -> Vec<u8> {
    let mut shown = Vec::with_capacity(log.len());
    for line in log.split_inclusive(|byte| *byte == b'\n') {
        match std::str::from_utf8(line) {
            Ok(text) => shown.extend(without_config_urls(text.to_owned()).into_bytes()),
            Err(_) => shown.extend_from_slice(line),
        }
    }
    shown
}

/// The file, readable for its owner alone.
struct Bundle {
    name: String,
    archive: tar::Builder<GzEncoder<PrivateFile>>,
}

impl Bundle {
    fn create(path: &Path, force: bool) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let file = private_file::create(path, force)?;
        Ok(Self {
            name,
            archive: tar::Builder::new(GzEncoder::new(file, Compression::default())),
        })
    }

    fn put(&mut self, place: &str, content: &[u8]) -> Result<(), Failure> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(now.map_or(0, |now| now.as_secs()));
        self.archive
            .append_data(&mut header, place, content)
            .map_err(|error| Failure::io(format!("cannot write {}", self.name), error))
    }

    fn finish(self) -> Result<(), Failure> {
        self.archive
            .into_inner()
            .and_then(GzEncoder::finish)
            .and_then(PrivateFile::finish)
            .map_err(|error| Failure::io(format!("cannot write {}", self.name), error))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_url_of_the_config_is_in_no_part_for_administrators_either() {
        let log = b"kern: info: Command line: instar.config=https://u:p@h/c?t=1 quiet\n\xff\n";
        let shown = b"kern: info: Command line: instar.config=<hidden> quiet\n\xff\n";
        assert_eq!(lines_without_config_urls(log), shown);
        let mut resources = json!([{ "spec": { "cmdline": "a talos.config=http://h b", "n": 1 } }]);
        hide_config_urls(&mut resources);
        assert_eq!(
            resources,
            json!([{ "spec": { "cmdline": "a talos.config=<hidden> b", "n": 1 } }])
        );
    }

    #[test]
    fn a_bundle_is_private_and_replaces_nothing_unasked() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("support.tar.gz");
        let mut bundle = Bundle::create(&path, false).unwrap();
        bundle.put("a node/x.txt", b"content").unwrap();
        bundle.finish().unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let refused = Bundle::create(&path, false).map(|_| ()).unwrap_err();
        assert_eq!(refused.kind(), FailureKind::Refused);
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(
            std::fs::File::open(&path).unwrap(),
        ));
        let names: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().display().to_string())
            .collect();
        assert_eq!(names, ["a node/x.txt"]);
        assert!(Bundle::create(&path, true).is_ok());
    }
}
