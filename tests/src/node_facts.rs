//! A node's facts about itself, call by call.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use instar_api::events::EventPayload;
use instar_api::machine::machine_status_event::MachineStage;
use instar_api::machine::{EventsRequest, LogsRequest, ReadRequest, ServiceInfo, UpgradeRequest};
use tonic::{Code, Status};

use crate::node::{Machine, Node};
use crate::tls_client::TlsClient;

/// The boot id that programs of the generation see: a new one after each start of a generation.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// The kernel's own boot id, which init told machined: the same until the machine reboots.
const KERNEL_BOOT_ID: &str = "/run/kernel-boot-id";

impl Node {
    /// Reads a file as text.
    pub async fn read(&self, path: &str) -> Result<String> {
        read(&mut self.machine().await?, path)
            .await
            .with_context(|| format!("cannot read {path} of the node"))
    }

    /// The host name in the kernel.
    pub async fn hostname(&self) -> Result<String> {
        let name = self.read("/proc/sys/kernel/hostname").await?;
        Ok(name.trim().to_owned())
    }

    /// The generation's boot id.
    pub async fn boot_id(&self) -> Result<String> {
        self.read(BOOT_ID).await
    }

    /// The kernel's boot id.
    pub async fn kernel_boot_id(&self) -> Result<String> {
        self.read(KERNEL_BOOT_ID).await
    }

    /// The node's clock, with an error of some hundredths of a second: its kernel's start time plus its uptime.
    pub async fn clock(&self) -> Result<SystemTime> {
        let stat = self.read("/proc/stat").await?;
        let started: u64 = stat
            .lines()
            .find_map(|line| line.strip_prefix("btime "))
            .context("no btime")?
            .parse()?;
        Ok(UNIX_EPOCH + Duration::from_secs(started) + self.uptime().await?)
    }

    /// The kernel's uptime, with an error of some hundredths of a second.
    pub async fn uptime(&self) -> Result<Duration> {
        let text = self.read("/proc/uptime").await?;
        let seconds = text.split(' ').next().unwrap_or_default();
        Ok(Duration::from_secs_f64(seconds.parse()?))
    }

    /// Fails unless the process's `proc_pid_status(5)` has these fields, with one blank between words.
    pub async fn has_status(&self, pid: u32, expected: &[(&str, &str)]) -> Result<()> {
        let status = self.read(&format!("/proc/{pid}/status")).await?;
        for (field, expected) in expected {
            let line = status.lines().find_map(|line| line.strip_prefix(field));
            let line = line.with_context(|| format!("no {field} in {status}"))?;
            let words: Vec<&str> = line.split_whitespace().collect();
            ensure!(words.join(" ") == *expected, "{field} {words:?}: {status}");
        }
        Ok(())
    }

    /// Fails unless the process has this user and group and no other, no capability, and a filter for its system calls.
    pub async fn has_no_rights(&self, pid: u32, user: u32) -> Result<()> {
        let ids = [user; 4].map(|id| id.to_string()).join(" ");
        let none = "0000000000000000";
        let expected = [
            ("Uid:", ids.as_str()),
            ("Gid:", &ids),
            ("Groups:", ""),
            ("CapInh:", none),
            ("CapPrm:", none),
            ("CapEff:", none),
            ("CapBnd:", none),
            ("CapAmb:", none),
            ("NoNewPrivs:", "1"),
            // Seccomp is a filter, and not the strict mode.
            ("Seccomp:", "2"),
        ];
        self.has_status(pid, &expected).await
    }

    /// The first fingerprint of the node's certificate on its console, for `--cert-fingerprint`.
    pub fn fingerprint_on_console(&self) -> Result<String> {
        let console = self.vm().console();
        let (_, certificate) = console
            .split_once("machined: API certificate for")
            .context("no certificate on the console")?;
        let (_, fingerprint) = certificate
            .split_once("fingerprint ")
            .context("no fingerprint")?;
        // The reason for a new certificate may follow.
        let end = fingerprint.find([';', '\n']).unwrap_or(fingerprint.len());
        Ok(fingerprint[..end].trim().to_owned())
    }

