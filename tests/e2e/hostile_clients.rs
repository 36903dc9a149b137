//! Clients that mean harm or are broken: whoever has a certificate is served all the while, and nothing stays behind.

use std::time::Instant;

use anyhow::{Context, bail, ensure};
use instar_api::MAX_MESSAGE_BYTES;
use instar_api::machine::machine_service_client::MachineServiceClient;
use instar_api::machine::{
    ApplyConfigurationRequest, DmesgRequest, EventsRequest, VersionResponse,
};
use instar_tests::{Identity, ImageUnderTest, Instarctl, Node, Outcome, Scratch, Test, tests};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use crate::PATIENCE;

/// More than there are places for those who have not shown who they are.
const SILENT: usize = 600;
const TALKERS: usize = 100;
/// How fast they come is QEMU's affair; `make bench` has ten thousand a minute.
const QUICK: usize = 500;
/// Connections with endless calls, and calls on each.
const ENDLESS: (usize, usize) = (2, 100);
/// Messages of 16 MiB at a time: three are more than 40 MiB.
const LARGE_MESSAGES: usize = 6;
/// Streams of each kind on one connection, which has room for 128 in all.
const READERS: usize = 60;
/// Readers that come and go at once, and how often: thousands in all.
const VISITORS: (usize, usize) = (100, 12);
/// What a node may hold more after all of it: allocators keep some of what they once had.
const TOLERANCE_KIB: u64 = 6 << 10;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        do_not_disturb_those_with_a_certificate,
        do_not_disturb_the_one_who_brings_a_config
    ]
}

async fn do_not_disturb_those_with_a_certificate(scratch: Scratch) -> Outcome {
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .memory_mib(384)
        .boot()
        .await?;
    node.wait_until_ready(PATIENCE).await?;
    let apid = node.service_pid("apid").await?;
    // Once before it counts: what everything needs the first time stays.
    everything_harmful(&node).await?;
    let before = available_kib(&node).await?;
    everything_harmful(&node).await?;
    node.wait_until("memory is given back", PATIENCE, async || {
        let after = available_kib(&node).await?;
        ensure!(
            after + TOLERANCE_KIB >= before,
            "{before} KiB became {after}"
        );
        println!("{before} KiB were available before, {after} after");
        Ok(())
    })
    .await?;
    ensure!(
        node.service_pid("apid").await? == apid,
        "apid was started again"
    );
    ensure!(
        node.log("apid").await?.lines().count() < 5,
        "strangers fill the log"
    );
    node.wait_until_ready(PATIENCE).await
}

async fn everything_harmful(node: &Node) -> Outcome {
    slow_loris(node).await?;
    garbage(node).await?;
    quick_connects(node).await?;
    oversized_message(node).await?;
    more_than_there_is_room_for(node).await?;
    endless_calls(node).await?;
    readers_come_and_go(node).await?;
    readers_who_do_not_read(node).await
}

/// Without a config nobody has a certificate, and still a crowd keeps nobody out.
async fn do_not_disturb_the_one_who_brings_a_config(scratch: Scratch) -> Outcome {
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .without_config(Identity::administrator()?)
        .start()?;
    let instarctl = Instarctl::of(&node, &scratch)?;
    let endpoint = node.endpoint()?;
    let version = async || {
        let said = instarctl
            .run(&["version", "--insecure", "-n", &endpoint])
            .await?;
        ensure!(said.code == Some(0), "{said:?}");
        Ok(())
    };
    node.wait_until("it answers", PATIENCE, version).await?;
    let silent = connect_silently(&node, SILENT).await?;
    version().await.context("beside silent connections")?;
    drop(silent);
    Ok(())
}

/// Connections that begin and do not go on.
async fn slow_loris(node: &Node) -> Outcome {
    let mut silent = connect_silently(node, SILENT).await?;
    let begun = Instant::now();
    node.version_for_newcomers()
        .await
        .context("beside silent connections")?;
    println!(
        "answered beside {SILENT} silent connections after {} ms",
        begun.elapsed().as_millis()
    );
    // The oldest had to go.
    let mut rest = Vec::new();
    let first = silent.first_mut().context("no connection")?;
    tokio::time::timeout(PATIENCE, first.read_to_end(&mut rest))
        .await
        .context("the oldest silent connection stays")?
        .ok();
    Ok(())
}

