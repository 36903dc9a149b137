//! What a node tells of itself: logs to receivers of the test, and metrics that Prometheus's own parser reads.

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

const METRICS_PORT: u16 = 9100;
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
    let config = receivers.config(&identity, receivers.tcp.url(), "anyone");
    let plan = Node::plan(&scratch, &ImageUnderTest::first()?).forward(METRICS_PORT);
    let node = plan
        .config(config, identity.twin()?)
        .boot_until_ready(PATIENCE)
        .await?;
    chapters![
        services_tell_their_logs(&node, &receivers),
        the_kernel_and_events_tell_theirs(&node, &receivers),
        a_page_of_metrics_is_in_the_format(&node),
        no_secret_is_in_the_metrics(&node, &identity),
        receivers_and_readers_change_while_it_runs(&node, &receivers, &identity),
    ]
    .await
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

async fn services_tell_their_logs(node: &Node, receivers: &Receivers) -> Outcome {
    let booted = |line: &Value| {
        line["talos-service"] == "machined"
            && line["msg"]
                .as_str()
                .is_some_and(|text| text.contains("as generation 1"))
    };
    let line = wait_for(node, &receivers.tcp, "the first line", booted).await?;
    ensure!(
        line["talos-level"] == "info" && line["site"] == "lab",
        "{line}"
    );
    let time = line["talos-time"].as_str().unwrap_or_default();
    ensure!(time.starts_with("20") && time.ends_with('Z'), "{line}");
    let log = node.log("machined").await?;
    ensure!(
        log.matches(DEAD).count() <= 3,
        "the dead receiver fills the log: {log}"
    );
    let lines = receivers.tcp.lines();
    let first = lines.iter().filter(|line| booted(line)).count();
    ensure!(first == 1, "{first} times");
    ensure!(lines.iter().all(Value::is_object), "{lines:?}");
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

async fn page(node: &Node) -> Result<String> {
    let address = node.guest_port(METRICS_PORT)?;
    let answer = tokio::task::spawn_blocking(move || http(&address, "GET", "/metrics", &[], b""));
    let answer = answer.await??;
    ensure!(answer.status == 200, "{answer:?}");
    let format = answer.header("content-type").unwrap_or_default();
    ensure!(format.starts_with("text/plain; version=0.0.4"), "{format}");
    Ok(String::from_utf8(answer.body)?)
}

async fn a_page_of_metrics_is_in_the_format(node: &Node) -> Outcome {
    let samples = parse_metrics(&page(node).await?)?;
    for expected in [
        "gauge instar_info {architecture=x86_64,version=v0.1.0} 1.0",
        "gauge instar_generation {} 1.0",
        "gauge instar_machine_ready {} 1.0",
        "gauge instar_service_healthy {service=apid} 1.0",
        "counter instar_service_starts_total {service=apid} 1.0",
        "gauge instar_memory_total_bytes {}",
        "counter instar_cpu_seconds_total {mode=idle}",
        "counter instar_network_receive_bytes_total {device=eth0}",
        "counter instar_api_calls_total {code=OK}",
        "gauge instar_time_synced {}",
    ] {
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
    let any = |line: &Value| line["talos-service"] == "machined";
    wait_for(node, &receivers.later, "lines at the other receiver", any).await?;
    let repeated = |line: &Value| {
        line["msg"]
            .as_str()
            .is_some_and(|text| text.contains("as generation 1"))
    };
    ensure!(
        !receivers.later.lines().iter().any(repeated),
        "it repeats old lines"
    );
    ensure!(page(node).await.is_err(), "anybody may read");
    let shown = node
        .wait_until("a reader with a certificate", PATIENCE, async || {
            page_over_tls(node, identity).await
        })
        .await?;
    ensure!(shown.contains("instar_info"), "{shown}");
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
