//! Mounts a stick: to read it, or to write support data.

use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::Context as _;

use crate::bundles::Stick;
use crate::machine::Machine;
use crate::mounts::filesystem::{Filesystem, MountFlags};
use crate::mounts::transient_mount::TransientMount;
use crate::sequences::steps::load_modules::load_modules;

/// The directory of mount points.
const MOUNTS: &str = "/run/instar/sticks";
/// Tries of a mount, and the pause between two: the mount before may end a moment late.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(100);

/// The use of a stick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
}

/// Loads the modules of the filesystems that sticks may have.
pub(super) async fn load_filesystems(machine: &Machine) -> anyhow::Result<()> {
    let names = ["vfat", "nls_cp437", "nls_ascii", "crc32c_generic", "ext4"];
    load_modules(machine, &names).await
}

/// Mounts a stick, without devices, programs and links out of it. Waits for the device.
pub(super) fn mount(stick: &Stick, access: Access) -> anyhow::Result<TransientMount> {
    let target = Path::new(MOUNTS).join(&stick.name);
    let device = stick.device();
    let filesystem = || Filesystem {
        kind: stick.filesystem.kind(),
        source: &device,
        flags: match access {
            Access::Read => MountFlags::RDONLY,
            Access::Write => MountFlags::empty(),
        },
        options: match access {
            Access::Read => stick.filesystem.options(),
            Access::Write => stick.filesystem.options_to_write(),
        },
    };
    let mut tries = 1;
    loop {
        match TransientMount::new(filesystem(), &target) {
            Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy && tries < TRIES => {
                tries += 1;
                sleep(PAUSE);
            }
            mounted => return mounted.context("mount the stick"),
        }
    }
}
