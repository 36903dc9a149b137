//! The plan as QEMU's command line.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use crate::accel::{Accel, QemuVersion};
use crate::directory::{CONSOLE, CONSOLE_SOCKET, CONTROL_SOCKET, OWNER_SOCKET};
use crate::error::{Error, Result};
use crate::fault;
use crate::spec::{
    Boot, Bus, Content, DiskFormat, Drive, OnPanic, Tap, Timing, VmSpec, WatchdogAction,
};

/// The properties of the host that the command line depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Host {
    /// Version of the QEMU that will run.
    pub version: QemuVersion,
    /// The accelerator of guest code; [`Timing::Instructions`] always uses TCG.
    pub accel: Accel,
}

/// Returns QEMU's arguments. The caller has chosen every forward's host port and written every entry of the firmware
/// configuration to a file; QEMU runs in the machine's directory, and its own files are relative to that.
pub fn command_line(spec: &VmSpec, host: Host) -> Result<Vec<OsString>> {
    check(spec)?;
    let mut line = Line::default();
    line.add(["-no-user-config", "-nodefaults", "-display", "none"]);
    machine(&mut line, spec, host);
    line.add([
        "-m",
        &spec.memory_mib.to_string(),
        "-smp",
        &spec.processors.to_string(),
    ]);
    timing(&mut line, spec.timing);
    boot(&mut line, &spec.boot);
    let console = match spec.console_takes_keys {
        true => {
            format!("socket,id=console,path={CONSOLE_SOCKET},server=on,wait=off,logfile={CONSOLE}")
        }
        false => format!("file,id=console,path={CONSOLE}"),
    };
    line.add(["-chardev", &console, "-serial", "chardev:console"]);
    for socket in [OWNER_SOCKET, CONTROL_SOCKET] {
        line.add(["-qmp", &format!("unix:{socket},server=on,wait=off")]);
    }
    drives(&mut line, spec);
    network(&mut line, spec)?;
    fw_cfg(&mut line, spec)?;
    failures(&mut line, spec);
    line.add(spec.extra_arguments.iter().map(String::as_str));
    Ok(line.arguments)
}

fn check(spec: &VmSpec) -> Result<()> {
    let impossible = |text: &str| Err(Error::Impossible(text.to_owned()));
    if spec.processors == 0 || spec.memory_mib == 0 {
        return impossible("it needs a processor and memory");
    }
    if spec.timing != Timing::Host && spec.processors > 1 {
        return impossible("counting instructions works with one processor only");
    }
    if spec.network_boot.is_some() && matches!(spec.boot, Boot::Kernel { .. }) {
        return impossible("it starts a kernel from the host or from the network, not both");
    }
    let can_be_tapped = |drive: &Drive| {
        let bus = match drive.tap {
            Tap::None | Tap::WriteLog(_) => drive.bus == Bus::Virtio,
            Tap::Faults | Tap::Server(_) => matches!(drive.bus, Bus::Virtio | Bus::Scsi),
        };
        bus && drive.format == DiskFormat::Raw && !drive.snapshot
    };
    if spec
        .drives
        .iter()
        .any(|drive| drive.tap != Tap::None && !can_be_tapped(drive))
    {
        return impossible(
            "only a raw disk behind virtio, no snapshot, can be recorded, and only one behind virtio or SCSI made to fail or served by another program",
        );
    }
    Ok(())
}

fn machine(line: &mut Line, spec: &VmSpec, host: Host) {
    line.add(["-machine", machine_type(&spec.boot)]);
    match host.accel {
        Accel::Kvm if spec.timing == Timing::Host => line.add(["-accel", "kvm", "-cpu", "host"]),
        Accel::Kvm | Accel::Tcg => {
            // With ERMS, Linux fills and copies pages with instructions that TCG executes one byte at a time, and over
            // former code it checks each byte: without ERMS a generation starts in a third of the time.
            let mut cpu = "max,-erms".to_owned();
            if host.version.miscomputes_cx16() {
                cpu += ",-cx16";
            }
            line.add(["-accel", "tcg", "-cpu", &cpu]);
        }
    }
}

fn machine_type(boot: &Boot) -> &'static str {
    match boot {
        Boot::Kernel { .. } => "q35",
        // SeaBIOS and the program that it starts then use the serial port.
        Boot::Firmware { uefi: None } => "q35,graphics=off",
        Boot::Firmware { uefi: Some(uefi) } if uefi.secure_boot => "q35,smm=on",
        Boot::Firmware { uefi: Some(_) } => "q35,smm=off",
    }
}

