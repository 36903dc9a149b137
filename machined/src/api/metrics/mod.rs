//! `instar.MetricsService`: figures of the node in Prometheus's text format. They are read when they are asked for; nothing is kept for them
//! but counters.
//!
//! No name or value here comes from the config's secrets: the labels are names of services, containers, links, mount points and versions.

mod calls;
mod text;

use std::sync::Arc;

use instar_api::instar as wire;
use instar_api::instar::metrics_service_server::MetricsService;
use instar_api::machine::{CpuStat, NetDev};
use tonic::{Request, Response, Status};

pub(super) use calls::count as count_call;

use super::blocking;
use super::caller::Holder;
use super::container_facts;
use crate::machine::Machine;
use crate::sequences::conditions::conditions;
use crate::services::{Health, Phase};
use crate::statistics;
use crate::store::{MachineStatus, Problem};
use crate::upgrade::{Outcome, StartCounts, UpgradeFact};
use text::{Kind, Page};

/// The service.
pub(super) struct MetricsApi {
    machine: Arc<Machine>,
}

impl MetricsApi {
    pub(super) fn new(machine: Arc<Machine>) -> Self {
        MetricsApi { machine }
    }
}

#[tonic::async_trait]
impl MetricsService for MetricsApi {
    async fn read(
        &self,
        request: Request<wire::MetricsRequest>,
    ) -> Result<Response<wire::MetricsResponse>, Status> {
        let machine = self.machine.clone();
        let holder = Holder::of(&request);
        let text = blocking::once(&holder, move || Ok(page(&machine))).await?;
        Ok(Response::new(wire::MetricsResponse { text }))
    }
}

/// Reads everything. A part that cannot be read is missing. Blocks.
fn page(machine: &Machine) -> String {
    let mut page = Page::default();
    of_version(&mut page, machine);
    of_machine(&mut page, machine);
    of_conditions(&mut page, machine);
    of_starts(&mut page, machine);
    of_services(&mut page, machine);
    of_containers(&mut page, machine);
    of_filesystems(&mut page);
    of_memory(&mut page);
    of_processors(&mut page);
    of_links(&mut page);
    of_clock(&mut page, machine);
    of_images(&mut page, machine);
    calls::write(&mut page);
    page.into_text()
}

fn of_version(page: &mut Page, machine: &Machine) {
    let (running, generation) = (&machine.running, &machine.generation);
    let labels = [
        ("version", running.version.as_str()),
        ("architecture", &running.architecture),
    ];
    page.family("instar_info", Kind::Gauge, "The running version.")
        .sample(&labels, true);
    page.family(
        "instar_generation",
        Kind::Gauge,
        "Number of the generation since the kernel's boot: 1, and one more for each version change without a reboot.",
    )
    .sample(&[], generation.number);
    let history = machine.store.list::<UpgradeFact>();
    let count = |outcome| {
        history
            .iter()
            .filter(|(_, it)| it.outcome == outcome)
            .count() as u64
    };
    page.family(
        "instar_upgrades",
        Kind::Gauge,
        "Versions that came up, and upgrades that failed, in the history that the node keeps.",
    )
    .sample(&[("result", "running")], count(Outcome::Running))
    .sample(&[("result", "failed")], count(Outcome::Failed));
}

fn of_machine(page: &mut Page, machine: &Machine) {
    let MachineStatus {
        stage,
        ready,
        unmet,
    } = machine.status();
    page.family(
        "instar_machine_ready",
        Kind::Gauge,
        "Whether everything that the config asks for is there.",
    )
    .sample(&[], ready);
    page.family(
        "instar_machine_stage",
        Kind::Gauge,
        "The stage that the machine is in.",
    )
    .sample(&[("stage", stage.doing())], true);
    let mut conditions = page.family(
        "instar_machine_unmet_condition",
        Kind::Gauge,
        "Conditions that the machine waits for.",
    );
    for (name, _) in &unmet {
        conditions.sample(&[("condition", name)], true);
    }
    let problems = machine.store.list::<Problem>().len() as u64;
    page.family(
        "instar_problems",
        Kind::Gauge,
        "Problems of the machine (get diagnostics).",
    )
    .sample(&[], problems);
    if let Ok(stat) = statistics::system_stat() {
        page.family(
            "instar_boot_time_seconds",
            Kind::Gauge,
            "When the kernel was started, in seconds since 1970.",
        )
        .sample(&[], stat.boot_time);
    }
}

