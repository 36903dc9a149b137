//! The base image of Kubernetes: the root of its container, over which extensions lay containerd and kubelet (docs/contracts.md).
//!
//! ```text
//!   layer 1   programs of Debian that kubelet, containerd and CNI plugins call, with their libraries; users; directories
//!   layer 2   /usr/lib/modules/RELEASE, for each kernel that machines may run: machined loads them before the container starts
//!   layer 3   kubernetes-init, logind, and the release's name
//! ```
//!
//! A new version has a new third layer, and often no other: a node fetches a megabyte.
//!
//! The decision: single files of packages, without a shell, a package manager or systemd. A debootstrapped Debian was the other choice: 100 MB
//! of programs that nobody calls, each with updates of its own.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::{
    build::{self, Flavour, SUITE},
    certificates, crates,
    debian::{self, Fetched, Request},
    digest::Blake3,
    kernel::modules::{self, Available},
    oci::layout::{self, Compression, Image, Layer},
    programs::Programs,
    rootfs, sbom,
    tree::Tree,
    version::Version,
};

/// The programs: package and path.
const PROGRAMS: [(&str, &str); 23] = [
    // For commands before the start of services.
    ("coreutils", "usr/bin/cat"),
    ("coreutils", "usr/bin/chmod"),
    ("coreutils", "usr/bin/cp"),
    ("coreutils", "usr/bin/ln"),
    ("coreutils", "usr/bin/mkdir"),
    ("coreutils", "usr/bin/mv"),
    ("coreutils", "usr/bin/rm"),
    ("coreutils", "usr/bin/touch"),
    // For volumes.
    ("mount", "usr/bin/mount"),
    ("mount", "usr/bin/umount"),
    ("mount", "usr/sbin/losetup"),
    ("util-linux", "usr/bin/findmnt"),
    ("util-linux", "usr/sbin/blkid"),
    ("util-linux", "usr/sbin/fsck"),
    ("e2fsprogs", "usr/sbin/e2fsck"),
    ("e2fsprogs", "usr/sbin/mke2fs"),
    ("e2fsprogs", "usr/sbin/resize2fs"),
    // For networks of pods, and for agents that look into them.
    ("conntrack", "usr/sbin/conntrack"),
    ("iproute2", "usr/bin/ip"),
    ("iptables", "usr/sbin/xtables-nft-multi"),
    ("nftables", "usr/sbin/nft"),
    ("util-linux", "usr/bin/nsenter"),
    // For agents that ask here whether a reboot waits, by `test -f`.
    ("coreutils", "usr/bin/test"),
];

/// Programs that choose their work by the name that they are called by.
const OTHER_NAMES: [(&str, &str); 8] = [
    ("usr/sbin/fsck.ext4", "e2fsck"),
    ("usr/sbin/mkfs.ext4", "mke2fs"),
    ("usr/sbin/iptables", "xtables-nft-multi"),
    ("usr/sbin/iptables-save", "xtables-nft-multi"),
    ("usr/sbin/iptables-restore", "xtables-nft-multi"),
    ("usr/sbin/ip6tables", "xtables-nft-multi"),
    ("usr/sbin/ip6tables-save", "xtables-nft-multi"),
    ("usr/sbin/ip6tables-restore", "xtables-nft-multi"),
];

/// Files of packages that the programs read.
const FILES: [(&str, &str); 3] = [
    ("e2fsprogs", "etc/mke2fs.conf"),
    ("netbase", "etc/protocols"),
    ("netbase", "etc/services"),
];

/// The packages of all of these.
const PACKAGES: [&str; 9] = [
    "conntrack",
    "coreutils",
    "e2fsprogs",
    "iproute2",
    "iptables",
    "mount",
    "netbase",
    "nftables",
    "util-linux",
];

/// Matches and targets, which iptables loads.
const XTABLES: &str = "usr/lib/x86_64-linux-gnu/xtables";

/// The place of kubernetes-init in the image.
const INIT: &str = "usr/lib/instar/kubernetes-init";
/// The place of the program that tells kubelet of a shutdown.
const LOGIND: &str = "usr/lib/instar/logind";
/// Other names of kubernetes-init: agents call it by these to reboot the machine.
const OF_REBOOTS: [(&str, &str); 3] = [
    ("usr/bin/systemctl", "../lib/instar/kubernetes-init"),
    ("usr/sbin/reboot", "../lib/instar/kubernetes-init"),
    ("usr/sbin/shutdown", "../lib/instar/kubernetes-init"),
];

