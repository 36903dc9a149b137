//! Objects that tests give to the cluster.

use serde_json::{Value, json};

/// Lets the nodes of the cluster read each other.
pub(crate) const READERS_OF_NODES: &str = include_str!("manifests/readers_of_nodes.yaml");

/// The pods of a CNI.
pub(crate) fn network(image: &str) -> String {
    with_image(include_str!("manifests/network.yaml"), image)
}

/// The pod `server`, which answers at the port 8080 of its node.
pub(crate) fn server(image: &str) -> String {
    with_image(include_str!("manifests/server.yaml"), image)
}

/// The pod `pinned`.
pub(crate) fn pinned(image: &str) -> String {
    with_image(include_str!("manifests/pinned.yaml"), image)
}

/// The Deployments `answerer`, at the port 8080 of its node, and `beat`, at 8081.
pub(crate) fn own_cluster(image: &str) -> String {
    with_image(include_str!("manifests/own_cluster.yaml"), image)
}

/// The Deployment `answerer`, whose pod answers at the port 8080 of its node and sees the node's /var/run at /sentinel.
pub(crate) fn answerer(image: &str) -> String {
    with_image(include_str!("manifests/answerer.yaml"), image)
}

/// The Deployment `guarded` on this node, with a budget that lets none of its pods go.
pub(crate) fn guarded(image: &str, node: &str) -> String {
    with_image(include_str!("manifests/guarded.yaml"), image).replace("${NODE}", node)
}

/// The Deployment `database`, at the port 8080 of its node, which needs 12 s to end and then writes a line to its node's disk.
pub(crate) fn database(image: &str) -> String {
    with_image(include_str!("manifests/database.yaml"), image)
}

/// The Deployment `many`, of this number of pods.
pub(crate) fn many(image: &str, count: u32) -> String {
    with_image(include_str!("manifests/many.yaml"), image).replace("${COUNT}", &count.to_string())
}

/// The pod `peer`, which answers other pods at its port 8082.
pub(crate) fn peer(image: &str) -> String {
    with_image(include_str!("manifests/peer.yaml"), image)
}

/// The pod `holder`, which holds a connection to the pod `peer` at this address.
pub(crate) fn holder(image: &str, address: &str) -> String {
    with_image(include_str!("manifests/holder.yaml"), image).replace("${ADDRESS}", address)
}

/// The Deployment `postgresql`, at the port 5432 of its node.
pub(crate) fn postgresql(image: &str) -> String {
    with_image(include_str!("manifests/postgresql.yaml"), image)
}

/// The ConfigMap `note` with this value, in a Namespace of its own.
pub(crate) fn note(at: &str) -> String {
    include_str!("manifests/note.yaml").replace("${AT}", at)
}

/// A kind of objects, and an object of it.
pub(crate) fn widgets() -> String {
    include_str!("manifests/widgets.yaml").to_owned()
}

/// A manifest as a document of the machine config.
pub(crate) fn inline(name: &str, manifest: &str) -> String {
    let kind = "apiVersion: v1alpha1\nkind: KubeInlineManifestConfig";
    let lines = manifest.lines().map(|line| format!("  {line}\n"));
    let lines: String = lines.collect();
    format!("{kind}\nname: {name}\nmanifest: |\n{lines}")
}

/// kured, for an API server at this port.
pub(crate) fn kured(image: &str, port: u16, way: RebootBy) -> String {
    let manifest = with_image(include_str!("manifests/kured.yaml"), image);
    let (method, rights) = match way {
        RebootBy::Signal => (
            "signal",
            "{allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL], add: [KILL]}}",
        ),
        RebootBy::Command => (
            "command",
            "{privileged: true, readOnlyRootFilesystem: true}",
        ),
    };
    let manifest = manifest.replace("${METHOD}", method);
    let manifest = manifest.replace("${RIGHTS}", rights);
    manifest.replace("${PORT}", &port.to_string())
}

/// How kured has a node reboot.
#[derive(Clone, Copy)]
pub(crate) enum RebootBy {
    /// By a signal to PID 1 of the node. It takes the right to send it.
    Signal,
    /// By `systemctl reboot` in the mounts of PID 1, which is how kured works unless it is told otherwise. It takes all rights.
    Command,
}

