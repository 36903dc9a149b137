//! The machine's state as resources: listed, read and watched, by `instarctl` and by another project's client, which
//! does as talosctl does.

use std::path::Path;

use anyhow::{Context as _, ensure};
use instar_api::cosi::resource::state_client::StateClient;
use instar_api::cosi::resource::{
    GetRequest, ListRequest, WatchOptions, WatchRequest, WatchResponse, WriteRequest,
};
use instar_pki::Role;
use instar_tests::{
    FollowedProgram, GREETER, Grpcio, Identity, ImageUnderTest, Instarctl, Node, Outcome, Registry,
    Said, Scratch, Test, chapters, plan_with_greeter, tests, upgrade_and_follow,
};
use serde_json::{Value, json};
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use crate::PATIENCE;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        resources_tell_what_the_machine_is_and_what_changes,
        resources_outlast_upgrades_where_they_are_history,
        resources_are_shown_without_a_config
    ]
}

async fn resources_tell_what_the_machine_is_and_what_changes(scratch: Scratch) -> Outcome {
    let grpcio = Grpcio::ready(&scratch)?;
    let registry = Registry::start(&scratch)?;
    let plan = plan_with_greeter(&scratch, &registry, |config| config)?.blank_disk()?;
    let node = plan.boot_until_ready(PATIENCE).await?;
    let instarctl = Instarctl::of(&node, &scratch)?;
    chapters![
        every_type_can_be_listed(&instarctl),
        others_read_what_the_contract_says(&grpcio, &node),
        tables_are_as_people_know_them(&instarctl),
        what_may_not_be_is_refused(&node),
        changes_are_told(&scratch, &grpcio, &instarctl, &node),
        watchers_come_and_go(&node),
    ]
    .await
}

/// The documents that a command prints.
async fn told(instarctl: &Instarctl, arguments: &[&str]) -> anyhow::Result<Vec<Value>> {
    let said = instarctl
        .run(&[arguments, &["-o", "json"]].concat())
        .await?;
    ensure!(said.code == Some(0), "{arguments:?}: {said:?}");
    let lines = said.output.lines().filter(|line| !line.is_empty());
    Ok(lines.map(serde_json::from_str).collect::<Result<_, _>>()?)
}

async fn every_type_can_be_listed(instarctl: &Instarctl) -> Outcome {
    let definitions = told(instarctl, &["get", "rd"]).await?;
    ensure!(definitions.len() > 25, "{definitions:#?}");
    for definition in &definitions {
        let kind = definition["spec"]["type"].as_str().context("type")?;
        for item in told(instarctl, &["get", kind]).await? {
            let about = &item["metadata"];
            ensure!(
                about["type"] == kind && about["phase"] == "running" && about["version"].is_u64(),
                "{item}"
            );
            what_is_listed_can_be_got_by_its_id(instarctl, kind, about).await?;
        }
    }
    Ok(())
}

async fn what_is_listed_can_be_got_by_its_id(
    instarctl: &Instarctl,
    kind: &str,
    about: &Value,
) -> Outcome {
    let id = about["id"].as_str().context("id")?;
    let one = told(instarctl, &["get", kind, id]).await?;
    ensure!(
        one.len() == 1 && one[0]["metadata"]["id"] == id,
        "{kind} {id}: {one:?}"
    );
    Ok(())
}

async fn others_read_what_the_contract_says(grpcio: &Grpcio, node: &Node) -> Outcome {
    let others = Others { grpcio, node };
    chapters![
        a_client_finds_the_four_that_it_must(&others),
        the_network_is_shown(&others),
        disks_and_what_is_on_them_are_shown(&others),
        the_version_and_the_config_are_shown(&others),
        what_is_not_there_is_not_found(&others),
    ]
    .await
}

/// Another project's client, which does as talosctl does.
struct Others<'a> {
    grpcio: &'a Grpcio,
    node: &'a Node,
}

