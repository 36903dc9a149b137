//! The machine as a whole: its names, its state, its clock, its health.

use instar_tests::WrongTimeServer;

use super::*;

/// Each value of `-n` means this node: its address, its name, the dialled address with port, and the empty value.
pub(super) async fn every_name_of_the_node_means_it(
    talosctl: &Talosctl<'_>,
    node: &Node,
) -> Outcome {
    let both: &[Row<'_>] = &[("version", 0, &["v0.1.0"]), ("get hostname", 0, &["node"])];
    for name in ["127.0.0.1", "10.0.2.15", "node", &node.endpoint()?] {
        rows(&talosctl.asking_for(name), both).await?;
    }
    // The older release sends an empty name in some calls.
    let nameless = talosctl.asking_for("");
    rows(&nameless, &[("get rd", 0, &["hostnamestatuses"])]).await
}

pub(super) async fn the_state_of_the_machine_is_shown(talosctl: &Talosctl<'_>) -> Outcome {
    rows(talosctl, STATE_OF_THE_MACHINE).await
}

const STATE_OF_THE_MACHINE: &[Row<'_>] = &[
    (
        "version",
        0,
        &[
            "Tag: v0.1.0",
            "Arch: amd64",
            "Platform: metal",
            "Enabled: RBAC",
        ],
    ),
    ("service", 0, &["apid Running", "greeter Running"]),
    ("service apid", 0, &["apid Running OK"]),
    ("service machined", 0, &["machined Running OK"]),
    ("service apid status", 0, &["apid Running"]),
    ("service no-such", 1, &["is not registered"]),
    (
        "containers",
        0,
        &["system greeter ", "/greeter:v1", "RUNNING"],
    ),
    ("stats", 0, &["system greeter "]),
    (
        "processes",
        0,
        &["/usr/sbin/machined", "kthreadd", "init /init"],
    ),
    ("memory", 0, &["total 2", "available 1"]),
    ("mounts", 0, &["/dev/vda3 ", " /var"]),
    ("netstat", 0, &[":50000 ", " 1 "]),
    ("netstat -a", 0, &[":50000 ", " 10 "]),
    ("netstat -l", 0, &[":50000 ", " 10 "]),
    ("netstat -p", 0, &["/apid"]),
    ("netstat -p -a -t -u -w", 0, &["/apid"]),
    ("netstat -l -4", 0, &["tcp 0.0.0.0:8080"]),
    ("netstat -k", 0, &[]),
    (
        "cgroups",
        0,
        &[
            "/sys/fs/cgroup cgroup.controllers",
            "/sys/fs/cgroup generation.1",
        ],
    ),
    ("inspect dependencies", 0, &["0 edges"]),
    ("pcap -i eth0 --duration 1", 0, &[" bytes"]),
];

pub(super) async fn kubernetes_has_no_containers(talosctl: &Talosctl<'_>) -> Outcome {
    for command in ["containers -k", "stats -k"] {
        let said = talosctl.run(command).await;
        ensure!(said.code == Some(0) && said.output.is_empty(), "{said:?}");
    }
    Ok(())
}

pub(super) async fn the_clock_is_compared_with_a_server(talosctl: &Talosctl<'_>) -> Outcome {
    let server = WrongTimeServer::start(std::time::Duration::from_secs(1000))?;
    let name = server.host_for_guest();
    let check = format!("time --check {name}");
    let unreachable = ("time --check 127.0.0.1:1", 1, &["127.0.0.1:1"][..]);
    rows(talosctl, &[(&check, 0, &[&name]), unreachable]).await?;
    let said = talosctl.run(&check).await.output;
    let times: Vec<i64> = said.split_whitespace().flat_map(str::parse).collect();
    ensure!((940..1060).contains(&(times[1] - times[0])), "{said}");
    // The node's own time server is on the internet, which a test cannot reach: the answer says so.
    let own = talosctl.run("time").await;
    ensure!(own.code == Some(1) && !own.complaint.is_empty(), "{own:?}");
    Ok(())
}

pub(super) async fn the_machine_is_healthy(talosctl: &Talosctl<'_>) -> Outcome {
    let said = talosctl.run("health --wait-timeout 120").await;
    ensure!(said.complaint.contains("healthy"), "{said:?}");
    Ok(())
}
