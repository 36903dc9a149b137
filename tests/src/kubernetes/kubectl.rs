//! The real `kubectl`, as the cluster's administrator or as somebody with a token.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use super::programs::program;
use crate::followed_program::FollowedProgram;
use crate::run_command::run;
use crate::scratch::Scratch;

/// The program with its kubeconfig.
#[derive(Debug, Clone)]
pub struct Kubectl {
    program: PathBuf,
    options: Vec<String>,
    folder: Scratch,
}

impl Kubectl {
    /// Returns the program for this kubeconfig; it writes its files into the folder.
    pub fn of(kubeconfig: &std::path::Path, folder: Scratch) -> Result<Self> {
        Ok(Self {
            program: program("kubectl")?,
            options: vec![
                format!("--kubeconfig={}", kubeconfig.display()),
                format!("--cache-dir={}", folder.join("kubectl-cache").display()),
            ],
            folder,
        })
    }

    /// Returns the program for the same cluster at another address.
    pub fn at(mut self, server: &str) -> Self {
        self.options.push(format!("--server={server}"));
        self
    }

    /// Returns the program for the bearer of a token alone, at this server.
    pub(super) fn by_token(&self, server: &str, authority: &std::path::Path, token: &str) -> Self {
        Self {
            options: vec![
                "--kubeconfig=/dev/null".to_owned(),
                format!("--server={server}"),
                format!("--certificate-authority={}", authority.display()),
                format!("--token={token}"),
            ],
            ..self.clone()
        }
    }

    /// Runs a command to its end; returns its output.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        // A server that hangs fails the command, and not the whole test by its deadline.
        run(self.command().arg("--request-timeout=20s").args(arguments))
    }

    /// Gets an object.
    pub fn get(&self, arguments: &[&str]) -> Result<Value> {
        let text = self.run(&[&["get", "-o", "json"], arguments].concat())?;
        serde_json::from_str(&text).context("kubectl prints no JSON")
    }

    /// Applies objects, written as YAML. The file that kubectl reads has this name.
    pub fn apply(&self, name: &str, yaml: &str) -> Result<()> {
        let file = self.folder.write(&format!("{name}.yaml"), yaml)?;
        run(self.command().args(["apply", "-f"]).arg(file)).map(drop)
    }

    /// Makes objects, written as YAML, which must not be there yet: quicker than to apply many.
    pub fn create(&self, name: &str, yaml: &str) -> Result<()> {
        let file = self.folder.write(&format!("{name}.yaml"), yaml)?;
        run(self.command().args(["create", "-f"]).arg(file)).map(drop)
    }

    /// Starts a command that does not end by itself.
    pub fn follow(&self, arguments: &[&str]) -> Result<FollowedProgram> {
        FollowedProgram::by(self.command().args(arguments))
    }

    /// The folder of its files.
    pub(super) fn folder(&self) -> &Scratch {
        &self.folder
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.options);
        command
    }
}