/// Adds the clock. With a fixed seed, a fixed date and a clock of instructions, two runs are the same to the last
/// cycle. A machine with peers on the host starts with the host's date instead, as certificates would not be valid on
/// one side.
fn timing(line: &mut Line, timing: Timing) {
    let (icount, date) = match timing {
        Timing::Host => return,
        Timing::Instructions => ("shift=0,sleep=off", "2025-01-01"),
        Timing::InstructionsIdleOnHost => ("shift=0,sleep=on", "utc"),
    };
    line.add(["-icount", icount, "-seed", "1"]);
    line.add(["-rtc", &format!("base={date},clock=vm")]);
}

fn boot(line: &mut Line, boot: &Boot) {
    match boot {
        Boot::Kernel {
            kernel,
            initrd,
            command_line,
        } => {
            line.option("-kernel", kernel);
            if let Some(initrd) = initrd {
                line.option("-initrd", initrd);
            }
            line.add(["-append", command_line]);
        }
        Boot::Firmware { uefi: None } => {}
        Boot::Firmware { uefi: Some(uefi) } => {
            if uefi.secure_boot {
                line.add(["-global", "driver=cfi.pflash01,property=secure,value=on"]);
            }
            line.property(
                "-drive",
                "if=pflash,format=raw,unit=0,readonly=on,file=",
                &uefi.code,
                "",
            );
            line.property(
                "-drive",
                "if=pflash,format=raw,unit=1,file=",
                &uefi.variables,
                "",
            );
            // OVMF has no network without a source of randomness.
            line.add(["-device", "virtio-rng-pci"]);
        }
    }
}

fn drives(line: &mut Line, spec: &VmSpec) {
    if spec.drives.iter().any(|drive| drive.bus == Bus::Usb) {
        line.add(["-device", "qemu-xhci"]);
    }
    if spec.drives.iter().any(|drive| drive.bus == Bus::Scsi) {
        line.add(["-device", "virtio-scsi-pci"]);
    }
    for (number, drive) in spec.drives.iter().enumerate() {
        match &drive.tap {
            Tap::None => {}
            Tap::WriteLog(log) => {
                recorded_drive(line, number, &drive.file, log);
                continue;
            }
            Tap::Faults => {
                let file = format!(
                    "driver=file,node-name={},discard=unmap,filename=",
                    fault::whole_node(number)
                );
                line.property("-blockdev", &file, &drive.file, "");
                failing_drive(line, number, drive.bus);
                continue;
            }
            Tap::Server(port) => {
                let server = format!(
                    "driver=nbd,node-name={},server.type=inet,server.host=127.0.0.1,server.port={port}",
                    fault::whole_node(number)
                );
                line.add(["-blockdev", &server]);
                failing_drive(line, number, drive.bus);
                continue;
            }
        }
        let format = drive.format.name();
        let snapshot = if drive.snapshot { ",snapshot=on" } else { "" };
        let medium = match drive.bus {
            Bus::Cd => ",media=cdrom,readonly=on",
            Bus::Virtio | Bus::Scsi | Bus::Nvme | Bus::Usb => ",discard=unmap",
        };
        let rest = format!(",format={format},if=none,id=drive{number}{medium}{snapshot}");
        line.property("-drive", "file=", &drive.file, &rest);
        let device = match drive.bus {
            Bus::Virtio => "virtio-blk-pci",
            Bus::Scsi => "scsi-hd",
            Bus::Nvme => "nvme",
            Bus::Usb => "usb-storage,removable=on",
            Bus::Cd => "ide-cd",
        };
        line.add([
            "-device",
            &format!("{device},drive=drive{number},serial=disk{number}"),
        ]);
    }
}

/// Adds a recorded disk. Each write of the guest is one request: QEMU 7.2 loses the log entries of merged ones, and the
/// guest then sees errors.
fn recorded_drive(line: &mut Line, number: usize, file: &Path, log: &Path) {
    line.property(
        "-blockdev",
        &format!("driver=file,node-name=file{number},discard=unmap,filename="),
        file,
        "",
    );
    line.property(
        "-blockdev",
        &format!("driver=file,node-name=log{number},filename="),
        log,
        "",
    );
    line.add([
        "-blockdev",
        &format!(
            "driver=blklogwrites,node-name=drive{number},file=file{number},log=log{number},log-sector-size=512,discard=unmap"
        ),
        "-device",
        &format!("virtio-blk-pci,drive=drive{number},serial=disk{number},request-merging=off"),
    ]);
}

