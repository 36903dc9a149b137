//! The real `instarctl`, with a client configuration for one node.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::followed_program::FollowedProgram;
use crate::node::Node;
use crate::scratch::Scratch;
use crate::terminal::Terminal;
use crate::workspace::host_program;

/// The program with its client configuration.
#[derive(Debug)]
pub struct Instarctl {
    program: PathBuf,
    client_config: PathBuf,
    endpoint: String,
}

/// The result of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// The exit code; none when a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub output: String,
    /// Standard error.
    pub complaint: String,
}

impl Instarctl {
    /// Returns the program for this node, with the test's identity.
    pub fn of(node: &Node, scratch: &Scratch) -> Result<Self> {
        let endpoint = node.endpoint()?;
        let config = node.identity().client_config(&endpoint)?;
        Ok(Self {
            endpoint,
            program: host_program("instarctl")?,
            client_config: scratch.write("talosconfig", config)?,
        })
    }

    /// The address of the node.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Returns the program for commands that need no node.
    pub fn alone(scratch: &Scratch) -> Result<Self> {
        Ok(Self {
            endpoint: "127.0.0.1:1".to_owned(),
            program: host_program("instarctl")?,
            client_config: scratch.join("no-talosconfig"),
        })
    }

    /// Replaces the client configuration, also its address of the node.
    pub fn with_config(&self, client_config: PathBuf) -> Self {
        Self {
            program: self.program.clone(),
            client_config,
            endpoint: self.endpoint.clone(),
        }
    }

    /// Starts a command that does not end by itself.
    pub fn follow(&self, arguments: &[&str]) -> Result<FollowedProgram> {
        let mut command = std::process::Command::new(&self.program);
        command.arg("--talosconfig").arg(&self.client_config);
        command.args(["--endpoints", &self.endpoint]);
        FollowedProgram::by(command.args(arguments))
    }

    /// Serves a fleet's page with these further arguments; returns the program, and the address that opens the page.
    pub fn serve_page(
        &self,
        arguments: &[&str],
        within: Duration,
    ) -> Result<(FollowedProgram, String)> {
        let serve = ["fleet", "serve", "--listen", "127.0.0.1:0"];
        let mut server = self.follow(&[&serve[..], arguments].concat())?;
        let line = server.wait_for("the address", within, |line| line.starts_with("open "))?;
        Ok((server, line.trim_start_matches("open ").to_owned()))
    }

    /// Starts a command on a terminal of this size, with only these environment variables.
    pub fn on_terminal(
        &self,
        arguments: &[&str],
        variables: &[(&str, &str)],
        (columns, rows): (u16, u16),
    ) -> Result<Terminal> {
        let mut words = vec![
            self.program.clone().into_os_string(),
            "--talosconfig".into(),
            self.client_config.clone().into_os_string(),
            "--endpoints".into(),
            self.endpoint.clone().into(),
        ];
        words.extend(arguments.iter().map(Into::into));
        Terminal::start(&words, variables, columns, rows)
    }

    /// Applies a config, the file, to a node without one, as soon as the node accepts it.
    pub async fn bring_first_config(
        &self,
        node: &Node,
        file: &str,
        within: Duration,
    ) -> Result<()> {
        let insecure = ["apply-config", "--insecure"];
        let apply = [&insecure[..], &["-n", &self.endpoint, "-f", file]].concat();
        node.wait_until("it takes a config", within, async || {
            let said = self.run(&apply).await?;
            ensure!(said.code == Some(0), "{said:?}");
            Ok(())
        })
        .await
    }

    /// Runs a command to its end.
    pub async fn run(&self, arguments: &[&str]) -> Result<Said> {
        let to_the_node = ["--endpoints", &self.endpoint];
        self.run_elsewhere(&[&to_the_node[..], arguments].concat())
            .await
    }

    /// The same with arguments that name another node by its endpoint.
    pub async fn run_elsewhere(&self, arguments: &[&str]) -> Result<Said> {
        let mut command = tokio::process::Command::new(&self.program);
        command.arg("--talosconfig").arg(&self.client_config);
        command
            .args(arguments)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let ended = command
            .output()
            .await
            .with_context(|| format!("cannot run {}", self.program.display()))?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(Said {
            code: ended.status.code(),
            output: text(ended.stdout),
            complaint: text(ended.stderr),
        })
    }
}
