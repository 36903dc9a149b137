//! The state of one node as it is known, and its changes by updates.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use instar_api::common::NetIpPrefix;
use instar_api::definitions::block::{DiskSpec, SystemDiskSpec};
use instar_api::definitions::instar::{BundleSpec, ConditionSpec};
use instar_api::definitions::network::{HostnameStatusSpec, NodeAddressSpec};
use instar_api::definitions::runtime::{
    BootIdSpec, DiagnosticSpec, MachineStatusSpec, SecurityStateSpec, VersionSpec,
};
use instar_api::events::stage_in_words;
use instar_api::machine as wire;
use instar_api::machine::machine_status_event::MachineStage;

use crate::log::{Log, LogName};
use crate::series::{Rate, Series};

/// Bytes of a sector in the kernel's statistics, whatever the disk's own sectors are (Documentation/block/stat.rst).
const SECTOR_BYTES: f64 = 512.0;

/// An update: news from a node, or from the link to it.
#[derive(Clone, Debug)]
pub enum Update {
    /// The node answered.
    Reached,
    /// The node cannot be reached, for this reason.
    Lost(String),
    /// Load of the scheduler.
    Load(wire::LoadAvg),
    /// Memory.
    Memory(wire::MemInfo),
    /// Processors' time and processes.
    System(wire::SystemStat),
    /// Processors' speed.
    Frequencies(Vec<wire::CpuFreqStats>),
    /// The processors.
    Processors(Vec<wire::CpuInfo>),
    /// Counters of the network devices.
    Network(wire::NetworkDeviceStats),
    /// Counters of the disks.
    Disks(wire::DiskStats),
    /// All processes.
    Processes(Vec<wire::ProcessInfo>),
    /// All services.
    Services(Vec<wire::ServiceInfo>),
    /// All present resources of a type.
    Watched(Watched),
    /// A log is sent from its begin.
    LogBegins(LogName),
    /// Further lines of a log.
    LogLines(LogName, Vec<String>),
}

/// All resources of a type, by id.
#[derive(Clone, Debug)]
pub enum Watched {
    /// Stage and readiness.
    Machine(BTreeMap<String, MachineStatusSpec>),
    /// The version.
    Version(BTreeMap<String, VersionSpec>),
    /// The host name.
    Hostname(BTreeMap<String, HostnameStatusSpec>),
    /// Addresses of the node, by their use.
    Addresses(BTreeMap<String, NodeAddressSpec>),
    /// Boot ids of the generation and of the kernel.
    BootIds(BTreeMap<String, BootIdSpec>),
    /// The protection of the boot.
    Security(BTreeMap<String, SecurityStateSpec>),
    /// Disks.
    Disks(BTreeMap<String, DiskSpec>),
    /// The disk that the node owns.
    SystemDisk(BTreeMap<String, SystemDiskSpec>),
    /// Problems that keep it from being ready.
    Diagnostics(BTreeMap<String, DiagnosticSpec>),
    /// Conditions: whatever may be wrong with it.
    Conditions(BTreeMap<String, ConditionSpec>),
    /// Bundles of images, on sticks and uploaded.
    Bundles(BTreeMap<String, BundleSpec>),
}

/// The link to a node. Times are since the dashboard began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Link {
    /// No answer yet.
    #[default]
    Connecting,
    /// The node answers.
    Up,
    /// The node does not answer, for this reason.
    Away { since: Duration, why: String },
}

