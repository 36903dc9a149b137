//! The arguments of the command.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use instar_qemu::{Bus, DiskFormat, Drive, NetworkBoot, Timing, Uefi, VmSpec, WatchdogAction};

/// Runs virtual machines: boots them with given disks, ports and files, watches and ends them.
#[derive(Debug, Parser)]
#[command(version)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a machine and show its console until it ends
    Run(Box<Machine>),
    /// Start a machine in the background and return
    Start(Box<Machine>),
    /// Print the forwarded ports of a machine; fails if it does not run
    Status {
        /// The machine's directory
        #[arg(long)]
        dir: PathBuf,
    },
    /// End a machine with its disks flushed; not an error if it does not run
    Stop {
        /// The machine's directory
        #[arg(long)]
        dir: PathBuf,
    },
    /// Press the reset button
    Reset {
        /// The machine's directory
        #[arg(long)]
        dir: PathBuf,
    },
    /// Press the power button
    PowerButton {
        /// The machine's directory
        #[arg(long)]
        dir: PathBuf,
    },
    /// Wait for a line on the console
    Wait {
        /// The machine's directory
        #[arg(long)]
        dir: PathBuf,
        /// Seconds to wait
        #[arg(long, default_value_t = 120)]
        within: u64,
        /// Text in the line
        text: String,
    },
    /// Make a blank disk
    Blank {
        /// The file; an existing one is replaced
        file: PathBuf,
        /// Bytes, or with a suffix K, M, G
        #[arg(long)]
        size: Size,
        /// Format of the file
        #[arg(long, value_enum, default_value_t = Format::Raw)]
        format: Format,
    },
}

/// The settings of a machine.
#[derive(Debug, Args)]
pub(crate) struct Machine {
    /// The machine's directory: console, command line, control sockets
    #[arg(long)]
    pub(crate) dir: PathBuf,
    /// Kernel; without it, the machine boots from its firmware
    #[arg(long, requires = "initrd")]
    kernel: Option<PathBuf>,
    /// Initramfs
    #[arg(long, requires = "kernel")]
    initrd: Option<PathBuf>,
    /// Kernel command line
    #[arg(long, default_value = "console=ttyS0 panic=10")]
    append: String,
    /// UEFI instead of BIOS: the folder with OVMF_CODE_4M.fd and OVMF_VARS_4M.fd, as in the package ovmf
    #[arg(long, conflicts_with = "kernel", num_args = 0..=1, default_missing_value = "/usr/share/OVMF")]
    uefi: Option<PathBuf>,
    /// UEFI with Secure Boot, by OVMF_CODE_4M.secboot.fd of that folder
    #[arg(long, requires = "uefi")]
    secure_boot: bool,
    /// Initial UEFI variables instead of the folder's
    #[arg(long, requires = "uefi")]
    uefi_variables: Option<PathBuf>,
    /// Boot from the network: a file of --tftp, or a URL for iPXE
    #[arg(long, conflicts_with = "kernel")]
    network_boot: Option<String>,
    /// The folder that QEMU's TFTP server offers
    #[arg(long, requires = "network_boot")]
    tftp: Option<PathBuf>,
    /// Memory in MiB
    #[arg(long, default_value_t = 512)]
    memory: u32,
    /// Processors
    #[arg(long, default_value_t = 1)]
    processors: u32,
    /// Disk: FILE[,raw|qcow2][,virtio|scsi|nvme|usb|cd][,snapshot]; may be repeated
    #[arg(long = "drive", value_parser = drive)]
    drives: Vec<Drive>,
    /// Forward a port of 127.0.0.1 to the machine: GUEST[:HOST]; may be repeated
    #[arg(long = "forward", value_parser = forward)]
    forwards: Vec<(u16, Option<u16>)>,
    /// Firmware configuration entry: NAME=FILE; may be repeated
    #[arg(long = "fw-cfg", value_parser = fw_cfg)]
    fw_cfg: Vec<(String, PathBuf)>,
    /// Add a watchdog that resets the machine
    #[arg(long)]
    watchdog: bool,
    /// Derive time from counted instructions: every run is the same
    #[arg(long)]
    deterministic: bool,
    /// Derive time from counted instructions while the guest works, so that its clock does not depend on the host's load
    #[arg(long, conflicts_with = "deterministic")]
    counted: bool,
    /// Kill the machine after this many seconds
    #[arg(long)]
    deadline: Option<u64>,
    /// Set on the process that `start` leaves behind
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
}

impl Machine {
    fn firmware(&self) -> VmSpec {
        let Some(folder) = &self.uefi else {
            return VmSpec::bios();
        };
        let mut uefi = match self.secure_boot {
            true => Uefi::secure_in_folder(folder),
            false => Uefi::in_folder(folder),
        };
        if let Some(variables) = &self.uefi_variables {
            uefi = uefi.variables(variables);
        }
        VmSpec::uefi(uefi)
    }