impl Others<'_> {
    fn get(&self, wanted: &[&str]) -> anyhow::Result<Value> {
        let said = self.grpcio.get(self.node, wanted)?;
        ensure!(said["code"].is_null(), "{wanted:?}: {said}");
        Ok(said)
    }

    /// Reads these resources, and checks the values at the given paths.
    fn read(&self, wanted: &[&str], expected: &[(&str, Value)]) -> Outcome {
        let said = self.get(wanted)?;
        for (place, value) in expected {
            ensure!(
                said.pointer(place) == Some(value),
                "{wanted:?}: {place} is not {value}: {said}"
            );
        }
        Ok(())
    }

    /// Returns the specs of a type.
    fn specs(&self, wanted: &str) -> anyhow::Result<Vec<Value>> {
        let said = self.get(&[wanted])?;
        Ok(said["specs"].as_array().cloned().unwrap_or_default())
    }
}

/// The client finds them by the names that people type.
async fn a_client_finds_the_four_that_it_must(others: &Others<'_>) -> Outcome {
    others.read(&["members"], &member())?;
    let stage = [
        ("/decoded/0/stage", json!("MACHINE_STAGE_RUNNING")),
        ("/rows/0/4", json!("running")),
        ("/rows/0/5", json!(true)),
    ];
    others.read(&["ms"], &stage)?;
    let hostname = json!([["network", "HostnameStatus", "hostname", "1", "node", ""]]);
    others.read(&["HOSTNAME"], &[("/rows", hostname)])?;
    others.read(
        &["services", GREETER],
        &[("/decoded/0/running", json!(true))],
    )
}

