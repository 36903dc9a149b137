//! Bundles of images of a test's registry, and sticks with them.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use instar_qemu::Vm;
use serde_json::{Value, json};

use crate::instarctl::Instarctl;
use crate::other_rootfs::squash;
use crate::registry::Registry;
use crate::run_command::run;
use crate::scratch::Scratch;

/// Size of a stick's filesystem.
const STICK: &str = "192M";
/// Size of a stick of FAT, in bytes.
const FAT_STICK: u64 = 64 << 20;
/// The id of the SCSI controller that sticks are plugged into.
const CONTROLLER: &str = "sticks";

/// Makes a bundle of images of this registry, by their names as in guests (`greeter:v1`); returns its file.
pub async fn bundle(
    registry: &Registry,
    scratch: &Scratch,
    name: &str,
    images: &[&str],
) -> Result<PathBuf> {
    bundle_with(registry, scratch, name, images, &[]).await
}

/// The same with further options of `bundle create`.
pub async fn bundle_with(
    registry: &Registry,
    scratch: &Scratch,
    name: &str,
    images: &[&str],
    more: &[&str],
) -> Result<PathBuf> {
    let file = scratch.join(name);
    create(registry, scratch, &file.to_string_lossy(), images, more).await?;
    Ok(file)
}

/// Makes a bundle as a directory of this name.
pub async fn bundle_directory(
    registry: &Registry,
    scratch: &Scratch,
    name: &str,
    images: &[&str],
) -> Result<PathBuf> {
    let directory = scratch.join(name);
    let place = format!("{}/", directory.display());
    create(registry, scratch, &place, images, &[]).await?;
    Ok(directory)
}

/// Makes a bundle of this file of an extension alone; returns its file. No registry is asked.
pub async fn bundle_of_extension(scratch: &Scratch, name: &str, file: &Path) -> Result<PathBuf> {
    let bundle = scratch.join(name);
    let (file, to) = (file.to_string_lossy(), bundle.to_string_lossy());
    let words = ["bundle", "create", "--extension", &file, "--to", &to];
    let said = Instarctl::alone(scratch)?.run(&words).await?;
    ensure!(said.code == Some(0), "{said:?}");
    Ok(bundle)
}

/// Writes a file of an extension, a squashfs with these files; returns its path.
pub fn extension_file_of(
    scratch: &Scratch,
    name: &str,
    files: &[(&str, &[u8])],
) -> Result<PathBuf> {
    let tree = scratch.below(&format!("{name}-tree"))?;
    for (path, content) in files {
        let path = tree.join(path);
        let folder = path.parent().context("a path below the tree")?;
        std::fs::create_dir_all(folder)?;
        std::fs::write(path, content)?;
    }
    scratch.write(name, squash(tree.path())?)
}

async fn create(
    registry: &Registry,
    scratch: &Scratch,
    to: &str,
    images: &[&str],
    more: &[&str],
) -> Result<()> {
    let host = registry.host_for_guest();
    let way = format!(
        "apiVersion: v1alpha1\nkind: RegistryMirrorConfig\nname: {host}\nendpoints:\n  - url: http://{}\nskipFallback: true\n",
        registry.address()
    );
    let way = scratch.write("registries.yaml", way)?;
    let mut words = vec!["bundle".to_owned(), "create".to_owned()];
    for image in images {
        words.extend(["--image".to_owned(), registry.image_for_guest(image)]);
    }
    let way = way.to_string_lossy();
    let paths = [("--registries", &*way), ("--to", to)];
    words.extend(
        paths
            .into_iter()
            .flat_map(|(option, path)| [option.to_owned(), path.to_owned()]),
    );
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let words = [&words[..], more].concat();
    let said = Instarctl::alone(scratch)?.run(&words).await?;
    ensure!(said.code == Some(0), "{said:?}");
    Ok(())
}

