//! The real system-upgrade-controller: a Plan as it is written for any system has its job upgrade the node under its pods, once, and tells why an
//! upgrade failed, which no further attempt tries again.

mod by_channel;
mod three_nodes;

use std::collections::BTreeSet;

use anyhow::{Context as _, ensure};
use instar_tests::{
    ImageUnderTest, Node, OciImage, Outcome, Scratch, Test, chapters, push_kubectl,
    push_system_upgrade_controller, push_upgrade_image, tests,
};
use serde_json::Value;

use crate::PATIENCE;
use crate::cluster::Cluster;
use crate::kept::Watch;
use crate::manifests::{self, Plan};
use crate::operator::Operator;
use crate::shown::{it_joins_and_runs_pods, wait_for_os};

/// The version that gives itself up, and why.
const BROKEN: &str = "v0.3.0";
const REASON: &str = "the moon is full";
/// The namespace of the controller, its plans and their jobs.
const NAMESPACE: &str = "system-upgrade";
/// The label of a node by which the controller knows that it has carried out the plan.
const CARRIED_OUT: &str = "plan.upgrade.cattle.io/os";

pub(crate) fn tests() -> Vec<Test> {
    use by_channel::a_plan_follows_a_channel;
    use three_nodes::a_plan_takes_three_nodes_one_at_a_time;
    tests![
        a_plan_upgrades_the_node_under_its_pods,
        a_plan_follows_a_channel,
        a_plan_takes_three_nodes_one_at_a_time,
    ]
}

async fn a_plan_upgrades_the_node_under_its_pods(scratch: Scratch) -> Outcome {
    let cluster = Cluster::start(&scratch)?;
    let site = Site::prepare(&cluster, &scratch)?;
    let node = cluster.plan_node(&scratch)?.boot().await?;
    chapters![
        the_controller_runs(&node, &cluster, &site),
        pods_may_upgrade_and_nothing_else(&node, &cluster, &site),
        a_plan_is_carried_out_under_the_pods(&node, &cluster, &site),
        another_controller_finds_nothing_to_do(&node, &cluster),
        whoever_asks_again_changes_nothing(&node, &cluster, &site),
        a_broken_version_is_tried_once(&node, &cluster, &site, &scratch),
    ]
    .await
}

/// The images of the site, in its registry.
struct Site {
    controller: String,
    kubectl: String,
    /// Without a tag.
    upgrade: String,
    /// Without a tag.
    installer: String,
}

impl Site {
    fn prepare(cluster: &Cluster, scratch: &Scratch) -> anyhow::Result<Self> {
        let registry = &cluster.registry;
        let broken = OciImage::read(&ImageUnderTest::second()?.installer())?;
        let broken = broken.first_layer_alone();
        let broken = broken.giving_up(scratch, BROKEN, REASON)?;
        broken.push(registry, "instar/installer", BROKEN)?;
        Ok(Self {
            controller: push_system_upgrade_controller(registry)?,
            kubectl: push_kubectl(registry, cluster.plane.port())?,
            upgrade: push_upgrade_image(registry, &["v0.2.0", BROKEN])?,
            installer: registry.image_for_guest("instar/installer"),
        })
    }

    fn plan<'a>(&'a self, name: &'a str, version: &'a str, eviction: &'a str) -> Plan<'a> {
        Plan {
            name,
            version,
            eviction,
            upgrade: &self.upgrade,
            installer: &self.installer,
        }
    }
}

async fn the_controller_runs(node: &Node, cluster: &Cluster, site: &Site) -> Outcome {
    it_joins_and_runs_pods(node, cluster).await?;
    start_the_controller(node, cluster, site).await
}

async fn start_the_controller(node: &Node, cluster: &Cluster, site: &Site) -> Outcome {
    let kubectl = cluster.plane.kubectl();
    let port = cluster.plane.port();
    let manifest = manifests::system_upgrade_controller(&site.controller, &site.kubectl, port);
    kubectl.apply("controller", &manifest)?;
    node.wait_until("the controller has made its kind", PATIENCE, async || {
        kubectl.get(&["plans", "-n", NAMESPACE])
    })
    .await
    .map(drop)
}

