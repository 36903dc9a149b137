//! The specification of a container, and the OCI runtime configuration that crun is given for it.
//!
//! A container gets little: no privileges to gain, few capabilities, a list of system calls it may not use, a fresh /dev and /proc with
//! the dangerous parts covered, and only the network that its specification asks for.

mod capabilities;
mod devices;
mod seccomp;
mod user;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::host_files;
use crate::oci::ImageConfig;
use crate::values::{
    ByteSize, Capabilities, ContainerName, ContainerNetwork, Millicores, Mount, MountOption,
    MountSource, SecurityProfile,
};
pub use capabilities::UnknownCapability;
use user::Database;
pub use user::{RunAs, User, UserError};

/// The search path for programs if neither the image nor the config sets PATH.
const DEFAULT_PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Limit on processes and threads: more than any service of a node needs, fewer than a fork bomb makes.
const MOST_PROCESSES: u64 = 4096;
/// Limit on open files: enough for servers, and few enough for programs that iterate over all possible descriptors.
const OPEN_FILES: u64 = 65536;
/// The same for all pods together: containerd and kubelet are used to it.
const OPEN_FILES_OF_A_NODE: u64 = 1_048_576;
/// The period of CPU limits, microseconds.
const CPU_PERIOD: u64 = 100_000;

/// The specification of a container. An empty field means "as the image says".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerSpec {
    /// Its name, unique on the machine.
    pub name: ContainerName,
    /// Replaces the image's entry point, and its command with it.
    pub entrypoint: Vec<String>,
    /// Replaces the image's command.
    pub args: Vec<String>,
    /// Replaces the image's working directory.
    pub working_dir: Option<String>,
    /// Overrides the image's user.
    pub run_as: Option<RunAs>,
    /// Variables as `KEY=VALUE`, over the image's.
    pub environment: Vec<String>,
    /// Mounts beside those that every container has.
    pub mounts: Vec<Mount>,
    /// The network that the container sees.
    pub network: ContainerNetwork,
    /// The profile that its privileges start from.
    pub profile: SecurityProfile,
    /// Changes to the profile's capabilities.
    pub capabilities: Capabilities,
    /// Limits on CPU and memory.
    pub limits: ResourceLimits,
    /// Path from the root of the cgroup hierarchy, as in `/generation.1/web`.
    pub cgroup: String,
    /// Makes the image's files read-only. With the profile `Restricted` they are read-only in any case.
    pub read_only: bool,
    /// The number of descriptors, from 3 on, that are handed to the process.
    pub preserved_fds: u32,
}

impl ContainerSpec {
    /// Creates the specification of a container that follows its image in everything.
    pub fn new(name: ContainerName, cgroup: String) -> Self {
        ContainerSpec {
            name,
            entrypoint: Vec::new(),
            args: Vec::new(),
            working_dir: None,
            run_as: None,
            environment: Vec::new(),
            mounts: Vec::new(),
            network: ContainerNetwork::default(),
            profile: SecurityProfile::default(),
            capabilities: Capabilities::default(),
            limits: ResourceLimits::default(),
            cgroup,
            read_only: false,
            preserved_fds: 0,
        }
    }
}

/// Limits on a container's use of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ResourceLimits {
    /// CPU time.
    pub cpu: Option<Millicores>,
    /// Memory; the container has no swap beside it.
    pub memory: Option<ByteSize>,
}

/// Facts about the machine that every container sees.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostView {
    /// The host name.
    pub hostname: Option<String>,
    /// Files of the machine that are mounted read-only over files of the image (resolvers and hosts): source and destination.
    pub files: Vec<(PathBuf, PathBuf)>,
    /// The device nodes, for containers that get all of them.
    pub devices: Vec<Value>,
}

impl HostView {
    /// Returns this machine's host name, the files that containers see, and its device nodes.
    pub fn of_this_machine() -> Self {
        let hostname = rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned();
        HostView {
            hostname: Some(hostname),
            files: host_files::seen(),
            devices: devices::below(Path::new("/dev")),
        }
    }
}