/// The inputs and output of a build.
#[derive(Debug)]
pub struct Options {
    /// The version that the image carries.
    pub version: Version,
    /// The folder to write.
    pub out: PathBuf,
    /// The kernels whose modules are in the image.
    pub flavours: Vec<Flavour>,
    /// The static program kubernetes-init.
    pub init: PathBuf,
    /// The static program logind.
    pub logind: PathBuf,
    /// The workspace that they were built from.
    pub workspace: PathBuf,
    /// Where packages come from.
    pub packages: debian::Source,
    /// The date of the image.
    pub created: Option<jiff::Timestamp>,
}

/// The results of a build.
#[derive(Debug)]
pub struct Report {
    /// The digest of the image's manifest, by which it can be pulled.
    pub digest: String,
    /// The layers with their compressed sizes.
    pub layers: Vec<(&'static str, u64)>,
}

/// Builds the image as an OCI layout, with `sbom.spdx.json` beside it.
///
/// # Errors
/// A program, package or tool is missing, or the folder cannot be written.
pub fn build(options: &Options) -> Result<Report> {
    let init = build::program(&options.init)?;
    let logind = build::program(&options.logind)?;
    let packages = debian::fetch(&options.packages, &packages())?;
    let mut programs = Programs::new(&packages);
    let mut debian = debian_layer(&mut programs)?;
    // For agents that take the authorities of their host.
    certificates::add(&mut debian, &mut programs, &packages)?;
    let mut kernels = Kernels::default();
    for flavour in &options.flavours {
        kernels.add(debian::fetch(
            &options.packages,
            &build::packages(*flavour),
        )?)?;
    }
    let own = own_layer(&init, &logind, &options.version)?;

    let is_used = |fetched: &&Fetched| programs.used().contains(fetched.package.name.as_str());
    let used: Vec<&Fetched> = packages
        .iter()
        .filter(is_used)
        .chain(&kernels.packages)
        .collect();
    let crates = crates::of_programs(
        &options.workspace,
        &["instar-kubernetes-init", "instar-logind"],
        crates::PLATFORM,
    )?;
    let contents = sbom::of_kubernetes_base(&options.version, Blake3::of(&init), &used, &crates);

    let image = image(options, [debian, kernels.tree, own], &kernels.releases);
    let manifest = layout::write(&image, &options.out)?;
    fs::write(
        options.out.join("sbom.spdx.json"),
        format!("{contents:#}\n"),
    )
    .context("cannot write sbom.spdx.json")?;
    let layers = layout::layer_sizes(&options.out, &manifest)?;
    Ok(Report {
        layers: ["programs", "kernel modules", "kubernetes-init"]
            .into_iter()
            .zip(layers)
            .collect(),
        digest: manifest.digest,
    })
}

/// The packages of the programs. The kernel's are those of the machine's own image: modules fit only the kernel that runs.
#[must_use]
pub fn packages() -> Request<'static> {
    Request {
        suite: SUITE,
        with_dependencies: &PACKAGES,
        alone: &[certificates::PACKAGE],
        through: None,
        name: "kubernetes-base",
    }
}

fn image(options: &Options, [debian, modules, own]: [Tree; 3], releases: &[String]) -> Image {
    let layer = |tree, compression| Layer { tree, compression };
    let labels = BTreeMap::from([
        ("dev.instar.version", options.version.to_string()),
        ("dev.instar.architecture", "amd64".to_owned()),
        ("dev.instar.kernels", releases.join(" ")),
    ]);
    Image {
        layers: vec![
            layer(debian, Compression::Gzip),
            // Each module is compressed.
            layer(modules, Compression::None),
            layer(own, Compression::Gzip),
        ],
        entrypoint: vec![format!("/{INIT}")],
        labels: labels
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
        tag: Some(options.version.to_string()),
        created: options.created,
        ..Image::default()
    }
}

