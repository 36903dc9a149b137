//! The command line of the image builder.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand, ValueEnum};
use image::{
    boot::{keys, signer::Signer},
    build::{self, Flavour, Options, Report},
    container, crates,
    debian::{self, Mirror, Missing},
    digest::Blake3,
    extension, firmware,
    installer_image::ReleaseRules,
    kubernetes_base, media,
    oci::{self, push::Transport},
    postgresql, sbom,
    version::Version,
};
use instar_extension::{ExtensionName, ExtensionVersion, OsExtension};
use instar_values::VersionRanges;

/// Builds and pushes Instar's images.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build kernel, initramfs, root filesystem, installer image and SBOM of one version.
    Build(Box<Build>),
    /// Make disk image, ISO and network boot folder of a build.
    Media(Media),
    /// Fetch UEFI firmware for virtual machines.
    Firmware(Firmware),
    /// Renew the lists of Debian packages with the newest versions, and print the changes.
    Packages(Source),
    /// Make keys for Secure Boot: PK, KEK and db, each with a certificate and as a signed variable.
    Keys(Keys),
    /// Build an OCI image layout around one static program.
    Container(Container),
    /// Build the base image of Kubernetes: programs that kubelet and containerd call, kernel modules, and kubernetes-init.
    KubernetesBase(KubernetesBase),
    /// Build an image of PostgreSQL, for tests of databases on machines.
    Postgresql(Postgresql),
    /// Make extensions (sysext, confext) and check them.
    #[command(subcommand)]
    Extension(ExtensionCommand),
    /// Write the SBOM of a program that users run.
    Sbom(Sbom),
    /// Push an OCI image layout to a registry.
    Push(Push),
}

#[derive(Args)]
struct Build {
    /// The version that the image carries.
    #[arg(long)]
    version: Version,
    /// The folder to write.
    #[arg(long)]
    out: PathBuf,
    /// Debian's kernel to use.
    #[arg(long, value_enum, default_value = "cloud")]
    kernel: Kernel,
    /// Take our programs from this cargo profile.
    #[arg(long, default_value = "release")]
    profile: String,
    /// The program init [default: the profile's].
    #[arg(long)]
    init: Option<PathBuf>,
    /// The program machined [default: the profile's].
    #[arg(long)]
    machined: Option<PathBuf>,
    /// The program installer [default: the profile's].
    #[arg(long)]
    installer: Option<PathBuf>,
    /// The workspace that the programs were built from; its crates are listed in the SBOM.
    #[arg(long, default_value = ".")]
    workspace: PathBuf,
    #[command(flatten)]
    source: Source,
    /// zstd's level for the root filesystem.
    #[arg(long, default_value_t = 19, value_parser = clap::value_parser!(u8).range(1..=22))]
    compression: u8,
    /// A kernel argument after the usual ones, such as instar.config=URL; may be repeated.
    #[arg(long, allow_hyphen_values = true)]
    append: Vec<String>,
    /// The oldest version that a machine takes, other than by force, once this one has proved itself there.
    #[arg(long, value_name = "VERSION")]
    floor: Option<Version>,
    /// The versions that this one may follow, other than by force, such as ">=v0.1.0 <v0.3.0 || v0.5.1"; all without this option.
    #[arg(long, value_name = "RANGES")]
    upgrades_from: Option<VersionRanges>,
    /// The image is an official release, which channels take.
    #[arg(long)]
    official: bool,
    /// The only channels that may take the image, such as beta,stable.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    channels: Vec<String>,
    /// The date in the installer image, such as that of the sources' last commit, in RFC 3339.
    #[arg(long, value_name = "DATE")]
    created: Option<jiff::Timestamp>,
    /// Sign UKI and boot loader for Secure Boot with this RSA key, in PEM.
    #[arg(long, requires = "sign_certificate")]
    sign_key: Option<PathBuf>,
    /// The certificate of that key, in PEM.
    #[arg(long, requires = "sign_key")]
    sign_certificate: Option<PathBuf>,
}

#[derive(Args)]
struct KubernetesBase {
    /// The version that the image carries.
    #[arg(long)]
    version: Version,
    /// The folder to write.
    #[arg(long)]
    out: PathBuf,
    /// Debian's kernel to take modules from; may be repeated.
    #[arg(long = "kernel", value_enum, default_values = ["cloud"])]
    kernels: Vec<Kernel>,
    /// Take kubernetes-init and logind from this cargo profile.
    #[arg(long, default_value = "release")]
    profile: String,
    /// The workspace that it was built from; its crates are listed in the SBOM.
    #[arg(long, default_value = ".")]
    workspace: PathBuf,
    #[command(flatten)]
    source: Source,
    /// The date in the image, such as that of the sources' last commit, in RFC 3339.
    #[arg(long, value_name = "DATE")]
    created: Option<jiff::Timestamp>,
}

