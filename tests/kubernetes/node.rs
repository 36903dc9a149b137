//! A machine joins a cluster by its config, runs pods, and the OS and Kubernetes are replaced under them.

use anyhow::{Context as _, ensure};
use instar_tests::{
    Channels, Ending, ExtensionSource, Greeter, Node, Outcome, Scratch, Test, chapters,
    gives_up_soon, greeter_image, guest_program, push_extension_with, tests, upgrade_and_follow,
};
use serde_json::Value;

use crate::PATIENCE;
use crate::cluster::Cluster;
use crate::kept::{Kept, Watch};
use crate::manifests;
use crate::operator::{Operator, apply, apply_text, it_is_told};
use crate::shown::{
    give_it_a_network, is_ready, os_image, run_pods, tell_time, wait_for_os, wait_for_pods,
    wait_for_version_label, wait_until_ready,
};

/// The status of kubernetes-init, on the machine.
const STATUS: &str = "/var/lib/instar/kubernetes/control/status.json";
/// Whom containerd and kubelet believe, on the machine.
const BELIEVED: &str = "/var/lib/instar/kubernetes/control/ca.pem";

pub(crate) fn tests() -> Vec<Test> {
    tests![
        joins_runs_pods_and_is_replaced_under_them,
        has_the_address_that_its_config_chooses,
    ]
}

async fn joins_runs_pods_and_is_replaced_under_them(scratch: Scratch) -> Outcome {
    let cluster = Cluster::start(&scratch)?;
    let node = cluster.plan_node(&scratch)?.boot().await?;
    chapters![
        it_appears_in_the_cluster(&node, &cluster),
        its_certificate_was_approved(&cluster),
        it_has_labels_and_taints(&node, &cluster),
        it_is_ready_once_pods_have_a_network(&node, &cluster),
        pods_run_and_answer(&node, &cluster),
        pods_and_kubelet_are_told_of(&node, &scratch),
        services_have_the_machines_variables_and_authorities(&node, &cluster, &scratch),
        pods_have_pinned_images_without_their_registry(&node, &cluster, &scratch),
        the_os_is_upgraded_under_the_pods(&node, &cluster),
        extensions_are_replaced_under_the_pods(&node, &cluster, &scratch),
    ]
    .await
}

async fn extensions_are_replaced_under_the_pods(
    node: &Node,
    cluster: &Cluster,
    scratch: &Scratch,
) -> Outcome {
    kubernetes_is_replaced_under_the_pods(node, cluster, scratch).await?;
    a_broken_kubelet_is_gone_back_from(node, cluster, scratch).await?;
    an_extension_that_is_not_there_hurts_nothing(node, cluster, scratch).await
}

async fn it_appears_in_the_cluster(node: &Node, cluster: &Cluster) -> Outcome {
    let shown = node.wait_until("the node appears", PATIENCE, async || cluster.node());
    let shown = shown.await?;
    println!("{}", shown["status"]["nodeInfo"]);
    tell_time(node, "it has joined").await?;
    ensure!(os_image(&shown)?.contains("v0.1.0"), "{shown:#}");
    Ok(())
}

/// Under the name that talosctl has for it. The machine asks its cluster once a minute, when all is well.
async fn its_object_is_a_resource(node: &Node, operator: &Operator<'_>) -> Outcome {
    let is_ready = async || {
        let said = operator.run(&["get", "nodestatus", "-o", "yaml"]).await?;
        for words in [
            "nodeReady: true",
            "unschedulable: false",
            "instar.dev/version",
        ] {
            ensure!(said.output.contains(words), "{said:?}");
        }
        Ok(())
    };
    let doing = "the node's object is a resource";
    node.wait_until(doing, PATIENCE, is_ready).await
}

async fn its_certificate_was_approved(cluster: &Cluster) -> Outcome {
    let listed = cluster.plane.kubectl().get(&["csr"])?;
    let all = listed["items"].as_array().context("no list")?;
    let granted = all.iter().find(|request| {
        let spec = &request["spec"];
        spec["username"] == "system:bootstrap:abcdef"
            && spec["signerName"] == "kubernetes.io/kube-apiserver-client-kubelet"
            && request["status"]["certificate"].is_string()
    });
    ensure!(granted.is_some(), "{listed:#}");
    Ok(())
}

