//! The machine itself: memory, processes, sockets, and the kernel's figures.

use anyhow::{Context as _, ensure};
use instar_tests::{Node, Outcome, chapters};
use serde_json::Value;

use super::{AskedNode, member, members, text};
use crate::PATIENCE;

pub(super) async fn the_machine_is_shown(asked: &AskedNode) -> Outcome {
    let node = &asked.node;
    chapters![
        memory_has_figures(asked),
        processes_have_their_programs(asked),
        the_api_listens(asked),
        our_own_connection_is_listed(asked),
        the_load_is_the_kernels(node),
        every_processor_has_figures(node),
        the_card_has_figures(node),
        the_disk_has_figures(node),
    ]
    .await
}

async fn memory_has_figures(asked: &AskedNode) -> Outcome {
    let memory = asked.one(&["memory"]).await?;
    let kib = |name: &str| memory["kib"][name].as_u64().unwrap_or(0);
    let total = kib("memtotal");
    ensure!((400_000..=524_288).contains(&total), "{memory}");
    ensure!(kib("memavailable") > 0, "{memory}");
    Ok(())
}

async fn processes_have_their_programs(asked: &AskedNode) -> Outcome {
    let listed = asked.one(&["processes"]).await?;
    let named = |name: &str| member(&listed["processes"], "command", name);
    ensure!(named("init")?["pid"] == 1, "{listed}");
    let machined = named("machined")?;
    ensure!(machined["executable"] == "/usr/sbin/machined", "{machined}");
    let resident = machined["resident_bytes"].as_u64();
    ensure!(resident > Some(1 << 20), "{machined}");
    ensure!(named("kthreadd")?["args"] == "", "{listed}");
    Ok(())
}

async fn the_api_listens(asked: &AskedNode) -> Outcome {
    let arguments = ["netstat", "--listening", "--programs", "--tcp"];
    let listening = asked.one(&arguments).await?;
    let is_api = |socket: &&Value| text(&socket["local"]).ends_with(":50000");
    let api = members(&listening["sockets"]).iter().find(is_api);
    let api = api.with_context(|| listening.to_string())?;
    ensure!(api["state"] == "LISTEN", "{api}");
    // machined and init have the socket open too; the lowest of their pids is as good as any.
    ensure!(api["pid"].as_u64() > Some(0), "{api}");
    Ok(())
}

async fn our_own_connection_is_listed(asked: &AskedNode) -> Outcome {
    let listed = asked.one(&["processes"]).await?;
    let apid = &member(&listed["processes"], "command", "apid")?["pid"];
    let connected = asked.one(&["netstat", "--programs"]).await?;
    let is_ours = |socket: &Value| socket["state"] == "ESTABLISHED" && socket["pid"] == *apid;
    ensure!(
        members(&connected["sockets"]).iter().any(is_ours),
        "our own connection is not there: {connected}"
    );
    Ok(())
}

/// Compares until the load does not change in between.
async fn the_load_is_the_kernels(node: &Node) -> Outcome {
    node.wait_until("it tells the kernel's load", PATIENCE, async || {
        let load = node.machine().await?.load_avg(()).await?.into_inner();
        let load = load.messages.first().context("no load")?;
        let told = format!("{:.2} {:.2} {:.2} ", load.load1, load.load5, load.load15);
        let kernel = node.read("/proc/loadavg").await?;
        ensure!(kernel.starts_with(&told), "{load:?}, and {kernel}");
        Ok(())
    })
    .await
}

async fn every_processor_has_figures(node: &Node) -> Outcome {
    let mut machine = node.machine().await?;
    let stat = machine.system_stat(()).await?.into_inner();
    let stat = stat.messages.first().context("no figures")?;
    ensure!(stat.boot_time > 1_700_000_000, "{stat:?}");
    ensure!(!stat.cpu.is_empty(), "{stat:?}");
    ensure!(stat.process_created > 10, "{stat:?}");
    let cpus = machine.cpu_info(()).await?.into_inner();
    let cpus = cpus.messages.first().context("no processors")?;
    ensure!(cpus.cpu_info.len() == stat.cpu.len(), "{cpus:?}");
    ensure!(cpus.cpu_info[0].flags.iter().any(|flag| flag == "fpu"));
    // A virtual machine reports no frequencies; the answer is there.
    let frequencies = machine.cpu_freq_stats(()).await?.into_inner();
    ensure!(frequencies.messages.len() == 1);
    Ok(())
}

async fn the_card_has_figures(node: &Node) -> Outcome {
    let mut machine = node.machine().await?;
    let network = machine.network_device_stats(()).await?.into_inner();
    let network = network.messages.first().context("no figures of cards")?;
    let mut cards = network.devices.iter().filter(|card| card.name != "lo");
    ensure!(cards.any(|card| card.rx_bytes > 1000), "{network:?}");
    Ok(())
}

async fn the_disk_has_figures(node: &Node) -> Outcome {
    let disks = node.machine().await?.disk_stats(()).await?.into_inner();
    let disks = disks.messages.first().context("no figures of disks")?;
    let mut vda = disks.devices.iter().filter(|disk| disk.name == "vda");
    ensure!(vda.any(|disk| disk.write_sectors > 1000), "{disks:?}");
    Ok(())
}
