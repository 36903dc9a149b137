//! The machine's state as resources: listed, read and watched, by `instarctl` and by a client that isn't ours and does as
//! talosctl does.

use anyhow::{Context as _, ensure};
use instar_api::cosi::resource::state_client::StateClient;
use instar_api::cosi::resource::{
    GetRequest, ListRequest, WatchOptions, WatchRequest, WriteRequest,
};
use instar_pki::Role;
use instar_tests::{
    GREETER, Grpcio, Identity, ImageUnderTest, Instarctl, Node, Outcome, Registry, Scratch, Test,
    plan_with_greeter, tests, upgrade_and_follow,
};
use serde_json::{Value, json};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::PATIENCE;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        resources_tell_what_the_machine_is_and_what_changes,
        resources_outlast_upgrades_where_they_are_history,
        resources_are_shown_without_a_config
    ]
}

/// One boot for all: the steps follow each other.
async fn resources_tell_what_the_machine_is_and_what_changes(scratch: Scratch) -> Outcome {
    let grpcio = Grpcio::ready(&scratch)?;
    let registry = Registry::start(&scratch)?;
    let node = plan_with_greeter(&scratch, &registry, |config| config)?
        .blank_disk()?
        .boot()
        .await?;
    node.wait_until_ready(PATIENCE).await?;
    let instarctl = Instarctl::of(&node, &scratch)?;
    every_type_can_be_listed(&instarctl).await?;
    others_read_what_the_contract_says(&grpcio, &node)?;
    tables_are_as_people_know_them(&instarctl).await?;
    what_may_not_be_is_refused(&node).await?;
    changes_are_told(&scratch, &grpcio, &instarctl, &node).await?;
    watchers_come_and_go(&node).await
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
            // What is listed can be got by its id.
            let id = about["id"].as_str().context("id")?;
            let one = told(instarctl, &["get", kind, id]).await?;
            ensure!(
                one.len() == 1 && one[0]["metadata"]["id"] == id,
                "{kind} {id}: {one:?}"
            );
        }
    }
    Ok(())
}

fn others_read_what_the_contract_says(grpcio: &Grpcio, node: &Node) -> Outcome {
    let get = |wanted: &[&str]| -> anyhow::Result<Value> {
        let said = grpcio.get(node, wanted)?;
        ensure!(said["code"].is_null(), "{wanted:?}: {said}");
        Ok(said)
    };
    // The four that a client must find, by the names that people type.
    let members = get(&["members"])?;
    ensure!(members["rows"][0][2] == "node", "{members}");
    ensure!(members["rows"][0][5] == "controlplane", "{members}");
    ensure!(members["decoded"][0]["machineType"] == 2, "{members}");
    let ip = members["decoded"][0]["addresses"][0]["ip"].clone();
    ensure!(ip == "CgACDw==", "10.0.2.15 in four bytes: {members}");
    let status = get(&["ms"])?;
    ensure!(
        status["rows"][0][4] == "running" && status["rows"][0][5] == true,
        "{status}"
    );
    ensure!(
        status["decoded"][0]["stage"] == "MACHINE_STAGE_RUNNING",
        "{status}"
    );
    let hostname = get(&["HOSTNAME"])?;
    ensure!(
        hostname["rows"] == json!([["network", "HostnameStatus", "hostname", "1", "node", ""]]),
        "{hostname}"
    );
    let services = get(&["services", GREETER])?;
    ensure!(services["decoded"][0]["running"] == true, "{services}");

    let addresses = get(&["addresses"])?;
    ensure!(addresses["rows"][0][4] == "10.0.2.15/24", "{addresses}");
    let routes = get(&["routes"])?;
    let is_default = |spec: &&Value| spec["dst"] == "" && spec["gateway"] == "10.0.2.2";
    ensure!(
        routes["specs"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|spec| is_default(&spec)),
        "{routes}"
    );
    let links = get(&["links"])?;
    ensure!(
        links["rows"][1][2] == "lo" && links["rows"][0][8] == "up",
        "{links}"
    );
    let disks = get(&["disks", "vda"])?;
    ensure!(disks["decoded"][0]["size"] == "4294967296", "{disks}");
    let system_disk = get(&["systemdisk"])?;
    ensure!(system_disk["rows"][0][4] == "vda", "{system_disk}");
    let mounts = get(&["mounts"])?;
    let var = mounts["specs"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|spec| spec["target"] == "/var");
    ensure!(
        var.is_some_and(|var| var["filesystem"] == "ext4"),
        "{mounts}"
    );
    let images = get(&["images"])?;
    let names = images["specs"][0]["names"].to_string();
    ensure!(names.contains("greeter:v1"), "{images}");
    let upgrades = get(&["upgrades"])?;
    ensure!(
        upgrades["rows"][0][6] == "v0.1.0" && upgrades["rows"][0][7] == "running",
        "{upgrades}"
    );
    let kind = get(&["machinetype"])?;
    ensure!(kind["specs"][0] == "controlplane", "{kind}");
    let config = get(&["mc", "v1alpha1"])?;
    ensure!(config["specs"][0] == node.config(), "{config}");

    let missing = grpcio.get(node, &["services", "no-such"])?;
    ensure!(missing["code"] == "NOT_FOUND", "{missing}");
    Ok(())
}

