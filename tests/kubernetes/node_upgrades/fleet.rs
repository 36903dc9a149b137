//! Machines as nodes of a cluster, and the operator beside its control plane.

use std::cell::RefCell;

use anyhow::{Context as _, ensure};
use instar_pki::Role;
use instar_rollout_driver::replay_file;
use instar_tests::{
    FleetOperator, Identity, ImageUnderTest, Instarctl, Node, OciImage, Outcome, Scratch,
    install_fleet_operator,
};

use super::told::{column, is_told};
use super::{eventually, pool};
use crate::cluster::Cluster;
use crate::cordons::Cordons;
use crate::manifests;
use crate::shown::is_ready;
use crate::{LIFETIME, START};

/// The nodes, in the order in which they go.
pub(crate) const NAMES: [&str; 2] = ["worker-1", "worker-2"];
/// The version that gives itself up, and why.
pub(crate) const BROKEN: &str = "v0.3.0";
pub(crate) const REASON: &str = "the moon is full";

/// The host of the nodes' APIs.
const HOST: &str = "127.0.0.1";

pub(super) struct Fleet {
    pub(super) cluster: Cluster,
    operator: Option<FleetOperator>,
    /// The operator's way to the nodes.
    client_config: String,
    /// The way by which configs may be changed, and machines replaced.
    administrator: String,
    cordons: RefCell<Cordons>,
    // They end last.
    pub(super) nodes: Vec<Node>,
}

impl Fleet {
    /// Boots both machines, has them join, and starts the operator.
    pub(super) async fn start(scratch: &Scratch) -> anyhow::Result<Self> {
        Self::start_with(scratch, &NAMES).await
    }

    /// The same with machines of these names.
    pub(super) async fn start_with(scratch: &Scratch, names: &[&str]) -> anyhow::Result<Self> {
        let cluster = Cluster::start(scratch)?;
        push_versions(&cluster, scratch)?;
        let identity = Identity::administrator()?;
        let nodes = boot(&cluster, &identity, names, scratch).await?;
        Self::of(cluster, &identity, nodes, scratch)
    }

    /// The same with the first machine alone, which boots from its disk.
    pub(super) async fn start_from_disk(scratch: &Scratch) -> anyhow::Result<Self> {
        let cluster = Cluster::start(scratch)?;
        let identity = Identity::administrator()?;
        let node = cluster.plan_installation(scratch, identity.twin()?, LIFETIME)?;
        let node = node.start()?;
        node.wait_until_installed("v0.1.0", START).await?;
        join(&cluster, &node, NAMES[0]).await?;
        Self::of(cluster, &identity, vec![node], scratch)
    }

    fn of(
        cluster: Cluster,
        identity: &Identity,
        nodes: Vec<Node>,
        scratch: &Scratch,
    ) -> anyhow::Result<Self> {
        install_fleet_operator(&cluster.plane)?;
        let mut fleet = Self {
            cordons: RefCell::new(Cordons::watch(cluster.plane.kubectl())?),
            cluster,
            operator: None,
            client_config: identity.with_role(Role::Upgrader)?.client_config(HOST)?,
            administrator: identity.client_config(HOST)?,
            nodes,
        };
        fleet.restart_operator(scratch, "first")?;
        Ok(fleet)
    }

    /// Kills the operator; another one takes its place.
    pub(super) fn restart_operator(&mut self, scratch: &Scratch, name: &str) -> Outcome {
        if let Some(operator) = self.operator.take() {
            println!("{}", operator.log()?);
            let trace = operator.trace("lab");
            operator.kill();
            replay_file(&trace)?;
        }
        let plane = &self.cluster.plane;
        self.operator = Some(FleetOperator::start(
            plane,
            scratch,
            name,
            &self.client_config,
        )?);
        Ok(())
    }

    /// Puts the rounds of the operator that runs through the engine: it has to come to the same actions, and to keep the model's promises.
    pub(super) fn replay(&self) -> Outcome {
        let operator = self.operator.as_ref().context("no operator runs")?;
        let replayed = replay_file(&operator.trace("lab"))?;
        println!("{replayed:?}");
        ensure!(replayed.actions > 0, "{replayed:?}");
        Ok(())
    }

    /// Gives the operator that runs the administrator's rights.
    pub(super) fn give_it_all_rights(&self) -> Outcome {
        let operator = self.operator.as_ref().context("no operator runs")?;
        operator.give_it_all_rights(&self.administrator)
    }

    /// Has the pool name this image; `rest` are more lines of its spec.
    pub(super) fn roll(&self, image: &str, rest: &str) -> Outcome {
        let kubectl = self.cluster.plane.kubectl();
        kubectl.apply("lab", &pool("lab", "r1", image, rest))
    }

