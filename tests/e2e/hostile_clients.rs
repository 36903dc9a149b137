//! Clients that are hostile or broken: clients with a certificate are served throughout, and nothing stays behind.

mod connections;
mod greed;
mod limits;
mod messages;
mod readers;

use anyhow::{Context, Result, ensure};
use instar_api::cosi::resource::{WatchOptions, WatchRequest};
use instar_api::machine::{DiskUsageRequest, DmesgRequest, ListRequest};
use instar_pki::Role;
use instar_qemu::Timing;
use instar_tests::{
    Identity, ImageUnderTest, Instarctl, Node, NodePlan, Outcome, Scratch, Test, chapters, tests,
};

use self::connections::{
    SILENT, connect_silently, garbage_ends_its_connection, quick_connects_keep_nobody_out,
    silent_connections_keep_nobody_out,
};
use self::greed::{Delays, greed_hardly_delays_an_administrator};
use self::limits::readers_have_limits;
use self::messages::{
    an_oversized_message_is_refused, endless_calls_keep_nobody_out,
    large_messages_are_refused_where_there_is_no_room,
};
use self::readers::{readers_come_and_go, readers_who_do_not_read_hold_nobody_up};
use crate::PATIENCE;

/// Memory in KiB that the node may use more after the test: allocators keep some of their former memory.
const TOLERANCE_KIB: u64 = 6 << 10;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        hostile_clients_do_not_disturb_those_with_a_certificate,
        readers_who_take_all_they_can_leave_enough_to_administrators,
        hostile_clients_do_not_disturb_the_one_who_brings_a_config
    ]
}

async fn hostile_clients_do_not_disturb_those_with_a_certificate(scratch: Scratch) -> Outcome {
    let node = small_plan(&scratch)?.boot().await?;
    node.wait_until_ready(PATIENCE).await?;
    let apid = node.service_pid("apid").await?;
    // Run once before the measurement: memory for first uses stays.
    everything_harmful(&node).await?;
    let before = available_kib(&node).await?;
    everything_harmful(&node).await?;
    chapters![
        memory_is_given_back(&node, before),
        a_service_was_not_started_again(&node, "apid", apid),
        strangers_do_not_fill_the_log(&node),
    ]
    .await?;
    node.wait_until_ready(PATIENCE).await
}

fn small_plan(scratch: &Scratch) -> Result<NodePlan> {
    let image = ImageUnderTest::first()?;
    Ok(Node::plan(scratch, &image).memory_mib(384))
}

async fn everything_harmful(node: &Node) -> Outcome {
    chapters![
        silent_connections_keep_nobody_out(node),
        garbage_ends_its_connection(node),
        quick_connects_keep_nobody_out(node),
        an_oversized_message_is_refused(node),
        large_messages_are_refused_where_there_is_no_room(node),
        endless_calls_keep_nobody_out(node),
        readers_come_and_go(node),
        readers_who_do_not_read_hold_nobody_up(node),
    ]
    .await
}

async fn memory_is_given_back(node: &Node, before: u64) -> Outcome {
    node.wait_until("memory is given back", PATIENCE, async || {
        let after = available_kib(node).await?;
        ensure!(
            after + TOLERANCE_KIB >= before,
            "{before} KiB became {after}"
        );
        println!("{before} KiB were available before, {after} after");
        Ok(())
    })
    .await
}

async fn a_service_was_not_started_again(node: &Node, id: &str, before: u32) -> Outcome {
    let now = node.service_pid(id).await?;
    ensure!(now == before, "{id} was started again");
    Ok(())
}

async fn strangers_do_not_fill_the_log(node: &Node) -> Outcome {
    let log = node.log("apid").await?;
    ensure!(log.lines().count() < 5, "strangers fill the log: {log}");
    Ok(())
}

async fn newcomers_are_served(node: &Node, when: &'static str) -> Outcome {
    let served = node.version_for_newcomers().await;
    served.map(drop).context(when)
}

/// A reader takes all that it can of descriptors, memory, streams, threads and lookups, and holds it.
async fn readers_who_take_all_they_can_leave_enough_to_administrators(scratch: Scratch) -> Outcome {
    let plan = small_plan(&scratch)?.spec(|spec| spec.timing(Timing::InstructionsIdleOnHost));
    let node = plan.boot().await?;
    node.wait_until_ready(PATIENCE).await?;
    let machined = node.service_pid("machined").await?;
    let apid = node.service_pid("apid").await?;
    let mut own = node.newcomer().await?;
    let usual = Delays::of(&node, &mut own).await?;
    let reader = node.identity().with_role(Role::Reader)?;
    chapters![
        readers_have_limits(&node, &reader),
        greed_hardly_delays_an_administrator(&node, &reader, own, usual),
        a_service_was_not_started_again(&node, "apid", apid),
        a_service_was_not_started_again(&node, "machined", machined),
    ]
    .await
}

fn hostnames() -> WatchRequest {
    WatchRequest {
        namespace: "network".to_owned(),
        r#type: "HostnameStatuses.net.talos.dev".to_owned(),
        options: Some(WatchOptions {
            bootstrap_contents: true,
            ..WatchOptions::default()
        }),
        ..WatchRequest::default()
    }
}

/// A request that walks through the whole tree this many times.
fn usage_of_everything(walks: usize) -> DiskUsageRequest {
    DiskUsageRequest {
        paths: vec!["/".to_owned(); walks],
        all: true,
        ..DiskUsageRequest::default()
    }
}

fn list_of(root: &str, recurse: bool) -> ListRequest {
    ListRequest {
        root: root.to_owned(),
        recurse,
        ..ListRequest::default()
    }
}

fn kernel_log_on_and_on() -> DmesgRequest {
    DmesgRequest {
        follow: true,
        tail: false,
    }
}

/// Without a config no client has a certificate, and still a crowd keeps nobody out.
async fn hostile_clients_do_not_disturb_the_one_who_brings_a_config(scratch: Scratch) -> Outcome {
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .without_config(Identity::administrator()?)
        .start()?;
    let instarctl = Instarctl::of(&node, &scratch)?;
    let endpoint = node.endpoint()?;
    let version = async || strangers_may_ask(&instarctl, &endpoint).await;
    node.wait_until("it answers", PATIENCE, version).await?;
    let silent = connect_silently(&node, SILENT).await?;
    version().await.context("beside silent connections")?;
    drop(silent);
    Ok(())
}

async fn strangers_may_ask(instarctl: &Instarctl, endpoint: &str) -> Outcome {
    let arguments = ["version", "--insecure", "-n", endpoint];
    let said = instarctl.run(&arguments).await?;
    ensure!(said.code == Some(0), "{said:?}");
    Ok(())
}

async fn available_kib(node: &Node) -> Result<u64> {
    let meminfo = node.read("/proc/meminfo").await?;
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .context("no MemAvailable")
}
