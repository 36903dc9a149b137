//! One build, top to bottom: packages, kernel, tree, squashfs, archives, installer image, list of contents.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use crate::{
    boot::{authenticode, signer::Signer, uki},
    certificates, crates,
    debian::{self, Fetched, Request},
    digest::{Blake3, Sha256},
    initramfs,
    installer_image::{self, ReleaseRules},
    kernel::{
        bzimage::{self, Banner},
        modules::{self, Available, Selection},
    },
    oci,
    programs::Programs,
    rootfs, sbom, squashfs,
    tree::Tree,
    version::Version,
};

/// The UKI among the files of an image.
pub const UKI_FILE: &str = "instar.efi";
/// The root filesystem, in the folder of an image.
const ROOTFS_FILE: &str = "rootfs.squashfs";
/// systemd-boot among the files of an image.
pub const LOADER_FILE: &str = "systemd-bootx64.efi";

/// The suite that kernel, container runtime and disk programs come from.
pub(crate) const SUITE: &str = "trixie";
/// Programs of Debian in the root filesystem: package and path.
const DEBIAN_PROGRAMS: [(&str, &str); 5] = [
    ("crun", "usr/bin/crun"),
    ("dosfstools", "usr/sbin/mkfs.fat"),
    ("e2fsprogs", "usr/sbin/mke2fs"),
    ("e2fsprogs", "usr/sbin/e2fsck"),
    ("e2fsprogs", "usr/sbin/resize2fs"),
];

/// The package of systemd's programs for UEFI, and where it has them.
const BOOT_PACKAGE: &str = "systemd-boot-efi";
const STUB: &str = "usr/lib/systemd/boot/efi/linuxx64.efi.stub";
const LOADER: &str = "usr/lib/systemd/boot/efi/systemd-bootx64.efi";
/// The kernel's arguments in the UKI (docs/contracts.md). The last console is `/dev/console`; a machine without a serial port
/// has the screen.
const COMMAND_LINE: &str = "console=tty0 console=ttyS0 panic=10 printk.devkmsg=on cryptomgr.notests transparent_hugepage=never";

/// crun is linked to it for a cgroup manager, a log and a protocol of readiness that are systemd's. With the library of
/// mathematics that it needs in turn it would be a seventh of the root filesystem.
const UNUSED_LIBRARY: &str = "libsystemd.so.0";

/// Which of Debian's kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Flavour {
    /// For virtual machines: smaller, and boots faster.
    #[default]
    Cloud,
    /// For servers, with all drivers.
    Generic,
}

impl Flavour {
    fn meta_package(self) -> &'static str {
        match self {
            Self::Cloud => "linux-image-cloud-amd64",
            Self::Generic => "linux-image-amd64",
        }
    }

    fn sections(self) -> &'static [&'static str] {
        match self {
            Self::Cloud => &["all"],
            Self::Generic => &["all", "generic"],
        }
    }
}

/// The inputs and output of a build.
#[derive(Debug)]
pub struct Options {
    /// The version that the image carries.
    pub version: Version,
    /// The folder to write; an old one is replaced.
    pub out: PathBuf,
    /// Which kernel.
    pub flavour: Flavour,
    /// The static program init.
    pub init: PathBuf,
    /// The static program machined.
    pub machined: PathBuf,
    /// The static program installer.
    pub installer: PathBuf,
    /// The workspace that these were built from.
    pub workspace: PathBuf,
    /// Where packages come from.
    pub packages: debian::Source,
    /// zstd's level for the root filesystem, 1 to 22.
    pub compression: u8,
    /// Kernel arguments after the usual ones. They are part of the UKI and cannot be changed where Secure Boot is on.
    pub append: Vec<String>,
    /// Signs UKI and loader for Secure Boot.
    pub signer: Option<Signer>,
    /// The rules between this release and others.
    pub rules: ReleaseRules,
    /// The date of the installer image.
    pub created: Option<jiff::Timestamp>,
}

/// The results of a build, also written as `manifest.json`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The version of the image.
    pub version: Version,
    /// `amd64`.
    pub architecture: &'static str,
    /// Which kernel.
    pub flavour: Flavour,
    /// `uname -r` of the kernel.
    pub kernel_release: String,
    /// The digest of the installer image's manifest, by which it can be pulled.
    pub installer_manifest: String,
    /// Compressed size of the kernel modules in the root filesystem, bytes.
    pub modules_bytes: u64,
    /// The files of the folder.
    pub files: BTreeMap<String, File>,
}

/// A file that was built.
#[derive(Clone, Debug, Serialize)]
pub struct File {
    /// Size.
    pub bytes: usize,
    /// BLAKE3 digest.
    pub blake3: Blake3,
    /// SHA-256 digest.
    pub sha256: Sha256,
}

