//! Clients that never finish what they asked for do not hold up an upgrade without a reboot, and the calls of others do not fail for them.

use std::time::Duration;

use anyhow::{Context, ensure};
use instar_api::common::Data;
use instar_api::machine::{ApplyConfigurationRequest, CopyRequest};
use instar_tests::{
    Ending, ImageUnderTest, Node, OciImage, Outcome, Parked, Registry, Scratch, SteadyCalls, Test,
    TlsClient, tests, upgrade_and_follow,
};
use prost::Message as _;
use tonic::Streaming;

use crate::PATIENCE;

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
    let way_in = node.way_in(node.identity())?;
    let over_one = SteadyCalls::over(way_in.connect().await?);
    let anew = SteadyCalls::anew(way_in);
    let stubborn = Stubborn::at(&node).await?;
    let beside_them = upgrade(&node, &registry, "v0.1.0").await?;
    let found = [
        ("one channel", over_one.end().await?),
        ("a connection for each call", anew.end().await?),
    ];
    stubborn.were_cut_off().await?;

    println!("the change takes {alone:?}, and {beside_them:?} beside calls that never end");
    for (client, calling) in found {
        println!("{client}: {calling}");
        ensure!(calling.failed.is_empty(), "{client}: {calling:#?}");
        ensure!(calling.calls > 10, "{client} hardly asked: {calling:#?}");
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