/// Writes a sample for each condition that is true. Types and reasons are of a fixed set, so the number of series has a limit.
fn of_conditions(page: &mut Page, machine: &Machine) {
    let mut family = page.family(
        "instar_condition",
        Kind::Gauge,
        "Conditions that are true: something is wrong (get conditions).",
    );
    for known in conditions(machine) {
        if let Some((trouble, _)) = known.trouble {
            let labels = [("type", known.kind.name()), ("reason", trouble.reason)];
            family.sample(&labels, true);
        }
    }
}

/// Missing until the disk is there.
fn of_starts(page: &mut Page, machine: &Machine) {
    let Some(counts) = machine.store.get::<StartCounts>(StartCounts::ID) else {
        return;
    };
    for (name, help, count) in [
        (
            "instar_boots_total",
            "Boots of the machine, also before this one.",
            counts.boots,
        ),
        (
            "instar_generations_total",
            "Generations that were started in these boots: one for each, and one more for each version change without a reboot.",
            counts.generations,
        ),
        (
            "instar_rollbacks_total",
            "Starts of a version because another one was given up.",
            counts.rollbacks,
        ),
    ] {
        page.family(name, Kind::Counter, help).sample(&[], count);
    }
}

fn of_services(page: &mut Page, machine: &Machine) {
    let services: Vec<_> = machine
        .services
        .list()
        .into_iter()
        .map(|service| (service.definition().id.clone(), service.status()))
        .collect();
    let mut states = page.family(
        "instar_service_state",
        Kind::Gauge,
        "The state of each service.",
    );
    for (name, status) in &services {
        states.sample(&[("service", name), ("state", status.phase.name())], true);
    }
    let mut health = page.family(
        "instar_service_healthy",
        Kind::Gauge,
        "Whether the health check of a service passes; for one without a check, whether it runs.",
    );
    for (name, status) in &services {
        let is_healthy = match status.health {
            Health::Healthy => true,
            Health::Unhealthy(_) => false,
            Health::Unknown => !status.checked && status.phase == Phase::Running,
        };
        health.sample(&[("service", name)], is_healthy);
    }
    let mut starts = page.family(
        "instar_service_starts_total",
        Kind::Counter,
        "How often a service was started in this generation.",
    );
    for (name, status) in &services {
        starts.sample(&[("service", name)], status.starts);
    }
}

fn of_containers(page: &mut Page, machine: &Machine) {
    let containers = container_facts::containers(machine).unwrap_or_default();
    let mut memory = page.family(
        "instar_container_memory_bytes",
        Kind::Gauge,
        "Memory of a container's processes and caches.",
    );
    for container in &containers {
        memory.sample(&[("container", &container.name)], container.memory_bytes);
    }
    let mut cpu = page.family(
        "instar_container_cpu_seconds_total",
        Kind::Counter,
        "Processor time of a container since it started.",
    );
    for container in &containers {
        let seconds = container.cpu_nanoseconds as f64 / 1e9;
        cpu.sample(&[("container", &container.name)], seconds);
    }
}