/// Why a specification is invalid.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SpecError {
    /// Neither the image nor the config names a program.
    #[error("neither the image nor the config says which program to start")]
    NoProgram,
    /// The user is invalid.
    #[error("it cannot be said who the container runs as")]
    User(#[from] UserError),
    /// A capability is unknown.
    #[error("the capabilities cannot be granted")]
    Capability(#[from] UnknownCapability),
    /// A variable is not `KEY=VALUE`.
    #[error("{0:?} is not an environment variable; KEY=VALUE is expected")]
    Environment(String),
    /// The working directory is not absolute.
    #[error("the working directory {0:?} is not an absolute path")]
    RelativeDirectory(String),
    /// A value holds a zero byte, where arguments and paths end for the kernel.
    #[error("{0} contains a zero byte")]
    ZeroByte(&'static str),
}

impl ContainerSpec {
    /// Returns the user that the container runs as; `image_files` is read for its user database.
    pub(super) fn user(&self, image: &ImageConfig, image_files: &Path) -> Result<User, UserError> {
        Database::read(image_files).resolve(&image.user, self.run_as)
    }

    /// Lists the sources of the machine's files that are mounted, each with its destination.
    pub(super) fn sources(&self) -> impl Iterator<Item = (PathBuf, &Path)> {
        self.mounts.iter().filter_map(|mount| {
            let source = match &mount.source {
                MountSource::HostPath(path) => path.as_path().to_owned(),
                MountSource::UserVolume(name) => name.path(),
                MountSource::Tmpfs { .. } => return None,
            };
            Some((source, mount.destination.as_path()))
        })
    }

    /// Lists the directories of user volumes that the container may write to.
    pub(super) fn writable_volumes(&self) -> impl Iterator<Item = PathBuf> {
        self.mounts.iter().filter_map(|mount| match &mount.source {
            MountSource::UserVolume(name) if mount.options.contains(&MountOption::ReadWrite) => {
                Some(name.path())
            }
            _ => None,
        })
    }
}

/// Builds the runtime configuration of a container, the `config.json` of its bundle. `image_files` is read for its user database;
/// `root` is the root directory that the container will see.
pub fn runtime_config(
    spec: &ContainerSpec,
    image: &ImageConfig,
    image_files: &Path,
    root: &Path,
    host: &HostView,
) -> Result<Value, SpecError> {
    let user = spec.user(image, image_files)?;
    let granted = capabilities::granted(&spec.capabilities, spec.profile)?;
    // A user other than root gets no capabilities but those that the config adds by name.
    let none = Vec::new();
    let (effective, kept_over_exec) = if user.uid == 0 {
        (&granted.all, &none)
    } else {
        (&granted.asked_for, &granted.asked_for)
    };
    let (open_files, oom_score_adj) = match spec.profile {
        // Kubernetes gives each pod a score of its own.
        SecurityProfile::Node => (OPEN_FILES_OF_A_NODE, -998),
        // When memory runs out, the kernel kills a service before the machine's own processes.
        _ => (OPEN_FILES, 100),
    };
    let process = json!({
        "terminal": false,
        "user": {"uid": user.uid, "gid": user.gid, "additionalGids": user.additional_gids},
        "args": arguments(spec, image)?,
        "env": environment(spec, image, &user)?,
        "cwd": working_dir(spec, image)?,
        // Programs of pods may gain privileges, such as sudo: whether they do is up to each pod.
        "noNewPrivileges": spec.profile != SecurityProfile::Node,
        "capabilities": {
            "bounding": granted.all,
            "permitted": effective,
            "effective": effective,
            "inheritable": kept_over_exec,
            "ambient": kept_over_exec,
        },
        "rlimits": [{"type": "RLIMIT_NOFILE", "soft": open_files, "hard": open_files}],
        "oomScoreAdj": oom_score_adj,
    });
    let devices: &[Value] = match spec.profile {
        SecurityProfile::Privileged | SecurityProfile::Node => &host.devices,
        SecurityProfile::Usual | SecurityProfile::Restricted => &[],
    };
    let mut config = json!({
        "ociVersion": "1.0.2",
        "root": {"path": root, "readonly": spec.read_only || spec.profile == SecurityProfile::Restricted},
        "process": process,
        "mounts": mounts(spec, host),
        "linux": {
            "namespaces": namespaces(spec.network),
            "cgroupsPath": spec.cgroup,
            "devices": devices,
            "resources": resources(&spec.limits, spec.profile),
            "rootfsPropagation": "private",
        },
    });
    // containerd covers these parts for each pod.
    if spec.profile != SecurityProfile::Node {
        config["linux"]["seccomp"] = seccomp::profile(&granted.all);
        config["linux"]["maskedPaths"] = json!(MASKED);
        config["linux"]["readonlyPaths"] = json!(READ_ONLY);
    }
    if let Some(hostname) = &host.hostname {
        config["hostname"] = json!(hostname);
    }
    Ok(config)
}

/// Lists the namespaces that a container has of its own. There is no user namespace: user ids are the machine's.
fn namespaces(network: ContainerNetwork) -> Vec<Value> {
    let always = ["pid", "mount", "ipc", "uts", "cgroup"];
    let network = match network {
        ContainerNetwork::None => Some("network"),
        ContainerNetwork::Host => None,
    };
    let own = always.into_iter().chain(network);
    own.map(|kind| json!({"type": kind})).collect()
}

/// Parts of /proc and /sys that describe or reach more than the container: the same list as in other container runtimes.
const MASKED: [&str; 12] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
];
const READ_ONLY: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

fn arguments(spec: &ContainerSpec, image: &ImageConfig) -> Result<Vec<String>, SpecError> {
    let (program, rest) = if !spec.entrypoint.is_empty() {
        (&spec.entrypoint, &spec.args)
    } else if !spec.args.is_empty() {
        (&image.entrypoint, &spec.args)
    } else {
        (&image.entrypoint, &image.command)
    };
    let all: Vec<String> = program.iter().chain(rest).cloned().collect();
    match all.first() {
        None => Err(SpecError::NoProgram),
        Some(first) if first.is_empty() => Err(SpecError::NoProgram),
        Some(_) if all.iter().any(|argument| argument.contains('\0')) => {
            Err(SpecError::ZeroByte("an argument"))
        }
        Some(_) => Ok(all),
    }
}

/// Returns the environment: the image's variables, the config's over them, and the variables that programs rely on.
fn environment(
    spec: &ContainerSpec,
    image: &ImageConfig,
    user: &User,
) -> Result<Vec<String>, SpecError> {
    let mut variables: Vec<String> = vec![DEFAULT_PATH.to_owned()];
    variables.extend(user.home.iter().map(|home| format!("HOME={home}")));
    for variable in image.environment.iter().chain(&spec.environment) {
        let key = match variable.split_once('=') {
            Some((key, _)) if !key.is_empty() => key,
            _ => return Err(SpecError::Environment(variable.chars().take(80).collect())),
        };
        if variable.contains('\0') {
            return Err(SpecError::ZeroByte("an environment variable"));
        }
        let same = |known: &&mut String| known.split_once('=').is_some_and(|(name, _)| name == key);
        match variables.iter_mut().find(same) {
            Some(known) => known.clone_from(variable),
            None => variables.push(variable.clone()),
        }
    }
    Ok(variables)
}

fn working_dir(spec: &ContainerSpec, image: &ImageConfig) -> Result<String, SpecError> {
    let wanted = spec.working_dir.as_ref().unwrap_or(&image.working_dir);
    let directory = if wanted.is_empty() { "/" } else { wanted };
    if directory.contains('\0') {
        return Err(SpecError::ZeroByte("the working directory"));
    }
    // The path may hold links and `..`: the runtime enters it after the root was changed to the container's.
    if Path::new(directory).is_absolute() {
        Ok(directory.to_owned())
    } else {
        Err(SpecError::RelativeDirectory(directory.to_owned()))
    }
}

/// Describes one mount of the configuration. `options` are separated by commas.
fn mount(kind: &str, destination: &str, options: &str) -> Value {
    let options: Vec<&str> = options.split(',').collect();
    json!({"destination": destination, "type": kind, "source": kind, "options": options})
}

fn bind(source: &Path, destination: &Path, options: &[&str]) -> Value {
    json!({"destination": destination, "type": "bind", "source": source, "options": options})
}

fn words(options: &[MountOption]) -> Vec<&'static str> {
    options.iter().map(|option| option.word()).collect()
}

