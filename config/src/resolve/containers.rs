//! Containers, their volumes and health checks, and the conditions for keeping an upgrade.

use std::ops::RangeInclusive;
use std::time::Duration;

use instar_values::system_process;

use super::{
    super::{
        model::{
            ApplyUpdates, Capabilities, CheckTarget, Container, ContainerHealth, ContainerName,
            ContainerNetwork, ContainerUpdates, DependsOn, HealthProbe, Mount, MountOption,
            MountSource, NetworkCondition, Probe, Security, SecurityProfile, UpgradeGate,
            UpgradeStrategy, UserVolume, UserVolumeKind,
        },
        section::{Scalar, Section},
    },
    Documents, Origins, window,
};

/// Defaults of a health check.
const INTERVAL: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_secs(5);
const FAILURE_THRESHOLD: u32 = 3;
/// Default time limit for a new version to become healthy, and its maximum: init gives a generation at most an hour.
const GATE_TIMEOUT: Duration = Duration::from_secs(300);
const GATE_TIMEOUT_MAX: Duration = Duration::from_secs(3600);
/// The minimum: within less time no version finds its disk, starts its services and answers, so each upgrade would be rolled back.
const GATE_TIMEOUT_MIN: Duration = Duration::from_secs(10);
/// How often a registry is asked what a name means: by default, and the limits.
const UPDATE_INTERVAL: Duration = Duration::from_secs(3600);
const UPDATE_INTERVALS: RangeInclusive<Duration> =
    Duration::from_secs(10)..=Duration::from_secs(7 * 24 * 3600);
/// How long a new image has to be up before it is kept: by default, and the limits.
const UPDATE_TRIAL: Duration = Duration::from_secs(60);
const UPDATE_TRIALS: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(24 * 3600);
/// The limits of the time that a container has to end.
const STOP_TIMEOUTS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(600);
/// Limit on containers. init keeps a descriptor for the output of each container, 64 descriptors in all, of which some are machined's own:
/// the API's socket, the hand-over, the history of upgrades and a prepared version take five, the others are for future versions.
const MAX_CONTAINERS: usize = 56;
/// Names of capabilities are short; the kernel has 41.
const MAX_CAPABILITY_BYTES: usize = 32;

pub(super) fn containers<'a>(
    documents: &Documents<'a>,
    origins: &mut Origins<'a>,
) -> Vec<Container> {
    if let Some(surplus) = documents.of("ContainerConfig").nth(MAX_CONTAINERS) {
        surplus.wrong(format_args!(
            "this is container number {}; a machine runs at most {MAX_CONTAINERS}",
            MAX_CONTAINERS + 1
        ));
    }
    let mut containers: Vec<Container> = documents
        .of("ContainerConfig")
        .filter_map(|document| {
            let container = container(&document)?;
            origins.containers.insert(container.name.clone(), document);
            Some(container)
        })
        .collect();
    for document in documents.of("ContainerHealthConfig") {
        let (Some(name), health) = (document.required("name"), health(&document)) else {
            continue;
        };
        if let Some(container) = containers
            .iter_mut()
            .find(|container| container.name == name)
        {
            container.health = health;
        }
        origins.health.push((name, document));
    }
    let timeout = |document: &Section<'_>| {
        within(document, "timeout", STOP_TIMEOUTS, Container::STOP_TIMEOUT)
    };
    apply_each(
        documents.of("ContainerStopConfig"),
        &mut containers,
        origins,
        timeout,
        |container, timeout| container.stop_timeout = timeout,
    );
    apply_each(
        documents.of("ContainerUpgradeConfig"),
        &mut containers,
        origins,
        |document| Some(strategy(document)),
        |container, strategy| container.upgrade_strategy = strategy,
    );
    apply_each(
        documents.of("ContainerUpdateConfig"),
        &mut containers,
        origins,
        |document| Some(updates(document)),
        |container, updates| container.updates = updates,
    );
    containers
}

