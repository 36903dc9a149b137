//! The program itself against a node in this process: its output and its exit code.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::panic)]

mod connections;
mod fake_node;
mod files;
mod fleet;
mod questions;
mod restarts;
mod secrets;
mod streams;
mod upgrades;
mod validate;
mod without_a_node;

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use fake_node::FakeNode;
use instar_api::machine::machine_status_event::MachineStage;
use instar_api::machine::sequence_event::Action;
use instar_pki::CertificateAuthority;
use serde_json::Value;
use tempfile::TempDir;

/// A node, and the directory with the files that `gen config` made for it.
struct Setup {
    directory: TempDir,
    node: Arc<FakeNode>,
}

impl Setup {
    fn new(script: impl Fn(&Arc<FakeNode>) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let directory = generate(&listener.local_addr().unwrap().to_string());
        let authority = authority(directory.path());
        let node = FakeNode::start(listener, &authority, Box::new(script));
        Self { directory, node }
    }

    fn run(&self, arguments: &[&str]) -> Run {
        run(self.directory.path(), arguments)
    }

    /// The node's address with its port.
    fn endpoint(&self) -> String {
        let text = std::fs::read_to_string(self.directory.path().join("talosconfig")).unwrap();
        let mut lines = text.lines();
        let endpoint = lines.find_map(|line| line.trim().strip_prefix("- "));
        endpoint.unwrap().trim_matches('"').to_owned()
    }

    fn upgrade(&self) -> Run {
        self.run(&[
            "upgrade",
            "--image",
            "r/i:v0.2.0",
            "--timeout",
            "30s",
            "-o",
            "json",
        ])
    }
}

/// Makes a configuration with the program.
fn generate(endpoint: &str) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let run = run(
        directory.path(),
        &["gen", "config", "demo", endpoint, "--output-dir", "."],
    );
    run.exits(0);
    directory
}

/// The authority in the machine config, read as a node reads it.
fn authority(directory: &Path) -> CertificateAuthority {
    use base64::Engine;
    #[derive(serde::Deserialize)]
    struct Main {
        machine: Machine,
    }
    #[derive(serde::Deserialize)]
    struct Machine {
        ca: Authority,
    }
    #[derive(serde::Deserialize)]
    struct Authority {
        crt: String,
        key: String,
    }
    let text = std::fs::read_to_string(directory.join("machine.yaml")).unwrap();
    let main: Main = serde_saphyr::from_str(text.split("---\n").next().unwrap()).unwrap();
    let decode = |value: &str| String::from_utf8(BASE64_STANDARD.decode(value).unwrap()).unwrap();
    let ca = main.machine.ca;
    CertificateAuthority::from_pem(&decode(&ca.crt), &decode(&ca.key)).unwrap()
}

struct Run(Output);

fn run(directory: &Path, arguments: &[&str]) -> Run {
    Run(command(directory, arguments).output().unwrap())
}

fn command(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_instarctl"));
    command
        .args(arguments)
        .current_dir(directory)
        .env_clear()
        .env("TALOSCONFIG", directory.join("talosconfig"));
    command
}

impl Run {
    #[track_caller]
    fn exits(&self, code: i32) -> &Self {
        assert_eq!(
            self.0.status.code(),
            Some(code),
            "\nstdout: {}\nstderr: {}",
            self.out(),
            self.err()
        );
        self
    }

    fn out(&self) -> String {
        String::from_utf8(self.0.stdout.clone()).unwrap()
    }

    fn err(&self) -> String {
        String::from_utf8(self.0.stderr.clone()).unwrap()
    }

    #[track_caller]
    fn tells(&self, text: &str) -> &Self {
        assert!(self.err().contains(text), "no {text:?} in\n{}", self.err());
        self
    }

    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.out()).unwrap_or_else(|error| panic!("{error}: {}", self.out()))
    }
}

fn pause(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

fn nothing(_: &Arc<FakeNode>) {}

/// The first half of an upgrade, up to the swap.
fn leave(node: &FakeNode) {
    node.status(MachineStage::Upgrading, false);
    node.sequence("upgrade", Action::Start, None);
    node.phase("stopServices");
    node.phase("install");
}

fn become_version(node: &FakeNode, tag: &str) {
    let mut state = node.state();
    state.tag = tag.into();
    state.boot_id = format!("boot-of-{tag}");
}