    /// Gives a person's command, and waits until the operator has taken it.
    pub(super) async fn command(&self, command: &str) -> Outcome {
        let kubectl = self.cluster.plane.kubectl();
        let annotation = format!("instar.dev/command={command}");
        kubectl.run(&["annotate", "pool", "lab", &annotation])?;
        eventually("the command is taken", || {
            let shown = kubectl.get(&["pool", "lab"])?;
            let left = &shown["metadata"]["annotations"]["instar.dev/command"];
            ensure!(left.is_null(), "{left}");
            Ok(())
        })
        .await
    }

    /// Waits until the pool is in a phase, and says this.
    pub(super) async fn told(&self, phase: &str, words: &str) -> Outcome {
        is_told(&self.cluster.plane, "lab", phase, words).await
    }

    /// Prints what kubectl says.
    pub(super) fn print(&self, command: &[&str]) -> Outcome {
        println!("{}", self.cluster.plane.kubectl().run(command)?);
        Ok(())
    }

    /// The image of a version, in a guest.
    pub(super) fn image(&self, version: &str) -> String {
        self.cluster.registry.installer_for_guest(version)
    }

    /// Pushes an image of v0.2.0 with another kernel, so that the machine would reboot, and an installer that is no program; returns its name in a
    /// guest. Each number is another image.
    pub(super) fn push_that_reboots(&self, number: u8) -> anyhow::Result<String> {
        let kernel = format!("{number:02x}").repeat(32);
        let image = self.second()?.label("dev.instar.kernel.blake3", &kernel);
        let image = image.with_file("usr/bin/installer", b"no program at all")?;
        self.push(image, &rebooting(number))?;
        Ok(self.rebooting_image(number))
    }

    /// The name of such an image in a guest.
    pub(super) fn rebooting_image(&self, number: u8) -> String {
        let image = format!("{}:v0.2.0", rebooting(number));
        self.cluster.registry.image_for_guest(&image)
    }

    /// Pushes another image of v0.2.0; returns its name in a guest.
    pub(super) fn push_another(&self) -> anyhow::Result<String> {
        let image = self.second()?.label("org.example.edition", "2");
        self.push(image, "instar/another")
    }

    fn second(&self) -> anyhow::Result<OciImage> {
        let image = OciImage::read(&ImageUnderTest::second()?.installer())?;
        Ok(image.first_layer_alone())
    }

    fn push(&self, image: OciImage, repository: &str) -> anyhow::Result<String> {
        let registry = &self.cluster.registry;
        image.push(registry, repository, "v0.2.0")?;
        Ok(registry.image_for_guest(&format!("{repository}:v0.2.0")))
    }

    /// Runs the pod with a disruption budget, or waits until it runs again; returns its id.
    pub(super) async fn run_guarded_pod(&self, node: &str) -> anyhow::Result<String> {
        let kubectl = self.cluster.plane.kubectl();
        if kubectl.get(&["deployment", "guarded"]).is_err() {
            let manifest = manifests::guarded(&self.cluster.greeter(), node);
            kubectl.apply("guarded", &manifest)?;
        }
        eventually("the guarded pod runs", || self.ready_guarded_pod()).await
    }

    fn ready_guarded_pod(&self) -> anyhow::Result<String> {
        let kubectl = self.cluster.plane.kubectl();
        let shown = kubectl.get(&["deployment", "guarded"])?;
        let status = &shown["status"];
        ensure!(status["readyReplicas"] == 1, "{status:#}");
        self.guarded_pod()
    }

    /// The id of the pod with a disruption budget.
    pub(super) fn guarded_pod(&self) -> anyhow::Result<String> {
        let which = ["pods", "-l", "app=guarded"];
        let shown = self.cluster.plane.kubectl().get(&which)?;
        let pods = shown["items"].as_array().context("no list")?;
        ensure!(pods.len() == 1, "{} pods", pods.len());
        Ok(pods[0]["metadata"]["uid"].to_string())
    }

    pub(super) fn is_cordoned(&self, name: &str) -> anyhow::Result<bool> {
        let shown = self.cluster.plane.kubectl().get(&["node", name])?;
        Ok(shown["spec"]["unschedulable"] == true)
    }

    pub(super) fn is_ready(&self, name: &str) -> anyhow::Result<bool> {
        let shown = self.cluster.plane.kubectl().get(&["node", name])?;
        Ok(is_ready(&shown))
    }

    pub(super) async fn wait_until_uncordoned(&self, name: &str) -> Outcome {
        eventually(&format!("{name} is uncordoned"), || {
            ensure!(!self.is_cordoned(name)?, "it is cordoned");
            Ok(())
        })
        .await
    }