/// A connection that QEMU has taken. Its listening sockets have two places for those that it has not, and whoever comes then waits for
/// seconds: that would measure TCP, not the node.
async fn connect(endpoint: &str) -> anyhow::Result<TcpStream> {
    let stream = TcpStream::connect(endpoint).await?;
    let port = stream.peer_addr()?.port();
    while waits_to_be_accepted(port)? {
        tokio::task::yield_now().await;
    }
    Ok(stream)
}

/// Whether the socket that listens on this port has connections that nobody accepted: `rx_queue` of its line in `/proc/net/tcp`,
/// where local address, remote address, state (0A listens) and `tx_queue:rx_queue` follow each other, in hexadecimal.
fn waits_to_be_accepted(port: u16) -> anyhow::Result<bool> {
    let sockets = std::fs::read_to_string("/proc/net/tcp")?;
    let port = format!(":{port:04X}");
    let listening = sockets.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, local, _, "0A", queues, ..] = fields[..] else {
            return None;
        };
        local
            .ends_with(&port)
            .then(|| !queues.ends_with(":00000000"))
    });
    listening.with_context(|| format!("nothing listens on port {port}"))
}

/// The first byte of a TLS handshake, and nothing more.
async fn connect_silently(node: &Node, count: usize) -> anyhow::Result<Vec<TcpStream>> {
    let endpoint = node.endpoint()?;
    let mut silent = Vec::with_capacity(count);
    for _ in 0..count {
        let mut stream = connect(&endpoint).await?;
        stream.write_all(&[0x16]).await?;
        silent.push(stream);
    }
    Ok(silent)
}

/// What is no TLS, and what is no HTTP/2 in a TLS record's clothes.
async fn garbage(node: &Node) -> Outcome {
    let endpoint = node.endpoint()?;
    for number in 0..TALKERS {
        let mut stream = connect(&endpoint).await?;
        let bytes: Vec<u8> = match number % 3 {
            0 => b"GET / HTTP/1.1\r\nHost: node\r\n\r\n".to_vec(),
            1 => (0..4096_usize).map(|at| (at * 7 + number) as u8).collect(),
            // A record of the largest length, full of nothing.
            _ => [&[0x16, 3, 1, 0x40, 0][..], &[0; 0x4000]].concat(),
        };
        // It may be cut off while it writes.
        let _ = stream.write_all(&bytes).await;
        let mut answer = Vec::new();
        let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer))
            .await
            .with_context(|| format!("connection {number} with garbage stays open"))?;
    }
    node.version_for_newcomers()
        .await
        .map(drop)
        .context("after garbage")
}

/// Comes and goes.
async fn quick_connects(node: &Node) -> Outcome {
    let endpoint = node.endpoint()?;
    for _ in 0..QUICK {
        drop(connect(&endpoint).await?);
    }
    node.version_for_newcomers()
        .await
        .map(drop)
        .context("after quick connects")
}

async fn oversized_message(node: &Node) -> Outcome {
    let mut machine = MachineServiceClient::new(node.channel().await?);
    let request = ApplyConfigurationRequest {
        data: vec![b'#'; MAX_MESSAGE_BYTES + 1],
        ..ApplyConfigurationRequest::default()
    };
    match machine.apply_configuration(request).await {
        Err(status) if status.code() == Code::OutOfRange => {}
        other => bail!("33,554,433 bytes: {other:?}"),
    }
    node.version_for_newcomers()
        .await
        .map(drop)
        .context("after 32 MiB")
}

/// Messages that are large, and together larger than what the node would hold for their senders.
async fn more_than_there_is_room_for(node: &Node) -> Outcome {
    let mut calls = JoinSet::new();
    for _ in 0..LARGE_MESSAGES {
        let mut machine = node.newcomer().await?;
        let request = ApplyConfigurationRequest {
            data: vec![b'#'; MAX_MESSAGE_BYTES / 2],
            dry_run: true,
            ..ApplyConfigurationRequest::default()
        };
        calls.spawn(async move { machine.apply_configuration(request).await });
    }
    let mut refused = 0;
    while let Some(ended) = calls.join_next().await {
        match ended? {
            Err(status) if status.code() == Code::ResourceExhausted => refused += 1,
            Err(status) if status.code() == Code::InvalidArgument => {}
            other => bail!("16 MiB of nothing: {other:?}"),
        }
    }
    println!("{refused} of {LARGE_MESSAGES} large messages were refused");
    ensure!((1..LARGE_MESSAGES).contains(&refused), "{refused}");
    node.version_for_newcomers()
        .await
        .map(drop)
        .context("after large messages")
}

