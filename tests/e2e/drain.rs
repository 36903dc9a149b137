//! Clients that never finish their calls do not delay an upgrade without a reboot, and the calls of others do not fail.

use std::time::Duration;

use anyhow::{Context, ensure};
use instar_api::common::Data;
use instar_api::machine::{ApplyConfigurationRequest, CopyRequest};
use instar_tests::{
    Calling, Ending, ImageUnderTest, Node, Outcome, Parked, Registry, Scratch, SteadyCalls, Test,
    TlsClient, chapters, tests, upgrade_and_follow,
};
use prost::Message as _;
use tonic::Streaming;

use crate::PATIENCE;

/// apid waits at least this long for calls that do not finish: its own timeout is 1.5 s.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// Limit on the delay of a change of generations by calls that do not finish. machined waits 2 s for apid and kills it then; the rest is for a host
/// that is busy, and still far from the ten seconds for which apid waits for calls in other cases.
const BOUND: Duration = Duration::from_secs(5);

pub(crate) fn tests() -> Vec<Test> {
    tests![of_calls_that_never_end_is_bounded]
}

async fn of_calls_that_never_end_is_bounded(scratch: Scratch) -> Outcome {
    let registry = Registry::with_both_installers_without_kernel(&scratch)?;
    let host = registry.host_for_guest();
    let plan = Node::plan(&scratch, &ImageUnderTest::first()?);
    let plan = plan.configure(move |config| config.registry(&host));
    let node = plan.boot_until_ready(PATIENCE).await?;
    let alone = upgrade(&node, &registry, "v0.2.0").await?;
    let (beside_them, of_others) = upgrade_beside_calls_that_never_end(&node, &registry).await?;
    println!("last answers take {alone:?}, and {beside_them:?} beside calls that never end");
    chapters![
        no_call_of_others_fails(&of_others),
        last_answers_are_waited_for_and_not_for_long(beside_them),
    ]
    .await
}

/// The results of the other clients, by name.
type CallsOfOthers = [(&'static str, Calling); 2];

async fn upgrade_beside_calls_that_never_end(
    node: &Node,
    registry: &Registry,
) -> anyhow::Result<(Duration, CallsOfOthers)> {
    let way_in = node.way_in(node.identity())?;
    let over_one = SteadyCalls::over(way_in.connect().await?);
    let anew = SteadyCalls::anew(way_in);
    let stubborn = Stubborn::at(node).await?;
    let beside_them = upgrade(node, registry, "v0.1.0").await?;
    let of_others = [
        ("one channel", over_one.end().await?),
        ("a connection for each call", anew.end().await?),
    ];
    stubborn.were_cut_off().await?;
    Ok((beside_them, of_others))
}

async fn no_call_of_others_fails(of_others: &CallsOfOthers) -> Outcome {
    for (client, calling) in of_others {
        println!("{client}: {calling}");
        ensure!(calling.failed.is_empty(), "{client}: {calling:#?}");
        ensure!(calling.calls > 10, "{client} hardly asked: {calling:#?}");
    }
    Ok(())
}

async fn last_answers_are_waited_for_and_not_for_long(beside_them: Duration) -> Outcome {
    ensure!(
        beside_them >= LAST_ANSWERS,
        "{beside_them:?}: nobody was waited for"
    );
    ensure!(
        beside_them <= BOUND,
        "{beside_them:?} is more than {BOUND:?}"
    );
    Ok(())
}

/// Upgrades. Returns the time in the guest from the order to give last answers to init's start of the next generation.
async fn upgrade(node: &Node, registry: &Registry, version: &str) -> anyhow::Result<Duration> {
    let mark = node.vm().console_mark()?;
    let image = registry.installer_for_guest(version);
    let followed = upgrade_and_follow(node, &image, PATIENCE).await?;
    ensure!(followed.ending == Ending::Done, "{followed:#?}");
    ensure!(node.version().await?.tag == version);
    let time_of = |line: &str| {
        let found = node.vm().wait_for_line_after(mark, line, PATIENCE)?;
        found
            .kernel_time()
            .with_context(|| format!("no time: {found:?}"))
    };
    let begin = time_of("the API gives its last answers to this generation")?;
    let end = time_of(" starts, boot id ")?;
    end.checked_sub(begin).context("it began after its end")
}

/// A client with an upload that does not end, and one that stops reading its answer.
struct Stubborn {
    uploads: Parked,
    unread: Streaming<Data>,
}

async fn unfinished_upload(node: &Node) -> anyhow::Result<Parked> {
    let client = TlsClient::of(node.identity());
    let stream = client.connect(&node.endpoint()?).await?;
    let mut uploads = Parked::on(stream).await?;
    let request = ApplyConfigurationRequest {
        data: vec![b'#'; 4096],
        ..ApplyConfigurationRequest::default()
    };
    let method = "/machine.MachineService/ApplyConfiguration";
    uploads.park(method, &request.encode_to_vec())?;
    Ok(uploads)
}

async fn unread_answer(node: &Node) -> anyhow::Result<Streaming<Data>> {
    let root_path = "/usr".to_owned();
    let copy = CopyRequest { root_path };
    let mut unread = node.newcomer().await?.copy(copy).await?.into_inner();
    unread.message().await?.context("nothing is copied")?;
    Ok(unread)
}

impl Stubborn {
    async fn at(node: &Node) -> anyhow::Result<Self> {
        Ok(Self {
            uploads: unfinished_upload(node).await?,
            unread: unread_answer(node).await?,
        })
    }

    /// Checks that neither call came to its end.
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
