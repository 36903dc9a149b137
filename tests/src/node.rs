//! An Instar node: booted from the image under test, asked over its API.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use instar_api::machine::apply_configuration_request::Mode;
use instar_api::machine::machine_service_client::MachineServiceClient;
use instar_api::machine::{ApplyConfigurationRequest, VersionInfo};
use instar_qemu::{DiskFormat, Drive, Vm, VmSpec, create_blank_disk};
use tokio::sync::Mutex;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};

use crate::any_server::connect_to_any_server;
use crate::connect::{connect, notices_silence};
use crate::identity::Identity;
use crate::image_under_test::ImageUnderTest;
use crate::machine_config::MachineConfig;
use crate::scratch::Scratch;
use crate::tls_client::TlsClient;

/// The API's port in the guest.
pub const API_PORT: u16 = instar_api::PORT;

/// The kernel's arguments, as in `docs/contracts.md`.
const COMMAND_LINE: &str =
    "console=ttyS0 panic=10 printk.devkmsg=on cryptomgr.notests transparent_hugepage=never";
/// Default main memory. A kernel picks its place in memory at random, and writes over memory from which QEMU has
/// translated code of the kernel before take QEMU up to 10 s longer: in much memory that is rare.
const MEMORY_MIB: u32 = 2048;
/// Timeout for the first answer after power-on, on a host that runs other machines too.
const BOOT_PATIENCE: Duration = Duration::from_secs(180);
/// Timeout for a kept connection: without an answer for this long, its machine is gone.
const STILL_THERE: Duration = Duration::from_secs(2);
/// The firmware configuration entry that holds a machine config.
const CONFIG_ENTRY: &str = "opt/dev.instar/config";
/// The largest file that a test's disk can grow to; it is sparse.
const DISK_BYTES: u64 = 4 << 30;

/// The client of the machine service.
pub type Machine = MachineServiceClient<Channel>;

/// A node before it boots.
pub struct NodePlan {
    name: String,
    scratch: Scratch,
    spec: VmSpec,
    config: Config,
    identity: Option<Identity>,
}

impl fmt::Debug for NodePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodePlan")
            .field("name", &self.name)
            .field("spec", &self.spec)
            .finish_non_exhaustive()
    }
}

/// Source of the config.
enum Config {
    /// The default config, by firmware configuration.
    Default,
    /// The default config with the test's changes.
    Edited(Box<dyn FnOnce(MachineConfig) -> MachineConfig>),
    Given(String),
    None,
}

impl NodePlan {
    /// Replaces the name `node`, which is also that of its directory in the scratch directory, for tests with several
    /// nodes.
    pub fn name(mut self, name: &str) -> Self {
        self.name = name.to_owned();
        self
    }

    /// Sets the main memory, in MiB.
    pub fn memory_mib(self, mib: u32) -> Self {
        self.spec(|spec| spec.memory_mib(mib))
    }

    /// Adds a blank disk, which the guest sees as the next `/dev/vdX`.
    pub fn blank_disk(self) -> Result<Self> {
        let path = self
            .scratch
            .join(&format!("{}.disk{}.img", self.name, self.spec.drives.len()));
        create_blank_disk(&path, DiskFormat::Raw, DISK_BYTES)?;
        Ok(self.disk(path))
    }

    /// Adds a disk that exists already.
    pub fn disk(self, file: impl Into<PathBuf>) -> Self {
        self.spec(|spec| spec.drive(Drive::raw(file)))
    }

    /// Changes the default config.
    pub fn configure(
        mut self,
        edit: impl FnOnce(MachineConfig) -> MachineConfig + 'static,
    ) -> Self {
        self.config = Config::Edited(Box::new(edit));
        self
    }

    /// Replaces the default config; `identity` is the test's identity towards the node.
    pub fn config(mut self, yaml: impl Into<String>, identity: Identity) -> Self {
        self.config = Config::Given(yaml.into());
        self.identity = Some(identity);
        self
    }

    /// Gives the node no config by firmware configuration: the config comes another way, or never.
    pub fn without_config(mut self, identity: Identity) -> Self {
        self.config = Config::None;
        self.identity = Some(identity);
        self
    }

    /// Makes a TCP port of the guest reachable: [`Node::guest_port`].
    pub fn forward(self, port: u16) -> Self {
        self.spec(|spec| spec.forward(port))
    }

    /// Changes any other property of the machine.
    pub fn spec(mut self, edit: impl FnOnce(VmSpec) -> VmSpec) -> Self {
        self.spec = edit(self.spec);
        self
    }

    /// Boots the node and waits until its API answers.
    pub async fn boot(self) -> Result<Node> {
        let node = self.start()?;
        node.wait_for_api(BOOT_PATIENCE).await?;
        Ok(node)
    }