/// The known state of a node. It is kept while the node is away.
#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    /// The name that it was asked for by.
    pub(crate) name: String,
    pub(crate) link: Link,
    pub(crate) hostname: Option<String>,
    /// Product and version.
    pub(crate) version: Option<VersionSpec>,
    pub(crate) status: Option<MachineStatusSpec>,
    pub(crate) addresses: Vec<String>,
    pub(crate) generation: Option<String>,
    pub(crate) kernel_boot: Option<String>,
    pub(crate) security: Option<SecurityStateSpec>,
    pub(crate) disks: BTreeMap<String, DiskSpec>,
    pub(crate) system_disk: Option<String>,
    pub(crate) diagnostics: Vec<String>,
    /// The conditions that are true, the newest first.
    pub(crate) conditions: Vec<ConditionSpec>,
    /// The node's sentences about sticks and bundles, a list for each of these.
    pub(crate) bundles: Vec<Vec<String>>,
    pub(crate) services: Vec<wire::ServiceInfo>,
    pub(crate) processors: Vec<wire::CpuInfo>,
    /// Frequency of the fastest processor, in kHz.
    pub(crate) frequency: Option<u64>,
    pub(crate) uptime: Option<Duration>,
    pub(crate) load: Option<wire::LoadAvg>,
    pub(crate) running: u64,
    pub(crate) memory: Option<wire::MemInfo>,
    /// Busy processors, in percent of all.
    pub(crate) cpu: Series,
    /// Used memory, in percent.
    pub(crate) memory_used: Series,
    pub(crate) received: Rate,
    pub(crate) sent: Rate,
    pub(crate) read: Rate,
    pub(crate) written: Rate,
    pub(crate) processes: Vec<Process>,
    pub(crate) logs: BTreeMap<LogName, Log>,
    busy_before: Option<CpuTime>,
    processes_at: Option<Duration>,
}

/// A process and its recent use of a processor.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) info: wire::ProcessInfo,
    /// In percent of one processor.
    pub(crate) cpu: f64,
}

/// Seconds of all processors since the boot.
#[derive(Clone, Copy, Debug)]
struct CpuTime {
    busy: f64,
    all: f64,
}

impl Node {
    pub(crate) fn new(name: String) -> Self {
        Self {
            name,
            ..Self::default()
        }
    }

    /// Applies an update that came at `at`.
    pub(crate) fn apply(&mut self, at: Duration, update: Update) {
        match update {
            Update::Reached => self.link = Link::Up,
            Update::Lost(why) => {
                let since = match self.link {
                    Link::Away { since, .. } => since,
                    Link::Connecting | Link::Up => at,
                };
                self.link = Link::Away { since, why };
            }
            Update::Load(load) => self.load = Some(load),
            Update::Memory(memory) => self.take_memory(memory),
            Update::System(system) => self.take_system(&system),
            Update::Frequencies(all) => {
                self.frequency = all.iter().map(|cpu| cpu.current_frequency).max();
            }
            Update::Processors(processors) => self.processors = processors,
            Update::Network(network) => {
                let outward = || network.devices.iter().filter(|device| device.name != "lo");
                let received: u64 = outward().map(|device| device.rx_bytes).sum();
                let sent: u64 = outward().map(|device| device.tx_bytes).sum();
                self.received.count(at, received as f64);
                self.sent.count(at, sent as f64);
            }
            Update::Disks(disks) => {
                let hardware = || disks.devices.iter().filter(|disk| self.is_disk(&disk.name));
                let read: u64 = hardware().map(|disk| disk.read_sectors).sum();
                let written: u64 = hardware().map(|disk| disk.write_sectors).sum();
                self.read.count(at, read as f64 * SECTOR_BYTES);
                self.written.count(at, written as f64 * SECTOR_BYTES);
            }
            Update::Processes(processes) => self.take_processes(at, processes),
            Update::Services(services) => {
                self.services = services;
                self.services.sort_by(|one, other| one.id.cmp(&other.id));
            }
            Update::Watched(watched) => self.take_watched(watched),
            Update::LogBegins(name) => {
                self.logs.insert(name, Log::default());
            }
            Update::LogLines(name, lines) => {
                let log = self.logs.entry(name).or_default();
                lines.iter().for_each(|line| log.push(line));
            }
        }
    }

    /// Names of the logs that can be shown.
    pub(crate) fn log_names(&self) -> Vec<LogName> {
        let services = self.services.iter().map(|service| service.id.clone());
        std::iter::once(LogName::Kernel)
            .chain(services.map(LogName::Service))
            .collect()
    }

    /// Whether it is a whole disk, and not a partition, loop or mapped device, whose work is counted at the disk below.
    fn is_disk(&self, name: &str) -> bool {
        self.disks.contains_key(name)
    }

    fn take_memory(&mut self, memory: wire::MemInfo) {
        let used = memory.memtotal.saturating_sub(memory.memavailable);
        if memory.memtotal > 0 {
            self.memory_used
                .push(used as f64 * 100.0 / memory.memtotal as f64);
        }
        self.memory = Some(memory);
    }

