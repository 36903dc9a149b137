//! Channels of releases, made and served by `instar-channel`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::HOST_FOR_GUEST;
use crate::followed_program::FollowedProgram;
use crate::registry::Registry;
use crate::run_command::run;
use crate::scratch::Scratch;
use crate::workspace::guest_program_file;

/// Time that the server has for its start.
const START: Duration = Duration::from_secs(30);

/// A folder of channels, with its key, and the server of it until this value is dropped.
#[derive(Debug)]
pub struct Channels {
    folder: PathBuf,
    key: PathBuf,
    registries: PathBuf,
    server: Option<FollowedProgram>,
    port: String,
}

impl Channels {
    /// Makes an empty folder, and serves it. Images are read from this registry, by their names in a guest.
    pub fn serve(scratch: &Scratch, registry: &Registry) -> Result<Self> {
        let host = registry.host_for_guest();
        let mirror = format!(
            "apiVersion: v1alpha1\nkind: RegistryMirrorConfig\nname: {host}\nendpoints: [{{url: \"http://{}\"}}]\nskipFallback: true\n",
            registry.address()
        );
        let mut channels = Self {
            folder: scratch.join("channels"),
            key: scratch.join("channel.key"),
            registries: scratch.write("registries.yaml", mirror)?,
            server: None,
            port: String::new(),
        };
        std::fs::create_dir_all(&channels.folder)?;
        channels.make_key(&channels.key)?;
        channels.start()?;
        Ok(channels)
    }

    fn start(&mut self) -> Result<()> {
        let mut server =
            FollowedProgram::by(self.command()?.args(["serve", "--listen", "127.0.0.1:0"]))?;
        let is_meant = |line: &str| line.contains("127.0.0.1:");
        let line = server.wait_for("the server's address", START, is_meant)?;
        let port = line.rsplit(':').next().context("no port")?;
        port.clone_into(&mut self.port);
        self.server = Some(server);
        Ok(())
    }

    fn command(&self) -> Result<Command> {
        let mut command = Command::new(guest_program_file("instar-channel")?);
        command.arg("--folder").arg(&self.folder);
        Ok(command)
    }

    /// Makes another key.
    pub fn make_key(&self, file: &Path) -> Result<()> {
        run(self.command()?.arg("key").arg(file)).map(drop)
    }

    /// Changes a channel, signed with the key.
    pub fn publish(&self, words: &[&str]) -> Result<()> {
        let mut command = self.command()?;
        command.args(words).arg("--key").arg(&self.key);
        run(&mut command).map(drop)
    }

    /// The same, signed with another key, where the list so far is signed with this one.
    pub fn publish_by(&self, key: &Path, words: &[&str]) -> Result<()> {
        let mut command = self.command()?;
        command.args(words).arg("--key").arg(key);
        command.arg("--public-key").arg(self.public_key_file());
        run(&mut command).map(drop)
    }

    /// Adds an image by its name in a guest, which need not be official.
    pub fn add(&self, channel: &str, image: &str, more: &[&str]) -> Result<()> {
        let registries = self.registries.display().to_string();
        let what = ["add", channel, image, "--unofficial"];
        let words = [&what[..], &["--registries", &registries], more].concat();
        self.publish(&words)
    }

    /// Promotes a release; its labels are read at the registry.
    pub fn promote(&self, version: &str, from: &str, to: &str, more: &[&str]) -> Result<()> {
        let registries = self.registries.display().to_string();
        let what = ["promote", version, "--from", from, "--to", to];
        self.publish(&[&what[..], &["--registries", &registries], more].concat())
    }

    /// The file of a channel's list.
    pub fn list(&self, channel: &str) -> PathBuf {
        self.folder.join(channel).join("releases-v1.json")
    }

    /// The file of its signature.
    pub fn signature(&self, channel: &str) -> PathBuf {
        self.folder.join(channel).join("releases-v1.json.sig")
    }

    /// The address on this machine.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The key that its lists are believed by, PEM.
    pub fn public_key(&self) -> Result<String> {
        std::fs::read_to_string(self.public_key_file()).context("cannot read the public key")
    }

    fn public_key_file(&self) -> PathBuf {
        let mut public = self.key.clone().into_os_string();
        public.push(".pub");
        public.into()
    }

    /// The document of a machine that follows a channel at its server. `more`: further fields, a line each.
    pub fn document(&self, channel: &str, more: &str) -> Result<String> {
        let url = format!("http://{HOST_FOR_GUEST}:{}", self.port);
        self.document_without_urls(channel, &format!("urls: [\"{url}\"]\n{more}"))
    }

    /// The document of a machine whose lists are brought.
    pub fn document_without_urls(&self, channel: &str, more: &str) -> Result<String> {
        let key = yaml_block("publicKey", &self.public_key()?);
        Ok(format!(
            "apiVersion: instar.dev/v1alpha1\nkind: UpgradeFollowConfig\nchannel: {channel}\n{key}interval: 10s\n{more}"
        ))
    }

    /// The folder of a channel.
    pub fn channel_folder(&self, channel: &str) -> PathBuf {
        self.folder.join(channel)
    }
}

/// A field of YAML whose value is a text of several lines.
pub fn yaml_block(field: &str, text: &str) -> String {
    let lines: String = text.lines().map(|line| format!("  {line}\n")).collect();
    format!("{field}: |\n{lines}")
}