fn tmpfs(destination: &Path, size: Option<ByteSize>, options: &[MountOption]) -> Value {
    let size = size.map(|size| format!("size={}", size.0));
    let mut options = words(options);
    options.extend(["nosuid", "nodev"]);
    let options = options.into_iter().chain(size.as_deref());
    let options: Vec<&str> = options.collect();
    json!({"destination": destination, "type": "tmpfs", "source": "tmpfs", "options": options})
}

fn mounts(spec: &ContainerSpec, host: &HostView) -> Vec<Value> {
    let mut mounts = vec![
        mount("proc", "/proc", "nosuid,noexec,nodev"),
        mount(
            "tmpfs",
            "/dev",
            "nosuid,noexec,strictatime,mode=755,size=64k",
        ),
        mount(
            "devpts",
            "/dev/pts",
            "nosuid,noexec,newinstance,ptmxmode=0666,mode=0620,gid=5",
        ),
        mount(
            "tmpfs",
            "/dev/shm",
            "nosuid,noexec,nodev,mode=1777,size=64m",
        ),
        mount("mqueue", "/dev/mqueue", "nosuid,noexec,nodev"),
        match spec.profile {
            SecurityProfile::Privileged | SecurityProfile::Node => {
                mount("sysfs", "/sys", "nosuid,noexec,nodev,rw")
            }
            SecurityProfile::Usual | SecurityProfile::Restricted => {
                mount("sysfs", "/sys", "nosuid,noexec,nodev,ro")
            }
        },
        // Programs read their limits here. The container's cgroup namespace makes its own cgroup the root.
        mount(
            "cgroup",
            "/sys/fs/cgroup",
            match spec.profile {
                // kubelet makes a cgroup for each pod below.
                SecurityProfile::Node => "nosuid,noexec,nodev,relatime,rw",
                _ => "nosuid,noexec,nodev,relatime,ro",
            },
        ),
    ];
    for (source, destination) in &host.files {
        mounts.push(bind(
            source,
            destination,
            &["bind", "ro", "nosuid", "noexec", "nodev"],
        ));
    }
    let of_config = spec.mounts.iter();
    mounts.extend(of_config.map(|mount| mount_of_config(mount, spec.profile)));
    mounts
}