    fn take_system(&mut self, system: &wire::SystemStat) {
        self.running = system.process_running;
        if let Some(total) = &system.cpu_total {
            let now = CpuTime::of(total);
            if let Some(before) = self.busy_before {
                let all = now.all - before.all;
                if all > 0.0 && now.busy >= before.busy {
                    self.cpu.push((now.busy - before.busy) * 100.0 / all);
                }
            }
            self.busy_before = Some(now);
        }
        // The clocks of two machines differ; a processor's own count of seconds does not. The longest count is of a processor that was
        // always on.
        let uptime = system
            .cpu
            .iter()
            .map(|cpu| CpuTime::of(cpu).all)
            .fold(0.0, f64::max);
        self.uptime = Duration::try_from_secs_f64(uptime).ok();
    }

    fn take_processes(&mut self, at: Duration, processes: Vec<wire::ProcessInfo>) {
        let seconds = match self.processes_at.replace(at) {
            Some(before) => at.saturating_sub(before).as_secs_f64(),
            None => 0.0,
        };
        let before: BTreeMap<i32, f64> = self
            .processes
            .iter()
            .map(|process| (process.info.pid, process.info.cpu_time))
            .collect();
        let lately = |info: &wire::ProcessInfo| match before.get(&info.pid) {
            Some(before) if seconds > 0.0 => (info.cpu_time - before).max(0.0) * 100.0 / seconds,
            _ => 0.0,
        };
        self.processes = processes
            .into_iter()
            .map(|info| Process {
                cpu: lately(&info),
                info,
            })
            .collect();
        self.processes.sort_by(|one, other| {
            let memory = |process: &Process| process.info.resident_memory;
            other
                .cpu
                .total_cmp(&one.cpu)
                .then(memory(other).cmp(&memory(one)))
        });
    }

    fn take_watched(&mut self, watched: Watched) {
        match watched {
            Watched::Machine(all) => self.status = all.into_values().next(),
            Watched::Version(all) => self.version = all.into_values().next(),
            Watched::Hostname(all) => {
                self.hostname = all.into_values().next().map(|status| status.hostname);
            }
            Watched::Addresses(mut all) => {
                let current = all.remove("current").unwrap_or_default();
                self.addresses = current.addresses.iter().filter_map(prefix).collect();
            }
            Watched::BootIds(mut all) => {
                self.generation = all.remove("boot-id").map(|spec| spec.boot_id);
                self.kernel_boot = all.remove("kernel-boot-id").map(|spec| spec.boot_id);
            }
            Watched::Security(all) => self.security = all.into_values().next(),
            Watched::Disks(all) => self.disks = all,
            Watched::SystemDisk(all) => {
                self.system_disk = all.into_values().next().map(|disk| disk.disk_id);
            }
            Watched::Diagnostics(all) => {
                self.diagnostics = all.into_values().map(|told| told.message).collect();
            }
            Watched::Conditions(all) => {
                self.conditions = all.into_values().filter(|it| it.status).collect();
                let since = |it: &ConditionSpec| it.since.map(|since| (since.seconds, since.nanos));
                self.conditions.sort_by_key(|it| Reverse(since(it)));
            }
            Watched::Bundles(all) => {
                self.bundles = all.into_values().map(|bundle| bundle.sentences).collect();
            }
        }
    }
}

impl CpuTime {
    fn of(cpu: &wire::CpuStat) -> Self {
        // The time of guests is in `user` and `nice` already (proc_stat(5)).
        let busy = cpu.user + cpu.nice + cpu.system + cpu.irq + cpu.soft_irq + cpu.steal;
        Self {
            busy,
            all: busy + cpu.idle + cpu.iowait,
        }
    }
}

/// A stage in words.
pub(crate) fn stage(status: &MachineStatusSpec) -> &'static str {
    // The numbers of events and of resources are the same.
    stage_in_words(MachineStage::try_from(status.stage).unwrap_or_default())
}