    /// Boots the node and waits, for up to `within` after its API answers, until it is ready: all that its config names
    /// runs.
    pub async fn boot_until_ready(self, within: Duration) -> Result<Node> {
        let node = self.boot().await?;
        node.wait_until_ready(within).await?;
        Ok(node)
    }

    /// Starts the node without waiting.
    pub fn start(self) -> Result<Node> {
        let identity = match self.identity {
            Some(identity) => identity,
            None => Identity::administrator()?,
        };
        let usual = || MachineConfig::new(&identity).hostname(&self.name);
        let config = match self.config {
            Config::Default => Some(usual().to_yaml()),
            Config::Edited(edit) => Some(edit(usual()).to_yaml()),
            Config::Given(yaml) => Some(yaml),
            Config::None => None,
        };
        let spec = match &config {
            Some(yaml) => self.spec.fw_cfg(CONFIG_ENTRY, yaml.clone()),
            None => self.spec,
        };
        let vm = Vm::start(&spec, &self.scratch.join(&self.name))?;
        Ok(Node {
            vm,
            spec,
            config: config.unwrap_or_default(),
            identity,
            connected: Mutex::default(),
        })
    }
}

/// A running node, and the test's identity towards it.
#[derive(Debug)]
pub struct Node {
    vm: Vm,
    spec: VmSpec,
    config: String,
    identity: Identity,
    /// The connection of [`Self::machine`].
    connected: Mutex<Option<Channel>>,
}

impl Node {
    /// Plans a node from kernel and initramfs, with its config in the firmware configuration and without a disk.
    pub fn plan(scratch: &Scratch, image: &ImageUnderTest) -> NodePlan {
        Self::plan_with(scratch, image, &image.initramfs())
    }

    /// As [`Self::plan`], with another initramfs.
    pub fn plan_with(scratch: &Scratch, image: &ImageUnderTest, initramfs: &Path) -> NodePlan {
        let spec = VmSpec::kernel(image.kernel(), initramfs).command_line(COMMAND_LINE);
        Self::plan_from(scratch, spec)
    }

    /// Plans a node on this machine, with its config in the firmware configuration.
    pub fn plan_from(scratch: &Scratch, spec: VmSpec) -> NodePlan {
        NodePlan {
            name: "node".to_owned(),
            scratch: scratch.clone(),
            spec: spec.memory_mib(MEMORY_MIB).forward(API_PORT),
            config: Config::Default,
            identity: None,
        }
    }

    /// The machine: its console, its power, its clock.
    pub fn vm(&self) -> &Vm {
        &self.vm
    }

    /// The test's identity towards the node.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The machine config that the node was booted with; empty if none.
    pub fn config(&self) -> &str {
        &self.config
    }

    /// `127.0.0.1:PORT` of the node's API.
    pub fn endpoint(&self) -> Result<String> {
        Ok(format!("127.0.0.1:{}", self.vm.host_port(API_PORT)?))
    }

    /// `127.0.0.1:PORT` of a forwarded port of the guest.
    pub fn guest_port(&self, port: u16) -> Result<String> {
        Ok(format!("127.0.0.1:{}", self.vm.host_port(port)?))
    }

    /// Opens a new connection to the node's API by mTLS.
    pub async fn channel(&self) -> Result<Channel> {
        self.channel_as(&self.identity).await
    }

    /// As [`Self::channel`], with another identity.
    pub async fn channel_as(&self, identity: &Identity) -> Result<Channel> {
        if identity.trusted().is_empty() {
            return connect_to_any_server(&self.endpoint()?, TlsClient::of(identity)).await;
        }
        connect(&self.way_in(identity)?)
            .await
            .with_context(|| format!("cannot connect to the node's API at {:?}", self.endpoint()))
    }

