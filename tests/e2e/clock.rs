//! The clock: right soon after the start, however wrong the hardware's clock is.

use std::time::{Duration, SystemTime};

use anyhow::{Result, ensure};
use instar_tests::{
    ImageUnderTest, MachineConfig, Node, NodePlan, Outcome, Scratch, Test, TimeServer, chapters,
    tests,
};

use crate::PATIENCE;

/// A container that waits for the clock, and then for an image that does not exist.
const WAITS: &str = "waits-for-the-clock";
/// Tolerance: /proc has the boot's time in whole seconds, and hundredths since then.
const CLOSE: Duration = Duration::from_secs(3);
const LONG_AGO: &str = "2000-01-01T00:00:00";

pub(crate) fn tests() -> Vec<Test> {
    tests![
        an_empty_battery_is_made_up_for,
        without_a_clock_its_administrator_is_let_in,
        a_clock_that_is_ahead_goes_back
    ]
}

async fn an_empty_battery_is_made_up_for(scratch: Scratch) -> Outcome {
    starts_at(scratch, LONG_AGO).await
}

async fn a_clock_that_is_ahead_goes_back(scratch: Scratch) -> Outcome {
    starts_at(scratch, "2036-02-29T12:00:00").await
}

/// Without a clock and a time server the node goes by the time of its authority: otherwise the authority's certificates
/// would not be valid yet.
async fn without_a_clock_its_administrator_is_let_in(scratch: Scratch) -> Outcome {
    let without = "apiVersion: v1alpha1\nkind: TimeSyncConfig\nenabled: false\n";
    let node = plan_at(&scratch, LONG_AGO)?
        .configure(|config| config.document(without))
        .boot()
        .await?;
    let log = node.log("machined").await?;
    let words = "the clock goes on from the last time that this machine knows of";
    ensure!(log.contains(words), "{log}");
    Ok(())
}

/// Plans a machine whose hardware clock shows this time.
fn plan_at(scratch: &Scratch, hardware: &str) -> Result<NodePlan> {
    let base = format!("base={hardware}");
    Ok(Node::plan(scratch, &ImageUnderTest::first()?)
        .spec(|spec| spec.extra_argument("-rtc").extra_argument(base)))
}

async fn starts_at(scratch: Scratch, hardware: &str) -> Outcome {
    let server = TimeServer::start(&scratch)?;
    let address = server.address_for_guest();
    let node = plan_at(&scratch, hardware)?
        .configure(move |config| with_time_server(config, &address))
        .boot()
        .await?;
    chapters![
        the_time_server_sets_the_clock(&node),
        the_clock_is_right(&node),
        who_waits_for_the_clock_goes_on(&node),
    ]
    .await
}

fn with_time_server(config: MachineConfig, address: &str) -> MachineConfig {
    let waits = "dependsOn: {time: true}\n";
    config
        .document(&format!(
            "apiVersion: v1alpha1\nkind: TimeSyncConfig\nntp:\n  servers: [\"{address}\"]\n"
        ))
        .container(WAITS, "nowhere.example/image:v1", waits)
}

/// The API may answer before the time server does: the node then goes by the time of its authority, which the client
/// accepts.
async fn the_time_server_sets_the_clock(node: &Node) -> Outcome {
    node.wait_until("the time server sets the clock", PATIENCE, async || {
        let log = node.log("machined").await?;
        ensure!(log.contains("the clock was set"), "{log}");
        Ok(())
    })
    .await
}

/// On a busy host the answer takes seconds: it is right if it was right at any moment of the call.
async fn the_clock_is_right(node: &Node) -> Outcome {
    let (asked, clock, answered) = (SystemTime::now(), node.clock().await?, SystemTime::now());
    let early = asked.duration_since(clock).unwrap_or_default();
    let late = clock.duration_since(answered).unwrap_or_default();
    println!("the node's clock is off by {:?}", early.max(late));
    ensure!(
        early < CLOSE && late < CLOSE,
        "it is {asked:?} to {answered:?}, and the node says {clock:?}"
    );
    Ok(())
}

async fn who_waits_for_the_clock_goes_on(node: &Node) -> Outcome {
    node.wait_until("who waits for the clock goes on", PATIENCE, async || {
        let events = node.service(WAITS).await?.events.unwrap_or_default().events;
        let goes_on = events.iter().any(|event| event.state == "Preparing");
        ensure!(goes_on, "{events:#?}");
        let mut messages = events.iter().map(|event| event.msg.as_str());
        let has_waited = messages.any(|message| message == "waiting for the clock");
        ensure!(has_waited, "{events:#?}");
        Ok(())
    })
    .await
}