/// Calls that send their headers and never end, until their connection goes.
async fn endless_calls(node: &Node) -> Outcome {
    let (connections, calls_of_each) = ENDLESS;
    let mut calls = JoinSet::new();
    for _ in 0..connections {
        let channel = node.channel().await?;
        for _ in 0..calls_of_each {
            let mut client = Grpc::new(channel.clone());
            calls.spawn(async move {
                let said = client.ready().await;
                said.map_err(|error| Status::unknown(error.to_string()))?;
                let nothing = Request::new(tokio_stream::pending::<()>());
                let path = "/machine.MachineService/Version".parse().unwrap();
                let codec = ProstCodec::<(), VersionResponse>::default();
                client.client_streaming(nothing, path, codec).await
            });
        }
    }
    // They are under way when others are answered.
    for _ in 0..3 {
        node.version_for_newcomers()
            .await
            .context("beside endless calls")?;
    }
    match calls.try_join_next() {
        Some(ended) => bail!("an endless call has ended: {ended:?}"),
        None => Ok(()),
    }
}

/// Thousands who read what has happened, or what is going to, and leave in the midst of it.
async fn readers_come_and_go(node: &Node) -> Outcome {
    let (at_once, times) = VISITORS;
    let machine = node.newcomer().await?;
    for time in 0..times {
        let mut reading = JoinSet::new();
        for number in 0..at_once {
            let mut machine = machine.clone();
            let from = EventsRequest {
                tail_events: if number % 2 == 0 { -1 } else { 0 },
                ..EventsRequest::default()
            };
            reading.spawn(async move {
                let mut events = machine.events(from).await?.into_inner();
                events.message().await
            });
        }
        while let Some(ended) = reading.join_next().await {
            let first = ended?.with_context(|| format!("reader {time} x {at_once}"))?;
            ensure!(first.is_some(), "an empty stream");
        }
    }
    node.version_for_newcomers()
        .await
        .map(drop)
        .context("after thousands of readers")
}

/// Who takes what there is room for, and who lets a byte through at a time, which leaves all but that with the node.
async fn readers_who_do_not_read(node: &Node) -> Outcome {
    let way_in = node.way_in(node.identity())?;
    let narrow = way_in.clone().initial_stream_window_size(1);
    for way_in in [way_in, narrow] {
        let channel = way_in.connect().await.context("connect")?;
        do_not_read(node, MachineServiceClient::new(channel)).await?;
    }
    Ok(())
}

/// Streams of events and of the kernel's log, all of it and all that comes, that nobody reads.
async fn do_not_read(node: &Node, mut machine: MachineServiceClient<Channel>) -> Outcome {
    let (mut events, mut logs) = (Vec::new(), Vec::new());
    for _ in 0..READERS {
        let all = EventsRequest {
            tail_events: -1,
            ..EventsRequest::default()
        };
        events.push(machine.events(all).await?.into_inner());
        let follow = DmesgRequest {
            follow: true,
            tail: false,
        };
        logs.push(machine.dmesg(follow).await?.into_inner());
    }
    // Somebody who reads gets everything, beside them.
    let mut other = node.newcomer().await?;
    let mut read = other.dmesg(DmesgRequest::default()).await?.into_inner();
    let mut bytes = 0;
    while let Some(piece) = read.message().await? {
        bytes += piece.bytes.len();
    }
    ensure!(bytes > 4096, "{bytes} bytes of the kernel's log");
    drop((events, logs));
    Ok(())
}

async fn available_kib(node: &Node) -> anyhow::Result<u64> {
    let meminfo = node.read("/proc/meminfo").await?;
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .context("no MemAvailable")
}
