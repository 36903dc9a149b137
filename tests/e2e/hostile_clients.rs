//! Clients that mean harm or are broken: whoever has a certificate is served all the while, and nothing stays behind.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use instar_api::MAX_MESSAGE_BYTES;
use instar_api::cosi::resource::state_client::StateClient;
use instar_api::cosi::resource::{WatchOptions, WatchRequest};
use instar_api::machine::machine_service_client::MachineServiceClient;
use instar_api::machine::{
    ApplyConfigurationRequest, DiskUsageRequest, DmesgRequest, EventsRequest, ListRequest,
    LogsRequest, VersionResponse,
};
use instar_api::time::TimeRequest;
use instar_api::time::time_service_client::TimeServiceClient;
use instar_pki::Role;
use instar_qemu::Timing;
use instar_tests::{
    Identity, ImageUnderTest, Instarctl, Machine, Node, Outcome, Scratch, Test, tests,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use crate::PATIENCE;

/// More than there are places for those who have not shown who they are.
const SILENT: usize = 600;
/// So many they are.
const PLACES: usize = 512;
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
/// Connections of readers who take all they can, and for how long.
const GREEDY: usize = 16;
const GREED: Duration = Duration::from_secs(60);
/// What of it an administrator may notice, by the guest's clock.
const DELAY: Duration = Duration::from_secs(1);
/// What a node may hold more after all of it: allocators keep some of what they once had.
const TOLERANCE_KIB: u64 = 6 << 10;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        hostile_clients_do_not_disturb_those_with_a_certificate,
        readers_who_take_all_they_can_leave_enough_to_administrators,
        hostile_clients_do_not_disturb_the_one_who_brings_a_config
    ]
}