async fn it_has_the_labels_and_taints_of_its_config(cluster: &Cluster) -> Outcome {
    let shown = cluster.node()?;
    let rack = &shown["metadata"]["labels"]["example.org/rack"];
    ensure!(rack == "r1", "{shown:#}");
    let taints = shown["spec"]["taints"].as_array().context("no taints")?;
    let slow = taints.iter().any(|taint| {
        taint["key"] == "example.org/slow"
            && taint["value"] == "emulated"
            && taint["effect"] == "PreferNoSchedule"
    });
    ensure!(slow, "{shown:#}");
    Ok(())
}

/// The choice in the config, and the link with that address.
const CHOSEN: &str =
    "kind: KubeNodeConfig\nnodeIP: {validSubnets: [192.0.2.0/24, \"!192.0.2.128/25\"]}\n";
const LINK: &str = "---\napiVersion: v1alpha1\nkind: DHCPv4Config\nname: eth0\n---\napiVersion: v1alpha1\nkind: LinkConfig\nname: eth0\naddresses:\n  - address: 192.0.2.200/32\n  - address: 192.0.2.10/32\n";

/// Those of its config, and what it says about itself.
async fn it_has_labels_and_taints(node: &Node, cluster: &Cluster) -> Outcome {
    it_has_the_labels_and_taints_of_its_config(cluster).await?;
    it_tells_its_mode_and_version(node, cluster).await
}

async fn has_the_address_that_its_config_chooses(scratch: Scratch) -> Outcome {
    let cluster = Cluster::start(&scratch)?;
    let node = cluster.plan_node(&scratch)?.boot().await?;
    chapters![
        it_appears_in_the_cluster(&node, &cluster),
        it_has_the_chosen_address(&node, &cluster, &scratch),
        it_says_which_channel_it_follows(&node, &cluster, &scratch),
    ]
    .await
}

async fn it_has_the_chosen_address(node: &Node, cluster: &Cluster, scratch: &Scratch) -> Outcome {
    let config = cluster.config_with(node.identity(), &[]);
    let config = config.replace("kind: KubeNodeConfig\n", CHOSEN) + LINK;
    apply_text(node, scratch, config).await?;
    let has_it = async || {
        let shown = cluster.node()?["status"]["addresses"].to_string();
        ensure!(shown.contains("192.0.2.10"), "{shown}");
        Ok(())
    };
    node.wait_until("it has the address", PATIENCE, has_it)
        .await
}

async fn it_says_which_channel_it_follows(
    node: &Node,
    cluster: &Cluster,
    scratch: &Scratch,
) -> Outcome {
    let channels = Channels::serve(scratch, &cluster.registry)?;
    let follows = channels.document("stable", "")?;
    let config = cluster.config_with(node.identity(), &[]);
    apply_text(node, scratch, format!("{config}---\n{follows}")).await?;
    node.wait_until("its label of the channel", PATIENCE, async || {
        let metadata = &cluster.node()?["metadata"];
        ensure!(
            metadata["labels"]["instar.dev/channel"] == "stable",
            "{metadata:#}"
        );
        Ok(())
    })
    .await
}

/// The host starts its kernel, and its data are on a disk.
async fn it_tells_its_mode_and_version(node: &Node, cluster: &Cluster) -> Outcome {
    wait_for_version_label(node, cluster, "v0.1.0").await?;
    let shown = cluster.node()?;
    let metadata = &shown["metadata"];
    ensure!(
        metadata["labels"]["instar.dev/mode"] == "live",
        "{metadata:#}"
    );
    ensure!(
        metadata["annotations"]["example.org/asset"] == "7 b",
        "{metadata:#}"
    );
    Ok(())
}

async fn it_is_ready_once_pods_have_a_network(node: &Node, cluster: &Cluster) -> Outcome {
    ensure!(!is_ready(&cluster.node()?), "it is ready without a network");
    give_it_a_network(node, cluster).await
}

