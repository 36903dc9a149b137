//! Tests of whole screens, as text. A file per screen in `screens/`; a failed test shows the new text.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::time::Duration;

use instar_api::common::NetIpPrefix;
use instar_api::definitions::block::{DiskSpec, SystemDiskSpec};
use instar_api::definitions::instar::{BundleSpec, ConditionSpec};
use instar_api::definitions::network::{HostnameStatusSpec, NodeAddressSpec};
use instar_api::definitions::runtime::{
    BootIdSpec, MachineStage, MachineStatusSpec, MachineStatusStatus, SecurityStateSpec,
    UnmetCondition, VersionSpec,
};
use instar_api::machine as wire;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;

use super::*;
use crate::known::{Update, Watched};
use crate::log::LogName;

const PLAIN: Look = Look {
    unicode: true,
    colour: false,
};
const ASCII: Look = Look {
    unicode: false,
    colour: false,
};

fn one<T>(id: &str, spec: T) -> BTreeMap<String, T> {
    BTreeMap::from([(id.to_owned(), spec)])
}

fn service(id: &str, state: &str, health: Option<bool>, said: &str) -> wire::ServiceInfo {
    wire::ServiceInfo {
        id: id.into(),
        state: state.into(),
        events: Some(wire::ServiceEvents {
            events: vec![wire::ServiceEvent {
                msg: said.into(),
                ..wire::ServiceEvent::default()
            }],
        }),
        health: Some(wire::ServiceHealth {
            unknown: health.is_none(),
            healthy: health == Some(true),
            ..wire::ServiceHealth::default()
        }),
    }
}

/// Two nodes; the first has sent everything, twice.
fn screen() -> Screen {
    let mut screen = Screen::new(["10.0.0.5".to_owned(), "10.0.0.6".to_owned()]);
    let mut tell = |seconds, update| {
        screen.apply(0, Duration::from_secs(seconds), update);
    };
    tell(1, Update::Reached);
    for watched in what_it_is().into_iter().chain(what_it_has()) {
        tell(1, Update::Watched(watched));
    }
    tell(1, services());
    tell(1, processors());
    for round in 0..40_u64 {
        for update in [
            processors_time(round),
            memory(round),
            load(),
            network(round),
            disks(round),
            processes(round),
        ] {
            tell(round + 1, update);
        }
    }
    tell(40, Update::LogLines(LogName::Kernel, kernel_log()));
    screen
}

fn what_it_is() -> [Watched; 5] {
    let version = VersionSpec {
        version: "v0.2.0".into(),
        name: "Instar".into(),
    };
    let status = MachineStatusSpec {
        stage: MachineStage::Running.into(),
        status: Some(MachineStatusStatus {
            ready: false,
            unmet_conditions: vec![UnmetCondition {
                name: "services".into(),
                reason: "web is not healthy".into(),
            }],
        }),
    };
    let hostname = HostnameStatusSpec {
        hostname: "lamp".into(),
        ..HostnameStatusSpec::default()
    };
    let addresses = NodeAddressSpec {
        addresses: vec![NetIpPrefix {
            ip: vec![10, 0, 0, 5],
            prefix_length: 24,
        }],
        ..NodeAddressSpec::default()
    };
    [
        Watched::Version(one("version", version)),
        Watched::Machine(one("machine", status)),
        Watched::Hostname(one("hostname", hostname)),
        Watched::Addresses(one("current", addresses)),
        Watched::BootIds(boots()),
    ]
}

fn boots() -> BTreeMap<String, BootIdSpec> {
    let boot = |id: &str| BootIdSpec { boot_id: id.into() };
    BTreeMap::from([
        (
            "boot-id".to_owned(),
            boot("5f0f2c0e-88a4-4b51-9d5e-0c1f6a3b2d41"),
        ),
        (
            "kernel-boot-id".to_owned(),
            boot("0b9f3a1c-17c2-4c68-8a39-5f4c7d2e9b10"),
        ),
    ])
}

fn what_it_has() -> [Watched; 3] {
    let security = SecurityStateSpec {
        secure_boot: true,
        booted_with_uki: true,
        ..SecurityStateSpec::default()
    };
    let disk = DiskSpec {
        size: 4 << 30,
        ..DiskSpec::default()
    };
    let own = SystemDiskSpec {
        disk_id: "vda".into(),
        ..SystemDiskSpec::default()
    };
    [
        Watched::Security(one("securitystate", security)),
        Watched::Disks(one("vda", disk)),
        Watched::SystemDisk(one("system-disk", own)),
    ]
}