fn debian_layer(programs: &mut Programs<'_>) -> Result<Tree> {
    let mut tree = Tree::new();
    for folder in ["bin", "sbin", "lib", "lib64"] {
        tree.directory(&format!("usr/{folder}"))?;
        tree.symlink(folder, &format!("usr/{folder}"))?;
    }
    for folder in [
        "dev",
        "etc/kubernetes",
        "home",
        "instar",
        "mnt",
        "opt",
        "proc",
        "root",
        "run",
        "sys",
        "var",
    ] {
        tree.directory(folder)?;
    }
    tree.directory_with_mode("tmp", 0o1777)?;
    for (package, path) in PROGRAMS {
        programs.add(&mut tree, package, path)?;
    }
    for (path, target) in OTHER_NAMES.into_iter().chain(OF_REBOOTS) {
        tree.symlink(path, target)?;
    }
    programs.add_plugins(&mut tree, "iptables", XTABLES)?;
    for (package, path) in FILES {
        tree.file(path, 0o644, programs.read(package, path)?)?;
    }
    add_settings(&mut tree)?;
    Ok(tree)
}

/// Adds the files of /etc that are in no package.
fn add_settings(tree: &mut Tree) -> Result<()> {
    let files: [(&str, &[u8]); 5] = [
        (
            "etc/passwd",
            b"root:x:0:0:root:/root:/usr/sbin/nologin\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
        ),
        ("etc/group", b"root:x:0:\nnogroup:x:65534:\n"),
        ("etc/nsswitch.conf", b"passwd: files\ngroup: files\nhosts: files dns\n"),
        ("etc/hosts", b"127.0.0.1 localhost\n::1 localhost\n"),
        // The machine's is put over it.
        ("etc/machine-id", b""),
    ];
    for (path, text) in files {
        tree.file(path, 0o644, text)?;
    }
    tree.symlink("etc/mtab", "/proc/self/mounts")
}

fn own_layer(init: &[u8], logind: &[u8], version: &Version) -> Result<Tree> {
    let mut tree = Tree::new();
    tree.file(INIT, 0o755, init)?;
    tree.file(LOGIND, 0o755, logind)?;
    // A file and no link: the machine's is put over it, and must not be hidden by extensions.
    tree.file(
        "etc/os-release",
        0o644,
        rootfs::os_release(version).into_bytes(),
    )?;
    Ok(tree)
}

/// The modules of all kernels.
#[derive(Debug, Default)]
struct Kernels {
    tree: Tree,
    releases: Vec<String>,
    packages: Vec<Fetched>,
}

impl Kernels {
    fn add(&mut self, packages: Vec<Fetched>) -> Result<()> {
        let (package, release) = build::kernel_package(&packages)?;
        let folder = modules::folder(&package.root, release)?;
        let selection = Available::read(&folder)?
            .select(modules::wanted("kubernetes")?)
            .with_context(|| format!("cannot choose modules of {}", package.package.name))?;
        let built_in = read(&folder.join("modules.builtin"))?;
        rootfs::add_modules(&mut self.tree, release, &selection, &built_in)?;
        self.releases.push(release.to_owned());
        self.packages.push(package.clone());
        Ok(())
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_file_is_of_a_package_that_is_fetched() {
        for (package, path) in PROGRAMS.iter().chain(&FILES) {
            assert!(PACKAGES.contains(package), "{path}");
        }
        for (path, target) in OTHER_NAMES {
            let folder = path.rsplit_once('/').unwrap().0;
            let program = format!("{folder}/{target}");
            assert!(PROGRAMS.iter().any(|(_, path)| *path == program), "{path}");
        }
    }

    /// A link that leads elsewhere would be seen only by the agent that calls it.
    #[test]
    fn programs_of_reboots_are_kubernetes_init() {
        for (path, target) in OF_REBOOTS {
            let up = path.split('/').count() - 2;
            assert_eq!(target.matches("../").count(), up, "{path}");
            let program = target.trim_start_matches("../");
            assert_eq!(format!("usr/{program}"), INIT, "{path}");
        }
    }

    #[test]
    fn the_layer_of_a_version_has_only_what_a_version_changes() {
        let own = own_layer(b"init", b"logind", &"v0.3.0".parse().unwrap()).unwrap();
        let is_file = |(_, node): &(&str, &crate::tree::Node)| {
            matches!(node.content, crate::tree::Content::File(_))
        };
        let files: Vec<_> = own.iter().filter(is_file).map(|(path, _)| path).collect();
        assert_eq!(files, ["etc/os-release", INIT, LOGIND]);
    }
}
