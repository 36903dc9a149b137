//! A gRPC client that isn't ours: Python's grpcio, with our protos compiled by Google's own compiler.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::followed_program::FollowedProgram;
use crate::node::Node;
use crate::python::python_with;
use crate::run_command::run;
use crate::scratch::Scratch;
use crate::workspace::workspace_root;

/// The packages that pip installs, pinned: a peer that changes by itself is no measure.
const PACKAGES: [&str; 5] = [
    "grpcio==1.85.1",
    "grpcio-tools==1.85.1",
    "grpcio-reflection==1.85.1",
    "grpcio-health-checking==1.85.1",
    "PyYAML==6.0.3",
];

/// A Python environment with the client.
#[derive(Debug)]
pub struct Grpcio {
    python: PathBuf,
    scratch: Scratch,
}

impl Grpcio {
    /// Uses the environment in `.cache/grpcio`, or makes it: that takes the network and a minute, once.
    pub fn ready(scratch: &Scratch) -> Result<Self> {
        let python = python_with("grpcio", &PACKAGES)?;
        Ok(Self {
            python,
            scratch: scratch.clone(),
        })
    }

    /// Calls a method of MachineService over mTLS. Returns `answer`, `answers` of a stream, or `code` and `details` of
    /// a refusal.
    pub fn call(&self, node: &Node, method: &str, request: &Value) -> Result<Value> {
        self.run_peer(
            "call.py",
            node,
            &[
                &self.compile_protos()?.to_string_lossy(),
                method,
                &request.to_string(),
            ],
        )
    }

    /// Calls methods of any service without knowing our protos (`[[SERVICE, METHOD, REQUEST], …]`). Returns `health`,
    /// `services`, and the results of the calls as `said`.
    pub fn reflect(&self, node: &Node, calls: &Value) -> Result<Value> {
        self.run_peer("reflect.py", node, &[&calls.to_string()])
    }

    /// Reads resources by any name of their type, as `talosctl get` does. Returns `kind`, `rows`, `specs`, `decoded`,
    /// or `code` and `details` of a refusal.
    pub fn get(&self, node: &Node, wanted: &[&str]) -> Result<Value> {
        self.run_peer(
            "resources.py",
            node,
            &[
                &[self.compile_protos()?.to_string_lossy().as_ref(), "get"],
                wanted,
            ]
            .concat(),
        )
    }

    /// Reads resources and follows their changes: prints a line of JSON for each event.
    pub fn watch(&self, node: &Node, wanted: &[&str]) -> Result<FollowedProgram> {
        let mut command = self.peer("resources.py", node)?;
        FollowedProgram::by(
            command
                .arg(self.compile_protos()?)
                .arg("watch")
                .args(wanted),
        )
    }

    /// Asks for the version ten times a second until the file exists, then prints the results (`call_on_and_on.py`).
    pub fn call_on_and_on(&self, node: &Node, until: &Path) -> Result<FollowedProgram> {
        let mut command = self.peer("call_on_and_on.py", node)?;
        FollowedProgram::by(command.arg(self.compile_protos()?).arg(until))
    }

    fn run_peer(&self, script: &str, node: &Node, arguments: &[&str]) -> Result<Value> {
        let output = run(self.peer(script, node)?.args(arguments))?;
        serde_json::from_str(&output).with_context(|| format!("the peer printed {output:?}"))
    }

    /// Returns the command of a script, with the node's endpoint and the test's identity as its first arguments.
    fn peer(&self, script: &str, node: &Node) -> Result<Command> {
        let identity = node.identity();
        let authority = self
            .scratch
            .write("grpcio-ca.crt", identity.authority_certificate())?;
        let certificate = self.scratch.write("grpcio.crt", &identity.certificate)?;
        let key = self.scratch.write("grpcio.key", &identity.key)?;
        let mut command = Command::new(&self.python);
        command
            .arg(workspace_root().join("tests/peers").join(script))
            .arg(node.endpoint()?)
            .args([authority, certificate, key]);
        Ok(command)
    }

    /// Returns the folder with the Python modules.
    fn compile_protos(&self) -> Result<PathBuf> {
        let protos = workspace_root().join("api/proto");
        let folder = self.scratch.join("grpcio");
        if folder.exists() {
            return Ok(folder);
        }
        std::fs::create_dir_all(&folder)?;
        let mut files = Vec::new();
        collect_protos(&protos, &mut files)?;
        run(Command::new(&self.python)
            .args(["-m", "grpc_tools.protoc"])
            .arg(format!("-I{}", protos.display()))
            .arg(format!("--python_out={}", folder.display()))
            .arg(format!("--grpc_python_out={}", folder.display()))
            .args(files))?;
        Ok(folder)
    }
}

fn collect_protos(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in
        std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?
    {
        let path = entry?.path();
        if path.is_dir() {
            collect_protos(&path, files)?;
        } else if path
            .extension()
            .is_some_and(|extension| extension == "proto")
        {
            files.push(path);
        }
    }
    Ok(())
}
