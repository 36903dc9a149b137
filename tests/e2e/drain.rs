//! Clients that never finish what they asked for do not hold up an upgrade without a reboot, and the calls of others do not fail for them.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use instar_api::common::Data;
use instar_api::machine::machine_service_client::MachineServiceClient;
use instar_api::machine::{ApplyConfigurationRequest, CopyRequest};
use instar_tests::{
    Ending, ImageUnderTest, Node, OciImage, Outcome, Parked, Registry, Scratch, Test, TlsClient,
    tests, upgrade_and_follow,
};
use prost::Message as _;
use tokio::sync::watch;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

use crate::PATIENCE;

/// From the beginning of one call to that of the next.
const PACE: Duration = Duration::from_millis(100);
/// apid waits so long for last answers.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// What a change of generations may take longer because of those who do not finish: machined waits so long for apid, which waits for
/// less.
const BOUND: Duration = Duration::from_millis(1500);
/// The same upgrade takes longer or shorter by this on a host that has other things to do.
const NOISE: Duration = Duration::from_millis(1500);

pub(crate) fn tests() -> Vec<Test> {
    tests![of_calls_that_never_end_is_bounded]
}

async fn of_calls_that_never_end_is_bounded(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    for image in [ImageUnderTest::first()?, ImageUnderTest::second()?] {
        OciImage::read(&image.installer())?
            .first_layer_alone()
            .push(&registry, "instar/installer", image.version())?;
    }
    let host = registry.host_for_guest();
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .configure(move |config| config.registry(&host))
        .boot()
        .await?;
    node.wait_until_ready(PATIENCE).await?;

    let alone = upgrade(&node, &registry, "v0.2.0").await?;
    let (stop, stopped) = watch::channel(false);
    let way_in = node.way_in(node.identity())?;
    let kept = way_in.connect().await?;
    let over_one = tokio::spawn(ask_on_and_on(stopped.clone(), move || ask(kept.clone())));
    let anew = tokio::spawn(ask_on_and_on(stopped, move || ask_anew(way_in.clone())));
    let stubborn = Stubborn::at(&node).await?;
    let beside_them = upgrade(&node, &registry, "v0.1.0").await?;
    stop.send(true)?;
    stubborn.were_cut_off().await?;

    println!("the change takes {alone:?}, and {beside_them:?} beside calls that never end");
    for (client, found) in [
        ("one channel", over_one.await?),
        ("a connection for each call", anew.await?),
    ] {
        let (calls, failed, slowest) = (found.calls, found.failed.len(), found.slowest);
        println!("{client}: {calls} calls, {failed} failed, the slowest took {slowest:?}");
        ensure!(found.failed.is_empty(), "{client}: {found:#?}");
        ensure!(calls > 10, "{client} hardly asked: {found:#?}");
    }
    ensure!(
        beside_them >= LAST_ANSWERS,
        "{beside_them:?}: nobody was waited for"
    );
    let longest = alone + BOUND + NOISE;
    ensure!(
        beside_them <= longest,
        "{beside_them:?} is more than {longest:?}"
    );
    Ok(())
}

/// Upgrades. Gives the time in the guest between the last step before apid is told to end and the start of the next generation.
async fn upgrade(node: &Node, registry: &Registry, version: &str) -> anyhow::Result<Duration> {
    let mark = node.vm().console_mark()?;
    let image = registry.image_for_guest(&format!("instar/installer:{version}"));
    let followed = upgrade_and_follow(node, &image, PATIENCE).await?;
    ensure!(followed.ending == Ending::Done, "{followed:#?}");
    ensure!(node.version().await?.tag == version);
    let time_of = |line: &str| {
        let found = node.vm().wait_for_line_after(mark, line, PATIENCE)?;
        found
            .kernel_time()
            .with_context(|| format!("no time: {found:?}"))
    };
    let begin = time_of("machined: upgrade: undoSettings: done")?;
    let end = time_of("machined: v")?;
    end.checked_sub(begin).context("it began after its end")
}

/// One who uploads and does not come to an end, and one who takes an answer and stops reading.
struct Stubborn {
    uploads: Parked,
    unread: Streaming<Data>,
}

impl Stubborn {
    async fn at(node: &Node) -> anyhow::Result<Self> {
        let client = TlsClient::of(node.identity());
        let stream = client.connect(&node.endpoint()?).await?;
        let mut uploads = Parked::on(stream).await?;
        let request = ApplyConfigurationRequest {
            data: vec![b'#'; 4096],
            ..ApplyConfigurationRequest::default()
        };
        uploads.park(
            "/machine.MachineService/ApplyConfiguration",
            &request.encode_to_vec(),
        )?;
        let request = CopyRequest {
            root_path: "/usr".to_owned(),
        };
        let answer = node.newcomer().await?.copy(request).await?;
        let mut unread = answer.into_inner();
        unread.message().await?.context("nothing is copied")?;
        Ok(Self { uploads, unread })
    }

    /// Neither came to its end.
    async fn were_cut_off(mut self) -> Outcome {
        for (method, answer) in self.uploads.finish().await? {
            let status = answer.as_ref().ok().and_then(|answer| answer.status);
            ensure!(
                status != Some(tonic::Code::Ok),
                "{method} was carried out: {answer:?}"
            );
        }
        loop {
            match self.unread.message().await {
                Ok(Some(_)) => {}
                Ok(None) => anyhow::bail!("all of it was copied"),
                Err(_) => return Ok(()),
            }
        }
    }
}

/// What came of a client's calls.
#[derive(Debug, Default)]
struct Found {
    calls: usize,
    slowest: Duration,
    failed: Vec<String>,
}

async fn ask_on_and_on<Asking>(stopped: watch::Receiver<bool>, ask: impl Fn() -> Asking) -> Found
where
    Asking: Future<Output = anyhow::Result<()>>,
{
    let mut found = Found::default();
    while !*stopped.borrow() {
        let begin = Instant::now();
        found.calls += 1;
        if let Err(error) = ask().await {
            found.failed.push(format!("{error:?}"));
        }
        let took = begin.elapsed();
        found.slowest = found.slowest.max(took);
        tokio::time::sleep(PACE.saturating_sub(took)).await;
    }
    found
}

async fn ask(channel: Channel) -> anyhow::Result<()> {
    MachineServiceClient::new(channel).version(()).await?;
    Ok(())
}

async fn ask_anew(way_in: Endpoint) -> anyhow::Result<()> {
    ask(way_in.connect().await?).await
}
