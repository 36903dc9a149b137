//! The API's capacity, measured on this machine: `api-load` prints one flat object of numbers, the unit in each name.
//!
//! apid, machined's service and the greeter that they are compared with are processes of their own, made from this
//! program, each with one thread as in a machine. The machine behind machined's API is real and empty: it has not
//! booted. Its calls could read the network, so run this without rights over the host's: `unshare --user
//! --map-root-user api-load`.
//!
//! The decision: the node's own code runs here as processes. Load on a machine in QEMU was the other choice: the number would
//! be that of the emulated processor and network card.

mod crowd;
mod greeter;
mod load;
mod machine;
mod node;
mod processes;

use std::process::ExitCode;

use anyhow::{Context as _, bail};
use serde_json::{Map, Value};

use crate::node::Node;
use crate::processes::own_processor_time;

fn main() -> ExitCode {
    let role = std::env::args().nth(1);
    let outcome = match role.as_deref() {
        None => measure(),
        Some("apid") => node::be_apid(),
        Some("machined") => node::be_machined(),
        Some("greeter") => greeter::be(),
        Some(other) => Err(anyhow::anyhow!("there is no part {other:?}")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("api-load: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let numbers = runtime.block_on(all())?;
    println!("{:#}", Value::Object(numbers));
    Ok(())
}

async fn all() -> anyhow::Result<Map<String, Value>> {
    let mut numbers = Map::new();
    let mut note = |name: &str, value: f64| {
        numbers.insert(
            name.to_owned(),
            Value::from((value * 1000.0).round() / 1000.0),
        );
    };
    let node = Node::start().await?;
    let greeter = greeter::Greeter::start(node.authority())?;

    let (before, [apid, machined]) = (own_processor_time()?, node.processor_times()?);
    let version = load::of_version(&node.channel().await?).await?;
    let (after, [apid_then, machined_then]) = (own_processor_time()?, node.processor_times()?);
    for (name, time) in [
        ("version_client_us_per_call", after - before),
        ("version_apid_us_per_call", apid_then - apid),
        ("version_machined_us_per_call", machined_then - machined),
    ] {
        note(name, time.as_secs_f64() * 1e6 / version.calls);
    }
    let (before, greeter_before) = (own_processor_time()?, greeter.processor_time()?);
    let hello = load::of_hello(&greeter.channel(node.authority()).await?).await?;
    for (name, time) in [
        ("hello_client_us_per_call", own_processor_time()? - before),
        (
            "hello_server_us_per_call",
            greeter.processor_time()? - greeter_before,
        ),
    ] {
        note(name, time.as_secs_f64() * 1e6 / hello.calls);
    }
    note("version_requests_per_second", version.per_second);
    note("hello_requests_per_second", hello.per_second);
    note(
        "version_to_hello_ratio",
        version.per_second / hello.per_second,
    );
    let machined = load::of_machined(&node.channel_to_machined().await?).await?;
    note("machined_version_requests_per_second", machined.per_second);
    note(
        "machined_version_to_hello_ratio",
        machined.per_second / hello.per_second,
    );
    note("version_p99_ms", version.p99_ms);
    note("hello_p99_ms", hello.p99_ms);
    drop(greeter);

    let before = node.resident_kib()?;
    let idle = crowd::idle_connections(&node, before).await?;
    note("idle_connections", idle.connections as f64);
    note("idle_connections_kib", idle.kib);
    let busy = crowd::connects_for_a_minute(&node).await?;
    note("connects_per_minute", busy.connects as f64);
    note("connects_failed", busy.failed as f64);
    note("connects_left_kib", node.resident_kib()? - before);
    if !node::answers(&node.channel().await?).await {
        bail!("the API does not answer after all that");
    }
    node.end().context("end the node's processes")?;
    Ok(numbers)
}
