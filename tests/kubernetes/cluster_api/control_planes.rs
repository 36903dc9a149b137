//! The manager of kubeadm's control planes asks for each of its Machines. Machines of Instar are none that kubeadm made: nodes and their static
//! pods are objects here, and what is tested are the questions and answers alone.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use instar_tests::{Outcome, Scratch, Test, chapters, tests};
use serde_json::{Value, json};

use super::lab::{Lab, pool};
use super::objects::{self, mark, uid};
use super::{FIRST, SECOND};

pub(super) fn tests() -> Vec<Test> {
    tests![control_planes_change_one_after_the_other]
}

const CONTROL_PLANES: &str = "cluster.x-k8s.io/control-plane";
const NODES: [&str; 3] = ["cp-1", "cp-2", "cp-3"];
/// The static pods of a control plane, which its manager looks at.
const PODS: [&str; 3] = [
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
];

async fn control_planes_change_one_after_the_other(scratch: Scratch) -> Outcome {
    let mut lab = Lab::start(&scratch)?;
    lab.managers.start_control_planes(&lab.plane, &scratch)?;
    let mut before = BTreeSet::new();
    chapters![
        three_control_planes_are_there(&mut lab, &mut before),
        each_gets_the_image_in_place(&lab, &before),
        what_cannot_change_in_place_replaces_none(&lab, &before),
    ]
    .await
}

fn machines(lab: &Lab) -> anyhow::Result<Vec<Value>> {
    let of_the_control_plane = ["machine.cluster.x-k8s.io", "-l", CONTROL_PLANES];
    let shown = lab.plane.kubectl().get(&of_the_control_plane)?;
    Ok(shown["items"].as_array().context("no list")?.clone())
}

fn uids(lab: &Lab) -> anyhow::Result<BTreeSet<String>> {
    Ok(machines(lab)?.iter().map(uid).collect())
}

async fn three_control_planes_are_there(lab: &mut Lab, before: &mut BTreeSet<String>) -> Outcome {
    lab.register(&json!({"neverReplace": "true"})).await?;
    objects::make_control_planes(&lab.plane, FIRST)?;
    for node in NODES {
        lab.add_node(node)?;
        lab.seen("the next machine", || provide_next(lab, node))
            .await?;
        static_pods(lab, node)?;
    }
    let ready = lab.seen("all are nodes", || all_are_up_to_date(lab, FIRST));
    ready.await?;
    *before = uids(lab)?;
    Ok(())
}

fn provide_next(lab: &Lab, node: &str) -> Outcome {
    let found = objects::unprovided(&lab.plane, CONTROL_PLANES)?;
    let found = found.context("there is none yet")?;
    objects::provide(&lab.plane, &found, "kubeadmconfig", node)
}

fn static_pods(lab: &Lab, node: &str) -> Outcome {
    let kubectl = lab.plane.kubectl();
    let ready = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    for component in PODS {
        let name = format!("{component}-{node}");
        let labels = json!({"tier": "control-plane", "component": component});
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "kube-system", "labels": labels},
            "spec": {"nodeName": node, "containers": [{"name": "one", "image": "any"}], "tolerations": [{"operator": "Exists"}]},
        });
        kubectl.apply("pod", &pod.to_string())?;
        let patch = ["patch", "pod", &name, "-n", "kube-system"];
        let ready = ["--subresource=status", "-p", &ready.to_string()];
        kubectl.run(&[&patch[..], &ready].concat())?;
    }
    Ok(())
}

fn all_are_up_to_date(lab: &Lab, image: &str) -> Outcome {
    let machines = machines(lab)?;
    ensure!(machines.len() == NODES.len(), "{} Machines", machines.len());
    for machine in &machines {
        ensure!(!machine["status"]["nodeRef"].is_null(), "{machine:#}");
        let updating = objects::condition(machine, "Updating");
        ensure!(updating.contains("NotUpdating"), "{updating}");
        ensure!(mark(machine).is_empty(), "{machine:#}");
    }
    all_name_the_image(lab, image)
}

fn all_name_the_image(lab: &Lab, image: &str) -> Outcome {
    let kubectl = lab.plane.kubectl();
    let shown = kubectl.get(&["instarmachine", "-l", CONTROL_PLANES])?;
    for machine in shown["items"].as_array().into_iter().flatten() {
        ensure!(machine["spec"]["osImage"] == image, "{machine:#}");
    }
    Ok(())
}

/// Has the control plane use a template.
fn roll(lab: &Lab, template: &str) -> Outcome {
    let spec = json!({"infrastructureRef": {"name": template}});
    let patch = json!({"spec": {"machineTemplate": {"spec": spec}}}).to_string();
    let patch = [
        "patch",
        "kubeadmcontrolplane",
        "lab",
        "--type=merge",
        "-p",
        &patch,
    ];
    lab.plane.kubectl().run(&patch).map(drop)
}

async fn each_gets_the_image_in_place(lab: &Lab, before: &BTreeSet<String>) -> Outcome {
    let spec = json!({"osImage": SECOND, "memoryMiB": 1024});
    objects::template(&lab.plane, "v2", &spec)?;
    roll(lab, "v2")?;
    for _ in NODES {
        let next = lab.seen("the next pool", || the_only_pool(lab, before));
        let next = next.await?;
        lab.operator_says(&next, "Done", "1 of 1 nodes", 1)?;
        lab.seen("its end", || has_no_pool(lab, &next)).await?;
    }
    let all = lab.seen("all have it", || all_are_up_to_date(lab, SECOND));
    all.await?;
    ensure!(uids(lab)? == *before, "one was replaced");
    Ok(())
}

fn has_no_pool(lab: &Lab, uid: &str) -> Outcome {
    let shown = lab.plane.kubectl().get(&[&pool(uid)]);
    ensure!(shown.is_err(), "its pool is there");
    Ok(())
}

/// The Machine whose pool there is. There are never two.
fn the_only_pool(lab: &Lab, before: &BTreeSet<String>) -> anyhow::Result<String> {
    let shown = lab.plane.kubectl().get(&["pools"])?;
    let pools = shown["items"].as_array().context("no list")?;
    ensure!(pools.len() == 1, "{} pools", pools.len());
    let name = pools[0]["metadata"]["name"].as_str().unwrap_or_default();
    let uid = name.trim_start_matches("machine-").to_owned();
    ensure!(before.contains(&uid), "{uid} is another Machine");
    Ok(uid)
}

async fn what_cannot_change_in_place_replaces_none(
    lab: &Lab,
    before: &BTreeSet<String>,
) -> Outcome {
    objects::template(
        &lab.plane,
        "v3",
        &json!({"osImage": FIRST, "memoryMiB": 2048}),
    )?;
    roll(lab, "v3")?;
    let words = "take back infrastructure machine /spec/memoryMiB";
    lab.managers_log(words).await?;
    tokio::time::sleep(Duration::from_secs(15)).await;
    lab.seen("all are as they were", || all_are_up_to_date(lab, SECOND))
        .await?;
    ensure!(uids(lab)? == *before, "one was replaced");
    Ok(())
}