impl File {
    fn of(bytes: &[u8]) -> Self {
        Self {
            bytes: bytes.len(),
            blake3: Blake3::of(bytes),
            sha256: Sha256::of(bytes),
        }
    }
}

/// Builds an image.
///
/// # Errors
/// A program, package or tool is missing, or the folder cannot be written.
pub fn build(options: &Options) -> Result<Report> {
    options.rules.check(&options.version)?;
    let [init, machined, installer] =
        [&options.init, &options.machined, &options.installer].map(|path| program(path));
    let (init, machined, installer) = (init?, machined?, installer?);
    let packages = debian::fetch(&options.packages, &packages(options.flavour))?;
    let kernel = Kernel::read(&packages, options.flavour)?;

    let mut programs = Programs::new(&packages).standing_in_for(UNUSED_LIBRARY);
    let tree = root_tree(options, &kernel, &mut programs, &packages, &machined, &init)?;

    let part = unfinished(&options.out);
    replace_folder(&part)?;
    let squashfs_file = part.join(ROOTFS_FILE);
    squashfs::write(&tree, options.compression, &squashfs_file)?;
    let rootfs = fs::read(&squashfs_file)
        .with_context(|| format!("cannot read {}", squashfs_file.display()))?;
    let base = initramfs::base(&init, &kernel.init_modules, &modules::wanted("init")?)?;
    let initramfs = [base.as_slice(), &initramfs::first_generation(&rootfs)?].concat();

    let boot = BootPrograms::make(options, &mut programs, &kernel, &initramfs)?;

    let is_used = |fetched: &&Fetched| {
        let name = fetched.package.name.as_str();
        programs.used().contains(name) || name == kernel.package
    };
    let used: Vec<&Fetched> = packages.iter().filter(is_used).collect();
    let crates = crates::of_workspace(&options.workspace)?;
    let contents = sbom::document(&options.version, Blake3::of(&rootfs), &used, &crates);
    let contents = serde_json::to_vec_pretty(&contents)?;

    let parts = installer_image::Parts {
        version: &options.version,
        installer: &installer,
        rootfs: &rootfs,
        kernel: &kernel.image,
        init: &init,
        uki: &boot.uki,
        loader: &boot.loader,
        rules: &options.rules,
        created: options.created,
        signer: options.signer.as_ref(),
    };
    let installer_manifest =
        oci::layout::write(&installer_image::compose(&parts)?, &part.join("installer"))?.digest;

    let mut files = write_files(
        &part,
        &[
            ("base.cpio", &base),
            ("initramfs", &initramfs),
            ("vmlinuz", &kernel.image),
            ("sbom.spdx.json", &contents),
            (UKI_FILE, &boot.uki),
            (LOADER_FILE, &boot.loader),
        ],
    )?;
    files.insert(ROOTFS_FILE.to_owned(), File::of(&rootfs));
    let report = Report {
        version: options.version.clone(),
        architecture: "amd64",
        flavour: options.flavour,
        kernel_release: kernel.banner.release,
        installer_manifest,
        modules_bytes: tree.bytes_below("usr/lib/modules/"),
        files,
    };
    fs::write(
        part.join("manifest.json"),
        serde_json::to_vec_pretty(&report)?,
    )
    .context("cannot write manifest.json")?;
    remove_folder(&options.out)?;
    fs::rename(&part, &options.out)
        .with_context(|| format!("cannot name the finished {}", options.out.display()))?;
    Ok(report)
}

/// Everything that the root filesystem holds.
fn root_tree(
    options: &Options,
    kernel: &Kernel,
    programs: &mut Programs<'_>,
    packages: &[Fetched],
    machined: &[u8],
    init: &[u8],
) -> Result<Tree> {
    let mut tree = Tree::new();
    rootfs::add_system(&mut tree, machined)?;
    add_debian(&mut tree, programs, packages)?;
    rootfs::add_modules(
        &mut tree,
        &kernel.banner.release,
        &kernel.rootfs_modules,
        &kernel.built_in,
    )?;
    rootfs::add_identity(
        &mut tree,
        &options.version,
        &kernel.image,
        &kernel.banner,
        init,
        options.rules.floor.as_ref(),
    )?;
    Ok(tree)
}

/// Writes files into a folder; returns their sizes and digests.
fn write_files(folder: &Path, contents: &[(&str, &Vec<u8>)]) -> Result<BTreeMap<String, File>> {
    let mut files = BTreeMap::new();
    for (name, bytes) in contents {
        fs::write(folder.join(name), bytes).with_context(|| format!("cannot write {name}"))?;
        files.insert((*name).to_owned(), File::of(bytes));
    }
    Ok(files)
}

/// Reads a static program of ours.
pub(crate) fn program(path: &Path) -> Result<Vec<u8>> {
    let bytes = fs::read(path)
        .with_context(|| format!("cannot read the program {}: make build", path.display()))?;
    let dynamic =
        crate::elf::read(&bytes).with_context(|| format!("{} is no program", path.display()))?;
    ensure!(
        dynamic.interpreter.is_none() && dynamic.needed.is_empty(),
        "{} is not static: build it with --target x86_64-unknown-linux-musl",
        path.display()
    );
    Ok(bytes)
}