/// system-upgrade-controller, for an API server at this port.
pub(crate) fn system_upgrade_controller(image: &str, kubectl: &str, port: u16) -> String {
    let manifest = include_str!("manifests/system-upgrade-controller.yaml");
    let manifest = with_image(manifest, image).replace("${KUBECTL}", kubectl);
    manifest.replace("${PORT}", &port.to_string())
}

/// The namespace of system-upgrade-controller, of its plans and their jobs.
pub(crate) const SYSTEM_UPGRADE: &str = "system-upgrade";

/// The objects that system-upgrade-controller needs in a cluster where it runs as a process beside the control plane.
pub(crate) fn system_upgrade_account() -> String {
    let manifest = include_str!("manifests/system-upgrade-controller.yaml");
    let objects = manifest.split("---\n");
    let objects: Vec<&str> = objects
        .filter(|object| !object.contains("kind: Deployment"))
        .collect();
    objects.join("---\n")
}

/// The Plan `many` for all nodes, so many at once, whose jobs are never run.
pub(crate) fn plan_of_many(version: &str, at_once: usize) -> String {
    include_str!("manifests/plan-of-many.yaml")
        .replace("${VERSION}", version)
        .replace("${AT_ONCE}", &at_once.to_string())
}

/// A node of which there is the object alone, with a machine at this address. It lists images, as kubelets do: they are most of such an object.
pub(crate) fn simulated_node(name: &str, machine: &str) -> String {
    let images = (0..20).map(|number| {
        let image = format!("registry.example/team-{number}/program-{number}");
        let digest = format!("{number:02x}").repeat(32);
        json!({"names": [format!("{image}@sha256:{digest}"), format!("{image}:v1")], "sizeBytes": 50_000_000})
    });
    let images: Vec<Value> = images.collect();
    include_str!("manifests/simulated-node.yaml")
        .replace("${NAME}", name)
        .replace("${MACHINE}", machine)
        .replace("${IMAGES}", &Value::from(images).to_string())
}

/// A Plan with all that a cautious site sets, for all nodes. `source`: its `channel` or its `version`; images without tags.
pub(crate) fn cautious_plan(source: &str, upgrade: &str, installer: &str) -> String {
    include_str!("manifests/cautious-plan.yaml")
        .replace("${SOURCE}", source)
        .replace("${UPGRADE}", upgrade)
        .replace("${INSTALLER}", installer)
}

/// A Plan for all nodes.
pub(crate) struct Plan<'a> {
    pub(crate) name: &'a str,
    pub(crate) version: &'a str,
    /// The Plan's setting for the node's pods before the upgrade, as in `cordon: true`.
    pub(crate) eviction: &'a str,
    /// The image for jobs, without a tag.
    pub(crate) upgrade: &'a str,
    /// The installer, without a tag.
    pub(crate) installer: &'a str,
}

impl Plan<'_> {
    pub(crate) fn yaml(&self) -> String {
        include_str!("manifests/plan.yaml")
            .replace("${NAME}", self.name)
            .replace("${VERSION}", self.version)
            .replace("${EVICTION}", self.eviction)
            .replace("${UPGRADE}", self.upgrade)
            .replace("${INSTALLER}", self.installer)
    }
}

/// A pod that makes these calls with `instarctl`, one in each container.
pub(crate) fn caller(name: &str, image: &str, calls: &[&[&str]]) -> String {
    let containers = calls.iter().enumerate().map(|(number, call)| {
        json!({
            "name": format!("call-{number}"),
            "image": image,
            "args": call,
            "volumeMounts": [{"name": "host", "mountPath": "/host"}],
        })
    });
    let containers: Vec<Value> = containers.collect();
    include_str!("manifests/caller.yaml")
        .replace("${NAME}", name)
        .replace("${CONTAINERS}", &Value::from(containers).to_string())
}

fn with_image(manifest: &str, image: &str) -> String {
    manifest.replace("${IMAGE}", image)
}
