//! The cluster that the page shows: its objects, and the tokens of the page's visitors. A stand-in, or the real thing.

use std::collections::BTreeSet;

use anyhow::Context as _;
use instar_tests::{
    ControlPlane, FleetOperator, Identity, ObjectServer, Outcome, Scratch, TokenRights,
    install_fleet_operator,
};
use serde_json::{Value, json};

use crate::node_upgrades::granted;

const NAMESPACE: &str = "instar-system";
/// The account whose tokens are for visitors who steer.
const PAGE: &str = "instar-operator-page";
/// An account that may look.
const READER: &str = "reader";

/// Who looks at the page.
#[derive(Clone, Copy, Debug)]
pub(super) enum Visitor {
    /// With the account of the manifest.
    Steers,
    /// With an account that may not change anything.
    Looks,
}

pub(super) enum Plane {
    StandIn(ObjectServer),
    Real(Box<ControlPlane>),
}

impl Plane {
    pub(super) fn stand_in() -> anyhow::Result<Self> {
        let tokens = [
            ("operator", TokenRights::All),
            (PAGE, TokenRights::Steer),
            (READER, TokenRights::Look),
        ];
        Ok(Self::StandIn(ObjectServer::start(&tokens)?))
    }

    pub(super) fn real(scratch: &Scratch) -> anyhow::Result<Self> {
        let plane = ControlPlane::start(scratch)?;
        install_fleet_operator(&plane)?;
        plane.kubectl().apply("reader", &reader())?;
        Ok(Self::Real(Box::new(plane)))
    }

    /// Makes an object and its status.
    pub(super) fn put(&self, kind: &str, object: Value) -> Outcome {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        match self {
            Self::StandIn(server) => server.put(&path(kind, name), object.clone()),
            Self::Real(plane) => {
                let kubectl = plane.kubectl();
                kubectl.apply(name, &object.to_string())?;
                let status = json!({"status": object["status"]}).to_string();
                let what = ["patch", kind, name, "--subresource=status", "--type=merge"];
                kubectl.run(&[&what[..], &["-p", &status]].concat())?;
            }
        }
        Ok(())
    }

    pub(super) fn get(&self, kind: &str, name: &str) -> anyhow::Result<Value> {
        match self {
            Self::StandIn(server) => server.get(&path(kind, name)),
            Self::Real(plane) => plane.kubectl().get(&[kind, name]),
        }
    }

    pub(super) fn token(&self, visitor: Visitor) -> anyhow::Result<String> {
        let account = match visitor {
            Visitor::Steers => PAGE,
            Visitor::Looks => READER,
        };
        match self {
            Self::StandIn(_) => Ok(account.to_owned()),
            Self::Real(plane) => plane.token_of(NAMESPACE, account),
        }
    }

    /// Starts an operator; it reaches no node.
    pub(super) fn operator(&self, scratch: &Scratch, name: &str) -> anyhow::Result<FleetOperator> {
        let config = Identity::administrator()?.client_config("127.0.0.1:1")?;
        match self {
            Self::StandIn(server) => {
                let folder = scratch.below(name)?;
                let kubeconfig = server.kubeconfig(&folder, "operator")?;
                FleetOperator::start_by(&kubeconfig, &folder, name, &config)
            }
            Self::Real(plane) => FleetOperator::start(plane, scratch, name, &config),
        }
    }

    /// The rights of the page's account, and those that it has used.
    pub(super) fn rights_of_the_page(
        &self,
    ) -> anyhow::Result<(BTreeSet<String>, BTreeSet<String>)> {
        let Self::Real(plane) = self else {
            return Err(anyhow::anyhow!("a stand-in has no roles"));
        };
        let role = plane.kubectl().get(&["clusterrole", PAGE])?;
        let used = plane.audited(PAGE).context("the audit log")?;
        Ok((granted(&[role]), used))
    }
}

fn path(kind: &str, name: &str) -> String {
    match kind {
        "nodes" => format!("/api/v1/nodes/{name}"),
        _ => format!("/apis/instar.dev/v1alpha1/{kind}/{name}"),
    }
}

fn reader() -> String {
    let rbac = "rbac.authorization.k8s.io";
    let account = json!({"kind": "ServiceAccount", "name": READER, "namespace": NAMESPACE});
    let rules = [
        looks_at("instar.dev", &["pools", "nodeupgrades"]),
        looks_at("", &["nodes"]),
    ];
    let objects = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": READER, "namespace": NAMESPACE}},
        {"apiVersion": format!("{rbac}/v1"), "kind": "ClusterRole", "metadata": {"name": READER}, "rules": rules},
        {
            "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": READER},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": READER}, "subjects": [account],
        },
    ]});
    objects.to_string()
}

/// The rule of a role that may look at these.
fn looks_at(group: &str, resources: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": resources, "verbs": ["get", "list", "watch"]})
}
