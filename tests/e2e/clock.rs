//! The clock: right soon after the start, however wrong the hardware's is.

use std::time::{Duration, SystemTime};

use anyhow::ensure;
use instar_tests::{ImageUnderTest, Node, Outcome, Scratch, Test, TimeServer, tests};

use crate::PATIENCE;

/// Waits for the clock, and then for an image that nobody has.
const WAITS: &str = "waits-for-the-clock";
/// /proc tells whole seconds of the boot's time and hundredths since then.
const CLOSE: Duration = Duration::from_secs(3);

pub(crate) fn tests() -> Vec<Test> {
    tests![
        an_empty_battery_is_made_up_for,
        without_a_clock_its_administrator_is_let_in,
        a_clock_that_is_ahead_goes_back
    ]
}

async fn an_empty_battery_is_made_up_for(scratch: Scratch) -> Outcome {
    starts_at(scratch, "2000-01-01T00:00:00").await
}

async fn a_clock_that_is_ahead_goes_back(scratch: Scratch) -> Outcome {
    starts_at(scratch, "2036-02-29T12:00:00").await
}

/// No clock and no time server: the time of its authority is what it goes by, or else the certificates that come from it are those of
/// a time that has not come.
async fn without_a_clock_its_administrator_is_let_in(scratch: Scratch) -> Outcome {
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .spec(|spec| {
            spec.extra_argument("-rtc")
                .extra_argument("base=2000-01-01T00:00:00")
        })
        .configure(|config| {
            config.document("apiVersion: v1alpha1\nkind: TimeSyncConfig\nenabled: false\n")
        })
        .boot()
        .await?;
    let log = node.log("machined").await?;
    ensure!(
        log.contains("the clock goes on from the last time that this machine knows of"),
        "{log}"
    );
    Ok(())
}

async fn starts_at(scratch: Scratch, hardware: &str) -> Outcome {
    let server = TimeServer::start(&scratch)?;
    let address = server.address_for_guest();
    let hardware = format!("base={hardware}");
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .spec(|spec| spec.extra_argument("-rtc").extra_argument(hardware))
        .configure(move |config| {
            config
                .document(&format!(
                    "apiVersion: v1alpha1\nkind: TimeSyncConfig\nntp:\n  servers: [\"{address}\"]\n"
                ))
                .container(
                    WAITS,
                    "nowhere.example/image:v1",
                    "dependsOn: {time: true}\n",
                )
        })
        .boot()
        .await?;
    // The API may answer before the time server does: the node then goes by the time of its authority, which the client believes.
    node.wait_until("the time server sets the clock", PATIENCE, async || {
        let log = node.log("machined").await?;
        ensure!(log.contains("the clock was set"), "{log}");
        Ok(())
    })
    .await?;
    // On a busy host the answer takes seconds: it is right if it was at any moment of the call.
    let (asked, clock, answered) = (SystemTime::now(), node.clock().await?, SystemTime::now());
    let early = asked.duration_since(clock).unwrap_or_default();
    let late = clock.duration_since(answered).unwrap_or_default();
    println!("the node's clock is off by {:?}", early.max(late));
    ensure!(
        early < CLOSE && late < CLOSE,
        "it is {asked:?} to {answered:?}, and the node says {clock:?}"
    );
    node.wait_until("who waits for the clock goes on", PATIENCE, async || {
        let events = node.service(WAITS).await?.events.unwrap_or_default();
        let states: Vec<&str> = events
            .events
            .iter()
            .map(|event| event.state.as_str())
            .collect();
        ensure!(states.contains(&"Preparing"), "{events:#?}");
        ensure!(
            events
                .events
                .iter()
                .any(|event| event.msg == "waiting for the clock"),
            "{events:#?}"
        );
        Ok(())
    })
    .await
}
