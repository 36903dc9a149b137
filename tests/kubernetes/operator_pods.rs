//! The operator as people install it: by helm, as pods of the nodes that it upgrades.

use anyhow::{Context as _, ensure};
use instar_pki::Role;
use instar_tests::{
    HOST_FOR_GUEST, Helm, Identity, Node, Outcome, Scratch, Test, chapters, push_operator_image,
    tests, workspace_root,
};

use crate::cluster::Cluster;
use crate::node_upgrades::{NAMES, boot, column, eventually, is_told, pool};

/// The namespace of the operator, and the name of its release.
const NAMESPACE: &str = "instar-system";
const RELEASE: &str = "instar-operator";
/// The tags of the operator's image: that of the installation, and that of the newer operator.
const TAGS: [&str; 2] = ["v0.1.0", "v0.1.1"];
/// Helm's own limit for pods to be ready.
const WAIT: [&str; 2] = ["--wait", "--timeout=9m"];

pub(crate) fn tests() -> Vec<Test> {
    tests![the_operator_upgrades_its_own_nodes]
}

async fn the_operator_upgrades_its_own_nodes(scratch: Scratch) -> Outcome {
    let site = Site::start(&scratch).await?;
    chapters![
        helm_installs_it_onto_one_of_the_nodes(&site),
        its_own_node_is_upgraded_last_and_under_it(&site),
        helm_replaces_it_by_a_newer_one(&site),
        helm_removes_it_and_leaves_the_pool(&site),
    ]
    .await
}

/// Two machines as nodes, which pods reach at ports of this host.
struct Site {
    cluster: Cluster,
    helm: Helm,
    /// The operator's image in a guest, without a tag.
    image: String,
    // They end last.
    nodes: Vec<Node>,
}

impl Site {
    async fn start(scratch: &Scratch) -> anyhow::Result<Self> {
        let cluster = Cluster::start(scratch)?;
        let image = push_operator_image(&cluster.registry, &TAGS)?;
        let identity = Identity::administrator()?;
        let nodes = boot(&cluster, &identity, &NAMES, scratch).await?;
        let site = Self {
            helm: Helm::of(&cluster.plane, scratch)?,
            cluster,
            image,
            nodes,
        };
        site.tell_where_the_nodes_are()?;
        site.give_the_operator_what_it_needs(&identity, scratch)?;
        Ok(site)
    }

    fn tell_where_the_nodes_are(&self) -> Outcome {
        let kubectl = self.cluster.plane.kubectl();
        for (name, node) in NAMES.iter().zip(&self.nodes) {
            let address = node.endpoint()?.replace("127.0.0.1", HOST_FOR_GUEST);
            let address = format!("instar.dev/api-address={address}");
            kubectl.run(&["annotate", "--overwrite", "node", name, &address])?;
        }
        Ok(())
    }

    /// The namespace, the way to the nodes, and the way to the API server: this cluster has no kube-proxy.
    fn give_the_operator_what_it_needs(&self, identity: &Identity, scratch: &Scratch) -> Outcome {
        let upgrader = identity.with_role(Role::Upgrader)?;
        let config = upgrader.client_config("127.0.0.1")?;
        let config = scratch.write("operator.talosconfig", config)?;
        let config = format!("--from-file=config={}", config.display());
        let port = self.cluster.plane.port();
        let host = format!("--from-literal=KUBERNETES_SERVICE_HOST={HOST_FOR_GUEST}");
        let port = format!("--from-literal=KUBERNETES_SERVICE_PORT={port}");
        self.create(&["namespace", NAMESPACE])?;
        let secret = ["secret", "generic", "instar-operator-talosconfig", &config];
        self.create(&secret)?;
        self.create(&["configmap", "instar-operator-environment", &host, &port])
    }

    fn create(&self, what: &[&str]) -> Outcome {
        let kubectl = self.cluster.plane.kubectl();
        let words = [&["create", "-n", NAMESPACE], what].concat();
        kubectl.run(&words).map(drop)
    }