    /// Returns the endpoint for an identity, for callers that connect with other settings than most.
    pub fn way_in(&self, identity: &Identity) -> Result<Endpoint> {
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(identity.trusted()))
            .identity(tonic::transport::Identity::from_pem(
                &identity.certificate,
                &identity.key,
            ));
        let endpoint = self.endpoint()?;
        let endpoint = Endpoint::from_shared(format!("https://{endpoint}"))?;
        Ok(notices_silence(endpoint.tls_config(tls)?))
    }

    /// Returns the last call's connection if it still leads to the node, else a new one: a handshake takes an emulated
    /// machine half a second.
    pub async fn kept_channel(&self) -> Result<Channel> {
        let mut connected = self.connected.lock().await;
        // Taken out, so that a caller that stops waiting leaves no dead connection behind.
        if let Some(channel) = connected.take() {
            let mut machine = MachineServiceClient::new(channel.clone());
            if let Ok(Ok(_)) = tokio::time::timeout(STILL_THERE, machine.version(())).await {
                return Ok(connected.insert(channel).clone());
            }
        }
        let channel = self.channel().await?;
        Ok(connected.insert(channel).clone())
    }

    /// A client of the machine service on the kept connection.
    pub async fn machine(&self) -> Result<Machine> {
        Ok(machine_on(self.kept_channel().await?))
    }

    /// A client of the machine service on a new connection.
    pub async fn newcomer(&self) -> Result<Machine> {
        Ok(machine_on(self.channel().await?))
    }

    /// Applies another config without a reboot, with this identity.
    pub async fn apply_as(&self, who: &Identity, yaml: String) -> Result<()> {
        let mut machine = MachineServiceClient::new(self.channel_as(who).await?);
        let request = ApplyConfigurationRequest {
            data: yaml.into_bytes(),
            mode: Mode::NoReboot.into(),
            ..ApplyConfigurationRequest::default()
        };
        let reply = machine.apply_configuration(request).await?.into_inner();
        for message in reply.messages {
            println!("{}", message.mode_details);
        }
        Ok(())
    }

    /// The node's version.
    pub async fn version(&self) -> Result<VersionInfo> {
        version(&mut self.machine().await?).await
    }

    /// The node's version, over a new connection.
    pub async fn version_for_newcomers(&self) -> Result<VersionInfo> {
        version(&mut self.newcomer().await?).await
    }

    /// Waits until a call of the API succeeds.
    pub async fn wait_for_api(&self, within: Duration) -> Result<VersionInfo> {
        self.wait_until("its API answers", within, || self.version())
            .await
    }

    /// Calls again and again until the answer is no error; fails at once when the machine ends.
    pub async fn wait_until<T, Asked>(
        &self,
        what: &str,
        within: Duration,
        mut ask: impl FnMut() -> Asked,
    ) -> Result<T>
    where
        Asked: Future<Output = Result<T>>,
    {
        let until = Instant::now() + within;
        let mut why = "nothing".to_owned();
        loop {
            let ended = self.vm.ended();
            let left = until.saturating_duration_since(Instant::now());
            let answer = tokio::time::timeout(left, ask()).await;
            match answer {
                Ok(Ok(value)) => return Ok(value),
                Ok(Err(error)) => why = format!("{error:#}"),
                // The timeout may have expired in the middle of a try: the reason before it says more.
                Err(_) => why = format!("a try without an answer, and before it: {why}"),
            }
            if let Some(ended) = ended {
                bail!(
                    "the machine ended ({ended}) before {what}{}",
                    self.vm.evidence()
                );
            }
            if Instant::now() >= until {
                bail!(
                    "not within {} s: {what}; at last: {why}{}",
                    within.as_secs(),
                    self.vm.evidence()
                );
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until a machine that is about to install this version has booted it from its disk, and is ready.
    pub async fn wait_until_installed(&self, version: &str, within: Duration) -> Result<()> {
        self.wait_for_line("installed; the machine reboots into it", within)?;
        // The API of the old boot still answers for a moment.
        let mark = self.vm.console_mark()?;
        let booted = format!("{version} as generation 1");
        self.vm.wait_for_line_after(mark, &booted, within)?;
        self.wait_for_api(within).await?;
        self.wait_until_ready(within).await
    }

    /// Waits for a line of the console.
    pub fn wait_for_line(&self, text: &str, within: Duration) -> Result<String> {
        Ok(self.vm.wait_for_line(text, within)?.text)
    }

    /// Cuts the node's power for good; returns the test's identity towards it.
    pub fn end(self) -> Identity {
        self.vm.cut_power();
        self.identity
    }

    /// Cuts the node's power and turns it on again, with the same disks and the same identity, and waits for its API.
    pub async fn power_cycle(self) -> Result<Self> {
        let node = self.turn_off_and_on()?;
        node.wait_for_api(BOOT_PATIENCE).await?;
        Ok(node)
    }

    /// Cuts the node's power and turns it on again, without waiting: for a node whose API may let in others than the test's identity then.
    pub fn turn_off_and_on(self) -> Result<Self> {
        let Self {
            vm,
            spec,
            config,
            identity,
            ..
        } = self;
        Ok(Self {
            vm: vm.power_cycle(&spec)?,
            spec,
            config,
            identity,
            connected: Mutex::default(),
        })
    }
}

fn machine_on(channel: Channel) -> Machine {
    MachineServiceClient::new(channel).max_decoding_message_size(instar_api::MAX_MESSAGE_BYTES)
}

async fn version(machine: &mut Machine) -> Result<VersionInfo> {
    let answer = machine.version(()).await.context("Version failed")?;
    let first = answer.into_inner().messages.into_iter().next();
    let first = first.context("an empty answer to Version")?;
    first.version.context("no version in the answer to Version")
}