#[derive(Args)]
struct Media {
    /// The folder of a build; the media are written there too.
    folder: PathBuf,
    /// Make the boot loader enrol the keys of this folder (PK.auth, KEK.auth, db.auth) on a virtual machine in setup mode.
    #[arg(long)]
    enrol: Option<PathBuf>,
    /// Enrol the keys on real machines too. Some machines cannot start their own devices without the keys of their manufacturer.
    #[arg(long, requires = "enrol")]
    enrol_everywhere: bool,
    /// Size of the EFI system partition of the disk image, MiB. It holds three versions by default.
    #[arg(long, default_value_t = instar_esp::DEFAULT_BYTES >> 20, value_parser = clap::value_parser!(u64).range(70..=4096))]
    esp_size: u64,
    #[command(flatten)]
    source: Source,
}

/// The sources of packages.
#[derive(Args)]
struct Source {
    /// The lists of exact versions.
    #[arg(long, default_value = "image/packages")]
    lists: PathBuf,
    /// The cache of packages.
    #[arg(long, default_value = ".cache")]
    cache: PathBuf,
    /// The Debian archive [default: the one that this machine's apt uses].
    #[arg(long)]
    mirror: Option<String>,
    /// The archive of Debian's security updates that goes with --mirror.
    #[arg(long, requires = "mirror")]
    security_mirror: Option<String>,
    /// Fail where the archive no longer has a listed version, instead of taking its newest one.
    #[arg(long)]
    exact: bool,
}

impl From<Source> for debian::Source {
    fn from(source: Source) -> Self {
        debian::Source {
            lists: source.lists,
            cache: source.cache.join("debian"),
            mirror: source.mirror.map(|archive| Mirror {
                archive,
                security: source.security_mirror,
            }),
            missing: if source.exact {
                Missing::Refuse
            } else {
                Missing::Substitute
            },
        }
    }
}

#[derive(Args)]
struct Firmware {
    /// The folder to write.
    #[arg(long)]
    out: PathBuf,
    #[command(flatten)]
    source: Source,
}

#[derive(Args)]
struct Postgresql {
    /// The folder to write.
    #[arg(long)]
    out: PathBuf,
    #[command(flatten)]
    source: Source,
}

#[derive(Args)]
struct Keys {
    /// The folder to write.
    #[arg(long)]
    out: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kernel {
    /// For virtual machines.
    Cloud,
    /// For servers, with all drivers.
    Generic,
}

impl Kernel {
    fn flavour(self) -> Flavour {
        match self {
            Self::Cloud => Flavour::Cloud,
            Self::Generic => Flavour::Generic,
        }
    }
}

#[derive(Args)]
struct Container {
    /// The static program.
    #[arg(long)]
    binary: PathBuf,
    /// Its absolute path in the image.
    #[arg(long)]
    entrypoint: String,
    /// An argument for it; may be repeated.
    #[arg(long = "argument", allow_hyphen_values = true)]
    arguments: Vec<String>,
    /// A variable for it, NAME=VALUE; may be repeated.
    #[arg(long = "variable", value_parser = key_value)]
    variables: Vec<(String, String)>,
    /// The folder to write.
    #[arg(long)]
    out: PathBuf,
    /// A label, KEY=VALUE; may be repeated.
    #[arg(long = "label", value_parser = key_value)]
    labels: Vec<(String, String)>,
}

#[derive(Subcommand)]
enum ExtensionCommand {
    /// Make an extension's file, and list it in SHA256SUMS.
    Build(BuildExtension),
    /// Check a file, or a folder named as the extension, and print what a machine does with it.
    Check {
        /// Check it as an extension of the machine itself, which starts no services.
        #[arg(long)]
        os: bool,
        /// The file NAME-vVERSION-ARCHITECTURE.raw or NAME.raw, or the folder NAME.
        path: PathBuf,
        /// The version of Instar that it is to fit, such as v0.1.0; needed if its release file names one.
        #[arg(long)]
        os_version: Option<String>,
    },
}

#[derive(Args)]
struct BuildExtension {
    /// The folder with usr, or with etc for a confext, and its release file.
    folder: PathBuf,
    /// Check it as an extension of the machine itself, which starts no services.
    #[arg(long)]
    os: bool,
    /// The extension's name.
    #[arg(long)]
    name: ExtensionName,
    /// Its version.
    #[arg(long, value_parser = extension_version)]
    version: ExtensionVersion,
    /// The architecture of its programs.
    #[arg(long, value_enum, default_value = "amd64")]
    architecture: Architecture,
    /// The version of Instar that it is to fit, such as v0.1.0; needed if its release file names one.
    #[arg(long)]
    os_version: Option<String>,
    /// The folder to write.
    #[arg(long)]
    out: PathBuf,
}

fn extension_version(text: &str) -> Result<ExtensionVersion, String> {
    ExtensionVersion::new(text)
        .ok_or_else(|| "no version: letters, digits and .-_+~^, with a digit".to_owned())
}

#[derive(Args)]
struct Sbom {
    /// The package of the workspace that the program is built from.
    #[arg(long)]
    package: String,
    /// The program.
    #[arg(long)]
    binary: PathBuf,
    /// Its version.
    #[arg(long)]
    version: Version,
    /// The platform that it runs on.
    #[arg(long, value_enum)]
    architecture: Architecture,
    /// The file to write.
    #[arg(long)]
    out: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
enum Architecture {
    Amd64,
    Arm64,
}

impl Architecture {
    fn of_extensions(self) -> instar_extension::Architecture {
        match self {
            Self::Amd64 => instar_extension::Architecture::X86_64,
            Self::Arm64 => instar_extension::Architecture::Arm64,
        }
    }