fn services() -> Update {
    Update::Services(vec![
        service("apid", "Running", Some(true), "started"),
        service("machined", "Running", Some(true), ""),
        service("web", "Running", Some(false), "health check: refused"),
        service("job", "Finished", None, "done"),
    ])
}

fn processors() -> Update {
    let processor = wire::CpuInfo {
        model_name: "Test CPU".into(),
        ..wire::CpuInfo::default()
    };
    Update::Processors(vec![processor; 2])
}

/// Processors that get busier.
fn processors_time(round: u64) -> Update {
    let stat = wire::CpuStat {
        user: (round * round / 20) as f64,
        idle: round as f64 * 4.0,
        ..wire::CpuStat::default()
    };
    Update::System(wire::SystemStat {
        cpu_total: Some(stat),
        cpu: vec![stat],
        ..wire::SystemStat::default()
    })
}

fn memory(round: u64) -> Update {
    Update::Memory(wire::MemInfo {
        memtotal: 262_144,
        memavailable: 262_144 - round * 5000,
        ..wire::MemInfo::default()
    })
}

fn load() -> Update {
    Update::Load(wire::LoadAvg {
        load1: 0.5,
        load5: 0.25,
        load15: 0.125,
        ..wire::LoadAvg::default()
    })
}

fn network(round: u64) -> Update {
    let device = wire::NetDev {
        name: "eth0".into(),
        rx_bytes: round * round * 300,
        tx_bytes: round * 100,
        ..wire::NetDev::default()
    };
    Update::Network(wire::NetworkDeviceStats {
        devices: vec![device],
        ..wire::NetworkDeviceStats::default()
    })
}

/// A disk that is written to now and then.
fn disks(round: u64) -> Update {
    let disk = wire::DiskStat {
        name: "vda".into(),
        write_sectors: round / 10 * 2000,
        ..wire::DiskStat::default()
    };
    Update::Disks(wire::DiskStats {
        devices: vec![disk],
        ..wire::DiskStats::default()
    })
}

fn processes(round: u64) -> Update {
    let process = |pid, name: &str, args: &str, cpu_time| wire::ProcessInfo {
        pid,
        command: name.into(),
        args: args.into(),
        state: "S".into(),
        threads: 1,
        cpu_time,
        resident_memory: 1 << 20,
        ..wire::ProcessInfo::default()
    };
    Update::Processes(vec![
        process(2, "kthreadd", "", 0.0),
        process(1, "init", "/init", round as f64 / 4.0),
    ])
}

/// With a line that is too long, and one that would change the terminal.
fn kernel_log() -> Vec<String> {
    let lines = (1..=30).map(|number| format!("kern: info: [12:00:{number:02}]: line {number}"));
    let mut lines: Vec<String> = lines.collect();
    lines.push(format!("long: {}", "0123456789".repeat(10)));
    lines.push("\u{1b}[31mérror\u{1b}[0m".to_owned());
    lines
}

fn drawn(screen: &mut Screen, columns: u16, rows: u16, look: Look) -> String {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal.draw(|frame| draw(frame, screen, look)).unwrap();
    text(terminal.backend().buffer())
}

fn text(buffer: &Buffer) -> String {
    let rows = buffer.area.rows().map(|row| {
        let cells = row.columns().map(|cell| buffer[(cell.x, cell.y)].symbol());
        cells.collect::<String>().trim_end().to_owned() + "\n"
    });
    rows.collect()
}

#[track_caller]
fn shows(drawn: &str, expected: &str) {
    assert!(drawn == expected, "it is now:\n{drawn}");
}

#[test]
fn a_summary_fits_the_smallest_terminal() {
    let drawn = drawn(&mut screen(), 80, 24, PLAIN);
    shows(&drawn, include_str!("screens/summary-80x24.txt"));
}

#[test]
fn a_wide_terminal_gets_a_third_column() {
    let drawn = drawn(&mut screen(), 140, 40, PLAIN);
    shows(&drawn, include_str!("screens/summary-140x40.txt"));
}

#[test]
fn load_and_processes_have_a_page() {
    let mut screen = screen();
    screen.page = Page::Monitor;
    let drawn = drawn(&mut screen, 80, 24, PLAIN);
    shows(&drawn, include_str!("screens/monitor-80x24.txt"));
    assert_eq!(screen.rows, 10);
}