async fn hostile_clients_do_not_disturb_those_with_a_certificate(scratch: Scratch) -> Outcome {
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

/// Whoever may only look takes all that there is of descriptors, memory, streams, threads and lookups, and holds it.
async fn readers_who_take_all_they_can_leave_enough_to_administrators(scratch: Scratch) -> Outcome {
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .memory_mib(384)
        .spec(|spec| spec.timing(Timing::InstructionsIdleOnHost))
        .boot()
        .await?;
    node.wait_until_ready(PATIENCE).await?;
    let machined = node.service_pid("machined").await?;
    let apid = node.service_pid("apid").await?;
    let mut own = node.newcomer().await?;
    let usual = Delays::of(&node, &mut own).await?;
    println!("usually {usual:?}");

    let reader = node.identity().with_role(Role::Reader)?;
    readers_have_limits(&node, &reader).await?;
    let until = Instant::now() + GREED;
    let mut readers = JoinSet::new();
    for number in 0..GREEDY {
        let way_in = node.way_in(&reader)?.initial_stream_window_size(1);
        readers.spawn(take_all(way_in, number, until));
    }
    let mut worst = Delays::default();
    while Instant::now() < until {
        worst = worst.max(Delays::of(&node, &mut own).await?);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    println!("at worst {worst:?}");
    let mut held = 0;
    while let Some(ended) = readers.join_next().await {
        held += ended??;
    }
    println!("{GREEDY} readers held {held} streams");
    ensure!(
        held > 8 * GREEDY,
        "{held} streams are not all they can take"
    );
    ensure!(
        worst.own <= usual.own + DELAY,
        "{worst:?}, usually {usual:?}"
    );
    ensure!(
        worst.new <= usual.new + DELAY,
        "{worst:?}, usually {usual:?}"
    );
    for (id, before) in [("apid", apid), ("machined", machined)] {
        let now = node.service_pid(id).await?;
        ensure!(now == before, "{id} was started again");
    }
    Ok(())
}

/// How long an administrator's calls took, by the guest's clock.
#[derive(Debug, Default, Clone, Copy)]
struct Delays {
    /// On a connection that was there.
    own: Duration,
    /// On a new one.
    new: Duration,
}

impl Delays {
    /// Calls that take a descriptor, a thread, a walk and a watch.
    async fn of(node: &Node, own: &mut Machine) -> anyhow::Result<Self> {
        let begun = node.vm().guest_clock()?;
        own.version(()).await?;
        let list = ListRequest {
            root: "/etc".to_owned(),
            ..ListRequest::default()
        };
        let mut list = own.list(list).await?.into_inner();
        while list.message().await?.is_some() {}
        own.mounts(()).await?;
        let between = node.vm().guest_clock()?;
        let channel = node.channel().await?;
        let mut watch = StateClient::new(channel).watch(hostnames()).await?;
        watch.get_mut().message().await?;
        let ended = node.vm().guest_clock()?;
        Ok(Self {
            own: between.saturating_sub(begun),
            new: ended.saturating_sub(between),
        })
    }

    fn max(self, other: Self) -> Self {
        Self {
            own: self.own.max(other.own),
            new: self.new.max(other.new),
        }
    }
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

/// What one connection of a reader may not have.
async fn readers_have_limits(node: &Node, reader: &Identity) -> Outcome {
    let channel = node.channel_as(reader).await?;
    let mut machine = MachineServiceClient::new(channel.clone());
    let paths = DiskUsageRequest {
        paths: vec!["/".to_owned(); 65],
        ..DiskUsageRequest::default()
    };
    let refused = machine.disk_usage(paths).await.err();
    let code = refused.map(|status| status.code());
    ensure!(code == Some(Code::InvalidArgument), "65 paths: {code:?}");
    let elsewhere = TimeRequest {
        server: "10.0.2.2:50000".to_owned(),
    };
    let mut time = TimeServiceClient::new(channel.clone());
    let refused = time.time_check(elsewhere).await.err();
    let code = refused.map(|status| status.code());
    ensure!(
        code == Some(Code::PermissionDenied),
        "any address: {code:?}"
    );
    let mut state = StateClient::new(channel);
    let mut watches = Vec::new();
    let refused = loop {
        match state.watch(hostnames()).await {
            Ok(watch) => watches.push(watch),
            Err(status) => break status,
        }
    };
    ensure!(refused.code() == Code::ResourceExhausted, "{refused}");
    ensure!(watches.len() == 48, "{} watches", watches.len());
    // Another connection has its own.
    let other = node.channel_as(reader).await?;
    StateClient::new(other).watch(hostnames()).await?;
    Ok(())
}

/// Asks for streams of every kind until the end and reads none; how many it held at last.
async fn take_all(way_in: Endpoint, number: usize, until: Instant) -> anyhow::Result<usize> {
    let mut held: Vec<Box<dyn std::any::Any + Send>> = Vec::new();
    let mut channel = None;
    let mut round = number;
    while Instant::now() < until {
        let Some(connected) = &channel else {
            channel = way_in.connect().await.ok();
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let taken = tokio::time::timeout(Duration::from_secs(5), take(connected, round)).await;
        round += 1;
        match taken {
            Ok(Ok(stream)) => held.push(stream),
            // There is no more of that.
            Ok(Err(_)) | Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
    Ok(held.len())
}

/// One stream, or one answer that takes long.
async fn take(channel: &Channel, round: usize) -> Result<Box<dyn std::any::Any + Send>, Status> {
    let mut machine = MachineServiceClient::new(channel.clone());
    Ok(match round % 7 {
        0 => Box::new(
            machine
                .disk_usage(DiskUsageRequest {
                    paths: vec!["/".to_owned(); 64],
                    all: true,
                    ..DiskUsageRequest::default()
                })
                .await?,
        ),
        1 => Box::new(
            machine
                .list(ListRequest {
                    root: "/".to_owned(),
                    recurse: true,
                    ..ListRequest::default()
                })
                .await?,
        ),
        2 => Box::new(StateClient::new(channel.clone()).watch(hostnames()).await?),
        3 => Box::new(
            machine
                .logs(LogsRequest {
                    id: "machined".to_owned(),
                    tail_lines: -1,
                    follow: true,
                    ..LogsRequest::default()
                })
                .await?,
        ),
        4 => Box::new(
            machine
                .dmesg(DmesgRequest {
                    follow: true,
                    tail: false,
                })
                .await?,
        ),
        // A name that nobody answers for, for another node and for a server.
        5 => {
            let mut request = Request::new(());
            let name = format!("no-such-{round}.invalid").parse();
            let name = name.map_err(|_| Status::internal("no metadata"))?;
            request.metadata_mut().insert("node", name);
            Box::new(machine.version(request).await?)
        }
        _ => Box::new(TimeServiceClient::new(channel.clone()).time(()).await?),
    })
}

/// Without a config nobody has a certificate, and still a crowd keeps nobody out.
async fn hostile_clients_do_not_disturb_the_one_who_brings_a_config(scratch: Scratch) -> Outcome {
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
    // Some had to go, whichever, and long before a handshake has taken too long.
    let mut ends = JoinSet::new();
    for mut stream in silent.drain(..) {
        ends.spawn(async move {
            // However it ends.
            let _ = stream.read_to_end(&mut Vec::new()).await;
            stream
        });
    }
    for _ in PLACES..SILENT {
        let ended = tokio::time::timeout(PATIENCE, ends.join_next()).await;
        ended.context("too many silent connections stay")?;
    }
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
        // However it ends, as long as it does.
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
