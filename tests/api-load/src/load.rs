//! Calls on one connection: many at a time for the rate, and one at a time for the latency.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use instar_api::machine::machine_service_client::MachineServiceClient;
use tokio::task::JoinSet;
use tonic::Request;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;

use crate::greeter::wire::HelloRequest;
use crate::greeter::wire::greeter_client::GreeterClient;

/// Number of calls at a time, for the rate.
const AT_ONCE: usize = 64;
const WARMING_UP: Duration = Duration::from_secs(1);
const MEASURED: Duration = Duration::from_secs(5);
/// Number of calls one after the other, for the latency.
const ALONE: usize = 2_000;

/// The results of a connection.
pub(crate) struct Load {
    pub(crate) per_second: f64,
    /// Latency with no other call under way.
    pub(crate) p99_ms: f64,
    /// Number of all calls, of those before the measurement too.
    pub(crate) calls: f64,
}

/// Measures `Version` of the node.
pub(crate) async fn of_version(channel: &Channel) -> anyhow::Result<Load> {
    let client = MachineServiceClient::new(channel.clone());
    of(move || {
        let mut client = client.clone();
        async move { client.version(()).await.map(drop).context("Version") }
    })
    .await
}

/// Measures `Version` of machined alone, over its own socket: what apid's hop and TLS cost is the difference to [`of_version`]. The calls
/// name the caller's role, as apid does.
pub(crate) async fn of_machined(channel: &Channel) -> anyhow::Result<Load> {
    let client = MachineServiceClient::new(channel.clone());
    of(move || {
        let mut client = client.clone();
        async move {
            let mut request = Request::new(());
            let role = MetadataValue::from_static("os:reader");
            request.metadata_mut().insert("instar-roles", role);
            let said = client.version(request).await;
            said.map(drop).context("Version of machined")
        }
    })
    .await
}

/// Measures `SayHello` of the greeter.
pub(crate) async fn of_hello(channel: &Channel) -> anyhow::Result<Load> {
    let client = GreeterClient::new(channel.clone());
    of(move || {
        let mut client = client.clone();
        let name = "Instar".to_owned();
        async move {
            let said = client.say_hello(HelloRequest { name }).await;
            said.map(drop).context("SayHello")
        }
    })
    .await
}

async fn of<Call, Answer>(call: Call) -> anyhow::Result<Load>
where
    Call: Fn() -> Answer + Clone + Send + 'static,
    Answer: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let (before, _) = at_once(&call, WARMING_UP).await?;
    let (measured, per_second) = at_once(&call, MEASURED).await?;
    let mut took = Vec::with_capacity(ALONE);
    for _ in 0..ALONE {
        let begun = Instant::now();
        call().await?;
        took.push(begun.elapsed());
    }
    took.sort_unstable();
    let p99 = took.get(ALONE * 99 / 100).copied().unwrap_or_default();
    Ok(Load {
        per_second,
        p99_ms: p99.as_secs_f64() * 1000.0,
        calls: f64::from(before + measured) + ALONE as f64,
    })
}

/// Calls for this long. Returns the number of calls, and that per second.
async fn at_once<Call, Answer>(call: &Call, duration: Duration) -> anyhow::Result<(u32, f64)>
where
    Call: Fn() -> Answer + Clone + Send + 'static,
    Answer: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let begun = Instant::now();
    let mut callers = JoinSet::new();
    for _ in 0..AT_ONCE {
        let call = call.clone();
        callers.spawn(async move {
            let mut calls = 0_u32;
            while begun.elapsed() < duration {
                call().await?;
                calls += 1;
            }
            anyhow::Ok(calls)
        });
    }
    let mut calls = 0_u32;
    while let Some(done) = callers.join_next().await {
        calls += done??;
    }
    Ok((calls, f64::from(calls) / begun.elapsed().as_secs_f64()))
}