    /// The plan.
    pub(crate) fn spec(&self) -> VmSpec {
        let mut spec = match (&self.kernel, &self.initrd) {
            (Some(kernel), Some(initrd)) => {
                VmSpec::kernel(kernel, initrd).command_line(&self.append)
            }
            _ => self.firmware(),
        };
        spec.network_boot = self.network_boot.clone().map(|file| NetworkBoot {
            folder: self.tftp.clone(),
            file,
        });
        spec = spec
            .network()
            .memory_mib(self.memory)
            .processors(self.processors)
            .allow_panic();
        spec.drives.clone_from(&self.drives);
        for (guest, host) in &self.forwards {
            spec = match host {
                Some(host) => spec.forward_to(*guest, *host),
                None => spec.forward(*guest),
            };
        }
        for (name, file) in &self.fw_cfg {
            spec = spec.fw_cfg_file(name, file);
        }
        if self.watchdog {
            spec = spec.watchdog(WatchdogAction::Reset);
        }
        if self.deterministic {
            spec = spec.timing(Timing::Instructions);
        }
        if self.counted {
            spec = spec.timing(Timing::InstructionsIdleOnHost);
        }
        spec.deadline = self.deadline.map(Duration::from_secs);
        spec
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Format {
    Raw,
    Qcow2,
}

impl From<Format> for DiskFormat {
    fn from(format: Format) -> Self {
        match format {
            Format::Raw => Self::Raw,
            Format::Qcow2 => Self::Qcow2,
        }
    }
}

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, shift) = match text.char_indices().last() {
            Some((at, 'K')) => (&text[..at], 10),
            Some((at, 'M')) => (&text[..at], 20),
            Some((at, 'G')) => (&text[..at], 30),
            _ => (text, 0),
        };
        let number: u64 = number
            .parse()
            .map_err(|_| "write a number, then K, M, G or nothing".to_owned())?;
        number
            .checked_mul(1 << shift)
            .map(Self)
            .ok_or_else(|| "that many bytes don't exist".to_owned())
    }
}

fn drive(text: &str) -> Result<Drive, String> {
    let mut parts = text.split(',');
    let mut drive = Drive::raw(parts.next().unwrap_or_default());
    for part in parts {
        match part {
            "raw" => drive.format = DiskFormat::Raw,
            "qcow2" => drive.format = DiskFormat::Qcow2,
            "virtio" => drive.bus = Bus::Virtio,
            "scsi" => drive.bus = Bus::Scsi,
            "nvme" => drive.bus = Bus::Nvme,
            "usb" => drive.bus = Bus::Usb,
            "cd" => drive.bus = Bus::Cd,
            "snapshot" => drive.snapshot = true,
            other => {
                return Err(format!(
                    "{other:?} is none of raw, qcow2, virtio, scsi, nvme, usb, cd, snapshot"
                ));
            }
        }
    }
    Ok(drive)
}

fn forward(text: &str) -> Result<(u16, Option<u16>), String> {
    let port = |text: &str| {
        text.parse::<u16>()
            .map_err(|_| format!("{text:?} is not a port"))
    };
    match text.split_once(':') {
        Some((guest, host)) => Ok((port(guest)?, Some(port(host)?))),
        None => Ok((port(text)?, None)),
    }
}

fn fw_cfg(text: &str) -> Result<(String, PathBuf), String> {
    let (name, file) = text.split_once('=').ok_or("write NAME=FILE")?;
    Ok((name.to_owned(), file.into()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn arguments_become_the_plan() {
        let words = "x run --dir d --kernel k --initrd i --append a --memory 384 --drive f,qcow2,nvme --forward 1:2 \
                     --forward 3 --fw-cfg opt/n=c --deadline 9";
        let Command::Run(machine) = Arguments::try_parse_from(words.split_whitespace())
            .unwrap()
            .command
        else {
            unreachable!()
        };
        let expected = VmSpec::kernel("k", "i")
            .command_line("a")
            .memory_mib(384)
            .drive(Drive::qcow2("f").on(Bus::Nvme))
            .forward_to(1, 2)
            .forward(3)
            .fw_cfg_file("opt/n", "c")
            .allow_panic()
            .deadline(Duration::from_secs(9));
        assert_eq!(machine.spec(), expected);
    }

    #[test]
    fn firmware_finds_what_to_start() {
        let spec = |words: &str| {
            let Command::Run(machine) = Arguments::try_parse_from(words.split_whitespace())
                .unwrap()
                .command
            else {
                unreachable!()
            };
            machine.spec()
        };
        let expected = VmSpec::bios()
            .network()
            .allow_panic()
            .drive(Drive::raw("i.iso").on(Bus::Cd))
            .without_deadline();
        assert_eq!(spec("x run --dir d --drive i.iso,cd"), expected);
        let uefi = Uefi::secure_in_folder("/usr/share/OVMF").variables("v");
        let expected = VmSpec::uefi(uefi)
            .network_boot("p", "instar.efi")
            .allow_panic()
            .without_deadline();
        let words = "x run --dir d --secure-boot --uefi-variables v --network-boot instar.efi --tftp p --uefi";
        assert_eq!(spec(words), expected);
    }

    #[test]
    fn bad_arguments_are_refused() {
        assert!(drive("f,floppy").is_err());
        assert!(forward("http").is_err());
        assert!(forward("1:70000").is_err());
        assert!(fw_cfg("name").is_err());
        assert!(Arguments::try_parse_from(["x", "run", "--dir", "d", "--kernel", "k"]).is_err());
    }

    #[test]
    fn reads_sizes() {
        let size = |text: &str| text.parse::<Size>().ok().map(|size| size.0);
        assert_eq!(size("4G"), Some(4 << 30));
        assert_eq!(size("512"), Some(512));
        assert_eq!(size("G"), None);
        assert_eq!(size("99999999999G"), None);
        assert_eq!(size("1é"), None);
    }
}