    /// Returns the certificate that the API shows, DER.
    pub async fn shown_certificate(&self) -> Result<Vec<u8>> {
        let client = TlsClient::of(self.identity());
        let stream = client.connect(&self.endpoint()?).await?;
        let (_, connection) = stream.get_ref();
        let shown = connection.peer_certificates().and_then(<[_]>::first);
        Ok(shown.context("the node shows no certificate")?.to_vec())
    }

    /// Upgrades; returns the actor's id. The request, as talosctl's, has no word on the data; the node's answer has.
    pub async fn upgrade(&self, image: &str) -> Result<Result<String, Status>> {
        let mut machine = self.machine().await?;
        Ok(ask_for_upgrade(&mut machine, image).await)
    }

    /// Lists all services.
    pub async fn services(&self) -> Result<Vec<ServiceInfo>> {
        let listed = self.machine().await?.service_list(()).await?.into_inner();
        let lists = listed.messages.into_iter();
        Ok(lists.flat_map(|list| list.services).collect())
    }

    /// Returns a service.
    pub async fn service(&self, id: &str) -> Result<ServiceInfo> {
        let services = self.services().await?;
        services
            .into_iter()
            .find(|service| service.id == id)
            .with_context(|| format!("no service {id}"))
    }

    /// Returns the process of a service.
    pub async fn service_pid(&self, id: &str) -> Result<u32> {
        let service = self.service(id).await?;
        let events = service.events.unwrap_or_default().events;
        let Some(last) = events.last() else {
            bail!("nothing has happened to {id}");
        };
        let pid = ["started", "taken over", "lives on"]
            .iter()
            .find_map(|how| last.msg.strip_prefix(how)?.strip_prefix(" as process "));
        pid.and_then(|pid| pid.parse().ok())
            .with_context(|| format!("{id} does not run: {}: {}", last.state, last.msg))
    }

    /// Waits until the node has reported in this generation that it runs and is ready.
    ///
    /// A client that waits for an upgrade takes that report for the upgrade's end if it comes after the call.
    pub async fn wait_until_ready(&self, within: Duration) -> Result<()> {
        self.wait_until("it is ready", within, || self.follow_until_ready())
            .await
    }

    async fn follow_until_ready(&self) -> Result<()> {
        let request = EventsRequest {
            tail_events: -1,
            ..EventsRequest::default()
        };
        let mut stream = self.machine().await?.events(request).await?.into_inner();
        while let Some(event) = stream.message().await? {
            let payload = event.data.as_ref().map(EventPayload::unpack).transpose()?;
            if let Some(Some(EventPayload::MachineStatus(status))) = payload
                && status.stage() == MachineStage::Running
                && status.status.is_some_and(|status| status.ready)
            {
                return Ok(());
            }
        }
        bail!("the stream of events ended")
    }

    /// Returns the log of a service, all that is kept.
    pub async fn log(&self, id: &str) -> Result<String> {
        let request = LogsRequest {
            id: id.to_owned(),
            tail_lines: -1,
            ..LogsRequest::default()
        };
        let mut stream = self.machine().await?.logs(request).await?.into_inner();
        let mut bytes = Vec::new();
        while let Some(part) = stream.message().await? {
            bytes.extend(part.bytes);
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Whether a file exists.
    pub async fn has_file(&self, machine: &mut Machine, path: &str) -> Result<bool> {
        match read(machine, path).await {
            Ok(_) => Ok(true),
            Err(status) if status.code() == Code::NotFound => Ok(false),
            Err(status) => Err(status).with_context(|| format!("cannot look at {path}")),
        }
    }
}

/// Upgrades; returns the actor's id.
async fn ask_for_upgrade(machine: &mut Machine, image: &str) -> Result<String, Status> {
    let request = UpgradeRequest {
        image: image.to_owned(),
        ..UpgradeRequest::default()
    };
    let reply = machine.upgrade(request).await?.into_inner();
    match reply.messages.into_iter().next() {
        Some(first) if first.ack.contains("what is on EPHEMERAL is kept") => Ok(first.actor_id),
        other => Err(Status::internal(format!(
            "the answer to Upgrade: {other:?}"
        ))),
    }
}

/// Reads a file as text.
async fn read(machine: &mut Machine, path: &str) -> Result<String, Status> {
    let request = ReadRequest {
        path: path.to_owned(),
    };
    let mut stream = machine.read(request).await?.into_inner();
    let mut bytes = Vec::new();
    while let Some(part) = stream.message().await? {
        bytes.extend(part.bytes);
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
