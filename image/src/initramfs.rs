//! The two archives that the kernel unpacks: `base.cpio` with init, and one with the generation that boots first (docs/contracts.md).

use anyhow::{Context, Result};

use crate::{
    cpio,
    digest::Blake3,
    kernel::modules::{Selection, load_order},
    tree::Tree,
};

/// Returns the archive with init and the modules that init loads, in the order of `names`.
///
/// # Errors
/// A module's dependencies run in a circle.
pub fn base(init: &[u8], modules: &Selection, names: &[&str]) -> Result<Vec<u8>> {
    let mut tree = Tree::new();
    tree.file("init", 0o755, init)?;
    // The kernel opens the console for init before anything is mounted.
    tree.character_device("dev/console", 0o600, 5, 1)?;
    let mut order: Vec<&str> = Vec::new();
    for name in names {
        for needed in load_order(modules, name)? {
            if !order.contains(&needed) {
                order.push(needed);
            }
        }
    }
    for (index, name) in order.iter().enumerate() {
        let module = modules
            .get(*name)
            .with_context(|| format!("the module {name} was not selected"))?;
        let file = module.path.rsplit('/').next().unwrap_or(&module.path);
        tree.file(
            &format!("modules/{:02}-{file}", (index + 1) * 10),
            0o644,
            module.file.as_slice(),
        )?;
    }
    archive(&tree)
}

/// Returns the archive with a root filesystem and its digest.
///
/// # Errors
/// The file is too large for cpio.
pub fn first_generation(rootfs: &[u8]) -> Result<Vec<u8>> {
    let mut tree = Tree::new();
    tree.file("rootfs.squashfs", 0o644, rootfs)?;
    tree.file(
        "rootfs.b3",
        0o644,
        format!("{}\n", Blake3::of(rootfs)).into_bytes(),
    )?;
    archive(&tree)
}

fn archive(tree: &Tree) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    cpio::write(tree, &mut bytes).context("cannot write a cpio archive")?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::kernel::{modinfo::ModuleInfo, modules::Module};

    fn names_in(archive: &[u8]) -> Vec<String> {
        let text = String::from_utf8_lossy(archive);
        let names = text
            .split("070701")
            .skip(1)
            .map(|entry| entry[104..].split('\0').next().unwrap().to_owned());
        names.collect()
    }

    #[test]
    fn modules_are_numbered_in_load_order() {
        let module = |name: &str, depends: &[&str]| {
            let info = ModuleInfo {
                depends: depends.iter().map(|name| (*name).to_owned()).collect(),
                aliases: Vec::new(),
            };
            (
                name.to_owned(),
                Module {
                    path: format!("kernel/x/{name}.ko.xz"),
                    info,
                    file: vec![b'm'],
                },
            )
        };
        let modules = Selection::from([
            module("squashfs", &["zstd"]),
            module("zstd", &[]),
            module("loop", &[]),
        ]);
        let names = names_in(&base(b"init", &modules, &["loop", "squashfs"]).unwrap());
        assert_eq!(
            names,
            [
                "dev",
                "dev/console",
                "init",
                "modules",
                "modules/10-loop.ko.xz",
                "modules/20-zstd.ko.xz",
                "modules/30-squashfs.ko.xz",
                "TRAILER!!!"
            ]
        );
    }

    #[test]
    fn the_first_generation_comes_with_its_digest() {
        let archive = first_generation(b"squashfs").unwrap();
        assert_eq!(
            names_in(&archive),
            ["rootfs.b3", "rootfs.squashfs", "TRAILER!!!"]
        );
        let digest = format!("{}\n", Blake3::of(b"squashfs"));
        assert!(String::from_utf8_lossy(&archive).contains(&digest));
    }
}
