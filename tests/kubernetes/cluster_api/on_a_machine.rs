//! The same with a machine: the operator upgrades it, and the extension is killed meanwhile.

use anyhow::ensure;
use instar_pki::Role;
use instar_tests::{
    CapiExtension, ClusterApi, FleetOperator, Identity, Node, Outcome, Scratch, Test, chapters,
    install_fleet_operator, tests,
};
use serde_json::json;

use super::objects::{self, condition, machine, mark, uid};
use crate::cluster::{Cluster, NAME};
use crate::node_upgrades::{BROKEN, REASON, eventually, join, push_versions};

pub(super) fn tests() -> Vec<Test> {
    tests![a_machine_gets_another_image_in_place]
}

/// A cluster, its operator, its node, and Cluster API around them.
struct Lab {
    extension: CapiExtension,
    operator: FleetOperator,
    _manager: ClusterApi,
    cluster: Cluster,
    _node: Node,
    /// The id of the Machine.
    uid: String,
}

/// A machine that has joined the cluster as a node.
async fn boot(cluster: &Cluster, scratch: &Scratch, identity: &Identity) -> anyhow::Result<Node> {
    let plan = cluster.plan_fleet_node(scratch, identity, NAME)?;
    let node = plan.boot().await?;
    join(cluster, &node, NAME).await?;
    Ok(node)
}

impl Lab {
    async fn start(scratch: &Scratch) -> anyhow::Result<Self> {
        let cluster = Cluster::start(scratch)?;
        push_versions(&cluster, scratch)?;
        install_fleet_operator(&cluster.plane)?;
        let identity = Identity::administrator()?;
        let node = boot(&cluster, scratch, &identity).await?;
        let upgrader = identity.with_role(Role::Upgrader)?;
        let config = upgrader.client_config("127.0.0.1")?;
        Ok(Self {
            operator: FleetOperator::start(&cluster.plane, scratch, "operator", &config)?,
            _manager: ClusterApi::start(&cluster.plane, scratch)?,
            extension: CapiExtension::start(&cluster.plane, scratch)?,
            cluster,
            _node: node,
            uid: String::new(),
        })
    }

    /// The operator has asked the node to change.
    fn upgrades(&self) -> Outcome {
        let upgrade = format!("machine-{}.{NAME}.1", self.uid);
        let kubectl = self.cluster.plane.kubectl();
        let shown = kubectl.get(&["nodeupgrade", &upgrade])?;
        ensure!(
            shown["status"]["phase"] == "Upgrading",
            "{:#}",
            shown["status"]
        );
        Ok(())
    }

    /// Cluster API calls the update finished, and it is the same Machine.
    fn is_updated(&self) -> Outcome {
        let machine = machine(&self.cluster.plane)?;
        ensure!(uid(&machine) == self.uid, "it was replaced");
        for (kind, words) in [("Updating", "NotUpdating"), ("UpToDate", "True")] {
            let condition = condition(&machine, kind);
            ensure!(condition.contains(words), "{condition}");
        }
        ensure!(mark(&machine).is_empty(), "{machine:#}");
        Ok(())
    }

    /// The update has failed for the reason that the version gave, and it is the same Machine.
    fn has_failed(&self) -> Outcome {
        let log = self.extension.log()?;
        ensure!(log.contains(REASON), "no word of the reason");
        let machine = machine(&self.cluster.plane)?;
        let updating = condition(&machine, "Updating");
        ensure!(updating.contains("InPlaceUpdateFailed"), "{updating}");
        ensure!(uid(&machine) == self.uid, "it was replaced");
        ensure!(mark(&machine) == "instar-capi-extension", "{machine:#}");
        Ok(())
    }

    fn image(&self, version: &str) -> String {
        self.cluster.registry.installer_for_guest(version)
    }
}

async fn a_machine_gets_another_image_in_place(scratch: Scratch) -> Outcome {
    let mut lab = Lab::start(&scratch).await?;
    let done = chapters![
        the_node_is_a_machine(&mut lab),
        the_upgrade_begins_and_the_machine_is_protected(&lab),
        the_extension_is_killed_and_comes_back(&mut lab),
        the_same_machine_runs_the_image(&lab),
        exactly_one_upgrade_ran(&lab),
        a_version_that_gives_itself_up_replaces_nothing(&lab),
    ]
    .await;
    println!("{}\n{}", lab.operator.log()?, lab.extension.log()?);
    done
}

async fn the_node_is_a_machine(lab: &mut Lab) -> Outcome {
    let plane = &lab.cluster.plane;
    let settings = json!({"neverReplace": "true"});
    objects::register(plane, &lab.extension.url(), &settings)?;
    objects::make_cluster(plane, &lab.image("v0.1.0"))?;
    eventually("its objects", || objects::provide_worker(plane, NAME)).await?;
    lab.uid = eventually("its node", || objects::machine_of(plane, NAME)).await?;
    Ok(())
}

async fn the_upgrade_begins_and_the_machine_is_protected(lab: &Lab) -> Outcome {
    let plane = &lab.cluster.plane;
    let spec = json!({"osImage": lab.image("v0.2.0"), "memoryMiB": 1024});
    objects::template(plane, "v2", &spec)?;
    objects::roll(plane, "v2")?;
    eventually("the node upgrades", || lab.upgrades()).await?;
    let machine = machine(plane)?;
    ensure!(mark(&machine) == "instar-capi-extension", "{machine:#}");
    Ok(())
}

async fn the_extension_is_killed_and_comes_back(lab: &mut Lab) -> Outcome {
    lab.extension.kill();
    let plane = &lab.cluster.plane;
    eventually("the manager misses it", || {
        let updating = condition(&machine(plane)?, "Updating");
        ensure!(updating.contains("InPlaceUpdateFailed"), "{updating}");
        Ok(())
    })
    .await?;
    lab.extension.restart()
}

async fn the_same_machine_runs_the_image(lab: &Lab) -> Outcome {
    eventually("the update has ended", || lab.is_updated()).await?;
    let node = lab.cluster.node()?;
    let version = &node["metadata"]["labels"]["instar.dev/version"];
    ensure!(version == "v0.2.0", "{version}");
    ensure!(node["spec"]["unschedulable"].is_null(), "{node:#}");
    Ok(())
}

/// Also the calls after the extension came back have begun none.
async fn exactly_one_upgrade_ran(lab: &Lab) -> Outcome {
    let log = lab.operator.log()?;
    let rollouts = log
        .lines()
        .filter(|line| line.contains(": rollout "))
        .count();
    ensure!(rollouts == 1, "{rollouts} rollouts");
    objects::no_pool_is_left(&lab.cluster.plane)
}

/// The node is back at its version, and the Machine, which is never to be replaced, keeps its mark.
async fn a_version_that_gives_itself_up_replaces_nothing(lab: &Lab) -> Outcome {
    let plane = &lab.cluster.plane;
    let spec = json!({"osImage": lab.image(BROKEN), "memoryMiB": 1024});
    objects::template(plane, "v3", &spec)?;
    objects::roll(plane, "v3")?;
    eventually("the failure", || lab.has_failed()).await?;
    let node = lab.cluster.node()?;
    let version = &node["metadata"]["labels"]["instar.dev/version"];
    ensure!(version == "v0.2.0", "{version}");
    ensure!(node["spec"]["unschedulable"].is_null(), "{node:#}");
    Ok(())
}