/// The node itself, alone in its cluster.
fn member() -> [(&'static str, Value); 4] {
    [
        ("/rows/0/2", json!("node")),
        ("/rows/0/5", json!("controlplane")),
        ("/decoded/0/machineType", json!(2)),
        // 10.0.2.15 in four bytes.
        ("/decoded/0/addresses/0/ip", json!("CgACDw==")),
    ]
}

async fn the_network_is_shown(others: &Others<'_>) -> Outcome {
    others.read(&["addresses"], &[("/rows/0/4", json!("10.0.2.15/24"))])?;
    let links = [("/rows/1/2", json!("lo")), ("/rows/0/8", json!("up"))];
    others.read(&["links"], &links)?;
    let routes = others.specs("routes")?;
    let is_default = |spec: &Value| spec["dst"] == "" && spec["gateway"] == "10.0.2.2";
    ensure!(routes.iter().any(is_default), "{routes:#?}");
    Ok(())
}

async fn disks_and_what_is_on_them_are_shown(others: &Others<'_>) -> Outcome {
    let size = ("/decoded/0/size", json!("4294967296"));
    others.read(&["disks", "vda"], &[size])?;
    others.read(&["systemdisk"], &[("/rows/0/4", json!("vda"))])?;
    let mounts = others.specs("mounts")?;
    let var = mounts.iter().find(|spec| spec["target"] == "/var");
    ensure!(
        var.is_some_and(|var| var["filesystem"] == "ext4"),
        "{mounts:#?}"
    );
    let images = others.get(&["images"])?;
    let names = images["specs"][0]["names"].to_string();
    ensure!(names.contains("greeter:v1"), "{images}");
    Ok(())
}

async fn the_version_and_the_config_are_shown(others: &Others<'_>) -> Outcome {
    let upgrade = [
        ("/rows/0/6", json!("v0.1.0")),
        ("/rows/0/7", json!("running")),
    ];
    others.read(&["upgrades"], &upgrade)?;
    others.read(&["machinetype"], &[("/specs/0", json!("controlplane"))])?;
    let config = json!(others.node.config());
    others.read(&["mc", "v1alpha1"], &[("/specs/0", config)])
}

async fn what_is_not_there_is_not_found(others: &Others<'_>) -> Outcome {
    let missing = others.grpcio.get(others.node, &["services", "no-such"])?;
    ensure!(missing["code"] == "NOT_FOUND", "{missing}");
    Ok(())
}

async fn tables_are_as_people_know_them(instarctl: &Instarctl) -> Outcome {
    chapters![
        a_table_has_a_heading_and_a_row_for_each(instarctl),
        yaml_has_the_fields(instarctl),
        another_namespace_is_empty_and_that_is_no_error(instarctl),
        a_type_that_is_none_leads_to_the_list(instarctl),
    ]
    .await
}

const HEADING: [&str; 7] = [
    "NODE",
    "NAMESPACE",
    "TYPE",
    "ID",
    "VERSION",
    "STAGE",
    "READY",
];

async fn a_table_has_a_heading_and_a_row_for_each(instarctl: &Instarctl) -> Outcome {
    let said = instarctl.run(&["get", "machinestatus"]).await?;
    let lines = said.output.lines();
    let words: Vec<Vec<&str>> = lines
        .map(|line| line.split_whitespace().collect())
        .collect();
    ensure!(words[0] == HEADING, "{said:?}");
    ensure!(
        words[1][1..4] == ["runtime", "MachineStatus", "machine"],
        "{said:?}"
    );
    ensure!(words[1][5..] == ["running", "true"], "{said:?}");
    Ok(())
}

async fn yaml_has_the_fields(instarctl: &Instarctl) -> Outcome {
    let said = instarctl.run(&["get", "hostname", "-o", "yaml"]).await?;
    ensure!(said.output.contains("\n  hostname: node\n"), "{said:?}");
    Ok(())
}

async fn another_namespace_is_empty_and_that_is_no_error(instarctl: &Instarctl) -> Outcome {
    let elsewhere = ["get", "hostname", "--namespace", "runtime"];
    let said = instarctl.run(&elsewhere).await?;
    ensure!(
        said.code == Some(0) && said.output.lines().count() == 1,
        "{said:?}"
    );
    Ok(())
}

async fn a_type_that_is_none_leads_to_the_list(instarctl: &Instarctl) -> Outcome {
    let said = instarctl.run(&["get", "nonsense"]).await?;
    ensure!(
        said.code != Some(0) && said.complaint.contains("get rd"),
        "{said:?}"
    );
    Ok(())
}

fn get(kind: &str, namespace: &str, id: &str) -> GetRequest {
    GetRequest {
        namespace: namespace.to_owned(),
        r#type: kind.to_owned(),
        id: id.to_owned(),
        options: None,
    }
}

async fn what_may_not_be_is_refused(node: &Node) -> Outcome {
    chapters![
        a_reader_does_not_see_secrets(node),
        an_administrator_does_not_write_resources(node),
    ]
    .await
}

fn config() -> GetRequest {
    get("MachineConfigs.config.talos.dev", "config", "v1alpha1")
}

async fn a_reader_does_not_see_secrets(node: &Node) -> Outcome {
    let reader = node.identity().with_role(Role::Reader)?;
    let mut reader = StateClient::new(node.channel_as(&reader).await?);
    let hostname = get("HostnameStatuses.net.talos.dev", "network", "hostname");
    ensure!(reader.get(hostname).await.is_ok());
    let kubelet = get("KubeletSpecs.k8s.talos.dev", "k8s", "kubelet");
    for secret in [config(), kubelet] {
        is_kept_from(&mut reader, secret).await?;
    }
    Ok(())
}

/// A reader is refused the secret by every call.
async fn is_kept_from(reader: &mut StateClient<Channel>, secret: GetRequest) -> Outcome {
    let list = ListRequest {
        namespace: secret.namespace.clone(),
        r#type: secret.r#type.clone(),
        options: None,
    };
    let watch = WatchRequest {
        namespace: secret.namespace.clone(),
        r#type: secret.r#type.clone(),
        ..WatchRequest::default()
    };
    ensure!(is_denied(&reader.get(secret).await));
    ensure!(is_denied(&reader.list(list).await));
    ensure!(is_denied(&reader.watch(watch).await));
    Ok(())
}

fn is_denied<Answer>(answer: &Result<Answer, Status>) -> bool {
    answer
        .as_ref()
        .is_err_and(|status| status.code() == Code::PermissionDenied)
}

async fn an_administrator_does_not_write_resources(node: &Node) -> Outcome {
    let mut administrator = StateClient::new(node.channel().await?);
    ensure!(administrator.get(config()).await.is_ok());
    let request = WriteRequest::default();
    ensure!(is_denied(&administrator.destroy(request).await));
    ensure!(is_denied(&administrator.create(request).await));
    Ok(())
}

async fn changes_are_told(
    scratch: &Scratch,
    grpcio: &Grpcio,
    instarctl: &Instarctl,
    node: &Node,
) -> Outcome {
    let mut watchers = Watchers::begin(grpcio, instarctl, node)?;
    let renamed = node.config().replace("hostname: node", "hostname: renamed");
    let file = scratch.write("renamed.yaml", &renamed)?;
    chapters![
        what_is_not_there_is_told_as_destroyed(grpcio, node),
        a_stop_is_told(instarctl, &mut watchers),
        another_name_is_told(instarctl, &file, &mut watchers),
    ]
    .await
}

/// Watchers of all that the test does.
struct Watchers {
    services: FollowedProgram,
    hostname: FollowedProgram,
    /// The watcher by `instarctl`.
    own: FollowedProgram,
}

impl Watchers {
    /// Starts the watchers, and waits until each has seen the present resources.
    fn begin(grpcio: &Grpcio, instarctl: &Instarctl, node: &Node) -> anyhow::Result<Self> {
        let mut services = grpcio.watch(node, &["services"])?;
        let is_created = |line: &str| is_event(line, "CREATED", GREETER);
        services.wait_for("the greeter", PATIENCE, is_created)?;
        let is_end = |line: &str| line.contains("BOOTSTRAPPED");
        services.wait_for("the end of what was there", PATIENCE, is_end)?;
        let mut hostname = grpcio.watch(node, &["hostname", "hostname"])?;
        hostname.wait_for("the name", PATIENCE, |line| line.contains("\"node\""))?;
        let mut own = instarctl.follow(&["get", "hostname", "-w"])?;
        own.wait_for("a row", PATIENCE, |line| line.starts_with('+'))?;
        Ok(Self {
            services,
            hostname,
            own,
        })
    }
}

async fn what_is_not_there_is_told_as_destroyed(grpcio: &Grpcio, node: &Node) -> Outcome {
    let mut never = grpcio.watch(node, &["services", "no-such"])?;
    let is_destroyed = |line: &str| is_event(line, "DESTROYED", "no-such");
    never.wait_for("that it is not there", PATIENCE, is_destroyed)?;
    Ok(())
}

async fn a_stop_is_told(instarctl: &Instarctl, watchers: &mut Watchers) -> Outcome {
    let said = instarctl.run(&["service", GREETER, "stop"]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    let is_stopped = |line: &str| line.contains("\"running\": false");
    let services = &mut watchers.services;
    let is_updated = |line: &str| is_event(line, "UPDATED", GREETER);
    let updated = services.wait_for("the stop", PATIENCE, is_updated)?;
    let stopped = match is_stopped(&updated) {
        true => updated,
        false => services.wait_for("the stop", PATIENCE, is_stopped)?,
    };
    ensure!(stopped.contains(GREETER), "{stopped}");
    Ok(())
}

async fn another_name_is_told(
    instarctl: &Instarctl,
    renamed: &Path,
    watchers: &mut Watchers,
) -> Outcome {
    let file = renamed.display().to_string();
    let said = instarctl.run(&["apply-config", "--file", &file]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    let is_renamed =
        |line: &str| is_event(line, "UPDATED", "hostname") && line.contains("\"renamed\"");
    (watchers.hostname).wait_for("the new name", PATIENCE, is_renamed)?;
    let own = &mut watchers.own;
    let row = own.wait_for("the new name", PATIENCE, |line| line.contains("renamed"))?;
    ensure!(!row.starts_with('+') && !row.starts_with('-'), "{row:?}");
    Ok(())
}

fn is_event(line: &str, event: &str, id: &str) -> bool {
    line.contains(&format!("\"event\": \"{event}\", \"id\": \"{id}\""))
}

fn watch_services() -> WatchRequest {
    WatchRequest {
        namespace: "runtime".to_owned(),
        r#type: "Services.v1alpha1.talos.dev".to_owned(),
        options: Some(WatchOptions {
            bootstrap_contents: true,
            ..WatchOptions::default()
        }),
        ..WatchRequest::default()
    }
}

/// Watchers over the limit are refused, to an administrator as well. Watchers that leave make room, and one that reads
/// nothing blocks no other.
async fn watchers_come_and_go(node: &Node) -> Outcome {
    let (idle, refused) = as_many_as_are_served(node).await?;
    ensure!(
        (500..=512).contains(&idle.len()),
        "{} {refused}",
        idle.len()
    );
    node.version().await?;
    drop(idle);
    node.wait_until("there is room again", PATIENCE, async || {
        let mut stream = watch(&node.channel().await?).await?;
        let first = stream.message().await?;
        ensure!(first.is_some_and(|first| first.event.is_empty()));
        Ok(())
    })
    .await
}

/// Limit on the watchers of one connection.
const OF_ONE_CONNECTION: usize = 48;

type Watcher = Streaming<WatchResponse>;

async fn watch(channel: &Channel) -> Result<Watcher, Status> {
    let mut client = StateClient::new(channel.clone());
    Ok(client.watch(watch_services()).await?.into_inner())
}

/// Opens watchers on connection after connection; returns them, and the refusal when the node's limit is reached.
async fn as_many_as_are_served(node: &Node) -> anyhow::Result<(Vec<Watcher>, Status)> {
    let mut idle = Vec::new();
    loop {
        let (before, channel) = (idle.len(), node.channel().await?);
        let refused = loop {
            match watch(&channel).await {
                Ok(stream) => idle.push(stream),
                Err(status) => break status,
            }
        };
        ensure!(refused.code() == Code::ResourceExhausted, "{refused}");
        if idle.len() - before != OF_ONE_CONNECTION {
            return Ok((idle, refused));
        }
    }
}

async fn resources_outlast_upgrades_where_they_are_history(scratch: Scratch) -> Outcome {
    let registry = Registry::with_both_installers(&scratch)?;
    let host = registry.host_for_guest();
    let plan = Node::plan(&scratch, &ImageUnderTest::first()?);
    let plan = plan.configure(move |config| config.registry(&host));
    let node = plan.boot_until_ready(PATIENCE).await?;
    let instarctl = Instarctl::of(&node, &scratch)?;
    let image = registry.installer_for_guest("v0.2.0");
    upgrade_and_follow(&node, &image, PATIENCE).await?;
    node.wait_until("the upgrade is history", PATIENCE, async || {
        let seen = history(&instarctl).await?;
        ensure!(seen == HISTORY, "{seen:?}");
        Ok(())
    })
    .await
}

/// For each upgrade: the version before, the version after, the result.
const HISTORY: [[&str; 3]; 2] = [["", "v0.1.0", "running"], ["v0.1.0", "v0.2.0", "running"]];

async fn history(instarctl: &Instarctl) -> anyhow::Result<Vec<[String; 3]>> {
    let upgrades = told(instarctl, &["get", "upgrades"]).await?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let line = |upgrade: &Value| {
        let spec = &upgrade["spec"];
        ["from", "version", "outcome"].map(|field| text(&spec[field]))
    };
    Ok(upgrades.iter().map(line).collect())
}

async fn resources_are_shown_without_a_config(scratch: Scratch) -> Outcome {
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .without_config(Identity::administrator()?)
        .start()?;
    let instarctl = Instarctl::of(&node, &scratch)?;
    node.wait_until("it shows its stage", PATIENCE, async || {
        let said = get_insecurely(&instarctl, &node, "machinestatus").await?;
        ensure!(said.output.contains("maintenance"), "{said:?}");
        Ok(())
    })
    .await?;
    let disks = get_insecurely(&instarctl, &node, "disks").await?;
    ensure!(disks.code == Some(0), "{disks:?}");
    secrets_are_for_administrators(&instarctl, &node).await
}

async fn get_insecurely(instarctl: &Instarctl, node: &Node, kind: &str) -> anyhow::Result<Said> {
    let endpoint = node.endpoint()?;
    let get = ["get", kind, "--insecure", "-n", &endpoint];
    instarctl.run(&get).await
}

async fn secrets_are_for_administrators(instarctl: &Instarctl, node: &Node) -> Outcome {
    let said = get_insecurely(instarctl, node, "machineconfig").await?;
    ensure!(
        said.code != Some(0) && said.complaint.contains("os:admin"),
        "{said:?}"
    );
    Ok(())
}
