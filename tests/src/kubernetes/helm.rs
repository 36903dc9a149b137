//! The real `helm`, as the cluster's administrator.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use super::control_plane::ControlPlane;
use super::programs::program;
use crate::run_command::run;
use crate::scratch::Scratch;

/// The program with its kubeconfig and folders of its own.
#[derive(Debug, Clone)]
pub struct Helm {
    program: PathBuf,
    kubeconfig: PathBuf,
    folder: Scratch,
}

impl Helm {
    /// Returns the program for this cluster.
    pub fn of(plane: &ControlPlane, scratch: &Scratch) -> Result<Self> {
        Ok(Self {
            program: program("helm")?,
            kubeconfig: plane.admin_kubeconfig(),
            folder: scratch.below("helm")?,
        })
    }

    /// Runs a command for releases of a namespace to its end; returns its output. Commands that wait have a timeout of their own.
    pub fn run(&self, namespace: &str, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.program);
        for folder in ["CACHE", "CONFIG", "DATA"] {
            let name = folder.to_lowercase();
            command.env(format!("HELM_{folder}_HOME"), self.folder.join(&name));
        }
        command.env("KUBECONFIG", &self.kubeconfig);
        run(command.args(["--namespace", namespace]).args(arguments))
    }
}
