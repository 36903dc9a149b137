//! Readers of streams that leave in the middle, or stay and do not read.

use anyhow::{Context as _, ensure};
use instar_api::machine::machine_service_client::MachineServiceClient;
use instar_api::machine::{DmesgRequest, Event, EventsRequest};
use instar_tests::{Machine, Node, Outcome};
use tokio::task::JoinSet;
use tonic::Status;

use super::{kernel_log_on_and_on, newcomers_are_served};

/// Number of streams of each kind on one connection, whose limit is 128 in all.
const READERS: usize = 60;

/// Number of readers at once, and of repetitions: thousands in all.
const VISITORS: (usize, usize) = (100, 12);

/// Thousands of readers of past and future events leave in the middle.
pub(super) async fn readers_come_and_go(node: &Node) -> Outcome {
    let (at_once, times) = VISITORS;
    let machine = node.newcomer().await?;
    for time in 0..times {
        let mut reading = JoinSet::new();
        for number in 0..at_once {
            let tail = if number % 2 == 0 { -1 } else { 0 };
            reading.spawn(first_event(machine.clone(), tail));
        }
        while let Some(ended) = reading.join_next().await {
            let first = ended?.with_context(|| format!("reader {time} x {at_once}"))?;
            ensure!(first.is_some(), "an empty stream");
        }
    }
    newcomers_are_served(node, "after thousands of readers").await
}

fn events_from(tail_events: i32) -> EventsRequest {
    EventsRequest {
        tail_events,
        ..EventsRequest::default()
    }
}

async fn first_event(mut machine: Machine, tail: i32) -> Result<Option<Event>, Status> {
    let events = machine.events(events_from(tail)).await?;
    events.into_inner().message().await
}

/// One reader does not read at all; another takes a byte at a time, and the node has to keep the rest.
pub(super) async fn readers_who_do_not_read_hold_nobody_up(node: &Node) -> Outcome {
    let way_in = node.way_in(node.identity())?;
    let narrow = way_in.clone().initial_stream_window_size(1);
    for way_in in [way_in, narrow] {
        let channel = way_in.connect().await.context("connect")?;
        beside_streams_that_nobody_reads(node, MachineServiceClient::new(channel)).await?;
    }
    Ok(())
}

/// Opens streams of events and of the kernel's log, with all past and future entries.
async fn beside_streams_that_nobody_reads(node: &Node, mut machine: Machine) -> Outcome {
    let (mut events, mut logs) = (Vec::new(), Vec::new());
    for _ in 0..READERS {
        events.push(machine.events(events_from(-1)).await?.into_inner());
        logs.push(machine.dmesg(kernel_log_on_and_on()).await?.into_inner());
    }
    who_reads_gets_the_kernels_log(node).await?;
    drop((events, logs));
    Ok(())
}

async fn who_reads_gets_the_kernels_log(node: &Node) -> Outcome {
    let mut other = node.newcomer().await?;
    let mut read = other.dmesg(DmesgRequest::default()).await?.into_inner();
    let mut bytes = 0;
    while let Some(piece) = read.message().await? {
        bytes += piece.bytes.len();
    }
    ensure!(bytes > 4096, "{bytes} bytes of the kernel's log");
    Ok(())
}