    /// The platform's name for users, and for the compiler.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Amd64 => ("amd64", "x86_64-unknown-linux-musl"),
            Self::Arm64 => ("arm64", "aarch64-unknown-linux-musl"),
        }
    }
}

#[derive(Args)]
struct Push {
    /// The folder of the layout.
    layout: PathBuf,
    /// The reference to push to, such as localhost:5000/installer:v0.1.0.
    reference: String,
    /// Use HTTP instead of HTTPS.
    #[arg(long)]
    plain_http: bool,
}

fn main() -> Result<()> {
    match Cli::parse().command {
        Command::Build(arguments) => {
            let report = build::build(&options(*arguments)?)?;
            print(&report);
        }
        Command::Media(arguments) => {
            let files = media::build(&media::Options {
                folder: arguments.folder,
                enrol: arguments.enrol,
                enrol_everywhere: arguments.enrol_everywhere,
                esp_bytes: arguments.esp_size << 20,
                packages: arguments.source.into(),
            })?;
            for (file, bytes) in files {
                println!("{bytes:>12}  {}", file.display());
            }
        }
        Command::Firmware(arguments) => firmware::fetch(&firmware::Options {
            out: arguments.out,
            packages: arguments.source.into(),
        })?,
        Command::Packages(source) => renew(&source.into())?,
        Command::Keys(arguments) => keys::make(&arguments.out)?,
        Command::Container(arguments) => {
            let program = fs::read(&arguments.binary)
                .with_context(|| format!("cannot read {}", arguments.binary.display()))?;
            let labels: BTreeMap<_, _> = arguments.labels.into_iter().collect();
            let mut image =
                container::around(&program, &arguments.entrypoint, arguments.arguments, labels)?;
            let variables = arguments.variables.iter();
            image
                .environment
                .extend(variables.map(|(name, value)| format!("{name}={value}")));
            println!("{}", oci::layout::write(&image, &arguments.out)?.digest);
        }
        Command::KubernetesBase(arguments) => build_kubernetes_base(arguments)?,
        Command::Postgresql(arguments) => postgresql::build(&postgresql::Options {
            out: arguments.out,
            packages: arguments.source.into(),
        })?,
        Command::Extension(command) => run_extension(command)?,
        Command::Sbom(arguments) => write_sbom(&arguments)?,
        Command::Push(arguments) => {
            let transport = if arguments.plain_http {
                Transport::PlainHttp
            } else {
                Transport::Https
            };
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            let digest = runtime.block_on(oci::push::push(
                &arguments.layout,
                &arguments.reference,
                transport,
            ))?;
            println!("{digest}");
        }
    }
    Ok(())
}

fn build_kubernetes_base(arguments: KubernetesBase) -> Result<()> {
    let programs = programs_of(&arguments.profile);
    let report = kubernetes_base::build(&kubernetes_base::Options {
        version: arguments.version,
        out: arguments.out,
        flavours: arguments.kernels.into_iter().map(Kernel::flavour).collect(),
        init: programs.join("kubernetes-init"),
        logind: programs.join("logind"),
        workspace: arguments.workspace,
        packages: arguments.source.into(),
        created: arguments.created,
    })?;
    println!("{}", report.digest);
    for (layer, bytes) in report.layers {
        println!("{bytes:>12}  {layer}");
    }
    Ok(())
}

