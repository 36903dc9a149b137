//! End-to-end tests in booted machines: one file per area.
//!
//! `cargo test -p instar-tests --test e2e -- --list`, `-- upgrade`, `-- --test-threads 1`. The image under test comes from
//! `make image`. With `INSTAR_KEEP=1` every test leaves its directory under `target/e2e/`.

// A panic is how a test fails.
#![allow(clippy::unwrap_used, clippy::panic)]

mod api_methods;
mod authorities;
mod black_out;
mod boot;
mod bundles;
mod callers;
mod card_names;
mod channel;
mod channel_bundles;
mod chaos;
mod clock;
mod conditions;
mod console;
mod container_limits;
mod containers;
mod dashboard;
mod dead_neighbours;
mod dhcp;
mod disk;
mod drain;
mod edits;
mod extensions_stay;
mod fleet;
mod fleet_configs;
mod fleet_identity;
mod forwarding;
mod full_var;
mod hang_ups;
mod hangs;
mod harness;
mod hostile_clients;
mod image_names;
mod image_signatures;
mod image_store;
mod image_updates;
mod init_failures;
mod installed;
mod io_errors;
mod kept_containers;
mod kernel_settings;
mod kexec;
mod lifecycle;
mod loader;
mod logs;
mod lost_config;
mod machine_config;
mod medium;
mod mirrors;
mod no_call_fails;
mod observing;
mod odd_images;
mod one_at_a_time;
mod os_extensions;
mod other_clients;
mod over_the_network;
mod packet_capture;
mod peers;
mod pins;
mod power_cuts;
mod proxies;
mod refused_images;
mod release_rules;
mod replace;
mod resources;
mod rollback;
mod scrapes;
mod secure_boot;
mod serial_approvals;
mod small_machine;
mod soak;
mod staged;
mod stick_approvals;
mod sticks;
mod talosctl_commands;
mod talosctl_upgrades;
mod tls;
mod trial;
mod trust;
mod upgrade;
mod upgrade_trust;
mod volumes;
mod watchdog;
mod ways_in;
mod worker_certificates;
mod workloads;

use std::process::ExitCode;
use std::time::Duration;

use instar_tests::Test;

/// Timeout for any action of a node, on a host that runs others too: an upgrade takes some 15 s, a boot 10.
const PATIENCE: Duration = Duration::from_secs(120);

/// Part `of` of `parts` of the long areas, counted from 1: `INSTAR_PART=2/8`. The parts of one number of parts together
/// have each area once.
#[derive(Clone, Copy, Debug)]
struct Part {
    of: usize,
    parts: usize,
}

impl Part {
    fn parse(text: &str) -> Option<Self> {
        let (of, parts) = text.split_once('/')?;
        let part = Self {
            of: of.parse().ok()?,
            parts: parts.parse().ok()?,
        };
        (1..=part.parts).contains(&part.of).then_some(part)
    }

    fn areas(self) -> impl Iterator<Item = Area> {
        OF_LONG_RUNS
            .into_iter()
            .skip(self.of - 1)
            .step_by(self.parts)
    }
}

/// Whether the command line names tests; it may name any.
fn is_one_named() -> bool {
    std::env::args()
        .skip(1)
        .any(|argument| !argument.starts_with('-'))
}

fn main() -> ExitCode {
    let of_all_areas = || OF_LONG_RUNS.into_iter().chain(OF_EVERY_RUN);
    let areas: Vec<Area> = match std::env::var("INSTAR_PART") {
        Ok(text) => match Part::parse(&text) {
            Some(part) => part.areas().collect(),
            None => {
                eprintln!("INSTAR_PART={text} is no part: 2/8 is the second of eight");
                return ExitCode::FAILURE;
            }
        },
        Err(_) if std::env::var_os("INSTAR_ALL").is_some() || is_one_named() => {
            of_all_areas().collect()
        }
        Err(_) => OF_EVERY_RUN.to_vec(),
    };
    instar_tests::run(areas.into_iter().flat_map(|area| area()).collect())
}

/// Returns the tests of one file.
type Area = fn() -> Vec<Test>;

/// Areas whose machines boot again and again, or wait for limits to expire: three quarters of the time. The longest
/// first, so that short ones fill the gaps at the end.
const OF_LONG_RUNS: [Area; 53] = [
    soak::tests,
    power_cuts::tests,
    chaos::tests,
    hang_ups::tests,
    one_at_a_time::tests,
    staged::tests,
    fleet::tests,
    channel::long_tests,
    channel_bundles::tests,
    hangs::tests,
    installed::tests,
    release_rules::tests,
    replace::tests,
    proxies::tests,
    kexec::tests,
    io_errors::tests,
    loader::tests,
    lifecycle::tests,
    image_names::tests,
    image_signatures::tests,
    image_updates::tests,
    image_store::tests,
    bundles::tests,
    black_out::tests,
    sticks::tests,
    serial_approvals::tests,
    stick_approvals::tests,
    pins::tests,
    mirrors::tests,
    hostile_clients::tests,
    dead_neighbours::tests,
    full_var::tests,
    lost_config::tests,
    container_limits::tests,
    disk::tests,
    watchdog::tests,
    medium::tests,
    over_the_network::tests,
    talosctl_commands::tests,
    resources::tests,
    dashboard::tests,
    console::tests,
    volumes::tests,
    os_extensions::tests,
    extensions_stay::tests,
    secure_boot::tests,
    ways_in::tests,
    upgrade_trust::tests,
    worker_certificates::tests,
    fleet_identity::tests,
    fleet_configs::tests,
    conditions::tests,
    card_names::tests,
];

/// Each way to start and stop the machine once: boots, the API, both clients, an upgrade, a rollback.
const OF_EVERY_RUN: [Area; 32] = [
    rollback::tests,
    upgrade::tests,
    channel::tests,
    no_call_fails::tests,
    scrapes::tests,
    drain::tests,
    workloads::tests,
    kept_containers::tests,
    talosctl_upgrades::tests,
    trial::tests,
    api_methods::tests,
    packet_capture::tests,
    other_clients::tests,
    forwarding::tests,
    observing::tests,
    authorities::tests,
    trust::tests,
    tls::tests,
    containers::tests,
    dhcp::tests,
    edits::tests,
    machine_config::tests,
    kernel_settings::tests,
    clock::tests,
    logs::tests,
    small_machine::tests,
    refused_images::tests,
    odd_images::tests,
    harness::tests,
    peers::tests,
    boot::tests,
    init_failures::tests,
];
