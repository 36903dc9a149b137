//! The facts that a rollout needs of a node's object. A pure view; the object itself is not kept.

use std::collections::BTreeMap;
use std::net::IpAddr;

use instar_client::Endpoint;
use k8s_openapi::api::core::v1::Node;

use crate::api::{API_ADDRESS, CORDONED_BY, HOLD, VERSION_LABEL};

/// A node as the cluster shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeView {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// Why it is not ready; none if it is.
    pub(crate) unready: Option<String>,
    /// The version that its label has.
    pub(crate) version: Option<String>,
    /// The pool for which this operator has cordoned it.
    pub(crate) cordoned_by: Option<String>,
    /// Why a person wants it left alone.
    pub(crate) hold: Option<String>,
    /// Where its API is.
    pub(crate) address: Option<String>,
    pub(crate) boot_id: String,
}

impl NodeView {
    pub(crate) fn of(node: &Node) -> Self {
        let annotation = |name: &str| node.metadata.annotations.as_ref()?.get(name).cloned();
        let labels = node.metadata.labels.clone().unwrap_or_default();
        let status = node.status.clone().unwrap_or_default();
        let info = status.node_info.unwrap_or_default();
        let is_cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
        let cordoned_by = annotation(CORDONED_BY);
        let by_a_person = (is_cordoned && cordoned_by.is_none())
            .then(|| "it is cordoned, and not by this operator".to_owned());
        Self {
            name: node.metadata.name.clone().unwrap_or_default(),
            unready: unready(node),
            version: labels.get(VERSION_LABEL).cloned(),
            labels,
            hold: annotation(HOLD).or(by_a_person),
            cordoned_by,
            address: address(node).map(str::to_owned),
            boot_id: info.boot_id,
        }
    }

    /// The state with which an answer of the node's API is remembered: another state makes the answer old.
    pub(crate) fn state(&self) -> [Option<String>; 4] {
        [
            self.unready.clone(),
            self.version.clone(),
            Some(self.boot_id.clone()),
            self.address.clone(),
        ]
    }

    /// Whether the machine at its address is this node: both tell the same boot.
    ///
    /// # Errors
    /// They do not, or the object tells none; says which.
    pub(crate) fn check_boot(&self, told: &str) -> Result<(), String> {
        let (name, shown) = (&self.name, &self.boot_id);
        let address = self.address.as_deref().unwrap_or_default();
        match shown == told && !told.is_empty() {
            true => Ok(()),
            false => Err(format!(
                "the machine at {address} tells the boot {told:?}, and the object of {name} {shown:?}: kubelet has not told the last boot yet, or this is another machine (see the annotation {API_ADDRESS} and the InternalIP)"
            )),
        }
    }

    /// Whether no other node of the cluster has the same address, or tells the same boot: then nobody knows which of both a machine is.
    ///
    /// # Errors
    /// One does; says which.
    pub(crate) fn check_that_it_is_alone<'a>(
        &self,
        all: impl Iterator<Item = &'a Node>,
    ) -> Result<(), String> {
        let own = self.address.as_deref().map(endpoint);
        let mut others = all.filter(|node| node.metadata.name.as_deref() != Some(&self.name));
        let alike = others.find_map(|node| {
            let has_address = own.is_some() && address(node).map(endpoint) == own;
            let boot = boot_id(node).filter(|boot| !boot.is_empty());
            match (has_address, boot == Some(&self.boot_id)) {
                (true, _) => Some((node, "address")),
                (false, true) => Some((node, "bootID")),
                (false, false) => None,
            }
        });
        match alike {
            None => Ok(()),
            Some((other, what)) => {
                let other = other.metadata.name.as_deref().unwrap_or_default();
                Err(format!(
                    "{} and {other} have the same {what}: correct the object that is wrong",
                    self.name
                ))
            }
        }
    }
}

/// Where a node says that its API is.
fn address(node: &Node) -> Option<&str> {
    let annotations = node.metadata.annotations.as_ref();
    let written = annotations.and_then(|it| it.get(API_ADDRESS));
    let addresses = node.status.as_ref().and_then(|it| it.addresses.as_ref());
    let mut addresses = addresses.into_iter().flatten();
    let internal = addresses.find(|it| it.type_ == "InternalIP");
    let internal = internal.map(|it| it.address.as_str());
    written.map(String::as_str).or(internal)
}

/// An address in one form: the port is told, and an IP address has one notation.
fn endpoint(address: &str) -> (String, u16) {
    let Ok(endpoint) = address.parse::<Endpoint>() else {
        return (address.to_owned(), 0);
    };
    let host = endpoint.host().parse::<IpAddr>();
    let host = host.map_or_else(|_| endpoint.host().to_owned(), |host| host.to_string());
    (host, endpoint.port())
}

fn boot_id(node: &Node) -> Option<&String> {
    let info = node.status.as_ref().and_then(|it| it.node_info.as_ref());
    info.map(|info| &info.boot_id)
}