/// Each call of a pod, and its exit code.
const CALLS: [(&[&str], i64); 9] = [
    (&["version"], 0),
    (&["get", "services"], 0),
    (&["get", "machineconfig", "-o", "yaml"], 4),
    (&["read", "/etc/os-release"], 4),
    (&["apply-config", "--file", "/host/etc/hosts"], 4),
    (&["reboot", "--no-wait"], 4),
    (&["reset", "--no-wait"], 4),
    (&["service", "kubernetes", "stop"], 4),
    (&["upgrade", "--force", "--image", "x/y:v0.2.0"], 4),
];

async fn pods_may_upgrade_and_nothing_else(node: &Node, cluster: &Cluster, site: &Site) -> Outcome {
    let ends = call(node, cluster, site, "refused", &CALLS.map(|(call, _)| call)).await?;
    for ((call, code), end) in CALLS.iter().zip(&ends) {
        println!("{call:?}: {end}");
        ensure!(end["exitCode"] == *code, "{call:?}: {end}");
    }
    Ok(())
}

/// Makes calls in a pod; returns how each ended.
async fn call(
    node: &Node,
    cluster: &Cluster,
    site: &Site,
    name: &str,
    calls: &[&[&str]],
) -> anyhow::Result<Vec<Value>> {
    let image = format!("{}:v0.2.0", site.upgrade);
    let pod = manifests::caller(name, &image, calls);
    cluster.plane.kubectl().apply(name, &pod)?;
    node.wait_until("its calls have ended", PATIENCE, async || {
        let pod = cluster.pod(name)?;
        let ends = ends(&pod);
        ensure!(ends.len() == calls.len(), "{:#}", pod["status"]);
        Ok(ends)
    })
    .await
}

/// How the containers of a pod ended, in the order of their names.
fn ends(pod: &Value) -> Vec<Value> {
    let statuses = pod["status"]["containerStatuses"].as_array();
    let mut statuses: Vec<&Value> = statuses.into_iter().flatten().collect();
    statuses.sort_by_key(|status| status["name"].as_str().map(str::to_owned));
    let ends = statuses.iter().map(|it| it["state"]["terminated"].clone());
    ends.filter(Value::is_object).collect()
}

async fn a_plan_is_carried_out_under_the_pods(
    node: &Node,
    cluster: &Cluster,
    site: &Site,
) -> Outcome {
    let watch = Watch::start(node, cluster)?;
    let plan = site.plan("os", "v0.2.0", "cordon: true");
    cluster.plane.kubectl().apply("os", &plan.yaml())?;
    is_complete(node, cluster, "os", "True").await?;
    wait_for_os(node, cluster, "v0.2.0").await?;
    let states = watch.end()?;
    let unready = states.iter().filter(|state| !state.starts_with("True"));
    ensure!(unready.count() == 0, "{states:#?}");
    let shown = cluster.node()?;
    println!("{}", shown["metadata"]["labels"]);
    ensure!(shown["spec"]["unschedulable"].is_null(), "it is cordoned");
    ensure!(shown["metadata"]["labels"][CARRIED_OUT].is_string());
    Ok(())
}

