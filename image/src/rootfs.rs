//! The root filesystem as a tree: our programs, those of Debian, kernel modules, and a few files that name the system
//! (docs/contracts.md).

use anyhow::Result;
use instar_extension::Host;
use serde::Serialize;

use crate::{
    digest::Blake3,
    kernel::{
        bzimage::Banner,
        modules::{Selection, alias_index, dependency_index},
    },
    tree::Tree,
    version::Version,
};

/// The content of `/usr/lib/instar/image.json`.
#[derive(Clone, Debug, Serialize)]
pub struct Identity<'a> {
    /// The version of this image.
    pub version: &'a Version,
    /// `amd64`.
    pub architecture: &'static str,
    /// `uname -r` of the kernel that its modules are for.
    pub kernel_release: &'a str,
    /// The kernel's banner.
    pub kernel_banner: &'a str,
    /// BLAKE3 digest of the kernel's file.
    pub kernel_blake3: Blake3,
    /// BLAKE3 digest of the program init.
    pub init_blake3: Blake3,
    /// The oldest version that a machine takes once this one was committed there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub floor: Option<&'a Version>,
}

/// Adds directories, links, users and machined. Programs of Debian are added later.
///
/// # Errors
/// A path has another content already.
pub fn add_system(tree: &mut Tree, machined: &[u8]) -> Result<()> {
    for folder in ["bin", "sbin", "lib", "lib64"] {
        tree.directory(&format!("usr/{folder}"))?;
        tree.symlink(folder, &format!("usr/{folder}"))?;
    }
    for mount_point in [
        "proc",
        "sys",
        "dev",
        "run",
        "var",
        "system/state",
        "etc/instar",
    ] {
        tree.directory(mount_point)?;
    }
    tree.directory_with_mode("tmp", 0o1777)?;
    tree.file("usr/sbin/machined", 0o755, machined)?;
    tree.symlink("usr/sbin/apid", "machined")?;
    tree.symlink("usr/sbin/dashboard", "machined")?;
    for name in ["resolv.conf", "hosts", "hostname"] {
        tree.symlink(&format!("etc/{name}"), &format!("/run/etc/{name}"))?;
    }
    tree.file(
        "etc/passwd",
        0o644,
        *b"root:x:0:0:root:/:/usr/sbin/nologin\n\
           apid:x:50:50:apid:/:/usr/sbin/nologin\n\
           dashboard:x:51:51:dashboard:/:/usr/sbin/nologin\n",
    )?;
    tree.file(
        "etc/group",
        0o644,
        *b"root:x:0:\napid:x:50:\ndashboard:x:51:\n",
    )
}

/// Adds the modules and their index for the kernel `release`.
///
/// # Errors
/// The modules' dependencies run in a circle.
pub fn add_modules(
    tree: &mut Tree,
    release: &str,
    modules: &Selection,
    built_in: &[u8],
) -> Result<()> {
    let folder = format!("usr/lib/modules/{release}");
    for module in modules.values() {
        tree.file(
            &format!("{folder}/{}", module.path),
            0o644,
            module.file.as_slice(),
        )?;
    }
    tree.file(
        &format!("{folder}/modules.dep"),
        0o644,
        dependency_index(modules)?.into_bytes(),
    )?;
    tree.file(
        &format!("{folder}/modules.alias"),
        0o644,
        alias_index(modules).into_bytes(),
    )?;
    tree.file(&format!("{folder}/modules.builtin"), 0o644, built_in)
}

/// Adds the only files that name the version.
///
/// # Errors
/// A path has another content already.
pub fn add_identity(
    tree: &mut Tree,
    version: &Version,
    kernel: &[u8],
    banner: &Banner,
    init: &[u8],
    floor: Option<&Version>,
) -> Result<()> {
    let identity = Identity {
        version,
        architecture: "amd64",
        kernel_release: &banner.release,
        kernel_banner: &banner.text,
        kernel_blake3: Blake3::of(kernel),
        init_blake3: Blake3::of(init),
        floor,
    };
    let mut text = serde_json::to_vec(&identity)?;
    text.push(b'\n');
    tree.file("usr/lib/instar/image.json", 0o644, text)?;
    tree.file(
        "usr/lib/os-release",
        0o644,
        os_release(version).into_bytes(),
    )?;
    tree.symlink("etc/os-release", "../usr/lib/os-release")
}

/// Returns the text of the os-release file (os-release(5)).
#[must_use]
pub fn os_release(version: &Version) -> String {
    let (id, level) = (Host::ID, Host::LEVEL);
    format!(
        "NAME=Instar\nID={id}\nVERSION_ID={version}\nSYSEXT_LEVEL={level}\nCONFEXT_LEVEL={level}\nPRETTY_NAME=\"Instar {version}\"\n"
    )
}