/// Adds a disk whose writes can fail. The guest sees the errors; without `werror` a host without room would stop the
/// machine.
fn failing_drive(line: &mut Line, number: usize, bus: Bus) {
    let controller = match bus {
        Bus::Scsi => "scsi-hd",
        _ => "virtio-blk-pci,request-merging=off",
    };
    let (node, device) = (fault::whole_node(number), fault::device(number));
    line.add([
        "-device",
        &format!(
            "{controller},id={device},drive={node},serial=disk{number},werror=report,rerror=report"
        ),
    ]);
}

fn network(line: &mut Line, spec: &VmSpec) -> Result<()> {
    if !spec.network {
        return Ok(());
    }
    let mut netdev = "user,id=net0".to_owned();
    for forward in &spec.forwards {
        let host = forward.host.ok_or_else(|| {
            Error::Impossible(format!(
                "port {} of the guest has no host port",
                forward.guest
            ))
        })?;
        netdev.push_str(&format!(",hostfwd=tcp:127.0.0.1:{host}-:{}", forward.guest));
    }
    let mut card = "virtio-net-pci,netdev=net0".to_owned();
    if spec.network_boot.is_none() || spec.boot != (Boot::Firmware { uefi: None }) {
        // Without a ROM BIOS does not try to boot from the card. UEFI has a driver of its own.
        card.push_str(",romfile=");
    }
    if spec.timing == Timing::Instructions {
        // The processor's thread sends packets, by a timer of the guest's clock. Else another thread does, and the clock of a guest that is idle until
        // the answer leaps a little further in some runs.
        card.push_str(",tx=timer,ioeventfd=off");
    }
    if spec.network_card_in_port {
        line.add(["-device", "pcie-root-port,id=card-port"]);
        card.push_str(",id=card,bus=card-port");
    }
    match &spec.network_boot {
        None => line.add(["-netdev", &netdev]),
        Some(boot) => {
            let bootfile = format!(",bootfile={}", boot.file.replace(',', ",,"));
            match &boot.folder {
                Some(folder) => {
                    line.property("-netdev", &format!("{netdev},tftp="), folder, &bootfile);
                }
                None => line.add(["-netdev", &(netdev + &bootfile)]),
            }
            if !spec.order_of_firmware {
                card.push_str(",bootindex=1");
            }
        }
    }
    line.add(["-device", &card]);
    Ok(())
}

fn fw_cfg(line: &mut Line, spec: &VmSpec) -> Result<()> {
    for entry in &spec.fw_cfg {
        let Content::File(path) = &entry.content else {
            return Err(Error::Impossible(format!(
                "the fw_cfg entry {} has no file",
                entry.name
            )));
        };
        line.property(
            "-fw_cfg",
            &format!("name={},file=", entry.name.replace(',', ",,")),
            path,
            "",
        );
    }
    Ok(())
}

fn failures(line: &mut Line, spec: &VmSpec) {
    line.add(["-device", "pvpanic-pci"]);
    line.add(match spec.on_panic {
        OnPanic::Fail => ["-action", "panic=exit-failure"],
        OnPanic::Allow => ["-action", "panic=none"],
    });
    if let Some(action) = spec.watchdog {
        let action = match action {
            WatchdogAction::Reset => "watchdog=reset",
            WatchdogAction::PowerOff => "watchdog=poweroff",
        };
        line.add(["-device", "i6300esb", "-action", action]);
    }
    if spec.end_on_reboot {
        line.add(["-no-reboot"]);
    }
}

#[derive(Default)]
struct Line {
    arguments: Vec<OsString>,
}

