//! Starts QEMU from a plan.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::accel::{Accel, program, version_of};
use crate::command::{Host, command_line};
use crate::directory::{Directory, FORWARDS, OWNER_SOCKET};
use crate::error::{Ended, Error, Result};
use crate::ports::{PortLease, lease_port};
use crate::process::OwnedProcess;
use crate::qmp::{Qmp, QmpError};
use crate::spec::{Boot, Content, Forward, Tap, VmSpec};

/// Timeout for QEMU's control socket. A busy host needs seconds to load QEMU.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// Number of tries with other ports, if another process takes a leased one before QEMU starts.
const PORT_TRIES: u32 = 3;
/// QEMU's message about a taken port.
const PORT_TAKEN: &str = "Could not set up host forwarding rule";

/// A machine that has just been started.
#[derive(Debug)]
pub(crate) struct Launched {
    pub(crate) owner: OwnedProcess,
    pub(crate) qmp: Qmp,
    pub(crate) ports: Vec<Forward>,
    pub(crate) leases: Vec<PortLease>,
}

pub(crate) fn launch(spec: &VmSpec, directory: &Directory) -> Result<Launched> {
    let program = PathBuf::from(program());
    let host = Host {
        version: version_of(&program)?,
        accel: Accel::detect()?,
    };
    let deadline = spec.deadline.map(|deadline| Instant::now() + deadline);
    let settled = settle_files(spec, directory)?;
    let mut tries = 0;
    loop {
        tries += 1;
        let (settled, leases) = settle_ports(&settled)?;
        let arguments = command_line(&settled, host)?;
        let listing: Vec<u8> = std::iter::once(program.as_os_str())
            .chain(arguments.iter().map(AsRef::as_ref))
            .flat_map(|argument| [argument.as_encoded_bytes(), b"\n"].concat())
            .collect();
        directory.write("command", &listing)?;

        let log = directory.qemu_log()?;
        let log_too = log
            .try_clone()
            .map_err(Error::directory("open", directory.path()))?;
        let mut command = Command::new(&program);
        command.args(&arguments).current_dir(directory.path());
        // Stray input would open boot menus.
        command.stdin(Stdio::null()).stdout(log).stderr(log_too);
        let owner = OwnedProcess::start(command, deadline).map_err(|source| Error::NoQemu {
            program: program.clone(),
            source,
        })?;
        directory.write("pid", format!("{}\n", owner.pid()).as_bytes())?;
        directory.write(FORWARDS, listed(&settled.forwards).as_bytes())?;
        match connect(&owner, directory) {
            Ok(qmp) => {
                return Ok(Launched {
                    owner,
                    qmp,
                    ports: settled.forwards,
                    leases,
                });
            }
            Err(_) if tries < PORT_TRIES && directory.qemu_said().contains(PORT_TAKEN) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Makes paths absolute, checks that they are there, and gives every fw_cfg entry its file.
fn settle_files(spec: &VmSpec, directory: &Directory) -> Result<VmSpec> {
    let mut settled = spec.clone();
    match &mut settled.boot {
        Boot::Kernel { kernel, initrd, .. } => {
            settle("kernel", kernel)?;
            if let Some(initrd) = initrd {
                settle("initramfs", initrd)?;
            }
        }
        Boot::Firmware { uefi: None } => {}
        Boot::Firmware { uefi: Some(uefi) } => {
            settle("UEFI firmware", &mut uefi.code)?;
            settle("UEFI variables", &mut uefi.variables)?;
            uefi.variables = directory.own_variables(&uefi.variables)?;
        }
    }
    if let Some(folder) = settled
        .network_boot
        .as_mut()
        .and_then(|boot| boot.folder.as_mut())
    {
        settle("folder for network boot", folder)?;
    }
    for drive in &mut settled.drives {
        settle("disk", &mut drive.file)?;
        if let Tap::WriteLog(log) = &mut drive.tap {
            std::fs::write(&*log, []).map_err(Error::directory("make the write log", log))?;
            settle("write log", log)?;
        }
    }
    for (number, entry) in settled.fw_cfg.iter_mut().enumerate() {
        match &mut entry.content {
            Content::File(path) => settle("fw_cfg content", path)?,
            Content::Bytes(bytes) => {
                entry.content = Content::File(directory.write(&format!("fw_cfg.{number}"), bytes)?);
            }
        }
    }
    Ok(settled)
}

/// Makes a path absolute: QEMU runs in another directory.
fn settle(what: &'static str, path: &mut PathBuf) -> Result<()> {
    *path = path.canonicalize().map_err(|source| Error::NoInput {
        what,
        path: path.clone(),
        source,
    })?;
    Ok(())
}

fn settle_ports(spec: &VmSpec) -> Result<(VmSpec, Vec<PortLease>)> {
    let mut settled = spec.clone();
    let mut leases = Vec::new();
    for forward in settled
        .forwards
        .iter_mut()
        .filter(|forward| forward.host.is_none())
    {
        let lease = lease_port()?;
        forward.host = Some(lease.port());
        leases.push(lease);
    }
    Ok((settled, leases))
}

fn listed(forwards: &[Forward]) -> String {
    forwards
        .iter()
        .map(|forward| format!("{} {}\n", forward.guest, forward.host.unwrap_or_default()))
        .collect()
}

fn connect(owner: &OwnedProcess, directory: &Directory) -> Result<Qmp> {
    let until = Instant::now() + START_PATIENCE;
    let socket: &Path = &directory.socket(OWNER_SOCKET);
    loop {
        let source = match Qmp::connect(socket) {
            Ok(qmp) => return Ok(qmp),
            Err(source) => source,
        };
        if let Some(ended) = owner.wait(Duration::from_millis(10)) {
            return Err(ended_at_once(ended, directory));
        }
        // The socket is not there yet, or QEMU does not listen yet.
        if !matches!(source, QmpError::Socket(_)) || Instant::now() >= until {
            return Err(Error::Qmp {
                evidence: directory.evidence(),
                source,
            });
        }
    }
}

fn ended_at_once(ended: Ended, directory: &Directory) -> Error {
    Error::EndedEarly {
        ended,
        wanted: "QEMU's control socket".to_owned(),
        evidence: directory.evidence(),
    }
}
