//! Clients that mean harm or are broken: whoever has a certificate is served all the while, and nothing stays behind.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use instar_api::MAX_MESSAGE_BYTES;
use instar_api::cosi::resource::state_client::StateClient;
use instar_api::cosi::resource::{WatchOptions, WatchRequest};
use instar_api::machine::machine_service_client::MachineServiceClient;
use instar_api::machine::{
    ApplyConfigurationRequest, DiskUsageRequest, DmesgRequest, Event, EventsRequest, ListRequest,
    LogsRequest, VersionResponse,
};
use instar_api::time::TimeRequest;
use instar_api::time::time_service_client::TimeServiceClient;
use instar_pki::Role;
use instar_qemu::Timing;
use instar_tests::{
    Identity, ImageUnderTest, Instarctl, Machine, Node, NodePlan, Outcome, Scratch, Test, chapters,
    tests,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};
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
    let node = small_plan(&scratch)?.boot().await?;
    node.wait_until_ready(PATIENCE).await?;
    let apid = node.service_pid("apid").await?;
    // Once before it counts: what everything needs the first time stays.
    everything_harmful(&node).await?;
    let before = available_kib(&node).await?;
    everything_harmful(&node).await?;
    chapters![
        memory_is_given_back(&node, before),
        is_the_same_process(&node, "apid", apid),
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

async fn is_the_same_process(node: &Node, id: &str, before: u32) -> Outcome {
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

/// Whoever may only look takes all that there is of descriptors, memory, streams, threads and lookups, and holds it.
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
        is_the_same_process(&node, "apid", apid),
        is_the_same_process(&node, "machined", machined),
    ]
    .await
}