fn run_extension(command: ExtensionCommand) -> Result<()> {
    match command {
        ExtensionCommand::Build(arguments) => {
            let path = extension::build(&extension::Options {
                target: target(arguments.os),
                folder: arguments.folder,
                name: arguments.name,
                version: arguments.version,
                architecture: arguments.architecture.of_extensions(),
                os_version: arguments.os_version,
                out: arguments.out,
            })?;
            println!("{}", path.display());
        }
        ExtensionCommand::Check {
            os,
            path,
            os_version,
        } => print_checked(&extension::check(target(os), &path, os_version.as_deref())?),
    }
    Ok(())
}

fn target(os: bool) -> extension::Target {
    match os {
        true => extension::Target::Os,
        false => extension::Target::Kubernetes,
    }
}

fn print_checked(checked: &extension::Checked) {
    match checked {
        extension::Checked::Kubernetes(checked) => {
            println!("{} can be used by Kubernetes", checked.name);
            for service in &checked.started {
                println!("  starts {}: {}", service.name, service.description);
            }
        }
        extension::Checked::Os(OsExtension::Usr) => {
            println!("it can be used by the machine itself: its files go below /usr");
        }
        extension::Checked::Os(OsExtension::Etc(texts)) => {
            println!("it can be used by the machine itself:");
            for text in texts {
                println!("  /etc/{}", text.path);
            }
        }
    }
}

fn write_sbom(arguments: &Sbom) -> Result<()> {
    let Sbom {
        package,
        binary,
        version,
        out,
        ..
    } = arguments;
    let (architecture, platform) = arguments.architecture.names();
    let crates = crates::of_programs(Path::new("."), &[package], platform)?;
    let program = fs::read(binary).with_context(|| format!("cannot read {}", binary.display()))?;
    let document = sbom::of_program(
        package,
        version,
        architecture,
        Blake3::of(&program),
        &crates,
    );
    let text = format!("{document:#}\n");
    fs::write(out, text).with_context(|| format!("cannot write {}", out.display()))
}

fn renew(source: &debian::Source) -> Result<()> {
    let requests = [
        build::packages(Flavour::Cloud),
        build::packages(Flavour::Generic),
        media::packages(),
        firmware::packages(),
        kubernetes_base::packages(),
        postgresql::packages(),
    ];
    for request in requests {
        let changed = debian::renew(source, &request)?;
        let changed = if changed.is_empty() {
            " nothing has changed"
        } else {
            &changed
        };
        println!("{}:{changed}", request.name);
    }
    Ok(())
}

/// The folder of our programs that a cargo profile has built.
fn programs_of(profile: &str) -> PathBuf {
    PathBuf::from("target/x86_64-unknown-linux-musl").join(profile)
}

fn options(arguments: Build) -> Result<Options> {
    let programs = programs_of(&arguments.profile);
    let program = |given: Option<PathBuf>, name: &str| given.unwrap_or_else(|| programs.join(name));
    let signer = match (&arguments.sign_key, &arguments.sign_certificate) {
        (Some(key), Some(certificate)) => Some(Signer::read(key, certificate)?),
        _ => None,
    };
    Ok(Options {
        version: arguments.version,
        out: arguments.out,
        flavour: arguments.kernel.flavour(),
        init: program(arguments.init, "init"),
        machined: program(arguments.machined, "machined"),
        installer: program(arguments.installer, "installer"),
        workspace: arguments.workspace,
        packages: arguments.source.into(),
        compression: arguments.compression,
        append: arguments.append,
        signer,
        rules: ReleaseRules {
            floor: arguments.floor,
            upgrades_from: arguments.upgrades_from,
            official: arguments.official,
            channels: arguments.channels,
        },
        created: arguments.created,
    })
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text
        .split_once('=')
        .filter(|(key, _)| !key.is_empty())
        .ok_or("expected KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

fn print(report: &Report) {
    println!("{} with kernel {}", report.version, report.kernel_release);
    for (name, file) in &report.files {
        println!("{:>12}  {name}", file.bytes);
    }
    let rootfs = report
        .files
        .get("rootfs.squashfs")
        .map_or(0, |file| file.bytes as u64);
    println!(
        "{:>12}  of the root filesystem are kernel modules, {} the rest",
        report.modules_bytes,
        rootfs.saturating_sub(report.modules_bytes)
    );
}