async fn tables_are_as_people_know_them(instarctl: &Instarctl) -> Outcome {
    let said = instarctl.run(&["get", "machinestatus"]).await?;
    let words: Vec<Vec<&str>> = said
        .output
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    ensure!(
        words[0]
            == [
                "NODE",
                "NAMESPACE",
                "TYPE",
                "ID",
                "VERSION",
                "STAGE",
                "READY"
            ],
        "{said:?}"
    );
    ensure!(
        words[1][1..4] == ["runtime", "MachineStatus", "machine"],
        "{said:?}"
    );
    ensure!(words[1][5..] == ["running", "true"], "{said:?}");
    let said = instarctl.run(&["get", "hostname", "-o", "yaml"]).await?;
    ensure!(said.output.contains("\n  hostname: node\n"), "{said:?}");
    // Somewhere else there are none, which is no error.
    let said = instarctl
        .run(&["get", "hostname", "--namespace", "runtime"])
        .await?;
    ensure!(
        said.code == Some(0) && said.output.lines().count() == 1,
        "{said:?}"
    );
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
    let config = get("MachineConfigs.config.talos.dev", "config", "v1alpha1");
    let mut admin = StateClient::new(node.channel().await?);
    ensure!(admin.get(config.clone()).await.is_ok());
    let reader = node.identity().with_role(Role::Reader)?;
    let mut reader = StateClient::new(node.channel_as(&reader).await?);
    let hostname = get("HostnameStatuses.net.talos.dev", "network", "hostname");
    ensure!(reader.get(hostname).await.is_ok());
    let code = |refused: Status| refused.code();
    let denied = Err(Code::PermissionDenied);
    let kubelet = get("KubeletSpecs.k8s.talos.dev", "k8s", "kubelet");
    for refused in [config.clone(), kubelet] {
        ensure!(reader.get(refused.clone()).await.map(drop).map_err(code) == denied);
        let list = ListRequest {
            namespace: refused.namespace.clone(),
            r#type: refused.r#type.clone(),
            options: None,
        };
        ensure!(reader.list(list).await.map(drop).map_err(code) == denied);
        let watch = WatchRequest {
            namespace: refused.namespace,
            r#type: refused.r#type,
            ..WatchRequest::default()
        };
        ensure!(reader.watch(watch).await.map(drop).map_err(code) == denied);
    }
    ensure!(
        admin
            .destroy(WriteRequest::default())
            .await
            .map(drop)
            .map_err(code)
            == denied
    );
    ensure!(
        admin
            .create(WriteRequest::default())
            .await
            .map(drop)
            .map_err(code)
            == denied
    );
    Ok(())
}

