//! `containers`, `restart` and `stats`: the node's containers, a restart of one, and the resources that they use.

use instar_api::common::ContainerDriver;
use instar_api::machine::{ContainerInfo, ContainersRequest, RestartRequest, Stat, StatsRequest};
use instar_client::Failure;
use serde_json::json;

use crate::cli::Global;
use crate::each_node::each_node;
use crate::output::{human, table};

/// The namespace of a node's own containers.
const NAMESPACE: &str = "system";
/// The namespace of the containers of pods.
const KUBERNETES: &str = "k8s.io";

/// The namespace and driver by which containers are asked for.
pub(super) fn asked(kubernetes: bool) -> (String, i32) {
    match kubernetes {
        true => (KUBERNETES.to_owned(), ContainerDriver::Cri.into()),
        false => (NAMESPACE.to_owned(), ContainerDriver::Containerd.into()),
    }
}

pub(super) async fn list(global: &Global, kubernetes: bool) -> Result<(), Failure> {
    let (namespace, driver) = asked(kubernetes);
    each_node(global, async |node| {
        let request = ContainersRequest {
            namespace: namespace.clone(),
            driver,
        };
        let reply = node.machine().containers(node.request(request)).await;
        let reply = reply.map_err(|status| node.explain("cannot list containers", status))?;
        let containers = node.only(reply.into_inner().messages)?.containers;
        global.output.show(
            || {
                let row = |container: &ContainerInfo| {
                    vec![
                        node.name().to_owned(),
                        container.id.clone(),
                        container.image.clone(),
                        container.pid.to_string(),
                        container.status.clone(),
                    ]
                };
                table(
                    &["NODE", "ID", "IMAGE", "PID", "STATUS"],
                    &containers.iter().map(row).collect::<Vec<_>>(),
                )
            },
            || {
                let container = |container: &ContainerInfo| {
                    json!({
                        "id": container.id,
                        "image": container.image,
                        "pid": container.pid,
                        "status": container.status,
                        "network_namespace": container.network_namespace,
                    })
                };
                json!({ "node": node.name(), "containers": containers.iter().map(container).collect::<Vec<_>>() })
            },
        )?;
        Ok(())
    })
    .await
}

pub(super) async fn restart(global: &Global, id: &str) -> Result<(), Failure> {
    each_node(global, async |node| {
        let request = RestartRequest {
            namespace: NAMESPACE.to_owned(),
            id: id.to_owned(),
            driver: ContainerDriver::Containerd.into(),
        };
        let reply = node.machine().restart(node.request(request)).await;
        let what = format!("cannot restart the container {id:?}");
        let reply = reply.map_err(|status| node.explain(&what, status))?;
        node.only(reply.into_inner().messages)?;
        global.output.show(
            || format!("{}: container {id:?} restarted", node.name()),
            || json!({ "node": node.name(), "container": id }),
        )?;
        Ok(())
    })
    .await
}

pub(super) async fn stats(global: &Global, kubernetes: bool) -> Result<(), Failure> {
    let (namespace, driver) = asked(kubernetes);
    each_node(global, async |node| {
        let request = StatsRequest {
            namespace: namespace.clone(),
            driver,
        };
        let reply = node.machine().stats(node.request(request)).await;
        let reply =
            reply.map_err(|status| node.explain("cannot ask what containers use", status))?;
        let stats = node.only(reply.into_inner().messages)?.stats;
        global.output.show(
            || {
                let row = |stat: &Stat| {
                    vec![
                        node.name().to_owned(),
                        stat.id.clone(),
                        human(stat.memory_usage),
                        format!("{:.3} s", stat.cpu_usage as f64 / 1e9),
                    ]
                };
                table(
                    &["NODE", "ID", "MEMORY", "CPU"],
                    &stats.iter().map(row).collect::<Vec<_>>(),
                )
            },
            || {
                let stat = |stat: &Stat| {
                    json!({
                        "id": stat.id,
                        "memory_bytes": stat.memory_usage,
                        "cpu_nanoseconds": stat.cpu_usage,
                    })
                };
                json!({ "node": node.name(), "stats": stats.iter().map(stat).collect::<Vec<_>>() })
            },
        )?;
        Ok(())
    })
    .await
}
