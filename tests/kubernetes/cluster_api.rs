//! Machines of Cluster API that get another OS image in place: the real core manager calls the extension server.

mod objects;
mod on_a_machine;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::ensure;
use instar_tests::{
    CapiExtension, ClusterApi, ControlPlane, Outcome, Scratch, Test, chapters,
    install_fleet_operator, tests,
};
use serde_json::json;

use self::objects::{condition, machine, machines, mark, patch_status, uid};
use crate::node_upgrades::{eventually, granted};

pub(crate) fn tests() -> Vec<Test> {
    [
        tests![the_manager_and_the_extension_agree],
        on_a_machine::tests(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

const FIRST: &str = "registry.example/installer:v0.1.0";
const SECOND: &str = "registry.example/installer:v0.2.0";

/// The manager is real, and the node and its operator are objects that the test writes: each answer of the extension is seen by what the manager
/// makes of it.
async fn the_manager_and_the_extension_agree(scratch: Scratch) -> Outcome {
    let plane = ControlPlane::start(&scratch)?;
    install_fleet_operator(&plane)?;
    let manager = ClusterApi::start(&plane, &scratch)?;
    let mut lab = Lab {
        extension: CapiExtension::start(&plane, &scratch)?,
        plane,
        manager,
        uid: String::new(),
        beats: Cell::new(0),
    };
    chapters![
        the_extension_is_discovered(&lab),
        a_machine_becomes_a_node(&mut lab),
        another_image_makes_a_pool_and_protects_the_machine(&lab),
        a_killed_extension_goes_on(&mut lab),
        a_failure_is_told_and_replaces_nothing(&lab),
        the_update_ends_once_the_node_runs_the_image(&lab),
        what_cannot_change_in_place_stops_where_nothing_is_replaced(&lab),
        it_is_replaced_where_that_is_allowed(&lab),
        every_right_was_used(&lab),
    ]
    .await
}

/// The cluster, its manager, and the extension.
struct Lab {
    extension: CapiExtension,
    plane: ControlPlane,
    manager: ClusterApi,
    /// The id of the Machine.
    uid: String,
    /// How often its nodes were said to be alive.
    beats: Cell<u32>,
}

impl Lab {
    /// Waits for something. The nodes are objects alone: the test says for them that they are alive.
    async fn seen<T>(&self, what: &str, look: impl Fn() -> anyhow::Result<T>) -> anyhow::Result<T> {
        let seen = eventually(what, || {
            self.nodes_live()?;
            look()
        });
        let seen = seen.await;
        if seen.is_err() {
            println!("{}\n{}", self.manager.log()?, self.extension.log()?);
        }
        seen
    }

    fn nodes_live(&self) -> Outcome {
        // That it changes is all that counts.
        self.beats.set(self.beats.get() + 1);
        let (minute, second) = (self.beats.get() / 60 % 60, self.beats.get() % 60);
        let now = format!("2026-01-01T00:{minute:02}:{second:02}Z");
        let conditions = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"].map(|kind| {
            let status = if kind == "Ready" { "True" } else { "False" };
            json!({"type": kind, "status": status, "reason": "T", "message": "t", "lastHeartbeatTime": now})
        });
        let ready = json!({"status": {"conditions": conditions}});
        for node in ["node/control-plane", "node/worker"] {
            patch_status(&self.plane, node, &ready.to_string())?;
        }
        Ok(())
    }

    fn pool(&self) -> String {
        format!("pool/machine-{}", self.uid)
    }

    /// Says what the operator would say of the pool.
    fn operator_says(&self, phase: &str, message: &str, updated: u32) -> Outcome {
        let pool = self.plane.kubectl().get(&[&self.pool()])?;
        let condition = json!({
            "type": "Updated", "status": if updated == 1 { "True" } else { "False" }, "reason": phase, "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let status = json!({"status": {
            "observedGeneration": pool["metadata"]["generation"], "phase": phase, "message": message, "nodes": 1, "updated": updated,
            "failed": 0, "conditions": [condition], "rollout": {"number": 1, "image": pool["spec"]["image"], "record": {}},
        }});
        patch_status(&self.plane, &self.pool(), &status.to_string())
    }

    /// Waits until the Machine's condition `Updating` has these words, and its mark is there or not; it is still the same Machine.
    async fn is_updating(&self, words: &str, is_marked: bool) -> Outcome {
        let what = format!("the Machine is updating: {words}");
        self.seen(&what, || {
            let machine = machine(&self.plane)?;
            ensure!(uid(&machine) == self.uid, "it was replaced");
            let updating = condition(&machine, "Updating");
            ensure!(updating.contains(words), "{updating}");
            ensure!(mark(&machine).is_empty() != is_marked, "{machine:#}");
            println!("{updating}");
            Ok(())
        })
        .await
    }
}

async fn the_extension_is_discovered(lab: &Lab) -> Outcome {
    objects::register(&lab.plane, &lab.extension.url(), &json!({}))?;
    eventually("the extension is discovered", || {
        let shown = lab.plane.kubectl().get(&["extensionconfig", "instar"])?;
        let discovered = condition(&shown, "Discovered");
        ensure!(discovered.starts_with("True"), "{discovered}");
        ensure!(shown["status"]["handlers"].as_array().map(Vec::len) == Some(3));
        Ok(())
    })
    .await
}