fn of_filesystems(page: &mut Page) {
    let mounted = statistics::mounted().unwrap_or_default();
    let disks = mounted.iter().filter(|it| it.source.starts_with("/dev/"));
    let rooms: Vec<_> = disks
        .filter_map(|it| Some((it, statistics::room(it.target.as_str()).ok()?)))
        .collect();
    type Figure = fn(&statistics::Room) -> u64;
    let figures: [(&'static str, &str, Figure); 4] = [
        (
            "instar_filesystem_size_bytes",
            "Size of a filesystem.",
            |room| room.size,
        ),
        (
            "instar_filesystem_available_bytes",
            "Bytes that can still be written.",
            |room| room.available,
        ),
        (
            "instar_filesystem_files",
            "Limit on the number of files.",
            |room| room.inodes,
        ),
        (
            "instar_filesystem_files_free",
            "Number of files that can still be made.",
            |room| room.inodes_free,
        ),
    ];
    for (name, help, figure) in figures {
        let mut family = page.family(name, Kind::Gauge, help);
        let mut shown = std::collections::BTreeSet::new();
        for (mount, room) in &rooms {
            // A mount may be covered by another one at the same place.
            if shown.insert(&mount.target) {
                let labels = [
                    ("mountpoint", mount.target.as_str()),
                    ("device", &mount.source),
                    ("type", &mount.filesystem),
                ];
                family.sample(&labels, figure(room));
            }
        }
    }
}

fn of_memory(page: &mut Page) {
    let Ok(memory) = statistics::memory() else {
        return;
    };
    for (name, help, kib) in [
        (
            "instar_memory_total_bytes",
            "Memory of the machine.",
            memory.memtotal,
        ),
        (
            "instar_memory_available_bytes",
            "Memory that programs can still get.",
            memory.memavailable,
        ),
        (
            "instar_memory_free_bytes",
            "Memory that nothing uses.",
            memory.memfree,
        ),
    ] {
        page.family(name, Kind::Gauge, help).sample(&[], kib << 10);
    }
}

fn of_processors(page: &mut Page) {
    let Ok(stat) = statistics::system_stat() else {
        return;
    };
    let CpuStat {
        user,
        nice,
        system,
        idle,
        iowait,
        irq,
        soft_irq,
        steal,
        ..
    } = stat.cpu_total.unwrap_or_default();
    let mut family = page.family(
        "instar_cpu_seconds_total",
        Kind::Counter,
        "Time of all processors together.",
    );
    for (mode, seconds) in [
        ("user", user),
        ("nice", nice),
        ("system", system),
        ("idle", idle),
        ("iowait", iowait),
        ("irq", irq),
        ("softirq", soft_irq),
        ("steal", steal),
    ] {
        family.sample(&[("mode", mode)], seconds);
    }
    if let Ok(load) = statistics::load_average() {
        page.family("instar_load1", Kind::Gauge, "Load of the last minute.")
            .sample(&[], load.load1);
    }
}

fn of_links(page: &mut Page) {
    let devices = statistics::network_device_stats()
        .unwrap_or_default()
        .devices;
    type Figure = fn(&NetDev) -> u64;
    let figures: [(&'static str, &str, Figure); 6] = [
        (
            "instar_network_receive_bytes_total",
            "Bytes received.",
            |it| it.rx_bytes,
        ),
        ("instar_network_transmit_bytes_total", "Bytes sent.", |it| {
            it.tx_bytes
        }),
        (
            "instar_network_receive_packets_total",
            "Packets received.",
            |it| it.rx_packets,
        ),
        (
            "instar_network_transmit_packets_total",
            "Packets sent.",
            |it| it.tx_packets,
        ),
        (
            "instar_network_receive_errors_total",
            "Errors of receiving.",
            |it| it.rx_errors,
        ),
        (
            "instar_network_transmit_errors_total",
            "Errors of sending.",
            |it| it.tx_errors,
        ),
    ];
    for (name, help, figure) in figures {
        let mut family = page.family(name, Kind::Counter, help);
        for device in &devices {
            family.sample(&[("device", &device.name)], figure(device));
        }
    }
}

fn of_clock(page: &mut Page, machine: &Machine) {
    let status = machine.clock.status().borrow().clone();
    page.family(
        "instar_time_synced",
        Kind::Gauge,
        "Whether a time server has answered and the clock agrees with it.",
    )
    .sample(&[], status.synced);
    page.family(
        "instar_time_offset_seconds",
        Kind::Gauge,
        "Offset of the clock at the last answer: positive if it was behind.",
    )
    .sample(&[], status.offset_us as f64 / 1e6);
    if let Some(last) = status.last {
        page.family(
            "instar_time_last_answer_seconds",
            Kind::Gauge,
            "When a time server answered last, in seconds since 1970.",
        )
        .sample(&[], last);
    }
}

fn of_images(page: &mut Page, machine: &Machine) {
    let Ok(images) = machine.images.list() else {
        return;
    };
    let bytes = images
        .iter()
        .map(|image| image.unpacked_bytes())
        .sum::<u64>();
    page.family("instar_images", Kind::Gauge, "Images in the store.")
        .sample(&[], images.len() as u64);
    page.family(
        "instar_images_unpacked_bytes",
        Kind::Gauge,
        "Size of the images in the store, unpacked; files that they share count for each.",
    )
    .sample(&[], bytes);
}
