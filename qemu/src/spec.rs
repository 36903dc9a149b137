//! The plan of a machine, as a value.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// A machine before it runs. Paths are the host's and become absolute when the machine starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmSpec {
    /// The source of the boot.
    pub boot: Boot,
    /// Main memory in MiB.
    pub memory_mib: u32,
    /// Virtual processors. [`Timing::Instructions`] allows one only.
    pub processors: u32,
    /// Disks, in the order in which the guest numbers them.
    pub drives: Vec<Drive>,
    /// TCP ports of the guest that the host can reach on 127.0.0.1.
    pub forwards: Vec<Forward>,
    /// Adds a network card; the host's 127.0.0.1 is 10.0.2.2 for the guest.
    pub network: bool,
    /// Puts the network card into a port that it can be pulled out of (`device_del`); its id is `card`.
    pub network_card_in_port: bool,
    /// Lets the host type at the serial port, not only read what it says.
    pub console_takes_keys: bool,
    /// The file that the firmware starts from the network, before it looks at the drives.
    pub network_boot: Option<NetworkBoot>,
    /// Leaves the choice between network and disk to the firmware's own order, as the machine's NVRAM keeps it; else
    /// every start is from the network.
    pub order_of_firmware: bool,
    /// Files that the guest reads from QEMU's firmware configuration device.
    pub fw_cfg: Vec<FwCfg>,
    /// The guest's clock.
    pub timing: Timing,
    /// The action of an i6300esb watchdog when nobody feeds it; `None` for no watchdog.
    pub watchdog: Option<WatchdogAction>,
    /// Decides whether a panic of the guest's kernel is a failure.
    pub on_panic: OnPanic,
    /// Ends QEMU when the guest reboots.
    pub end_on_reboot: bool,
    /// Limit on the machine's life: it is killed then, and every wait on it fails. `None` for a machine that people
    /// use.
    pub deadline: Option<Duration>,
    /// Further arguments for QEMU, at the end of its command line.
    pub extra_arguments: Vec<String>,
}

/// The source of a machine's boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Boot {
    /// A kernel that QEMU loads itself.
    Kernel {
        /// The bzImage.
        kernel: PathBuf,
        /// The initramfs.
        initrd: Option<PathBuf>,
        /// The kernel's command line.
        command_line: String,
    },
    /// The firmware, which looks on drives and the network; SeaBIOS where there is no UEFI.
    Firmware {
        /// UEFI firmware.
        uefi: Option<Uefi>,
    },
}

/// UEFI firmware, as in the package `ovmf`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uefi {
    /// The code, read only.
    pub code: PathBuf,
    /// The variables of a new machine. Each machine works on a copy in its directory, and keeps it when it is started
    /// there again.
    pub variables: PathBuf,
    /// Whether the code has Secure Boot, whose variables only System Management Mode may write. Without keys in the
    /// variables the firmware is in setup mode: it starts any program and accepts new keys.
    pub secure_boot: bool,
}

impl Uefi {
    /// Returns the firmware in a folder with the file names of the package `ovmf`, e.g. `/usr/share/OVMF`.
    pub fn in_folder(folder: impl AsRef<Path>) -> Self {
        let folder = folder.as_ref();
        Self {
            code: folder.join("OVMF_CODE_4M.fd"),
            variables: folder.join("OVMF_VARS_4M.fd"),
            secure_boot: false,
        }
    }

    /// As [`Self::in_folder`], with Secure Boot.
    pub fn secure_in_folder(folder: impl AsRef<Path>) -> Self {
        let folder = folder.as_ref();
        Self {
            code: folder.join("OVMF_CODE_4M.secboot.fd"),
            secure_boot: true,
            ..Self::in_folder(folder)
        }
    }

    /// Replaces the variables that a new machine begins with.
    pub fn variables(self, variables: impl Into<PathBuf>) -> Self {
        Self {
            variables: variables.into(),
            ..self
        }
    }
}

/// A file from the network: with BIOS the card's ROM, which is iPXE, loads it; with UEFI the firmware itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkBoot {
    /// The folder that QEMU's TFTP server offers; `None` when the file is a URL.
    pub folder: Option<PathBuf>,
    /// The name that DHCP announces: a file of the folder, or a URL, which iPXE understands.
    pub file: String,
}

/// A disk of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drive {
    /// The file on the host that holds the disk.
    pub file: PathBuf,
    /// The format of the file.
    pub format: DiskFormat,
    /// The bus, which decides the guest's name for the disk.
    pub bus: Bus,
    /// Writes go to a temporary file and are gone when the machine ends.
    pub snapshot: bool,
    /// A layer between the machine and the file.
    pub tap: Tap,
}