fn mount_of_config(mount: &Mount, profile: SecurityProfile) -> Value {
    let (destination, options) = (mount.destination.as_path(), &mount.options);
    let path = match &mount.source {
        MountSource::Tmpfs { size } => return tmpfs(destination, *size, options),
        MountSource::HostPath(path) => path.as_path().to_owned(),
        MountSource::UserVolume(name) => name.path(),
    };
    let mut words = words(options);
    if !options.contains(&MountOption::Rbind) {
        // Of /proc, the kernel's own files alone: what is mounted over them, such as the boot id, is of the generation, and a container with it
        // could not be kept.
        words.push(match path.starts_with("/proc") {
            true => "bind",
            false => "rbind",
        });
    }
    // A mount of the machine's files is read-only unless the config says otherwise.
    let is_said =
        |option: &MountOption| matches!(option, MountOption::ReadOnly | MountOption::ReadWrite);
    if !options.iter().any(is_said) {
        words.push("ro");
    }
    if profile == SecurityProfile::Node {
        // A bind mount inherits these restrictions of /var, where pods have their programs and volumes.
        words.extend(["exec", "suid", "dev"]);
        // Mounts of pods are not the machine's: they would keep its /var busy.
        words.push("rprivate");
    }
    bind(&path, destination, &words)
}

fn resources(limits: &ResourceLimits, profile: SecurityProfile) -> Value {
    let all_devices = matches!(profile, SecurityProfile::Privileged | SecurityProfile::Node);
    let mut resources = json!({
        // crun adds null, zero, full, random, urandom, tty and pts.
        "devices": [{"allow": all_devices, "access": "rwm"}],
    });
    // kubelet limits the processes of pods; the machine's limit on all containers together holds for it as well.
    if profile != SecurityProfile::Node {
        resources["pids"] = json!({"limit": MOST_PROCESSES});
    }
    if let Some(bytes) = limits.memory.map(|size| size.0) {
        // In the runtime specification, swap is memory and swap together.
        resources["memory"] = json!({"limit": bytes, "swap": bytes});
    }
    if let Some(millis) = limits.cpu.map(|share| share.0) {
        // The kernel takes no quota below a millisecond (1000 µs).
        let quota = (millis.saturating_mul(CPU_PERIOD) / 1000).max(1000);
        resources["cpu"] = json!({"quota": quota, "period": CPU_PERIOD});
    }
    resources
}

#[cfg(test)]
mod tests;