async fn pods_run_and_answer(node: &Node, cluster: &Cluster) -> Outcome {
    run_pods(node, cluster).await?;
    Greeter::of(node)?.greets()
}

async fn pods_and_kubelet_are_told_of(node: &Node, scratch: &Scratch) -> Outcome {
    let operator = Operator::of(node, scratch)?;
    its_object_is_a_resource(node, &operator).await?;
    its_pods_are_listed(&operator).await?;
    a_pods_sockets_are_found(&operator).await?;
    kubernetes_has_a_first_process(&operator).await?;
    it_tells_what_they_use(&operator).await?;
    their_logs_are_read(&operator).await?;
    kubelet_says_what_it_does(&operator).await
}

/// As `kubectl` names them.
async fn its_pods_are_listed(operator: &Operator<'_>) -> Outcome {
    let said = operator.run(&["containers", "-k"]).await?;
    println!("{}", said.output);
    let server = ["default/server ", "default/server:server:"];
    for words in [&server[..], &["SANDBOX_READY", "CONTAINER_RUNNING"]].concat() {
        ensure!(said.output.contains(words), "{said:?}");
    }
    Ok(())
}

/// By the network namespace of its sandbox.
async fn a_pods_sockets_are_found(operator: &Operator<'_>) -> Outcome {
    let said = operator.run(&["containers", "-k", "-o", "json"]).await?;
    let listed: Value = serde_json::from_str(&said.output)?;
    let pods = listed["containers"].as_array().context("no list")?;
    let server = pods.iter().find(|it| it["id"] == "default/server");
    let namespace = &server.context("no server")?["network_namespace"];
    ensure!(namespace.as_str().is_some_and(|it| !it.is_empty()));
    let netstat = ["netstat", "--listening", "--all-namespaces", "-o", "json"];
    let shown: Value = serde_json::from_str(&operator.run(&netstat).await?.output)?;
    let sockets = shown["sockets"].as_array().context("no sockets")?;
    ensure!(sockets.iter().any(|it| it["namespace"] == *namespace));
    Ok(())
}

/// It puts its processes into cgroups of its own, and none is in that of the container.
async fn kubernetes_has_a_first_process(operator: &Operator<'_>) -> Outcome {
    let said = operator.run(&["containers", "-o", "json"]).await?;
    let listed: Value = serde_json::from_str(&said.output)?;
    let containers = listed["containers"].as_array().context("no list")?;
    let kubernetes = containers.iter().find(|it| it["id"] == "kubernetes");
    let pid = &kubernetes.context("no kubernetes")?["pid"];
    ensure!(pid.as_u64() > Some(0), "{listed:#}");
    Ok(())
}

async fn it_tells_what_they_use(operator: &Operator<'_>) -> Outcome {
    let said = operator.run(&["stats", "-k", "-o", "json"]).await?;
    let stats: Value = serde_json::from_str(&said.output)?;
    let stats = stats["stats"].as_array().context("no list")?;
    let is_server = |it: &&Value| it["id"].to_string().contains("default/server:server:");
    let server = stats.iter().find(is_server).context("no server")?;
    ensure!(server["memory_bytes"].as_u64() > Some(0), "{stats:#?}");
    Ok(())
}

async fn their_logs_are_read(operator: &Operator<'_>) -> Outcome {
    let said = operator
        .run(&["logs", "-k", "default/server:server"])
        .await?;
    ensure!(
        said.output.contains("stdout F greeter: listening"),
        "{said:?}"
    );
    let said = operator
        .run(&["logs", "-k", "default/nobody:server"])
        .await?;
    let names_others = said.complaint.contains("default/server:server");
    ensure!(said.code != Some(0) && names_others, "{said:?}");
    Ok(())
}

async fn kubelet_says_what_it_does(operator: &Operator<'_>) -> Outcome {
    let said = operator.run(&["logs", "kubernetes"]).await?;
    let of_kubelet = said
        .output
        .lines()
        .filter(|line| line.contains("kubelet: "));
    ensure!(of_kubelet.count() > 0, "{said:?}");
    Ok(())
}