/// A layer between the machine and the file that holds its disk. All kinds but `None` are for raw disks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Tap {
    /// No layer.
    #[default]
    None,
    /// Notes every write and every flush in this file, which is made. Its format is that of Linux's dm-log-writes.
    WriteLog(PathBuf),
    /// Can fail writes while the machine runs: [`crate::Vm::fail_write`].
    Faults,
    /// Another program, which serves the file by NBD on this port of 127.0.0.1.
    Server(u16),
}

impl Drive {
    /// A raw disk behind virtio.
    pub fn raw(file: impl Into<PathBuf>) -> Self {
        Self {
            file: file.into(),
            format: DiskFormat::Raw,
            bus: Bus::Virtio,
            snapshot: false,
            tap: Tap::None,
        }
    }

    /// A qcow2 disk behind virtio.
    pub fn qcow2(file: impl Into<PathBuf>) -> Self {
        Self {
            format: DiskFormat::Qcow2,
            ..Self::raw(file)
        }
    }

    /// Puts the disk on another bus.
    pub fn on(self, bus: Bus) -> Self {
        Self { bus, ..self }
    }

    /// Notes the disk's writes in a file.
    pub fn recorded(self, log: impl Into<PathBuf>) -> Self {
        Self {
            tap: Tap::WriteLog(log.into()),
            ..self
        }
    }

    /// Allows the disk's writes to be failed: [`crate::Vm::fail_write`].
    pub fn breakable(self) -> Self {
        Self {
            tap: Tap::Faults,
            ..self
        }
    }

    /// Has a program serve the disk by NBD on a port of 127.0.0.1.
    pub fn served(self, port: u16) -> Self {
        Self {
            tap: Tap::Server(port),
            ..self
        }
    }
}

/// The format of a file that holds a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskFormat {
    /// Byte by byte.
    Raw,
    /// QEMU's own format.
    Qcow2,
}

impl DiskFormat {
    /// QEMU's name of the format.
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        }
    }
}

/// The bus that the guest finds a disk on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bus {
    /// `/dev/vdX`
    Virtio,
    /// `/dev/sdX`, behind a virtio controller.
    Scsi,
    /// `/dev/nvmeXn1`
    Nvme,
    /// A stick in a USB port.
    Usb,
    /// A disc in a CD-ROM drive, read only.
    Cd,
}

/// A TCP port of the guest on the host's 127.0.0.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forward {
    /// The port in the guest.
    pub guest: u16,
    /// The port on the host; a free one when `None`.
    pub host: Option<u16>,
}

/// An entry of QEMU's firmware configuration device (`/sys/firmware/qemu_fw_cfg/by_name/` in the guest).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FwCfg {
    /// The entry's name, by QEMU's rules below `opt/` and with a domain of one's own.
    pub name: String,
    /// The entry's content.
    pub content: Content,
}

/// The content of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// The bytes of this file when the machine starts.
    File(PathBuf),
    /// These bytes; they are put into a file in the machine's directory.
    Bytes(Vec<u8>),
}

/// The guest's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Timing {
    /// As on the host.
    #[default]
    Host,
    /// One nanosecond per guest instruction, idle time is skipped: the same run every time, on any host. TCG, one processor.
    Instructions,
    /// One nanosecond per guest instruction while it works, the host's time while it is idle, so that a peer on the host
    /// can take part. TCG, one processor.
    InstructionsIdleOnHost,
}

/// The watchdog's action when nobody feeds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchdogAction {
    /// Resets the machine.
    Reset,
    /// Ends QEMU.
    PowerOff,
}

/// The meaning of a panic of the guest's kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnPanic {
    /// A failure of every wait on this machine.
    #[default]
    Fail,
    /// Part of the plan: the machine goes on, by the kernel's `panic=` argument.
    Allow,
}

/// Default limit on a machine's life: enough for all that a test does with it under TCG on a busy host. The waits have
/// shorter timeouts and notice a hang sooner.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(900);

impl VmSpec {
    fn new(boot: Boot) -> Self {
        Self {
            boot,
            memory_mib: 512,
            processors: 1,
            drives: Vec::new(),
            forwards: Vec::new(),
            network: false,
            network_card_in_port: false,
            console_takes_keys: false,
            network_boot: None,
            order_of_firmware: false,
            fw_cfg: Vec::new(),
            timing: Timing::Host,
            watchdog: None,
            on_panic: OnPanic::Fail,
            end_on_reboot: false,
            deadline: Some(DEFAULT_DEADLINE),
            extra_arguments: Vec::new(),
        }
    }

    /// A machine that starts a kernel, with its console on the serial port.
    pub fn kernel(kernel: impl Into<PathBuf>, initrd: impl Into<PathBuf>) -> Self {
        Self::new(Boot::Kernel {
            kernel: kernel.into(),
            initrd: Some(initrd.into()),
            command_line: "console=ttyS0 panic=10".to_owned(),
        })
    }