impl Line {
    fn add<'a>(&mut self, arguments: impl IntoIterator<Item = &'a str>) {
        self.arguments
            .extend(arguments.into_iter().map(OsString::from));
    }

    fn option(&mut self, name: &str, path: &Path) {
        self.add([name]);
        self.arguments.push(path.into());
    }

    /// Adds a path inside a list of properties: QEMU wants its commas doubled.
    fn property(&mut self, option: &str, before: &str, path: &Path, after: &str) {
        let mut value = before.as_bytes().to_vec();
        for byte in path.as_os_str().as_bytes() {
            value.push(*byte);
            if *byte == b',' {
                value.push(*byte);
            }
        }
        value.extend(after.as_bytes());
        self.add([option]);
        self.arguments.push(OsString::from_vec(value));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::spec::{Drive, Uefi};

    const OLD_TCG: Host = Host {
        version: QemuVersion { major: 7, minor: 2 },
        accel: Accel::Tcg,
    };
    const NEW_TCG: Host = Host {
        version: QemuVersion {
            major: 10,
            minor: 0,
        },
        accel: Accel::Tcg,
    };
    const KVM: Host = Host {
        version: QemuVersion {
            major: 10,
            minor: 0,
        },
        accel: Accel::Kvm,
    };

    fn line(spec: &VmSpec, host: Host) -> String {
        let arguments = command_line(spec, host).unwrap();
        arguments
            .iter()
            .map(|argument| argument.to_string_lossy())
            .collect::<Vec<_>>()
            .join(" ")
    }

    fn small() -> VmSpec {
        VmSpec::kernel("/k", "/i")
    }

    #[test]
    fn a_kernel_with_all_that_belongs_to_it() {
        let spec = small()
            .append("quiet")
            .memory_mib(256)
            .drive(Drive::raw("/a,b.img"))
            .drive(Drive::qcow2("/c.qcow2").on(Bus::Nvme))
            .forward_to(50000, 20001)
            .fw_cfg_file("opt/dev.instar/config", "/config.yaml")
            .watchdog(WatchdogAction::Reset)
            .end_on_reboot();
        assert_eq!(
            line(&spec, OLD_TCG),
            "-no-user-config -nodefaults -display none -machine q35 -accel tcg -cpu max,-erms,-cx16 -m 256 -smp 1 \
             -kernel /k -initrd /i -append console=ttyS0 panic=10 quiet \
             -chardev file,id=console,path=console.log -serial chardev:console \
             -qmp unix:owner.sock,server=on,wait=off -qmp unix:control.sock,server=on,wait=off \
             -drive file=/a,,b.img,format=raw,if=none,id=drive0,discard=unmap \
             -device virtio-blk-pci,drive=drive0,serial=disk0 \
             -drive file=/c.qcow2,format=qcow2,if=none,id=drive1,discard=unmap \
             -device nvme,drive=drive1,serial=disk1 \
             -netdev user,id=net0,hostfwd=tcp:127.0.0.1:20001-:50000 \
             -device virtio-net-pci,netdev=net0,romfile= \
             -fw_cfg name=opt/dev.instar/config,file=/config.yaml \
             -device pvpanic-pci -action panic=exit-failure -device i6300esb -action watchdog=reset -no-reboot"
        );
    }

    #[test]
    fn the_processor_fits_accelerator_and_version() {
        assert!(line(&small(), OLD_TCG).contains("-accel tcg -cpu max,-erms,-cx16 "));
        assert!(line(&small(), NEW_TCG).contains("-accel tcg -cpu max,-erms "));
        assert!(line(&small(), KVM).contains("-accel kvm -cpu host "));
    }

    #[test]
    fn counting_instructions_means_tcg_and_nothing_random() {
        let spec = small().timing(Timing::Instructions);
        let text = line(&spec, KVM);
        assert!(text.contains("-accel tcg "), "{text}");
        assert!(
            text.contains("-icount shift=0,sleep=off -seed 1 -rtc base=2025-01-01,clock=vm"),
            "{text}"
        );
        let with_card = line(&spec.clone().forward_to(50000, 20001), KVM);
        assert!(with_card.contains(",tx=timer,ioeventfd=off"), "{with_card}");
        assert!(command_line(&spec.processors(2), KVM).is_err());
    }

    #[test]
    fn uefi_has_code_and_variables() {
        let plain = Uefi::in_folder("/f").variables("/vars.fd");
        let text = line(&VmSpec::uefi(plain).drive(Drive::raw("/d.img")), OLD_TCG);
        assert!(
            text.contains("-machine q35,smm=off ")
                && text.contains(
                    "unit=0,readonly=on,file=/f/OVMF_CODE_4M.fd -drive if=pflash,format=raw,unit=1,file=/vars.fd \
                     -device virtio-rng-pci"
                ),
            "{text}"
        );
        assert!(
            !text.contains("-kernel") && !text.contains("secure"),
            "{text}"
        );

        let text = line(&VmSpec::uefi(Uefi::secure_in_folder("/f")), OLD_TCG);
        assert!(
            text.contains("-machine q35,smm=on ")
                && text.contains(
                    "-global driver=cfi.pflash01,property=secure,value=on \
                     -drive if=pflash,format=raw,unit=0,readonly=on,file=/f/OVMF_CODE_4M.secboot.fd"
                ),
            "{text}"
        );
    }

    #[test]
    fn a_disk_that_is_recorded_and_one_that_fails() {
        let spec = small()
            .drive(Drive::raw("/a.img").recorded("/w,1.log"))
            .drive(Drive::raw("/b.img").breakable());
        let text = line(&spec, OLD_TCG);
        assert!(
            text.contains(
                "-blockdev driver=file,node-name=file0,discard=unmap,filename=/a.img \
                 -blockdev driver=file,node-name=log0,filename=/w,,1.log \
                 -blockdev driver=blklogwrites,node-name=drive0,file=file0,log=log0,log-sector-size=512,discard=unmap \
                 -device virtio-blk-pci,drive=drive0,serial=disk0,request-merging=off \
                 -blockdev driver=file,node-name=whole1,discard=unmap,filename=/b.img \
                 -device virtio-blk-pci,request-merging=off,id=disk1,drive=whole1,serial=disk1,werror=report,rerror=report"
            ),
            "{text}"
        );
        let on_scsi = line(
            &small().drive(Drive::raw("/b.img").on(Bus::Scsi).breakable()),
            OLD_TCG,
        );
        assert!(
            on_scsi.contains("-device virtio-scsi-pci -blockdev")
                && on_scsi.contains("-device scsi-hd,id=disk0,drive=whole0,"),
            "{on_scsi}"
        );
        let served = line(&small().drive(Drive::raw("/b.img").served(10_809)), OLD_TCG);
        assert!(
            served.contains(
                "-blockdev driver=nbd,node-name=whole0,server.type=inet,server.host=127.0.0.1,server.port=10809 \
                 -device virtio-blk-pci,request-merging=off,id=disk0,drive=whole0,"
            ),
            "{served}"
        );
        let impossible = small().drive(Drive::qcow2("/c").breakable());
        assert!(command_line(&impossible, OLD_TCG).is_err());
    }

    #[test]
    fn discs_and_sticks() {
        let spec = VmSpec::bios()
            .drive(Drive::raw("/i.iso").on(Bus::Cd))
            .drive(Drive::raw("/i.iso").on(Bus::Usb));
        let text = line(&spec, OLD_TCG);
        assert!(
            text.contains(
                "-device qemu-xhci \
                 -drive file=/i.iso,format=raw,if=none,id=drive0,media=cdrom,readonly=on -device ide-cd,drive=drive0,serial=disk0 \
                 -drive file=/i.iso,format=raw,if=none,id=drive1,discard=unmap \
                 -device usb-storage,removable=on,drive=drive1,serial=disk1"
            ),
            "{text}"
        );
    }

    #[test]
    fn only_bios_boots_from_the_network_by_the_cards_rom() {
        let text = line(&VmSpec::bios().network_boot("/p", "boot.ipxe"), OLD_TCG);
        assert!(
            text.contains(
                "-netdev user,id=net0,tftp=/p,bootfile=boot.ipxe -device virtio-net-pci,netdev=net0,bootindex=1 "
            ),
            "{text}"
        );
        let uefi = VmSpec::uefi(Uefi::in_folder("/f")).network_boot_url("http://10.0.2.2/a,b");
        let text = line(&uefi, OLD_TCG);
        assert!(
            text.contains(
                "-netdev user,id=net0,bootfile=http://10.0.2.2/a,,b -device virtio-net-pci,netdev=net0,romfile=,bootindex=1 "
            ),
            "{text}"
        );
        assert!(command_line(&small().network_boot("/p", "x"), OLD_TCG).is_err());
    }

    #[test]
    fn a_panic_that_is_planned_does_not_end_it() {
        assert!(line(&small().allow_panic(), OLD_TCG).contains("-action panic=none"));
    }

    #[test]
    fn what_is_not_settled_yet_is_refused() {
        assert!(
            command_line(&small().forward(80), OLD_TCG).is_err(),
            "no host port"
        );
        assert!(
            command_line(&small().fw_cfg("opt/x", "y"), OLD_TCG).is_err(),
            "no file"
        );
        assert!(command_line(&small().memory_mib(0), OLD_TCG).is_err());
    }
}
