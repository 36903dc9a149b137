//! From power-on to an API that answers.

use std::time::{Duration, Instant};

use anyhow::ensure;
use instar_api::common::Data;
use instar_api::cosi::resource::GetRequest;
use instar_api::cosi::resource::state_client::StateClient;
use instar_api::machine::machine_service_client::MachineServiceClient;
use instar_api::machine::{DmesgRequest, LogsRequest, ReadRequest};
use instar_pki::Role;
use instar_tests::{
    HttpServer, Identity, ImageUnderTest, MachineConfig, Node, Outcome, Scratch, Test, chapters,
    tests,
};
use tonic::transport::Channel;
use tonic::{Code, Streaming};

use crate::PATIENCE;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_booted_node_answers_with_its_version,
        a_node_takes_its_config_from_a_url_that_comes_late,
        a_config_that_makes_no_sense_leads_to_maintenance_mode
    ]
}

async fn a_booted_node_answers_with_its_version(scratch: Scratch) -> Outcome {
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .memory_mib(384)
        .boot()
        .await?;
    let version = node.version().await?;
    ensure!(version.tag == "v0.1.0", "it says {version:?}");
    Ok(())
}

async fn a_node_takes_its_config_from_a_url_that_comes_late(scratch: Scratch) -> Outcome {
    let server = HttpServer::start()?;
    let arguments = arguments_with_url(&server);
    let identity = Identity::administrator()?;
    let config = MachineConfig::new(&identity).hostname("by-url").to_yaml();
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .without_config(identity)
        .spec(|spec| spec.command_line(arguments))
        .start()?;
    chapters![
        a_node_asks_again_until_there_is_a_config(&node, &server, config),
        a_node_asks_by_its_name_and_card(&node, &server),
        the_urls_token_is_for_administrators(&node),
    ]
    .await
}

fn arguments_with_url(server: &HttpServer) -> String {
    let target = format!("{CONFIG}?token={TOKEN}&name=${{hostname}}&mac=${{mac}}");
    let url = server.url_for_guest(&target);
    format!("console=ttyS0 panic=10 cryptomgr.notests instar.config={url}")
}

/// The path of the config on its server.
const CONFIG: &str = "/node.yaml";

async fn a_node_asks_again_until_there_is_a_config(
    node: &Node,
    server: &HttpServer,
    config: String,
) -> Outcome {
    let until = Instant::now() + PATIENCE;
    while server.requests().is_empty() {
        ensure!(Instant::now() < until, "it never asked for its config");
        std::thread::sleep(Duration::from_millis(50));
    }
    server.serve(CONFIG, config);
    node.wait_for_api(PATIENCE).await?;
    let asked = server.requests();
    ensure!(asked.len() > 1, "{asked:?}");
    Ok(())
}

async fn a_node_asks_by_its_name_and_card(node: &Node, server: &HttpServer) -> Outcome {
    let by_name = format!("{CONFIG}?token={TOKEN}&name=instar-");
    for target in server.requests() {
        ensure!(target.starts_with(&by_name), "{target}");
        let by_card = "&mac=52%3A54%3A00%3A12%3A34%3A56";
        ensure!(target.ends_with(by_card), "{target}");
    }
    let hostname = node.hostname().await?;
    ensure!(hostname == "by-url", "it is called {hostname}");
    Ok(())
}

const TOKEN: &str = "0n1y-for-admins";

/// The kernel's command line is in its log and among the resources, without the config's URL.
async fn the_urls_token_is_for_administrators(node: &Node) -> Outcome {
    for role in [Role::Reader, Role::Operator] {
        for text in told(node, role).await? {
            ensure!(text.contains("instar.config=<hidden>"), "{text}");
            ensure!(!text.contains(TOKEN), "{text}");
        }
    }
    for text in told(node, Role::Admin).await? {
        ensure!(text.contains(TOKEN), "{text}");
    }
    the_command_lines_file_is_for_administrators(node).await
}

/// Returns the kernel's log, machined's log, and the resource of the command line.
async fn told(node: &Node, role: Role) -> anyhow::Result<[String; 2]> {
    let channel = node.channel_as(&node.identity().with_role(role)?).await?;
    let mut machine = MachineServiceClient::new(channel.clone());
    let log = LogsRequest {
        id: "machined".to_owned(),
        tail_lines: -1,
        ..LogsRequest::default()
    };
    let dmesg = machine.dmesg(DmesgRequest::default()).await?.into_inner();
    let log = machine.logs(log).await?.into_inner();
    let logs = text_of(dmesg).await? + &text_of(log).await?;
    Ok([logs, command_line(channel).await?])
}

async fn text_of(mut stream: Streaming<Data>) -> anyhow::Result<String> {
    let mut text = String::new();
    while let Some(data) = stream.message().await? {
        text += &String::from_utf8_lossy(&data.bytes);
    }
    Ok(text)
}

/// Checks both encodings of the resource.
async fn command_line(channel: Channel) -> anyhow::Result<String> {
    let asked = GetRequest {
        namespace: "runtime".to_owned(),
        r#type: "KernelCmdlines.runtime.talos.dev".to_owned(),
        id: "cmdline".to_owned(),
        ..GetRequest::default()
    };
    let resource = StateClient::new(channel).get(asked).await?.into_inner();
    let spec = resource.resource.and_then(|it| it.spec).unwrap_or_default();
    let binary = String::from_utf8_lossy(&spec.proto_spec).into_owned();
    Ok(spec.yaml_spec + &binary)
}

async fn the_command_lines_file_is_for_administrators(node: &Node) -> Outcome {
    let reader = node.identity().with_role(Role::Reader)?;
    let mut reader = MachineServiceClient::new(node.channel_as(&reader).await?);
    let path = "/proc/cmdline".to_owned();
    let refused = reader.read(ReadRequest { path }).await.err();
    let code = refused.map(|status| status.code());
    ensure!(code == Some(Code::PermissionDenied), "{code:?}");
    Ok(())
}

async fn a_config_that_makes_no_sense_leads_to_maintenance_mode(scratch: Scratch) -> Outcome {
    let yaml = "version: v1alpha1\nmachine:\n  typ: controlplane\n";
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .config(yaml, Identity::administrator()?)
        .start()?;
    let line = node.wait_for_line("machined: maintenance mode: ", PATIENCE)?;
    ensure!(
        line.contains("machine.typ") && line.contains("line 3"),
        "{line}"
    );
    node.wait_for_line("machined: the API answers on port", PATIENCE)?;
    Ok(())
}