/// Reads documents of one kind, and sets the result at the containers that they name. Whether there are such containers is checked later.
fn apply_each<'a, T>(
    documents: impl Iterator<Item = Section<'a>>,
    containers: &mut [Container],
    origins: &mut Origins<'a>,
    read: impl Fn(&Section<'a>) -> Option<T>,
    set: impl Fn(&mut Container, T),
) {
    for document in documents {
        let (Some(name), Some(value)) = (document.required("name"), read(&document)) else {
            continue;
        };
        let mut named = containers.iter_mut();
        if let Some(container) = named.find(|container| container.name == name) {
            set(container, value);
        }
        origins.of_containers.push((name, document));
    }
}

fn strategy(document: &Section<'_>) -> UpgradeStrategy {
    match document.text("strategy") {
        Some("restart") => UpgradeStrategy::Restart,
        _ => UpgradeStrategy::Keep,
    }
}

fn updates(document: &Section<'_>) -> Option<ContainerUpdates> {
    let window = window::of(document);
    let interval = within(document, "interval", UPDATE_INTERVALS, UPDATE_INTERVAL);
    let healthy = within(document, "healthy", UPDATE_TRIALS, UPDATE_TRIAL);
    Some(ContainerUpdates {
        apply: match document.text("apply") {
            Some("approved") => ApplyUpdates::Approved,
            _ => ApplyUpdates::Rebuilds,
        },
        // All of it has been read by now, and its problems reported.
        interval: interval?,
        healthy: healthy?,
        window: window?,
    })
}

/// Reads a duration that has to be within limits.
pub(super) fn within(
    section: &Section<'_>,
    field: &str,
    limits: RangeInclusive<Duration>,
    default: Duration,
) -> Option<Duration> {
    let duration = section.duration(field).unwrap_or(default);
    if limits.contains(&duration) {
        return Some(duration);
    }
    section.wrong_field(
        field,
        format_args!("this must be {:?} to {:?}", limits.start(), limits.end()),
    );
    None
}

fn container(document: &Section<'_>) -> Option<Container> {
    let (name, image) = (name(document), document.required("image"));
    let run_as = document.section("runAs");
    let id = |field| user_id(run_as.as_ref()?, field);
    let limits = document
        .section("resources")
        .and_then(|resources| resources.section("limits"));
    let entrypoint = document
        .list("entrypoint")
        .filter(|words| !words.is_empty());
    let container = Container {
        stop_timeout: Container::STOP_TIMEOUT,
        upgrade_strategy: UpgradeStrategy::default(),
        updates: None,
        entrypoint,
        args: document.list("args"),
        working_dir: document.parsed("workingDir"),
        uid: id("uid"),
        gid: id("gid"),
        environment: document.parsed_list("environment"),
        mounts: document
            .sections("mounts")
            .iter()
            .filter_map(|(_, section)| mount(section))
            .collect(),
        security: document
            .section("security")
            .map(|section| security(&section))
            .unwrap_or_default(),
        network: match document
            .section("network")
            .and_then(|network| network.text("mode"))
        {
            Some("host") => ContainerNetwork::Host,
            _ => ContainerNetwork::None,
        },
        cpu_limit: limits.as_ref().and_then(|limits| limits.parsed("cpu")),
        memory_limit: limits.as_ref().and_then(|limits| limits.parsed("memory")),
        depends_on: document
            .section("dependsOn")
            .map(|section| depends_on(&section))
            .unwrap_or_default(),
        health: None,
        // Last: if one is missing, everything else has been read and its problems reported.
        name: name?,
        image: image?,
    };
    for (i, mount) in container.mounts.iter().enumerate() {
        if container
            .mounts
            .iter()
            .take(i)
            .any(|other| other.destination == mount.destination)
        {
            document.wrong_field(
                "mounts",
                format_args!("two mounts have the destination `{}`", mount.destination),
            );
        }
    }
    Some(container)
}

