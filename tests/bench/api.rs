//! The API's capacity: measured on the host, since an emulated machine's processor says nothing about a real one's.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use instar_tests::guest_program_file;
use serde_json::{Map, Value};

use crate::table::{Limit, Table};

/// The numbers in the order of the table, with the promise and the goal.
const NUMBERS: [(&str, Limit, Limit); 17] = [
    (
        "version_requests_per_second",
        Limit::AtLeast(3000.0),
        Limit::None,
    ),
    ("hello_requests_per_second", Limit::None, Limit::None),
    (
        "version_to_hello_ratio",
        Limit::AtLeast(0.5),
        Limit::AtLeast(0.6),
    ),
    // The processor time of each process that a call crosses.
    ("version_client_us_per_call", Limit::None, Limit::None),
    ("version_apid_us_per_call", Limit::None, Limit::None),
    ("version_machined_us_per_call", Limit::None, Limit::None),
    ("hello_client_us_per_call", Limit::None, Limit::None),
    ("hello_server_us_per_call", Limit::None, Limit::None),
    // Without apid and without TLS.
    (
        "machined_version_requests_per_second",
        Limit::None,
        Limit::None,
    ),
    ("machined_version_to_hello_ratio", Limit::None, Limit::None),
    ("version_p99_ms", Limit::AtMost(5.0), Limit::None),
    ("hello_p99_ms", Limit::None, Limit::None),
    ("idle_connections", Limit::AtLeast(1000.0), Limit::None),
    (
        "idle_connections_kib",
        Limit::AtMost(40.0 * 1024.0),
        Limit::AtMost(32.0 * 1024.0),
    ),
    ("connects_per_minute", Limit::AtLeast(9_900.0), Limit::None),
    ("connects_failed", Limit::AtMost(0.0), Limit::None),
    (
        "connects_left_kib",
        Limit::AtMost(4.0 * 1024.0),
        Limit::None,
    ),
];

pub(crate) fn measure(table: &mut Table) -> Result<()> {
    let program = guest_program_file("instar-api-load")?;
    // The program contains parts of machined: in a user namespace they cannot change this host's network.
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user"])
        .arg(program)
        .output()
        .context("cannot run unshare (package util-linux)")?;
    ensure!(
        output.status.success(),
        "{}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let numbers: Map<String, Value> =
        serde_json::from_slice(&output.stdout).context("what it printed is no object")?;
    for (name, promise, goal) in NUMBERS {
        let number = numbers.get(name).and_then(Value::as_f64);
        let number = number.with_context(|| format!("no {name}"))?;
        table.add(name, number, promise.with_goal(goal));
    }
    Ok(())
}