    /// Runs helm with the chart and the operator's image of this tag.
    fn helm(&self, command: &str, tag: &str) -> Outcome {
        let chart = workspace_root().join("operator/chart");
        let chart = chart.to_str().context("a path that is no text")?;
        let image = format!("image={}:{tag}", self.image);
        let words = [command, RELEASE, chart, "--set", &image];
        let said = self.helm.run(NAMESPACE, &[&words[..], &WAIT].concat())?;
        println!("{said}");
        Ok(())
    }

    /// The operator that drives: its pod's name, node, image and count of restarts.
    fn driver(&self) -> anyhow::Result<Driver> {
        let kubectl = self.cluster.plane.kubectl();
        let lease = kubectl.get(&["lease", RELEASE, "-n", NAMESPACE])?;
        let name = lease["spec"]["holderIdentity"].as_str();
        let name = name
            .filter(|name| !name.is_empty())
            .context("nobody drives")?;
        let pod = kubectl.get(&["pod", name, "-n", NAMESPACE])?;
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        Ok(Driver {
            name: name.to_owned(),
            node: text(&pod["spec"]["nodeName"]),
            image: text(&pod["spec"]["containers"][0]["image"]),
            restarts: pod["status"]["containerStatuses"][0]["restartCount"].as_u64(),
        })
    }

    /// When the upgrade of a node in the first rollout ended.
    fn ended(&self, node: &str) -> anyhow::Result<String> {
        let upgrade = format!("lab.{node}.1");
        let shown = self
            .cluster
            .plane
            .kubectl()
            .get(&["nodeupgrade", &upgrade])?;
        Ok(column(&shown, "ended"))
    }
}

/// A pod with the lease.
#[derive(Debug, PartialEq, Eq)]
struct Driver {
    name: String,
    node: String,
    image: String,
    restarts: Option<u64>,
}

/// Onto the first node: by its name it would be upgraded first.
async fn helm_installs_it_onto_one_of_the_nodes(site: &Site) -> Outcome {
    let kubectl = site.cluster.plane.kubectl();
    kubectl.run(&["cordon", NAMES[1]])?;
    site.helm("install", TAGS[0])?;
    kubectl.run(&["uncordon", NAMES[1]])?;
    let driver = eventually("an operator drives", || site.driver()).await?;
    println!("{driver:?}");
    ensure!(driver.node == NAMES[0], "{driver:?}");
    Ok(())
}

async fn its_own_node_is_upgraded_last_and_under_it(site: &Site) -> Outcome {
    let plane = &site.cluster.plane;
    let before = site.driver()?;
    let image = site.cluster.registry.installer_for_guest("v0.2.0");
    plane
        .kubectl()
        .apply("lab", &pool("lab", "r1", &image, ""))?;
    is_told(plane, "lab", "Done", "2 of 2 nodes run v0.2.0").await?;
    println!("{}", plane.kubectl().run(&["get", "nodeupgrades"])?);
    let [own, other] = [site.ended(NAMES[0])?, site.ended(NAMES[1])?];
    ensure!(!other.is_empty() && other < own, "{own} and {other}");
    let after = site.driver()?;
    ensure!(after == before, "{before:?} became {after:?}");
    Ok(())
}

async fn helm_replaces_it_by_a_newer_one(site: &Site) -> Outcome {
    site.helm("upgrade", TAGS[1])?;
    let newer = format!("{}:{}", site.image, TAGS[1]);
    let driver = eventually("the newer operator drives", || {
        let driver = site.driver()?;
        ensure!(driver.image == newer, "{driver:?}");
        Ok(driver)
    });
    println!("{:?}", driver.await?);
    let image = site.cluster.registry.installer_for_guest("v0.2.0");
    let paused = pool("lab", "r1", &image, "  paused: true\n");
    site.cluster.plane.kubectl().apply("lab", &paused)?;
    is_told(&site.cluster.plane, "lab", "Done", "2 of 2").await
}

async fn helm_removes_it_and_leaves_the_pool(site: &Site) -> Outcome {
    println!("{}", site.helm.run(NAMESPACE, &["uninstall", RELEASE])?);
    let kubectl = site.cluster.plane.kubectl();
    let role = kubectl.get(&["clusterrole", RELEASE]);
    ensure!(role.is_err(), "its rights are left: {role:?}");
    let pool = kubectl.get(&["pool", "lab"])?;
    ensure!(column(&pool, "phase") == "Done", "{}", pool["status"]);
    Ok(())
}
