//! Settings of the cluster that kubelet and the programs of a control plane share, in either shape of Talos's config.

use std::collections::BTreeMap;

use super::{super::model::Cidr, Documents, both_shapes::BothShapes};

/// Returns the settings of the cluster's network.
pub(super) fn network<'a>(documents: &Documents<'a>) -> BothShapes<'a> {
    let cluster = documents.cluster.as_ref();
    BothShapes::new(
        cluster.and_then(|cluster| cluster.section("network")),
        documents.one("KubeNetworkConfig"),
    )
}

/// The subnets that the config names; empty where it leaves them to us.
pub(super) struct Subnets {
    pub(super) pods: Vec<Cidr>,
    pub(super) services: Vec<Cidr>,
}

impl Subnets {
    pub(super) fn of(network: &BothShapes<'_>) -> Self {
        Self {
            pods: one_of_each_family(network, "podSubnets"),
            services: one_of_each_family(network, "serviceSubnets"),
        }
    }
}

/// Reads a list of subnets. Kubernetes takes no second one of a family: its programs would end at once, each with a message of its own.
fn one_of_each_family(network: &BothShapes<'_>, field: &str) -> Vec<Cidr> {
    let given = network.with(field).map(|section| section.texts(field));
    let mut subnets: Vec<Cidr> = Vec::new();
    for text in given.unwrap_or_default() {
        let Some(subnet) = text.parsed::<Cidr>() else {
            continue;
        };
        let is_ipv4 = |subnet: &Cidr| subnet.address().is_ipv4();
        match subnets.iter().find(|it| is_ipv4(it) == is_ipv4(&subnet)) {
            Some(first) => text.wrong(format_args!(
                "`{first}` is of the same family, and a cluster has one subnet, or one of each family; keep the one that is meant"
            )),
            None => subnets.push(subnet),
        }
    }
    subnets
}

/// Reads options, each with one value or several.
pub(super) fn arguments(program: &BothShapes<'_>) -> BTreeMap<String, Vec<String>> {
    const FIELD: &str = "extraArgs";
    let Some(section) = program.with(FIELD) else {
        return BTreeMap::new();
    };
    let given = section.json(FIELD).unwrap_or_default();
    let text = |value: serde_json::Value| match value {
        serde_json::Value::String(text) => Some(text),
        serde_json::Value::Bool(_) | serde_json::Value::Number(_) => Some(value.to_string()),
        _ => None,
    };
    let mut arguments = BTreeMap::new();
    for (name, value) in given {
        let values = match value {
            serde_json::Value::Array(values) => values.into_iter().map(text).collect(),
            value => text(value).map(|text| vec![text]),
        };
        // kubelet's unit splits its arguments at white space.
        let is_usable = |values: &Vec<String>| {
            let mut all = values.iter().chain([&name]);
            all.all(|text| !text.contains(char::is_whitespace))
        };
        match values.filter(is_usable) {
            Some(values) => drop(arguments.insert(name, values)),
            None => section.wrong_field(
                FIELD,
                format_args!("`{name}` needs a text without white space, or a list of those"),
            ),
        }
    }
    arguments
}
