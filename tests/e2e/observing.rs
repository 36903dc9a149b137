//! The reports of a node about itself: logs to receivers of the test, and metrics that Prometheus's own parser reads.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use instar_tests::{
    Identity, ImageUnderTest, LogReceiver, MachineConfig, Node, Outcome, Scratch, Test, TlsClient,
    chapters, http, parse_metrics, tests,
};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::PATIENCE;

pub(crate) fn tests() -> Vec<Test> {
    tests![a_node_tells_its_logs_and_figures]
}

pub(crate) const METRICS_PORT: u16 = 9100;
/// Nobody listens there.
const DEAD: &str = "tcp://10.0.2.2:1";

/// The receivers of one node.
struct Receivers {
    tcp: LogReceiver,
    udp: LogReceiver,
    events: LogReceiver,
    silent: LogReceiver,
    later: LogReceiver,
}

impl Receivers {
    fn start() -> Result<Self> {
        Ok(Self {
            tcp: LogReceiver::tcp()?,
            udp: LogReceiver::udp()?,
            events: LogReceiver::tcp()?,
            silent: LogReceiver::that_never_reads()?,
            later: LogReceiver::tcp()?,
        })
    }

    /// The config; its logs go to this receiver instead of the first one.
    fn config(&self, identity: &Identity, first: &str, readers: &str) -> String {
        let main = MachineConfig::new(identity).hostname("node").to_yaml();
        let logging: String = [first, DEAD, self.silent.url()]
            .iter()
            .map(|url| format!("      - endpoint: {url}\n        format: json_lines\n        extraTags: {{site: lab}}\n"))
            .collect();
        let machine = "machine:\n";
        let main = main.replacen(
            machine,
            &format!("{machine}  logging:\n    destinations:\n{logging}"),
            1,
        );
        let (kernel, events) = (self.udp.url(), self.events.url());
        main + &format!(
            "---\napiVersion: v1alpha1\nkind: KmsgLogConfig\nname: remote\nurl: {kernel}\n---\napiVersion: instar.dev/v1alpha1\nkind: EventLogConfig\nname: remote\nurl: {events}\n---\napiVersion: instar.dev/v1alpha1\nkind: MetricsConfig\nlisten: \"[::]:{METRICS_PORT}\"\nreaders: {readers}\n"
        )
    }
}

async fn a_node_tells_its_logs_and_figures(scratch: Scratch) -> Outcome {
    let (receivers, identity) = (Receivers::start()?, Identity::administrator()?);
    let node = boot(&scratch, &receivers, &identity).await?;
    chapters![
        services_tell_their_logs(&node, &receivers),
        a_dead_receiver_does_not_fill_the_log(&node),
        the_kernel_and_events_tell_theirs(&node, &receivers),
        a_page_of_metrics_is_in_the_format(&node),
        no_secret_is_in_the_metrics(&node, &identity),
        receivers_and_readers_change_while_it_runs(&node, &receivers, &identity),
    ]
    .await
}

async fn boot(scratch: &Scratch, receivers: &Receivers, identity: &Identity) -> Result<Node> {
    let config = receivers.config(identity, receivers.tcp.url(), "anyone");
    let plan = Node::plan(scratch, &ImageUnderTest::first()?).forward(METRICS_PORT);
    let plan = plan.config(config, identity.twin()?);
    plan.boot_until_ready(PATIENCE).await
}

/// Waits for a line that meets a condition.
async fn wait_for(
    node: &Node,
    receiver: &LogReceiver,
    what: &str,
    is_meant: impl Fn(&Value) -> bool,
) -> Result<Value> {
    let look = async || {
        let found = receiver.lines().into_iter().find(|line| is_meant(line));
        found.with_context(|| format!("{:?}", receiver.lines().last()))
    };
    node.wait_until(what, PATIENCE, look).await
}

/// Whether it is the line with which machined begins.
fn is_first(line: &Value) -> bool {
    let text = line["msg"].as_str().unwrap_or_default();
    line["talos-service"] == "machined" && text.contains("as generation 1")
}

async fn services_tell_their_logs(node: &Node, receivers: &Receivers) -> Outcome {
    let line = wait_for(node, &receivers.tcp, "the first line", is_first).await?;
    ensure!(
        line["talos-level"] == "info" && line["site"] == "lab",
        "{line}"
    );
    let time = line["talos-time"].as_str().unwrap_or_default();
    ensure!(time.starts_with("20") && time.ends_with('Z'), "{line}");
    let lines = receivers.tcp.lines();
    ensure!(lines.iter().all(Value::is_object), "{lines:?}");
    let count = lines.iter().filter(|line| is_first(line)).count();
    ensure!(count == 1, "{count} times");
    Ok(())
}