/// Reads the name. A container's log and state are stored by its name, in the same place as those of the system's services.
fn name(document: &Section<'_>) -> Option<ContainerName> {
    let name: ContainerName = document.required("name")?;
    if system_process::ALL.contains(&name.as_str()) {
        document.wrong_field(
            "name",
            format_args!("`{name}` is a service of the system; choose another name"),
        );
        return None;
    }
    Some(name)
}

/// A user or group id. The numbers that system calls take for "leave it as it is" are refused.
fn user_id(section: &Section<'_>, field: &str) -> Option<u32> {
    let id = section.number(field, 0..=u32::MAX - 1)?;
    if id == u32::from(u16::MAX) {
        section.wrong_field(
            field,
            format_args!("{id} is the number of no user or group"),
        );
        return None;
    }
    Some(id)
}

fn mount(mount: &Section<'_>) -> Option<Mount> {
    let sources = ["userVolume", "tmpfs", "hostPath"];
    let given: Vec<(&str, Section<'_>)> = sources
        .into_iter()
        .filter_map(|source| Some((source, mount.section(source)?)))
        .collect();
    let [(kind, section)] = given.as_slice() else {
        mount.wrong("a mount has exactly one source: `userVolume`, `tmpfs` or `hostPath`");
        return None;
    };
    let source = match *kind {
        "userVolume" => MountSource::UserVolume(section.required("name")?),
        "tmpfs" => MountSource::Tmpfs {
            size: section.parsed("size"),
        },
        _ => MountSource::HostPath(section.required("source")?),
    };
    let mut options: Vec<MountOption> = Vec::new();
    for option in section.texts("options") {
        match MountOption::WORDS
            .iter()
            .find(|(word, _)| *word == option.text)
        {
            Some((_, found)) if !options.contains(found) => options.push(*found),
            Some(_) => {}
            None => {
                let words: Vec<&str> = MountOption::WORDS.iter().map(|(word, _)| *word).collect();
                option.wrong(format_args!(
                    "there is no such mount option; known: {}",
                    words.join(", ")
                ));
            }
        }
    }
    if options.contains(&MountOption::ReadOnly) && options.contains(&MountOption::ReadWrite) {
        section.wrong_field("options", "`ro` and `rw` exclude each other");
    }
    Some(Mount {
        source,
        destination: section.required("destination")?,
        options,
    })
}

fn security(section: &Section<'_>) -> Security {
    let capabilities = section.section("capabilities");
    let list = |field| {
        let names = capabilities
            .as_ref()
            .map(|section| section.texts(field))
            .unwrap_or_default();
        names.iter().filter_map(capability).collect()
    };
    Security {
        // The shape allows no other words.
        profile: match section.text("profile") {
            Some("restricted") => SecurityProfile::Restricted,
            Some("privileged") => SecurityProfile::Privileged,
            _ => SecurityProfile::Usual,
        },
        capabilities: Capabilities {
            add: list("add"),
            drop: list("drop"),
        },
    }
}

fn capability(name: &Scalar<'_>) -> Option<String> {
    let bare = name.text.to_ascii_uppercase();
    let bare = bare.strip_prefix("CAP_").unwrap_or(&bare);
    let fits = !bare.is_empty()
        && bare.len() <= MAX_CAPABILITY_BYTES
        && bare
            .bytes()
            .all(|byte| byte.is_ascii_uppercase() || byte == b'_');
    if !fits {
        name.wrong("a capability's name belongs here, such as `NET_ADMIN`");
        return None;
    }
    Some(bare.to_owned())
}

fn depends_on(section: &Section<'_>) -> DependsOn {
    let networks = section.texts("networks");
    DependsOn {
        paths: section.parsed_list("paths"),
        networks: networks
            .iter()
            .filter_map(|condition| match condition.text {
                "addresses" => Some(NetworkCondition::Addresses),
                "connectivity" => Some(NetworkCondition::Connectivity),
                "hostname" => Some(NetworkCondition::Hostname),
                "etcfiles" => Some(NetworkCondition::EtcFiles),
                _ => None,
            })
            .collect(),
        time: section.flag("time").unwrap_or(false),
        containers: section.parsed_list("containers"),
    }
}

fn health(document: &Section<'_>) -> Option<ContainerHealth> {
    Some(ContainerHealth {
        interval: positive(document, "interval").unwrap_or(INTERVAL),
        timeout: positive(document, "timeout").unwrap_or(TIMEOUT),
        failure_threshold: document
            .number("failureThreshold", 1..=1000)
            .unwrap_or(FAILURE_THRESHOLD),
        required: document.flag("required").unwrap_or(true),
        check: check(document)?,
    })
}

/// Reads the check of a section, which must have exactly one of several.
fn check(section: &Section<'_>) -> Option<HealthProbe> {
    let choice = "`http`, `tcp` or `exec`";
    if !has_one_of(section, &["http", "tcp", "exec"], choice) {
        return None;
    }
    let Some(exec) = section.section("exec") else {
        return target(section).map(HealthProbe::Reach);
    };
    let command = exec
        .list("command")
        .filter(|words| words.first().is_some_and(|program| !program.is_empty()));
    if command.is_none() {
        exec.wrong_field("command", "the program to run belongs here");
    }
    command.map(HealthProbe::Exec)
}

fn target(section: &Section<'_>) -> Option<CheckTarget> {
    match section.section("http") {
        Some(http) => http.required("url").map(CheckTarget::Http),
        None => {
            let tcp = section.section("tcp")?;
            tcp.required("address").map(CheckTarget::Tcp)
        }
    }
}

fn has_one_of(section: &Section<'_>, kinds: &[&str], choice: &str) -> bool {
    let given = kinds.iter().filter(|kind| section.section(kind).is_some());
    let is_one = given.count() == 1;
    if !is_one {
        section.wrong(format_args!("exactly one of {choice} belongs here"));
    }
    is_one
}

fn positive(section: &Section<'_>, field: &str) -> Option<Duration> {
    let duration = section.duration(field)?;
    if duration.is_zero() {
        section.wrong_field(field, "this must be longer than 0");
        return None;
    }
    Some(duration)
}

pub(super) fn upgrade_gate(documents: &Documents<'_>) -> UpgradeGate {
    let Some(document) = documents.one("UpgradeGateConfig") else {
        return UpgradeGate {
            timeout: GATE_TIMEOUT,
            probes: Vec::new(),
        };
    };
    let timeout = positive(&document, "timeout").unwrap_or(GATE_TIMEOUT);
    if timeout > GATE_TIMEOUT_MAX || timeout < GATE_TIMEOUT_MIN {
        document.wrong_field("timeout", "this is between ten seconds and one hour");
    }
    let mut probes: Vec<Probe> = Vec::new();
    for (_, section) in document.sections("probes") {
        let is_one = has_one_of(&section, &["http", "tcp"], "`http` or `tcp`");
        let target = if is_one { target(&section) } else { None };
        let (Some(name), Some(target)) = (section.required::<String>("name"), target) else {
            continue;
        };
        if probes.iter().any(|probe| probe.name == name) {
            section.wrong_field("name", "another probe has this name");
        }
        probes.push(Probe {
            name,
            target,
            timeout: positive(&section, "timeout").unwrap_or(TIMEOUT),
        });
    }
    UpgradeGate { timeout, probes }
}

pub(super) fn user_volumes(documents: &Documents<'_>) -> Vec<UserVolume> {
    documents
        .of("UserVolumeConfig")
        .filter_map(|document| {
            Some(UserVolume {
                name: document.required("name")?,
                kind: match document.text("volumeType") {
                    Some("directory") => UserVolumeKind::Directory,
                    Some("disk") => UserVolumeKind::Disk,
                    // Talos's default type.
                    _ => UserVolumeKind::Partition,
                },
            })
        })
        .collect()
}