/// The packages of an image with this kernel.
pub fn packages(flavour: Flavour) -> Request<'static> {
    Request {
        suite: SUITE,
        with_dependencies: &["crun", "dosfstools", "e2fsprogs"],
        alone: &[certificates::PACKAGE, BOOT_PACKAGE],
        through: Some(flavour.meta_package()),
        name: flavour.meta_package(),
    }
}

/// Programs, the certificate authorities and the few settings that the programs read.
fn add_debian(tree: &mut Tree, programs: &mut Programs<'_>, packages: &[Fetched]) -> Result<()> {
    for (package, path) in DEBIAN_PROGRAMS {
        programs.add(tree, package, path)?;
    }
    // mke2fs chooses the filesystem by the name that it is called by.
    tree.symlink("usr/sbin/mkfs.ext4", "mke2fs")?;
    tree.file(
        "etc/mke2fs.conf",
        0o644,
        programs.read("e2fsprogs", "etc/mke2fs.conf")?,
    )?;
    certificates::add(tree, programs, packages)
}

/// The programs that firmware starts, signed if there is a key.
struct BootPrograms {
    uki: Vec<u8>,
    loader: Vec<u8>,
}

impl BootPrograms {
    fn make(
        options: &Options,
        programs: &mut Programs<'_>,
        kernel: &Kernel,
        initramfs: &[u8],
    ) -> Result<Self> {
        let stub = programs.read(BOOT_PACKAGE, STUB)?;
        let loader = programs.read(BOOT_PACKAGE, LOADER)?;
        let command_line = std::iter::once(COMMAND_LINE)
            .chain(options.append.iter().map(String::as_str))
            .collect::<Vec<_>>()
            .join(" ");
        let uki = uki::build(&uki::Parts {
            stub: &stub,
            kernel: &kernel.image,
            kernel_release: &kernel.banner.release,
            initramfs,
            command_line: &command_line,
            os_release: &rootfs::os_release(&options.version),
        })
        .with_context(|| format!("cannot make the UKI from the stub of {BOOT_PACKAGE}"))?;
        let sign = |what: &str, program: Vec<u8>| match &options.signer {
            Some(signer) => authenticode::sign(&program, signer)
                .with_context(|| format!("cannot sign the {what}")),
            None => Ok(program),
        };
        Ok(Self {
            uki: sign("UKI", uki)?,
            loader: sign("boot loader", loader)?,
        })
    }
}

/// The kernel's package among these, and the release in its name.
pub(crate) fn kernel_package(packages: &[Fetched]) -> Result<(&Fetched, &str)> {
    let mut releases = packages.iter().filter_map(|fetched| {
        let release = fetched.package.name.strip_prefix("linux-image-")?;
        Some((fetched, release))
    });
    releases.next().context("no kernel package was fetched")
}

struct Kernel {
    package: String,
    image: Vec<u8>,
    banner: Banner,
    /// The modules that init needs before there is a root filesystem.
    init_modules: Selection,
    rootfs_modules: Selection,
    built_in: Vec<u8>,
}

impl Kernel {
    fn read(packages: &[Fetched], flavour: Flavour) -> Result<Self> {
        let (fetched, release) = kernel_package(packages)?;
        let name = &fetched.package.name;
        let path = fetched.root.join("boot").join(format!("vmlinuz-{release}"));
        let image = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let banner = bzimage::banner(&image)
            .with_context(|| format!("cannot use the kernel {}", path.display()))?;
        let root = modules::folder(&fetched.root, &banner.release)?;
        let available = Available::read(&root)?;
        let select = |sections: &[&str]| {
            let mut wanted = Vec::new();
            for section in sections {
                wanted.extend(modules::wanted(section)?);
            }
            available
                .select(wanted)
                .with_context(|| format!("cannot choose modules of {name}"))
        };
        let init_modules = select(&["init"])?;
        let mut rootfs_modules = select(flavour.sections())?;
        // Loaded before anything of the root filesystem can be.
        rootfs_modules.retain(|name, _| !init_modules.contains_key(name));
        let built_in =
            fs::read(root.join("modules.builtin")).context("cannot read modules.builtin")?;
        Ok(Self {
            package: name.clone(),
            image,
            banner,
            init_modules,
            rootfs_modules,
            built_in,
        })
    }
}

/// Where a folder is built before it gets its name.
fn unfinished(folder: &Path) -> PathBuf {
    let mut name = folder.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

fn replace_folder(folder: &Path) -> Result<()> {
    remove_folder(folder)?;
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))
}

fn remove_folder(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove the old {}", folder.display()))
        }
        _ => Ok(()),
    }
}