async fn is_complete(node: &Node, cluster: &Cluster, plan: &str, wanted: &str) -> Outcome {
    node.wait_until("the plan is carried out", 2 * PATIENCE, async || {
        let kubectl = cluster.plane.kubectl();
        let shown = kubectl.get(&["plan", plan, "-n", NAMESPACE])?;
        let conditions = shown["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        let complete = conditions.find(|it| it["type"] == "Complete");
        let complete = complete.with_context(|| format!("{:#}", shown["status"]))?;
        let reason = complete["reason"].as_str().unwrap_or_default();
        let is_meant = complete["status"] == wanted && ["Complete", "JobFailed"].contains(&reason);
        ensure!(is_meant, "{complete}");
        Ok(())
    })
    .await
}

async fn another_controller_finds_nothing_to_do(node: &Node, cluster: &Cluster) -> Outcome {
    let before = jobs(cluster)?;
    end_the_controller(node, cluster).await?;
    wait_for_the_controller(node, cluster).await?;
    is_complete(node, cluster, "os", "True").await?;
    let after = jobs(cluster)?;
    ensure!(before == after, "{before:?} became {after:?}");
    ensure!(after.len() == 1, "{after:?}");
    Ok(())
}

/// The pods of the controller.
const ITS_PODS: [&str; 4] = ["-n", NAMESPACE, "-l", "app=system-upgrade-controller"];

/// Ends the controller's pod; its Deployment makes another one.
async fn end_the_controller(node: &Node, cluster: &Cluster) -> Outcome {
    let before = pods_of_the_controller(cluster)?;
    let delete = ["delete", "--wait=false", "pod"];
    let kubectl = cluster.plane.kubectl();
    kubectl.run(&[&delete[..], &ITS_PODS].concat())?;
    node.wait_until("the controller has ended", PATIENCE, async || {
        let now = pods_of_the_controller(cluster)?;
        ensure!(now.is_disjoint(&before), "{now:?}");
        Ok(())
    })
    .await
}

fn pods_of_the_controller(cluster: &Cluster) -> anyhow::Result<BTreeSet<String>> {
    let which = [&["pods"], &ITS_PODS[..]].concat();
    let shown = cluster.plane.kubectl().get(&which)?;
    let pods = shown["items"].as_array().context("no list of pods")?;
    let names = pods.iter().map(|pod| pod["metadata"]["name"].to_string());
    Ok(names.collect())
}

async fn wait_for_the_controller(node: &Node, cluster: &Cluster) -> Outcome {
    let kubectl = cluster.plane.kubectl();
    node.wait_until("a controller runs", PATIENCE, async || {
        let shown = kubectl.get(&["deployment", "-n", NAMESPACE, "system-upgrade-controller"])?;
        ensure!(shown["status"]["readyReplicas"] == 1, "{}", shown["status"]);
        Ok(())
    })
    .await
}

/// The ids of all jobs.
fn jobs(cluster: &Cluster) -> anyhow::Result<Vec<String>> {
    let shown = cluster.plane.kubectl().get(&["jobs", "-n", NAMESPACE])?;
    let jobs = shown["items"].as_array().context("no list of jobs")?;
    let ids = jobs.iter().map(|job| job["metadata"]["uid"].to_string());
    Ok(ids.collect())
}

async fn whoever_asks_again_changes_nothing(
    node: &Node,
    cluster: &Cluster,
    site: &Site,
) -> Outcome {
    let boot = node.boot_id().await?;
    let image = format!("{}:v0.2.0", site.installer);
    let again = ["upgrade", "--if-needed", "--image", &image];
    let ends = call(node, cluster, site, "again", &[&again]).await?;
    ensure!(ends[0]["exitCode"] == 0, "{ends:?}");
    ensure!(boot == node.boot_id().await?, "it was upgraded again");
    Ok(())
}

async fn a_broken_version_is_tried_once(
    node: &Node,
    cluster: &Cluster,
    site: &Site,
    scratch: &Scratch,
) -> Outcome {
    let watch = Watch::start(node, cluster)?;
    let plan = site.plan("broken", BROKEN, "cordon: true");
    cluster.plane.kubectl().apply("broken", &plan.yaml())?;
    is_complete(node, cluster, "broken", "False").await?;
    watch.end()?;
    let told = reasons(cluster, "broken")?;
    println!("{told:#?}");
    ensure!(
        told.len() == 2 && told.iter().all(|it| it.contains(REASON)),
        "{told:#?}"
    );
    ensure!(told[1].contains("failed here before"), "{told:#?}");
    let version = node.version().await?.tag;
    ensure!(version == "v0.2.0", "{version} runs");
    it_failed_once(node, scratch).await
}

/// The messages of the attempts of a plan's job at their ends, the first attempt first.
fn reasons(cluster: &Cluster, plan: &str) -> anyhow::Result<Vec<String>> {
    let label = format!("upgrade.cattle.io/plan={plan}");
    let which = [
        "pods",
        "-n",
        NAMESPACE,
        "-l",
        &label,
        "--sort-by=.metadata.creationTimestamp",
    ];
    let shown = cluster.plane.kubectl().get(&which)?;
    let pods = shown["items"].as_array().context("no list of pods")?;
    let told = pods.iter().flat_map(ends);
    Ok(told.map(|end| end["message"].to_string()).collect())
}

async fn it_failed_once(node: &Node, scratch: &Scratch) -> Outcome {
    let operator = Operator::of(node, scratch)?;
    let said = operator.run(&["get", "upgrades", "-o", "json"]).await?;
    let failures = said.output.matches("\"failed\"").count();
    ensure!(failures == 1, "{said:?}");
    Ok(())
}
