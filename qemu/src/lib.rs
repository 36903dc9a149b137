//! A virtual machine as a value: say what to boot, start it, watch its console, cut its power.
//!
//! [`VmSpec`] is the plan. [`Vm::start`] turns it into a QEMU process in a directory of its own, which holds the command
//! line, the console log and QEMU's errors: it stays when something fails and goes when all was well. Every machine has a
//! deadline, and none outlives the process that started it. This crate knows nothing of what it boots.
//!
//! The decision: a machine is a child process and a directory. libvirt was the other choice: a daemon with rights of its own, whose machines
//! outlive the test that started them.
//!
//! ```no_run
//! # use std::time::Duration;
//! # use instar_qemu::{Vm, VmSpec};
//! let spec = VmSpec::kernel("vmlinuz", "initramfs.cpio").memory_mib(256).forward(50000);
//! let vm = Vm::start(&spec, "scratch/node".as_ref())?;
//! vm.wait_for_line("machined: ready", Duration::from_secs(60))?;
//! println!("the API is at 127.0.0.1:{}", vm.host_port(50000)?);
//! # Ok::<(), instar_qemu::Error>(())
//! ```

mod accel;
mod blank;
mod command;
mod console;
pub mod control;
mod directory;
mod error;
mod fault;
mod guest_clock;
mod launch;
mod ports;
mod process;
mod qmp;
mod spec;
mod sys;
mod vm;

pub use accel::{Accel, QemuVersion};
pub use blank::create_blank_disk;
pub use command::{Host, command_line};
pub use console::{ConsoleLine, ConsoleMark};
pub use directory::KEEP_VARIABLE;
pub use error::{Ended, Error, Evidence, Result};
pub use fault::{WriteFailure, WriteFault};
pub use ports::{PortLease, lease_port};
pub use process::OwnedProcess;
pub use qmp::{Event, Qmp, QmpError};
pub use spec::{
    Boot, Bus, Content, DiskFormat, Drive, Forward, FwCfg, NetworkBoot, OnPanic, Tap, Timing, Uefi,
    VmSpec, WatchdogAction,
};
pub use vm::Vm;