/// Why the cluster does not call the node ready.
fn unready(node: &Node) -> Option<String> {
    let conditions = node.status.as_ref().and_then(|it| it.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    let Some(ready) = conditions.find(|it| it.type_ == "Ready") else {
        return Some("the cluster has not heard of it yet".to_owned());
    };
    (ready.status != "True").then(|| {
        let message = ready.message.clone().unwrap_or_default();
        format!("the cluster does not call it ready: {message}")
    })
}

/// Drops the large parts of a node's object that nobody here reads.
pub(crate) fn trim(node: &mut Node) {
    node.metadata.managed_fields = None;
    if let Some(status) = &mut node.status {
        status.images = None;
        status.volumes_attached = None;
        status.volumes_in_use = None;
        status.capacity = None;
        status.allocatable = None;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn view(metadata: Value, spec: Value, status: Value) -> NodeView {
        let node = json!({"metadata": metadata, "spec": spec, "status": status});
        NodeView::of(&serde_json::from_value(node).unwrap())
    }

    #[test]
    fn a_cordon_is_ours_only_by_its_annotation() {
        let ours = json!({"annotations": {CORDONED_BY: "lab"}});
        let held = json!({"annotations": {HOLD: "being repaired"}});
        for (metadata, unschedulable, hold, by) in [
            (json!({}), false, None, None),
            (
                json!({}),
                true,
                Some("it is cordoned, and not by this operator"),
                None,
            ),
            (ours.clone(), true, None, Some("lab")),
            // A person has uncordoned it meanwhile.
            (ours, false, None, Some("lab")),
            (held, false, Some("being repaired"), None),
        ] {
            let seen = view(
                metadata.clone(),
                json!({"unschedulable": unschedulable}),
                json!({}),
            );
            assert_eq!(seen.hold.as_deref(), hold, "{metadata} {unschedulable}");
            assert_eq!(
                seen.cordoned_by.as_deref(),
                by,
                "{metadata} {unschedulable}"
            );
        }
    }

    #[test]
    fn a_node_is_ready_when_the_cluster_says_so() {
        for (status, unready) in [
            (json!({}), Some("not heard")),
            (
                json!({"conditions": [{"type": "Ready", "status": "True"}]}),
                None,
            ),
            (
                json!({"conditions": [{"type": "Ready", "status": "Unknown", "message": "no word of kubelet"}]}),
                Some("no word of kubelet"),
            ),
        ] {
            let seen = view(json!({}), json!({}), status.clone()).unready;
            let told = seen
                .as_ref()
                .is_some_and(|it| unready.is_some_and(|why| it.contains(why)));
            assert!(
                told || seen.is_none() && unready.is_none(),
                "{status}: {seen:?}"
            );
        }
    }

    #[test]
    fn its_api_is_at_its_internal_address_unless_an_annotation_says_otherwise() {
        let status = json!({"addresses": [
            {"type": "Hostname", "address": "n1"}, {"type": "InternalIP", "address": "10.0.0.7"}, {"type": "InternalIP", "address": "fd00::7"},
        ]});
        let seen = view(json!({}), json!({}), status.clone());
        assert_eq!(seen.address.as_deref(), Some("10.0.0.7"));
        let elsewhere = json!({"annotations": {API_ADDRESS: "127.0.0.1:4711"}});
        assert_eq!(
            view(elsewhere, json!({}), status).address.as_deref(),
            Some("127.0.0.1:4711")
        );
    }

    #[test]
    fn a_machine_is_a_node_if_both_tell_the_same_boot() {
        let seen = |boot: &str| {
            view(
                json!({"name": "n1"}),
                json!({}),
                json!({"nodeInfo": node_info(boot)}),
            )
        };
        assert_eq!(seen("b1").check_boot("b1"), Ok(()));
        for (shown, told) in [("b1", "b2"), ("", "b1"), ("", "")] {
            let why = seen(shown).check_boot(told).unwrap_err();
            assert!(why.contains("object of n1"), "{why}");
        }
    }

    /// All that kubelet tells has a place in it.
    fn node_info(boot: &str) -> Value {
        json!({
            "architecture": "", "bootID": boot, "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
            "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": "",
        })
    }

    #[test]
    fn two_nodes_are_not_the_same_machine() {
        let node = |name: &str, annotation: Value, address: &str, boot: &str| -> Node {
            let node = json!({
                "metadata": {"name": name, "annotations": {API_ADDRESS: annotation}},
                "status": {"addresses": [{"type": "InternalIP", "address": address}], "nodeInfo": node_info(boot)},
            });
            serde_json::from_value(node).unwrap()
        };
        let first = node("n1", json!("10.0.0.1"), "10.0.0.9", "b1");
        let alone = |other: &Node| {
            let all = [&first, other];
            NodeView::of(&first).check_that_it_is_alone(all.into_iter())
        };
        // One machine that serves several at different ports is several, as in a test.
        for other in [
            node("n2", json!("10.0.0.2"), "10.0.0.2", "b2"),
            node("n2", json!("10.0.0.1:4711"), "10.0.0.2", ""),
        ] {
            assert_eq!(alone(&other), Ok(()));
        }
        for (other, what) in [
            (
                node("n2", json!("10.0.0.1:50000"), "10.0.0.2", "b2"),
                "address",
            ),
            (node("n2", json!("10.0.0.1"), "10.0.0.2", "b2"), "address"),
            (node("n2", json!("10.0.0.2"), "10.0.0.2", "b1"), "bootID"),
        ] {
            let why = alone(&other).unwrap_err();
            assert!(
                why.contains("n1 and n2 have the same") && why.contains(what),
                "{why}"
            );
        }
        let by_status = node("n2", json!("fd00::7"), "x", "b2");
        assert_eq!(
            address(&by_status).map(endpoint),
            Some(endpoint("[fd00:0::7]:50000"))
        );
    }
}