/// containerd starts again with them, and no pod ends.
async fn services_have_the_machines_variables_and_authorities(
    node: &Node,
    cluster: &Cluster,
    scratch: &Scratch,
) -> Outcome {
    let watch = Watch::start(node, cluster)?;
    let authority = node.identity().authority_certificate();
    let before = service(node, "containerd").await?;
    let config = cluster.config_with(node.identity(), &[]);
    apply_text(node, scratch, config + &variables_and_roots(&authority)).await?;
    wait_for_another(node, "containerd", &before).await?;
    ensure!(node.read(BELIEVED).await?.contains(authority.trim()));
    let before = service(node, "containerd").await?;
    apply(node, cluster, scratch, &[]).await?;
    wait_for_another(node, "containerd", &before).await?;
    wait_until_ready(node, cluster).await?;
    watch.end().map(drop)
}

fn variables_and_roots(authority: &str) -> String {
    let lines: String = authority
        .lines()
        .map(|line| format!("  {line}\n"))
        .collect();
    format!(
        "---\napiVersion: v1alpha1\nkind: EnvironmentConfig\nvariables: {{no_proxy: example.org}}\n\
         ---\napiVersion: v1alpha1\nkind: TrustedRootsConfig\nname: own\ncertificates: |\n{lines}"
    )
}

/// Its registry has lost the name, so the node alone can tell what it means.
async fn pods_have_pinned_images_without_their_registry(
    node: &Node,
    cluster: &Cluster,
    scratch: &Scratch,
) -> Outcome {
    greeter_image("pinned")?.push(&cluster.registry, "site/pinned", "v1")?;
    let image = cluster.registry.image_for_guest("site/pinned:v1");
    let config = cluster.config_with(node.identity(), &[]);
    apply_text(node, scratch, config + &pin(&image)).await?;
    let operator = Operator::of(node, scratch)?;
    it_is_pinned(node, &operator, &image).await?;
    cluster.registry.remove_tag("site/pinned", "v1")?;
    let kubectl = cluster.plane.kubectl();
    kubectl.apply("pinned", &manifests::pinned(&image))?;
    wait_for_pods(node, cluster, &["pinned"]).await?;
    kubectl.run(&["delete", "pod", "pinned", "--wait=false"])?;
    it_is_gone(node, cluster, "pinned").await?;
    apply(node, cluster, scratch, &[]).await
}

async fn it_is_gone(node: &Node, cluster: &Cluster, pod: &str) -> Outcome {
    let gone = async || match cluster.pod(pod) {
        Ok(pod) => anyhow::bail!("it is still there: {}", pod["status"]),
        Err(_) => Ok(()),
    };
    node.wait_until("the pod is gone", PATIENCE, gone).await
}

fn pin(image: &str) -> String {
    format!("---\napiVersion: instar.dev/v1alpha1\nkind: ImagePinConfig\nimages: [\"{image}\"]\n")
}

async fn it_is_pinned(node: &Node, operator: &Operator<'_>, image: &str) -> Outcome {
    let pinned = async || {
        let said = operator.run(&["get", "pins"]).await?.output;
        let mut lines = said.lines().filter(|line| line.contains(image));
        ensure!(lines.any(|line| line.contains("pinned ")), "{said}");
        Ok(())
    };
    node.wait_until("the image is pinned", PATIENCE, pinned)
        .await
}

async fn the_os_is_upgraded_under_the_pods(node: &Node, cluster: &Cluster) -> Outcome {
    let watch = Watch::start(node, cluster)?;
    let kubelet = service(node, "kubelet").await?;
    let image = cluster.registry.installer_for_guest("v0.2.0");
    let followed = upgrade_and_follow(node, &image, PATIENCE).await?;
    ensure!(followed.ending == Ending::Done, "{followed:#?}");
    wait_for_os(node, cluster, "v0.2.0").await?;
    wait_for_version_label(node, cluster, "v0.2.0").await?;
    let states = watch.end()?;
    let was_ready = states.iter().all(|state| state.starts_with("True "));
    ensure!(was_ready, "{states:#?}");
    let now = service(node, "kubelet").await?;
    ensure!(now["pid"] == kubelet["pid"], "{kubelet} became {now}");
    Ok(())
}