    pub(super) async fn wait_for_label(&self, name: &str, version: &str) -> Outcome {
        eventually(&format!("{name} runs {version}"), || {
            let shown = self.cluster.plane.kubectl().get(&["node", name])?;
            let label = &shown["metadata"]["labels"]["instar.dev/version"];
            ensure!(label == version, "{label}");
            Ok(())
        })
        .await
    }

    /// Waits until a NodeUpgrade is in a phase.
    pub(super) async fn wait_for_phase(&self, upgrade: &str, phase: &str) -> Outcome {
        eventually(&format!("{upgrade} is {phase}"), || {
            let shown = self
                .cluster
                .plane
                .kubectl()
                .get(&["nodeupgrade", upgrade])?;
            ensure!(column(&shown, "phase") == phase, "{:#}", shown["status"]);
            Ok(())
        })
        .await
    }

    /// The certificate of a kubelet reads its own node alone, and others where the cluster lets it.
    pub(super) async fn they_list_those_that_they_may_read(&self, scratch: &Scratch) -> Outcome {
        let node = self.nodes.first().context("no node")?;
        let client = Instarctl::of(node, &scratch.below("members")?)?;
        let alone = listed(&client).await?;
        ensure!(alone == [true, false], "{alone:?} of {NAMES:?}");
        let kubectl = self.cluster.plane.kubectl();
        kubectl.apply("readers", manifests::READERS_OF_NODES)?;
        node.wait_until("it lists both nodes", crate::PATIENCE, async || {
            let both = listed(&client).await?;
            ensure!(both == [true, true], "{both:?} of {NAMES:?}");
            Ok(())
        })
        .await
    }

    /// Each of these nodes was cordoned, and never two at once.
    pub(super) fn never_two_at_once(&self, names: &[&str]) -> Outcome {
        self.cordons.borrow_mut().were_one_at_a_time(names)
    }

    /// Kills the API server; another one takes its place.
    pub(super) fn restart_api_server(&mut self) -> Outcome {
        self.cluster.plane.restart_api_server()?;
        let kubectl = self.cluster.plane.kubectl();
        self.cordons.borrow_mut().watch_again(kubectl)
    }

    /// Cuts the power of the last machine, and turns it on again.
    pub(super) fn turn_the_last_off_and_on(&mut self) -> Outcome {
        let last = self.nodes.pop().context("no machine")?;
        self.nodes.push(last.turn_off_and_on()?);
        Ok(())
    }
}

/// The repository of an image that would have a machine reboot.
fn rebooting(number: u8) -> String {
    format!("instar/rebooting-{number}")
}

/// Which nodes a node lists as members.
async fn listed(client: &Instarctl) -> anyhow::Result<[bool; 2]> {
    let said = client.run(&["get", "members"]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    Ok(NAMES.map(|name| said.output.contains(name)))
}

/// Boots machines of these names, and has them join.
pub(crate) async fn boot(
    cluster: &Cluster,
    identity: &Identity,
    names: &[&str],
    scratch: &Scratch,
) -> anyhow::Result<Vec<Node>> {
    let mut nodes = Vec::new();
    for name in names {
        let node = cluster.plan_fleet_node(scratch, identity, name)?;
        let node = node.boot().await?;
        join(cluster, &node, name).await?;
        nodes.push(node);
    }
    Ok(nodes)
}

/// The registry gets the first version as well, and one that gives itself up.
pub(crate) fn push_versions(cluster: &Cluster, scratch: &Scratch) -> Outcome {
    let registry = &cluster.registry;
    registry.push_installer_without_kernel(&ImageUnderTest::first()?)?;
    let broken = OciImage::read(&ImageUnderTest::second()?.installer())?;
    let broken = broken.first_layer_alone();
    let broken = broken.giving_up(scratch, BROKEN, REASON)?;
    broken.push(registry, "instar/installer", BROKEN).map(drop)
}

/// Waits until the node is ready, and says where its API is: behind a port of this host.
pub(crate) async fn join(cluster: &Cluster, node: &Node, name: &str) -> Outcome {
    let kubectl = cluster.plane.kubectl();
    eventually("the node appears", || kubectl.get(&["node", name])).await?;
    let address = format!("instar.dev/api-address={}", node.endpoint()?);
    kubectl.run(&["annotate", "node", name, &address])?;
    kubectl.run(&["label", "node", name, "rack=r1"])?;
    kubectl.apply("network", &manifests::network(&cluster.greeter()))?;
    eventually("the node is ready", || {
        let shown = kubectl.get(&["node", name])?;
        ensure!(is_ready(&shown), "{:#}", shown["status"]["conditions"]);
        Ok(())
    })
    .await
}

/// The operator's rounds were written down.
pub(super) async fn the_engine_comes_to_the_same_actions(fleet: &Fleet) -> Outcome {
    fleet.replay()
}