async fn a_machine_becomes_a_node(lab: &mut Lab) -> Outcome {
    let node = "apiVersion: v1\nkind: Node\nmetadata: {name: worker, labels: {kubernetes.io/hostname: worker}}\n";
    lab.plane.kubectl().apply("worker", node)?;
    objects::make_cluster(&lab.plane, FIRST)?;
    lab.seen("the machine's objects", || {
        objects::provide(&lab.plane, "worker")
    })
    .await?;
    let running = lab.seen("the Machine has its node", || {
        let machine = machine(&lab.plane)?;
        ensure!(
            machine["status"]["nodeRef"]["name"] == "worker",
            "{machine:#}"
        );
        ensure!(
            condition(&machine, "NodeHealthy").starts_with("True"),
            "{machine:#}"
        );
        Ok(uid(&machine))
    });
    lab.uid = running.await?;
    Ok(())
}

async fn another_image_makes_a_pool_and_protects_the_machine(lab: &Lab) -> Outcome {
    let spec = json!({"osImage": SECOND, "memoryMiB": 1024});
    objects::template(&lab.plane, "v2", &spec)?;
    objects::roll(&lab.plane, "v2")?;
    lab.is_updating("the operator has not taken up the pool yet", true)
        .await?;
    let pool = lab.plane.kubectl().get(&[&lab.pool()])?;
    let selected = &pool["spec"]["nodeSelector"]["matchLabels"]["kubernetes.io/hostname"];
    ensure!(
        selected == "worker" && pool["spec"]["image"] == SECOND,
        "{pool:#}"
    );
    let owner = &pool["metadata"]["ownerReferences"][0];
    ensure!(
        owner["kind"] == "Node" && owner["name"] == "worker",
        "{owner}"
    );
    Ok(())
}

async fn a_killed_extension_goes_on(lab: &mut Lab) -> Outcome {
    lab.extension.kill();
    lab.operator_says("Rolling", "under way: worker", 0)?;
    lab.is_updating("InPlaceUpdateFailed", true).await?;
    lab.extension.restart()?;
    lab.is_updating("under way: worker", true).await
}

/// The mark is gone: a node that is dead may be remediated. A person has it tried again.
async fn a_failure_is_told_and_replaces_nothing(lab: &Lab) -> Outcome {
    lab.operator_says("Halted", "stopped: the moon is full", 0)?;
    lab.is_updating("InPlaceUpdateFailed", false).await?;
    lab.seen("the manager's log says why", || {
        let log = lab.manager.log()?;
        ensure!(log.contains("the moon is full"), "no word of it");
        Ok(())
    })
    .await?;
    lab.operator_says("Rolling", "once more: worker", 0)?;
    lab.is_updating("once more: worker", true).await
}

async fn the_update_ends_once_the_node_runs_the_image(lab: &Lab) -> Outcome {
    lab.operator_says("Done", "1 of 1 nodes", 1)?;
    lab.is_updating("NotUpdating", false).await?;
    let pools = lab.plane.kubectl().get(&["pools"])?;
    ensure!(
        pools["items"].as_array().is_some_and(Vec::is_empty),
        "{pools:#}"
    );
    let shown = lab.plane.kubectl().get(&[
        "instarmachine",
        "-l",
        "cluster.x-k8s.io/deployment-name=workers",
    ])?;
    let image = &shown["items"][0]["spec"]["osImage"];
    ensure!(image == SECOND, "{image}");
    Ok(())
}

async fn what_cannot_change_in_place_stops_where_nothing_is_replaced(lab: &Lab) -> Outcome {
    let never = json!({"neverReplace": "true"});
    objects::register(&lab.plane, &lab.extension.url(), &never)?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    objects::template(
        &lab.plane,
        "v3",
        &json!({"osImage": FIRST, "memoryMiB": 2048}),
    )?;
    objects::roll(&lab.plane, "v3")?;
    lab.seen("the manager is told no", || {
        let words = "take back infrastructure machine /spec/memoryMiB";
        ensure!(lab.manager.log()?.contains(words), "no word of it");
        Ok(())
    })
    .await?;
    tokio::time::sleep(Duration::from_secs(15)).await;
    lab.is_updating("NotUpdating", false).await
}

async fn it_is_replaced_where_that_is_allowed(lab: &Lab) -> Outcome {
    objects::register(
        &lab.plane,
        &lab.extension.url(),
        &json!({"neverReplace": "false"}),
    )?;
    lab.seen("the Machine is replaced", || {
        let machines = machines(&lab.plane)?;
        let old = machines.iter().find(|it| uid(it) == lab.uid);
        let is_going = old.is_none_or(|it| !it["metadata"]["deletionTimestamp"].is_null());
        ensure!(is_going, "{} Machines", machines.len());
        Ok(())
    })
    .await?;
    let pools = lab.plane.kubectl().get(&["pools"])?;
    ensure!(
        pools["items"].as_array().is_some_and(Vec::is_empty),
        "{pools:#}"
    );
    Ok(())
}

/// The role names no kind of a provider, as every provider has its own.
async fn every_right_was_used(lab: &Lab) -> Outcome {
    let used = lab.plane.audited("instar-capi-extension")?;
    let any = |verb: &String| verb.replace("/instarmachines", "/*");
    let used: BTreeSet<String> = used.iter().map(any).collect();
    let role = lab
        .plane
        .kubectl()
        .get(&["clusterrole", "instar-capi-extension"])?;
    let granted = granted(&[role]);
    ensure!(used == granted, "used {used:#?}, granted {granted:#?}");
    Ok(())
}