    /// Returns a machine that BIOS starts.
    pub fn bios() -> Self {
        Self::new(Boot::Firmware { uefi: None })
    }

    /// Returns a machine that UEFI starts.
    pub fn uefi(uefi: Uefi) -> Self {
        Self::new(Boot::Firmware { uefi: Some(uefi) })
    }

    /// Replaces the kernel's command line; without effect on a machine that firmware starts.
    pub fn command_line(mut self, text: impl Into<String>) -> Self {
        if let Boot::Kernel { command_line, .. } = &mut self.boot {
            *command_line = text.into();
        }
        self
    }

    /// Adds arguments to the kernel's command line; without effect on a machine that firmware starts.
    pub fn append(mut self, arguments: &str) -> Self {
        if let Boot::Kernel { command_line, .. } = &mut self.boot {
            if !command_line.is_empty() {
                command_line.push(' ');
            }
            command_line.push_str(arguments);
        }
        self
    }

    /// Sets the main memory, in MiB.
    pub fn memory_mib(mut self, mib: u32) -> Self {
        self.memory_mib = mib;
        self
    }

    /// Sets the number of virtual processors.
    pub fn processors(mut self, count: u32) -> Self {
        self.processors = count;
        self
    }

    /// Adds a disk.
    pub fn drive(mut self, drive: Drive) -> Self {
        self.drives.push(drive);
        self
    }

    /// Adds the network card.
    pub fn network(mut self) -> Self {
        self.network = true;
        self
    }

    /// Lets the host type at the serial port ([`Vm::type_at_console`](crate::Vm::type_at_console)).
    pub fn console_takes_keys(mut self) -> Self {
        self.console_takes_keys = true;
        self
    }

    /// Adds the network card in a port that it can be pulled out of; its id is `card`.
    pub fn network_card_in_port(mut self) -> Self {
        self.network_card_in_port = true;
        self.network()
    }

    /// Starts a file of this folder from the network, by TFTP; adds the network card.
    pub fn network_boot(mut self, folder: impl Into<PathBuf>, file: impl Into<String>) -> Self {
        self.network_boot = Some(NetworkBoot {
            folder: Some(folder.into()),
            file: file.into(),
        });
        self.network()
    }

    /// Starts a URL from the network, where the firmware can; adds the network card.
    pub fn network_boot_url(mut self, url: impl Into<String>) -> Self {
        self.network_boot = Some(NetworkBoot {
            folder: None,
            file: url.into(),
        });
        self.network()
    }

    /// Leaves the choice of the first boot device to the firmware's own order.
    pub fn order_of_firmware(mut self) -> Self {
        self.order_of_firmware = true;
        self
    }

    /// Makes a TCP port of the guest reachable on a free port of the host's 127.0.0.1; adds the network card.
    pub fn forward(mut self, guest: u16) -> Self {
        self.forwards.push(Forward { guest, host: None });
        self.network()
    }

    /// As [`Self::forward`], on the given port of the host.
    pub fn forward_to(mut self, guest: u16, host: u16) -> Self {
        self.forwards.push(Forward {
            guest,
            host: Some(host),
        });
        self.network()
    }

    /// Adds a firmware configuration entry with a file's content.
    pub fn fw_cfg_file(mut self, name: impl Into<String>, file: impl AsRef<Path>) -> Self {
        self.fw_cfg.push(FwCfg {
            name: name.into(),
            content: Content::File(file.as_ref().to_owned()),
        });
        self
    }

    /// Adds a firmware configuration entry.
    pub fn fw_cfg(mut self, name: impl Into<String>, content: impl Into<Vec<u8>>) -> Self {
        self.fw_cfg.push(FwCfg {
            name: name.into(),
            content: Content::Bytes(content.into()),
        });
        self
    }

    /// Sets the guest's clock.
    pub fn timing(mut self, timing: Timing) -> Self {
        self.timing = timing;
        self
    }

    /// Adds the watchdog.
    pub fn watchdog(mut self, action: WatchdogAction) -> Self {
        self.watchdog = Some(action);
        self
    }

    /// Makes a panic of the guest's kernel part of the plan.
    pub fn allow_panic(mut self) -> Self {
        self.on_panic = OnPanic::Allow;
        self
    }

    /// Ends QEMU when the guest reboots.
    pub fn end_on_reboot(mut self) -> Self {
        self.end_on_reboot = true;
        self
    }

    /// Sets the limit on the machine's life, after which it is killed.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Removes the limit on the machine's life.
    pub fn without_deadline(mut self) -> Self {
        self.deadline = None;
        self
    }

    /// Adds an argument to QEMU's command line.
    pub fn extra_argument(mut self, argument: impl Into<String>) -> Self {
        self.extra_arguments.push(argument.into());
        self
    }
}