/// A new image of the extension with kubelet restarts kubelet, and neither containerd nor a pod.
async fn kubernetes_is_replaced_under_the_pods(
    node: &Node,
    cluster: &Cluster,
    scratch: &Scratch,
) -> Outcome {
    let watch = Watch::start(node, cluster)?;
    let kubelet = service(node, "kubelet").await?;
    let containerd = service(node, "containerd").await?;
    let files: [(&str, &[u8]); 1] = [("usr/share/kubernetes/edition", b"2")];
    let image = push_extension_with(&cluster.registry, "kubernetes", "v2", &files)?;
    let mark = node.vm().console_mark()?;
    let kubernetes = ("kubernetes", ExtensionSource::Image(image));
    apply(node, cluster, scratch, &[kubernetes]).await?;
    wait_for_another(node, "kubelet", &kubelet).await?;
    wait_until_ready(node, cluster).await?;
    (node.vm()).wait_for_line_after(mark, "extensions, which are kept", PATIENCE)?;
    let now = service(node, "containerd").await?;
    ensure!(now["pid"] == containerd["pid"], "{containerd} became {now}");
    watch.end().map(drop)
}

/// A kubelet that ends at once is on trial, and the one before comes back.
async fn a_broken_kubelet_is_gone_back_from(
    node: &Node,
    cluster: &Cluster,
    scratch: &Scratch,
) -> Outcome {
    let before = Kept::of(node, cluster)?;
    // It takes kubelet's first option for a port.
    let program = guest_program("greeter")?;
    let files: [(&str, &[u8]); 1] = [("usr/bin/kubelet", &program)];
    let image = push_extension_with(&cluster.registry, "kubernetes", "broken", &files)?;
    let kubernetes = ("kubernetes", ExtensionSource::Image(image));
    let config = cluster.config_with(node.identity(), &[kubernetes]);
    apply_text(node, scratch, gives_up_soon(&config)).await?;
    it_is_told(node, scratch, "kubernetes", "is back with the one before").await?;
    wait_until_ready(node, cluster).await?;
    let after = Kept::of(node, cluster)?;
    ensure!(before == after, "{before:#?} became {after:#?}");
    Ok(())
}

/// A reference that leads nowhere is told by its name, and kubelet, the pods and their node go on.
async fn an_extension_that_is_not_there_hurts_nothing(
    node: &Node,
    cluster: &Cluster,
    scratch: &Scratch,
) -> Outcome {
    let before = (Kept::of(node, cluster)?, service(node, "kubelet").await?);
    let others = [("nobody", "nobody:v1"), ("kubernetes", "kubernetes:v2")];
    let others = others.map(|(name, image)| (name, cluster.extension(image)));
    apply(node, cluster, scratch, &others).await?;
    let words = "it does not have it (MANIFEST_UNKNOWN";
    it_is_told(node, scratch, "pins", words).await?;
    let after = (Kept::of(node, cluster)?, service(node, "kubelet").await?);
    ensure!(before == after, "{before:#?} became {after:#?}");
    wait_until_ready(node, cluster).await
}

/// Waits until a service runs as another process.
async fn wait_for_another(node: &Node, name: &str, before: &Value) -> Outcome {
    node.wait_until("it has restarted", PATIENCE, async || {
        let now = service(node, name).await?;
        let runs = now["pid"].is_u64() && now["pid"] != before["pid"];
        ensure!(runs, "{before} became {now}");
        println!("{now}");
        Ok(())
    })
    .await
}

/// Returns the state of a service in the container.
async fn service(node: &Node, name: &str) -> anyhow::Result<Value> {
    let status: Value = serde_json::from_str(&node.read(STATUS).await?)?;
    let service = status["services"].get(name);
    let service = service.with_context(|| format!("no {name} in {status}"))?;
    Ok(service.clone())
}
