//! A client that has never seen our protos learns them from the node.

use anyhow::ensure;
use instar_tests::{Grpcio, Node, Outcome};
use serde_json::{Value, json};

use super::{members, text};

pub(super) async fn the_node_teaches_its_methods(grpcio: &Grpcio, node: &Node) -> Outcome {
    let learned = grpcio.reflect(node, &learned_calls())?;
    ensure!(learned["health"] == "SERVING", "{learned}");
    the_services_that_are_served_are_told(&learned)?;
    calls_of_learned_methods_are_answered(&learned["said"])?;
    calls_of_learned_methods_are_refused(&learned["said"])
}

/// The first five calls are answered, the others are refused.
fn learned_calls() -> Value {
    json!([
        ["machine.MachineService", "SystemStat", {}],
        ["machine.MachineService", "List", {"root": "/", "recursionDepth": 1}],
        ["machine.StorageService", "Statfs", {"path": "/var"}],
        ["storage.StorageService", "Disks", {}],
        ["inspect.InspectService", "ControllerRuntimeDependencies", {}],
        ["time.TimeService", "TimeCheck", {}],
        ["machine.MachineService", "Kubeconfig", {}],
        ["machine.MachineService", "Bootstrap", {}],
        ["machine.MachineService", "EtcdMemberList", {}],
        ["machine.MachineService", "Restart", {"id": "apid"}],
        ["storage.StorageService", "BlockDeviceWipe", {}],
        ["cosi.resource.State", "Destroy", {}],
    ])
}

/// The services that a node serves, without the other ones of the protos.
const SERVED: [&str; 18] = [
    "cluster.ClusterService",
    "cosi.resource.State",
    "grpc.health.v1.Health",
    "inspect.InspectService",
    "instar.BundleService",
    "instar.ImagePinService",
    "instar.ImageUpdateService",
    "instar.MetricsService",
    "instar.NodeCertificateService",
    "instar.TemporaryRegistryService",
    "instar.UpgradeFollowService",
    "instar.UpgradeService",
    "machine.ImageService",
    "machine.LifecycleService",
    "machine.MachineService",
    "machine.StorageService",
    "storage.StorageService",
    "time.TimeService",
];

fn the_services_that_are_served_are_told(learned: &Value) -> Outcome {
    let services = members(&learned["services"]).iter();
    let services: Vec<&str> = services.filter_map(Value::as_str).collect();
    ensure!(services == SERVED, "{services:?}");
    Ok(())
}

fn calls_of_learned_methods_are_answered(said: &Value) -> Outcome {
    // Never zero: JSON of protobuf leaves zeros out.
    let statistics = &said[0]["answer"]["messages"][0];
    ensure!(statistics["bootTime"].is_string(), "{}", said[0]);
    let files = said[1]["answers"].as_array();
    ensure!(files.map(Vec::len) > Some(5), "{}", said[1]);
    ensure!(said[2]["answer"]["inodes"].is_string(), "{}", said[2]);
    let disk = &said[3]["answer"]["messages"][0]["disks"][0];
    ensure!(disk["deviceName"] == "/dev/vda", "{disk}");
    let edges = said[4]["answer"]["messages"].as_array();
    ensure!(edges.map(Vec::len) == Some(1), "{}", said[4]);
    Ok(())
}

fn calls_of_learned_methods_are_refused(said: &Value) -> Outcome {
    for (index, code, words) in [
        (5, "INVALID_ARGUMENT", ""),
        (6, "UNIMPLEMENTED", "no Kubernetes"),
        (7, "UNIMPLEMENTED", "no Kubernetes"),
        (8, "UNIMPLEMENTED", "no Kubernetes"),
        // A service, and no container.
        (9, "NOT_FOUND", ""),
        (10, "INVALID_ARGUMENT", ""),
        (11, "PERMISSION_DENIED", ""),
    ] {
        let said = &said[index];
        ensure!(said["code"] == code, "{said}");
        ensure!(text(&said["details"]).contains(words), "{said}");
    }
    Ok(())
}