async fn greed_hardly_delays_an_administrator(
    node: &Node,
    reader: &Identity,
    mut own: Machine,
    usual: Delays,
) -> Outcome {
    let greed = Greed::begin(node, reader)?;
    let mut worst = Delays::default();
    while Instant::now() < greed.until {
        worst = worst.max(Delays::of(node, &mut own).await?);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let said = format!("at worst {worst:?}, usually {usual:?}");
    println!("{said}");
    greed.took_all().await?;
    ensure!(worst.own <= usual.own + DELAY, "{said}");
    ensure!(worst.new <= usual.new + DELAY, "{said}");
    Ok(())
}

/// Readers who take all they can, at the same time.
struct Greed {
    readers: JoinSet<Result<usize>>,
    until: Instant,
}

impl Greed {
    fn begin(node: &Node, reader: &Identity) -> Result<Self> {
        let until = Instant::now() + GREED;
        let mut readers = JoinSet::new();
        for number in 0..GREEDY {
            let way_in = node.way_in(reader)?.initial_stream_window_size(1);
            readers.spawn(take_all(way_in, number, until));
        }
        Ok(Self { readers, until })
    }

    async fn took_all(mut self) -> Outcome {
        let mut held = 0;
        while let Some(ended) = self.readers.join_next().await {
            held += ended??;
        }
        println!("{GREEDY} readers held {held} streams");
        ensure!(
            held > 8 * GREEDY,
            "{held} streams are not all they can take"
        );
        Ok(())
    }
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
    /// Of calls that take a descriptor, a thread, a walk and a watch.
    async fn of(node: &Node, own: &mut Machine) -> Result<Self> {
        let begun = node.vm().guest_clock()?;
        own.version(()).await?;
        let mut list = own.list(list_of("/etc", false)).await?.into_inner();
        while list.message().await?.is_some() {}
        own.mounts(()).await?;
        let between = node.vm().guest_clock()?;
        let mut watch = StateClient::new(node.channel().await?)
            .watch(hostnames())
            .await?;
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
    chapters![
        many_paths_at_once_are_refused(channel.clone()),
        readers_may_not_name_a_time_server(channel.clone()),
        watches_of_a_connection_are_counted(channel, node.channel_as(reader).await?),
    ]
    .await
}

async fn many_paths_at_once_are_refused(reader: Channel) -> Outcome {
    let mut machine = MachineServiceClient::new(reader);
    let refused = machine.disk_usage(usage_of_everything(65)).await.err();
    let code = refused.map(|status| status.code());
    ensure!(code == Some(Code::InvalidArgument), "65 paths: {code:?}");
    Ok(())
}

async fn readers_may_not_name_a_time_server(reader: Channel) -> Outcome {
    let elsewhere = TimeRequest {
        server: "10.0.2.2:50000".to_owned(),
    };
    let mut time = TimeServiceClient::new(reader);
    let refused = time.time_check(elsewhere).await.err();
    let code = refused.map(|status| status.code());
    ensure!(
        code == Some(Code::PermissionDenied),
        "any address: {code:?}"
    );
    Ok(())
}

async fn watches_of_a_connection_are_counted(reader: Channel, other: Channel) -> Outcome {
    let mut state = StateClient::new(reader);
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
    StateClient::new(other).watch(hostnames()).await?;
    Ok(())
}

/// Asks for streams of every kind until the end and reads none; how many it held at last.
async fn take_all(way_in: Endpoint, number: usize, until: Instant) -> Result<usize> {
    let Some(channel) = connect_until(&way_in, until).await else {
        return Ok(0);
    };
    let mut held = Vec::new();
    for round in number.. {
        if Instant::now() >= until {
            break;
        }
        match tokio::time::timeout(Duration::from_secs(5), take(&channel, round)).await {
            Ok(Ok(stream)) => held.push(stream),
            // There is no more of that.
            Ok(Err(_)) | Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
    Ok(held.len())
}

/// Connects as soon as there is a place; none if there is none until then.
async fn connect_until(way_in: &Endpoint, until: Instant) -> Option<Channel> {
    while Instant::now() < until {
        if let Ok(channel) = way_in.connect().await {
            return Some(channel);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    None
}

/// What a reader holds: a stream, or an answer.
type Held = Box<dyn std::any::Any + Send>;

/// One stream, or one answer that takes long.
async fn take(channel: &Channel, round: usize) -> Result<Held, Status> {
    let mut machine = MachineServiceClient::new(channel.clone());
    let mut state = StateClient::new(channel.clone());
    let mut time = TimeServiceClient::new(channel.clone());
    Ok(match round % 7 {
        0 => Box::new(machine.disk_usage(usage_of_everything(64)).await?),
        1 => Box::new(machine.list(list_of("/", true)).await?),
        2 => Box::new(state.watch(hostnames()).await?),
        3 => Box::new(machine.logs(log_on_and_on()).await?),
        4 => Box::new(machine.dmesg(kernel_log_on_and_on()).await?),
        5 => Box::new(machine.version(to_a_node_without_address(round)?).await?),
        _ => Box::new(time.time(()).await?),
    })
}

/// So many walks through everything.
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

fn log_on_and_on() -> LogsRequest {
    LogsRequest {
        id: "machined".to_owned(),
        tail_lines: -1,
        follow: true,
        ..LogsRequest::default()
    }
}

fn kernel_log_on_and_on() -> DmesgRequest {
    DmesgRequest {
        follow: true,
        tail: false,
    }
}

/// A name that nobody answers for, for another node and for a server.
fn to_a_node_without_address(round: usize) -> Result<Request<()>, Status> {
    let mut request = Request::new(());
    let name = format!("no-such-{round}.invalid").parse();
    let name = name.map_err(|_| Status::internal("no metadata"))?;
    request.metadata_mut().insert("node", name);
    Ok(request)
}

/// Without a config nobody has a certificate, and still a crowd keeps nobody out.
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

/// Connections that begin and do not go on.
async fn silent_connections_keep_nobody_out(node: &Node) -> Outcome {
    let silent = connect_silently(node, SILENT).await?;
    let begun = Instant::now();
    newcomers_are_served(node, "beside silent connections").await?;
    let took = begun.elapsed().as_millis();
    println!("answered beside {SILENT} silent connections after {took} ms");
    some_are_ended(silent).await
}

/// Whichever, and long before a handshake has taken too long.
async fn some_are_ended(silent: Vec<TcpStream>) -> Outcome {
    let mut ends = JoinSet::new();
    for mut stream in silent {
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
async fn connect(endpoint: &str) -> Result<TcpStream> {
    let stream = TcpStream::connect(endpoint).await?;
    let port = stream.peer_addr()?.port();
    while waits_to_be_accepted(port)? {
        tokio::task::yield_now().await;
    }
    Ok(stream)
}

/// Whether the socket that listens on this port has connections that nobody accepted: `rx_queue` of its line in `/proc/net/tcp`,
/// where local address, remote address, state (0A listens) and `tx_queue:rx_queue` follow each other, in hexadecimal.
fn waits_to_be_accepted(port: u16) -> Result<bool> {
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
async fn connect_silently(node: &Node, count: usize) -> Result<Vec<TcpStream>> {
    let endpoint = node.endpoint()?;
    let mut silent = Vec::with_capacity(count);
    for _ in 0..count {
        let mut stream = connect(&endpoint).await?;
        stream.write_all(&[0x16]).await?;
        silent.push(stream);
    }
    Ok(silent)
}

async fn garbage_ends_its_connection(node: &Node) -> Outcome {
    let endpoint = node.endpoint()?;
    for number in 0..TALKERS {
        let mut stream = connect(&endpoint).await?;
        // It may be cut off while it writes.
        let _ = stream.write_all(&garbage(number)).await;
        let mut answer = Vec::new();
        // However it ends, as long as it does.
        let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer))
            .await
            .with_context(|| format!("connection {number} with garbage stays open"))?;
    }
    newcomers_are_served(node, "after garbage").await
}

/// What is no TLS, and what is no HTTP/2 in a TLS record's clothes.
fn garbage(number: usize) -> Vec<u8> {
    match number % 3 {
        0 => b"GET / HTTP/1.1\r\nHost: node\r\n\r\n".to_vec(),
        1 => (0..4096_usize).map(|at| (at * 7 + number) as u8).collect(),
        // A record of the largest length, full of nothing.
        _ => [&[0x16, 3, 1, 0x40, 0][..], &[0; 0x4000]].concat(),
    }
}

async fn quick_connects_keep_nobody_out(node: &Node) -> Outcome {
    let endpoint = node.endpoint()?;
    for _ in 0..QUICK {
        drop(connect(&endpoint).await?);
    }
    newcomers_are_served(node, "after quick connects").await
}

async fn an_oversized_message_is_refused(node: &Node) -> Outcome {
    let mut machine = MachineServiceClient::new(node.channel().await?);
    let request = nothing_of(MAX_MESSAGE_BYTES + 1, false);
    match machine.apply_configuration(request).await {
        Err(status) if status.code() == Code::OutOfRange => {}
        other => bail!("33,554,433 bytes: {other:?}"),
    }
    newcomers_are_served(node, "after 32 MiB").await
}

/// A config that is a comment of so many bytes.
fn nothing_of(bytes: usize, dry_run: bool) -> ApplyConfigurationRequest {
    ApplyConfigurationRequest {
        data: vec![b'#'; bytes],
        dry_run,
        ..ApplyConfigurationRequest::default()
    }
}

/// Together they are larger than what the node would hold for their senders.
async fn large_messages_are_refused_where_there_is_no_room(node: &Node) -> Outcome {
    let mut calls = JoinSet::new();
    for _ in 0..LARGE_MESSAGES {
        let mut machine = node.newcomer().await?;
        let request = nothing_of(MAX_MESSAGE_BYTES / 2, true);
        calls.spawn(async move { machine.apply_configuration(request).await });
    }
    let mut refused = 0;
    while let Some(ended) = calls.join_next().await {
        refused += usize::from(has_no_room(ended?)?);
    }
    println!("{refused} of {LARGE_MESSAGES} large messages were refused");
    ensure!((1..LARGE_MESSAGES).contains(&refused), "{refused}");
    newcomers_are_served(node, "after large messages").await
}

/// Whether a large message was refused for want of room, and not for what it says.
fn has_no_room<T: std::fmt::Debug>(answer: Result<T, Status>) -> Result<bool> {
    match answer {
        Err(status) if status.code() == Code::ResourceExhausted => Ok(true),
        Err(status) if status.code() == Code::InvalidArgument => Ok(false),
        other => bail!("16 MiB of nothing: {other:?}"),
    }
}

/// Calls that send their headers and never end, until their connection goes.
async fn endless_calls_keep_nobody_out(node: &Node) -> Outcome {
    let (connections, calls_of_each) = ENDLESS;
    let mut calls = JoinSet::new();
    for _ in 0..connections {
        let channel = node.channel().await?;
        for _ in 0..calls_of_each {
            calls.spawn(call_without_end(channel.clone()));
        }
    }
    // They are under way when others are answered.
    for _ in 0..3 {
        newcomers_are_served(node, "beside endless calls").await?;
    }
    let ended = calls.try_join_next();
    ensure!(ended.is_none(), "an endless call has ended: {ended:?}");
    Ok(())
}

async fn call_without_end(channel: Channel) -> Result<Response<VersionResponse>, Status> {
    let mut client = Grpc::new(channel);
    let said = client.ready().await;
    said.map_err(|error| Status::unknown(error.to_string()))?;
    let nothing = Request::new(tokio_stream::pending::<()>());
    let path = "/machine.MachineService/Version".parse().unwrap();
    let codec = ProstCodec::<(), VersionResponse>::default();
    client.client_streaming(nothing, path, codec).await
}

/// Thousands who read what has happened, or what is going to, and leave in the midst of it.
async fn readers_come_and_go(node: &Node) -> Outcome {
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

/// Who takes what there is room for, and who lets a byte through at a time, which leaves all but that with the node.
async fn readers_who_do_not_read_hold_nobody_up(node: &Node) -> Outcome {
    let way_in = node.way_in(node.identity())?;
    let narrow = way_in.clone().initial_stream_window_size(1);
    for way_in in [way_in, narrow] {
        let channel = way_in.connect().await.context("connect")?;
        beside_streams_that_nobody_reads(node, MachineServiceClient::new(channel)).await?;
    }
    Ok(())
}

/// Streams of events and of the kernel's log, all of it and all that comes.
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

async fn available_kib(node: &Node) -> Result<u64> {
    let meminfo = node.read("/proc/meminfo").await?;
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .context("no MemAvailable")
}