/// Two watchers of everything that the test does.
async fn changes_are_told(
    scratch: &Scratch,
    grpcio: &Grpcio,
    instarctl: &Instarctl,
    node: &Node,
) -> Outcome {
    let mut by_kind = grpcio.watch(node, &["services"])?;
    by_kind.wait_for("the greeter", PATIENCE, |line| {
        is_event(line, "CREATED", GREETER)
    })?;
    by_kind.wait_for("the end of what was there", PATIENCE, |line| {
        line.contains("BOOTSTRAPPED")
    })?;
    let mut by_id = grpcio.watch(node, &["hostname", "hostname"])?;
    by_id.wait_for("the name", PATIENCE, |line| line.contains("\"node\""))?;
    let mut never = grpcio.watch(node, &["services", "no-such"])?;
    never.wait_for("that it is not there", PATIENCE, |line| {
        is_event(line, "DESTROYED", "no-such")
    })?;
    let mut own = instarctl.follow(&["get", "hostname", "-w"])?;
    own.wait_for("a row", PATIENCE, |line| line.starts_with('+'))?;

    let said = instarctl.run(&["service", GREETER, "stop"]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    let line = by_kind.wait_for("the stop", PATIENCE, |line| {
        is_event(line, "UPDATED", GREETER)
    })?;
    let line = match line.contains("\"running\": false") {
        true => line,
        false => by_kind.wait_for("the stop", PATIENCE, |line| {
            line.contains("\"running\": false")
        })?,
    };
    ensure!(line.contains(GREETER), "{line}");

    let renamed = node.config().replace("hostname: node", "hostname: renamed");
    let file = scratch.write("renamed.yaml", &renamed)?;
    let said = instarctl
        .run(&["apply-config", "--file", &file.display().to_string()])
        .await?;
    ensure!(said.code == Some(0), "{said:?}");
    by_id.wait_for("the new name", PATIENCE, |line| {
        is_event(line, "UPDATED", "hostname") && line.contains("\"renamed\"")
    })?;
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

/// More than are served at a time are refused, to an administrator as well; those that leave make room, and one that reads nothing stops
/// nobody.
async fn watchers_come_and_go(node: &Node) -> Outcome {
    let watch = async |channel: &Channel| {
        let mut client = StateClient::new(channel.clone());
        client
            .watch(watch_services())
            .await
            .map(tonic::Response::into_inner)
    };
    let mut idle = Vec::new();
    // Each takes what one connection is given, and then there is no more for anybody.
    let refused = loop {
        let (before, channel) = (idle.len(), node.channel().await?);
        let refused = loop {
            match watch(&channel).await {
                Ok(stream) => idle.push(stream),
                Err(status) => break status,
            }
        };
        ensure!(refused.code() == Code::ResourceExhausted, "{refused}");
        match idle.len() - before {
            48 => {}
            _ => break refused,
        }
    };
    ensure!(
        (500..=512).contains(&idle.len()),
        "{} {refused}",
        idle.len()
    );
    node.version().await?;
    idle.clear();
    node.wait_until("there is room again", PATIENCE, async || {
        let mut stream = watch(&node.channel().await?).await?;
        ensure!(
            stream
                .message()
                .await?
                .is_some_and(|first| first.event.is_empty())
        );
        Ok(())
    })
    .await
}

/// Soft upgrades of a node without a disk: what became of them is there afterwards.
async fn resources_outlast_upgrades_where_they_are_history(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    let next = ImageUnderTest::second()?;
    registry.push_layout(&next.installer(), "instar/installer", "v0.2.0")?;
    let host = registry.host_for_guest();
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .configure({
            let host = host.clone();
            move |config| config.registry(&host)
        })
        .boot()
        .await?;
    node.wait_until_ready(PATIENCE).await?;
    let instarctl = Instarctl::of(&node, &scratch)?;
    let image = format!("{host}/instar/installer:v0.2.0");
    upgrade_and_follow(&node, &image, PATIENCE).await?;
    let history = async || -> anyhow::Result<Vec<(String, String, String)>> {
        let entries = told(&instarctl, &["get", "upgrades"]).await?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Ok(entries
            .iter()
            .map(|entry| &entry["spec"])
            .map(|spec| {
                (
                    text(&spec["from"]),
                    text(&spec["version"]),
                    text(&spec["outcome"]),
                )
            })
            .collect())
    };
    let entry = |from: &str, version: &str, outcome: &str| {
        (from.to_owned(), version.to_owned(), outcome.to_owned())
    };
    let expected = [
        entry("", "v0.1.0", "running"),
        entry("v0.1.0", "v0.2.0", "running"),
    ];
    node.wait_until("the upgrade is history", PATIENCE, async || {
        let seen = history().await?;
        ensure!(seen == expected, "{seen:?}");
        Ok(())
    })
    .await
}

/// Before there is a config everybody may look, but for secrets.
async fn resources_are_shown_without_a_config(scratch: Scratch) -> Outcome {
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .without_config(Identity::administrator()?)
        .start()?;
    let instarctl = Instarctl::of(&node, &scratch)?;
    let endpoint = node.endpoint()?;
    let get = async |kind: &str| {
        instarctl
            .run(&["get", kind, "--insecure", "-n", &endpoint])
            .await
    };
    node.wait_until("it shows its stage", PATIENCE, async || {
        let said = get("machinestatus").await?;
        ensure!(said.output.contains("maintenance"), "{said:?}");
        Ok(())
    })
    .await?;
    let said = get("disks").await?;
    ensure!(said.code == Some(0), "{said:?}");
    let said = get("machineconfig").await?;
    ensure!(
        said.code != Some(0) && said.complaint.contains("os:admin"),
        "{said:?}"
    );
    Ok(())
}