#[test]
fn a_log_has_a_page_and_stays_where_it_was_scrolled_to() {
    let mut screen = screen();
    screen.page = Page::Log;
    screen.behind = 5;
    let drawn = drawn(&mut screen, 80, 24, PLAIN);
    shows(&drawn, include_str!("screens/log-80x24.txt"));
}

#[test]
fn a_poor_terminal_gets_ascii_alone() {
    let mut screen = screen();
    let why = "connection refused…".to_owned();
    screen.apply(0, Duration::from_secs(50), Update::Lost(why.clone()));
    screen.apply(0, Duration::from_secs(62), Update::Lost(why));
    for page in [Page::Summary, Page::Monitor, Page::Log] {
        screen.page = page;
        let drawn = drawn(&mut screen, 80, 24, ASCII);
        assert!(drawn.is_ascii(), "{drawn}");
        assert!(
            drawn.contains("AWAY for 12 s: connection refused?"),
            "{drawn}"
        );
    }
    screen.page = Page::Summary;
    let drawn = drawn(&mut screen, 80, 24, ASCII);
    shows(&drawn, include_str!("screens/ascii-80x24.txt"));
}

/// With a second bundle that has nothing to say.
#[test]
fn a_stick_is_told_of_above_every_page() {
    let mut screen = screen();
    let said = [
        "A stick with the label INSTAR-BUNDLE is plugged in (sda1).",
        "The bundle holds 2 images: registry.local/app:2.6.2 (version 2.6.2), registry.local/installer:v2 (version v0.3.0).",
        "Leave the stick in.",
    ];
    let bundle = BundleSpec {
        sentences: said.map(str::to_owned).to_vec(),
        ..BundleSpec::default()
    };
    let mut all = one("sda1", bundle);
    all.insert("upload".to_owned(), BundleSpec::default());
    let update = Update::Watched(Watched::Bundles(all));
    screen.apply(0, Duration::from_secs(41), update);
    shows(
        &drawn(&mut screen, 80, 24, ASCII),
        include_str!("screens/stick-80x24.txt"),
    );
    for page in [Page::Monitor, Page::Log] {
        screen.page = page;
        let drawn = drawn(&mut screen, 80, 24, ASCII);
        assert!(drawn.contains("Leave the stick in."), "{drawn}");
    }
}

#[test]
fn no_size_and_no_knowledge_are_too_little() {
    for (columns, rows) in [(1, 1), (80, 1), (80, 3), (10, 5), (500, 200)] {
        for page in [Page::Summary, Page::Monitor, Page::Log] {
            for mut screen in [screen(), Screen::new(["a".to_owned()])] {
                screen.page = page;
                drawn(&mut screen, columns, rows, PLAIN);
            }
        }
    }
}

#[test]
fn a_frame_like_the_last_one_costs_nothing() {
    let mut screen = screen();
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    terminal
        .draw(|frame| draw(frame, &mut screen, PLAIN))
        .unwrap();
    let first = terminal.backend().buffer().clone();
    // Another node's figures must not be shown.
    screen.apply(
        1,
        Duration::from_secs(41),
        Update::Load(wire::LoadAvg::default()),
    );
    terminal
        .draw(|frame| draw(frame, &mut screen, PLAIN))
        .unwrap();
    assert!(first.diff(terminal.backend().buffer()).is_empty());
}

#[test]
fn the_summary_says_in_words_what_is_wrong_and_what_to_do() {
    let mut screen = screen();
    let condition = ConditionSpec {
        r#type: "UpgradeFailed".into(),
        status: true,
        message: "v0.2.0 runs on, because the last upgrade failed: v0.3.0 was given up; repair the image or the machine and upgrade again".into(),
        ..ConditionSpec::default()
    };
    let watched = Watched::Conditions(one("UpgradeFailed", condition));
    screen.apply(0, Duration::from_secs(41), Update::Watched(watched));
    for (columns, rows) in [(80, 24), (140, 40)] {
        let drawn = drawn(&mut screen, columns, rows, PLAIN);
        let begins = "\nUpgradeFailed: v0.2.0 runs on, because";
        assert!(drawn.contains(begins), "{drawn}");
        assert!(drawn.contains("upgrade again\n"), "{drawn}");
        assert!(drawn.contains(" log: kernel"), "{drawn}");
    }
}