fn prefix(prefix: &NetIpPrefix) -> Option<String> {
    let address = match prefix.ip.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(prefix.ip.as_slice()).ok()?),
        _ => IpAddr::from(<[u8; 16]>::try_from(prefix.ip.as_slice()).ok()?),
    };
    Some(format!("{address}/{}", prefix.prefix_length))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn cpu(busy: f64, idle: f64) -> Update {
        let stat = wire::CpuStat {
            user: busy,
            idle,
            ..wire::CpuStat::default()
        };
        Update::System(wire::SystemStat {
            cpu_total: Some(stat),
            cpu: vec![stat],
            ..wire::SystemStat::default()
        })
    }

    #[test]
    fn busy_is_what_was_not_idle_between_two_answers() {
        let mut node = Node::new("a".into());
        node.apply(SECOND, cpu(1.0, 9.0));
        assert_eq!(node.cpu.last(), None);
        assert_eq!(node.uptime, Some(Duration::from_secs(10)));
        node.apply(SECOND * 4, cpu(2.0, 11.0));
        assert_eq!(node.cpu.last().map(f64::round), Some(33.0));
        // After a boot all counters begin anew.
        node.apply(SECOND * 5, cpu(0.5, 0.5));
        assert_eq!(node.cpu.last().map(f64::round), Some(33.0));
        assert_eq!(node.uptime, Some(SECOND));
    }

    #[test]
    fn a_node_that_is_away_keeps_what_it_told_and_when_it_left() {
        let mut node = Node::new("a".into());
        let version = VersionSpec {
            version: "v0.1.0".into(),
            name: "Instar".into(),
        };
        let version = BTreeMap::from([("version".to_owned(), version)]);
        node.apply(SECOND, Update::Reached);
        node.apply(SECOND, Update::Watched(Watched::Version(version)));
        node.apply(SECOND * 2, Update::Lost("refused".into()));
        node.apply(SECOND * 3, Update::Lost("still refused".into()));
        assert_eq!(
            node.link,
            Link::Away {
                since: SECOND * 2,
                why: "still refused".into()
            }
        );
        assert!(node.version.is_some());
        node.apply(SECOND * 4, Update::Reached);
        assert_eq!(node.link, Link::Up);
    }

    #[test]
    fn only_whole_disks_and_outward_links_count() {
        let mut node = Node::new("a".into());
        let disks = BTreeMap::from([("vda".to_owned(), DiskSpec::default())]);
        node.apply(SECOND, Update::Watched(Watched::Disks(disks)));
        for round in 1..=2_u64 {
            let disk = |name: &str, sectors| wire::DiskStat {
                name: name.into(),
                read_sectors: sectors * round,
                ..wire::DiskStat::default()
            };
            let device = |name: &str, bytes| wire::NetDev {
                name: name.into(),
                rx_bytes: bytes * round,
                ..wire::NetDev::default()
            };
            let at = Duration::from_secs(round);
            node.apply(
                at,
                Update::Disks(wire::DiskStats {
                    devices: vec![disk("vda", 2), disk("vda1", 2), disk("loop0", 9)],
                    ..wire::DiskStats::default()
                }),
            );
            node.apply(
                at,
                Update::Network(wire::NetworkDeviceStats {
                    devices: vec![device("lo", 7), device("eth0", 100)],
                    ..wire::NetworkDeviceStats::default()
                }),
            );
        }
        assert_eq!(node.read.series.last(), Some(1024.0));
        assert_eq!(node.received.series.last(), Some(100.0));
    }

    #[test]
    fn busy_processes_come_first() {
        let mut node = Node::new("a".into());
        let process = |pid, cpu_time, resident_memory| wire::ProcessInfo {
            pid,
            cpu_time,
            resident_memory,
            ..wire::ProcessInfo::default()
        };
        node.apply(
            SECOND,
            Update::Processes(vec![process(1, 5.0, 1), process(2, 0.0, 9)]),
        );
        assert_eq!(node.processes[0].info.pid, 2);
        node.apply(
            SECOND * 3,
            Update::Processes(vec![process(2, 0.0, 9), process(1, 6.0, 1)]),
        );
        assert_eq!(node.processes[0].info.pid, 1);
        assert_eq!(node.processes[0].cpu, 50.0);
    }

    #[test]
    fn addresses_are_those_of_now() {
        let mut node = Node::new("a".into());
        let spec = NodeAddressSpec {
            addresses: vec![
                NetIpPrefix {
                    ip: vec![10, 0, 2, 15],
                    prefix_length: 24,
                },
                NetIpPrefix {
                    ip: vec![1],
                    prefix_length: 8,
                },
            ],
            sort_algorithm: 0,
        };
        let all = BTreeMap::from([("current".to_owned(), spec)]);
        node.apply(SECOND, Update::Watched(Watched::Addresses(all)));
        assert_eq!(node.addresses, ["10.0.2.15/24"]);
    }
}