/// Writes a filesystem of ext4 with a label and this file on it.
pub fn stick(scratch: &Scratch, name: &str, label: &str, file: &Path) -> Result<PathBuf> {
    let content = scratch.below(&format!("{name}-content"))?;
    let copy = content.join("site.bundle");
    std::fs::copy(file, copy)?;
    let stick = scratch.join(name);
    let mut command = Command::new("mkfs.ext4");
    command.args(["-q", "-L", label, "-d"]).arg(content.path());
    run(command.arg(&stick).arg(STICK))?;
    Ok(stick)
}

/// Writes a filesystem of FAT with a label and one empty directory on it.
pub fn fat_stick(scratch: &Scratch, name: &str, label: &str, directory: &str) -> Result<PathBuf> {
    let stick = scratch.join(name);
    File::create(&stick)?.set_len(FAT_STICK)?;
    run(Command::new("mkfs.vfat").args(["-n", label]).arg(&stick))?;
    let place = format!("::{directory}");
    run(Command::new("mmd").arg("-i").arg(&stick).arg(place))?;
    Ok(stick)
}

/// Writes a filesystem of FAT with a label and a directory of the host on it.
pub fn fat_stick_with(
    scratch: &Scratch,
    name: &str,
    label: &str,
    directory: &Path,
) -> Result<PathBuf> {
    let stick = scratch.join(name);
    File::create(&stick)?.set_len(FAT_STICK)?;
    run(Command::new("mkfs.vfat").args(["-n", label]).arg(&stick))?;
    let mut copy = Command::new("mcopy");
    copy.arg("-s").arg("-i").arg(&stick);
    run(copy.arg(directory).arg("::"))?;
    Ok(stick)
}

/// Copies a directory of a FAT stick into a directory of the host.
pub fn copy_from_fat(stick: &Path, directory: &str, to: &Path) -> Result<()> {
    let place = format!("::{directory}");
    run(Command::new("mcopy")
        .arg("-s")
        .arg("-i")
        .arg(stick)
        .arg(place)
        .arg(to))?;
    Ok(())
}

/// The arguments of QEMU that give a machine a place for USB sticks.
pub fn place_for_usb_sticks() -> [&'static str; 2] {
    ["-device", "qemu-xhci,id=usb"]
}

/// Plugs a stick into the USB of a running machine, which may write to it; `name` is for [`pull_out`].
pub fn plug_into_usb(vm: &Vm, name: &str, stick: &Path) -> Result<()> {
    // The block device of a stick that was pulled out stays, and would keep its lock.
    let node = json!({"driver": "raw", "node-name": name,
                      "file": {"driver": "file", "filename": stick, "locking": "off"}});
    let id = format!("{name}-disk");
    let device = json!({"driver": "usb-storage", "bus": "usb.0", "drive": name, "id": id});
    let mut qmp = vm.qmp();
    qmp.execute("blockdev-add", node)?;
    qmp.execute("device_add", device)?;
    Ok(())
}

/// The argument of QEMU that gives a machine a place for sticks.
pub fn place_for_sticks() -> [String; 2] {
    [
        "-device".to_owned(),
        format!("virtio-scsi-pci,id={CONTROLLER}"),
    ]
}

/// Plugs a stick into a running machine; `name` is for [`pull_out`].
pub fn plug_in(vm: &Vm, name: &str, stick: &Path) -> Result<()> {
    let node = json!({"driver": "raw", "node-name": name, "read-only": true,
                      "file": {"driver": "file", "filename": stick, "read-only": true}});
    let device = json!({"driver": "scsi-hd", "bus": format!("{CONTROLLER}.0"), "drive": name, "id": format!("{name}-disk")});
    let mut qmp = vm.qmp();
    qmp.execute("blockdev-add", node)?;
    qmp.execute("device_add", device)?;
    Ok(())
}

/// Pulls a stick out.
pub fn pull_out(vm: &Vm, name: &str) -> Result<Value> {
    let device = json!({"id": format!("{name}-disk")});
    Ok(vm.qmp().execute("device_del", device)?)
}