async fn a_dead_receiver_does_not_fill_the_log(node: &Node) -> Outcome {
    let log = node.log("machined").await?;
    let count = log.matches(DEAD).count();
    ensure!((1..=3).contains(&count), "{count} lines: {log}");
    Ok(())
}

async fn the_kernel_and_events_tell_theirs(node: &Node, receivers: &Receivers) -> Outcome {
    let of_kernel = |line: &Value| line["facility"] == "kern" && line["talos-service"] == "kernel";
    wait_for(node, &receivers.udp, "the kernel's lines", of_kernel).await?;
    let is_ready = |line: &Value| {
        let text = line["msg"].as_str().unwrap_or_default();
        line["event"] == "MachineStatusEvent" && text.contains("ready=true")
    };
    wait_for(node, &receivers.events, "the event", is_ready).await?;
    Ok(())
}

pub(crate) async fn page(node: &Node) -> Result<String> {
    let address = node.guest_port(METRICS_PORT)?;
    let answer = tokio::task::spawn_blocking(move || http(&address, "GET", "/metrics", &[], b""));
    let answer = answer.await??;
    ensure!(answer.status == 200, "{answer:?}");
    let format = answer.header("content-type").unwrap_or_default();
    ensure!(format.starts_with("text/plain; version=0.0.4"), "{format}");
    Ok(String::from_utf8(answer.body)?)
}

/// The begins of lines that Prometheus's parser makes of the page.
const SAMPLES: [&str; 10] = [
    "gauge instar_info {architecture=amd64,version=v0.1.0} 1.0",
    "gauge instar_generation {} 1.0",
    "gauge instar_machine_ready {} 1.0",
    "gauge instar_service_healthy {service=apid} 1.0",
    "counter instar_service_starts_total {service=apid} 1.0",
    "gauge instar_memory_total_bytes {}",
    "counter instar_cpu_seconds_total {mode=idle}",
    "counter instar_network_receive_bytes_total {device=eth0}",
    "counter instar_api_calls_total {code=OK}",
    "gauge instar_time_synced {}",
];

async fn a_page_of_metrics_is_in_the_format(node: &Node) -> Outcome {
    let samples = parse_metrics(&page(node).await?)?;
    for expected in SAMPLES {
        let is_there = samples.iter().any(|sample| sample.starts_with(expected));
        ensure!(is_there, "no {expected}: {samples:#?}");
    }
    Ok(())
}

async fn no_secret_is_in_the_metrics(node: &Node, identity: &Identity) -> Outcome {
    let page = page(node).await?;
    let key = identity.authority_key();
    let key = key.lines().nth(1).context("no key")?;
    for secret in [
        "instar.0123456789abcdef",
        key,
        "PRIVATE KEY",
        "BEGIN CERTIFICATE",
    ] {
        ensure!(!page.contains(secret), "{secret} is in the metrics");
    }
    Ok(())
}

async fn receivers_and_readers_change_while_it_runs(
    node: &Node,
    receivers: &Receivers,
    identity: &Identity,
) -> Outcome {
    let config = receivers.config(identity, receivers.later.url(), "certificate");
    node.apply_as(identity, config).await?;
    chapters![
        another_receiver_gets_what_comes_later(node, receivers),
        readers_need_a_certificate(node, identity),
    ]
    .await
}

async fn another_receiver_gets_what_comes_later(node: &Node, receivers: &Receivers) -> Outcome {
    let any = |line: &Value| line["talos-service"] == "machined";
    wait_for(node, &receivers.later, "lines at the other receiver", any).await?;
    let lines = receivers.later.lines();
    ensure!(!lines.iter().any(is_first), "it gets old lines");
    Ok(())
}

async fn readers_need_a_certificate(node: &Node, identity: &Identity) -> Outcome {
    let read = async || page_over_tls(node, identity).await;
    let what = "a reader with a certificate";
    let shown = node.wait_until(what, PATIENCE, read).await?;
    ensure!(shown.contains("instar_info"), "{shown}");
    ensure!(page(node).await.is_err(), "anybody may read");
    Ok(())
}

async fn page_over_tls(node: &Node, identity: &Identity) -> Result<String> {
    let client = TlsClient {
        protocols: vec!["http/1.1"],
        ..TlsClient::of(identity)
    };
    let address = node.guest_port(METRICS_PORT)?;
    let config = Arc::new(client.config()?);
    let mut stream = client.connect_by(config, &address).await?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    ensure!(answer.starts_with("HTTP/1.0 200"), "{answer}");
    Ok(answer)
}
