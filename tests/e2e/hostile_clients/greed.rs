//! Readers that take all they can, and the delay of an administrator beside them.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use instar_api::cosi::resource::state_client::StateClient;
use instar_api::machine::LogsRequest;
use instar_api::machine::machine_service_client::MachineServiceClient;
use instar_api::time::time_service_client::TimeServiceClient;
use instar_tests::{Identity, Machine, Node, Outcome};
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use super::{hostnames, kernel_log_on_and_on, list_of, usage_of_everything};

/// Number of greedy connections, and the time for which they take all they can.
const GREEDY: usize = 16;

const GREED: Duration = Duration::from_secs(60);

/// Limit on an administrator's delay, by the guest's clock.
const DELAY: Duration = Duration::from_secs(1);

pub(super) async fn greed_hardly_delays_an_administrator(
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

/// Readers that take all they can, at the same time.
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

/// Opens streams of every kind until the end and reads none; returns how many it held at last.
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
            // The node's limit is reached.
            Ok(Err(_)) | Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
    Ok(held.len())
}

/// Connects as soon as there is a place; returns none if there is none in time.
async fn connect_until(way_in: &Endpoint, until: Instant) -> Option<Channel> {
    while Instant::now() < until {
        if let Ok(channel) = way_in.connect().await {
            return Some(channel);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    None
}

/// A reader's stream or answer.
type Held = Box<dyn std::any::Any + Send>;

/// Opens one stream, or gets one answer that takes long.
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

fn log_on_and_on() -> LogsRequest {
    LogsRequest {
        id: "machined".to_owned(),
        tail_lines: -1,
        follow: true,
        ..LogsRequest::default()
    }
}

/// A request for a node, or a server, whose name does not resolve.
fn to_a_node_without_address(round: usize) -> Result<Request<()>, Status> {
    let mut request = Request::new(());
    let name = format!("no-such-{round}.invalid").parse();
    let name = name.map_err(|_| Status::internal("no metadata"))?;
    request.metadata_mut().insert("node", name);
    Ok(request)
}

/// The times of an administrator's calls, by the guest's clock.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Delays {
    /// On a connection that is open already.
    own: Duration,
    /// On a new connection.
    new: Duration,
}

impl Delays {
    /// Measures calls that take a descriptor, a thread, a walk and a watch.
    pub(super) async fn of(node: &Node, own: &mut Machine) -> Result<Self> {
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
