//! The machine's workloads, and their storage.

use anyhow::{bail, ensure};
use instar_tests::{GREETER, Outcome, chapters};
use serde_json::Value;

use super::{AskedNode, members, text};

pub(super) async fn what_it_runs_is_shown(asked: &AskedNode) -> Outcome {
    chapters![
        the_container_is_listed(asked),
        the_container_has_figures(asked),
        the_disk_is_listed(asked),
        var_is_mounted_from_the_disk(asked),
    ]
    .await
}

async fn the_container_is_listed(asked: &AskedNode) -> Outcome {
    let listed = asked.one(&["containers"]).await?;
    let greeter = &listed["containers"][0];
    ensure!(greeter["id"] == GREETER, "{listed}");
    ensure!(greeter["status"] == "RUNNING", "{listed}");
    ensure!(greeter["pid"].as_u64() > Some(2), "{listed}");
    ensure!(text(&greeter["image"]).contains("/greeter:v1"), "{listed}");
    Ok(())
}

async fn the_container_has_figures(asked: &AskedNode) -> Outcome {
    let stats = asked.one(&["stats"]).await?;
    let greeter = &stats["stats"][0];
    ensure!(greeter["id"] == GREETER, "{stats}");
    ensure!(greeter["memory_bytes"].as_u64() > Some(10_000), "{stats}");
    ensure!(greeter["cpu_nanoseconds"].as_u64() > Some(0), "{stats}");
    Ok(())
}

async fn the_disk_is_listed(asked: &AskedNode) -> Outcome {
    let disks = asked.one(&["disks"]).await?;
    let [disk] = members(&disks["disks"]) else {
        bail!("one disk is there, and not {disks}");
    };
    ensure!(disk["device"] == "/dev/vda", "{disk}");
    ensure!(disk["size"] == 4_u64 << 30, "{disk}");
    ensure!(disk["system_disk"] == true, "{disk}");
    Ok(())
}

async fn var_is_mounted_from_the_disk(asked: &AskedNode) -> Outcome {
    let mounts = asked.one(&["mounts"]).await?;
    let on_var = |mount: &&Value| mount["mounted_on"] == "/var";
    let var: Vec<_> = members(&mounts["mounts"]).iter().filter(on_var).collect();
    ensure!(var.len() == 1, "{mounts}");
    ensure!(var[0]["filesystem"] == "/dev/vda3", "{mounts}");
    ensure!(var[0]["size"].as_u64() > Some(3 << 30), "{mounts}");
    Ok(())
}
