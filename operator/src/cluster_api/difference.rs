//! What of the difference between a machine and the one that it is to become can change in place. Pure.
//!
//! ```text
//!  the OS's image differs, or nothing that counts ──► a patch of exactly that: Cluster API then finds nothing left, and updates in place
//!  anything else differs as well ───────────────────► no patch at all, and the fields by name: Cluster API replaces, or may not
//! ```
//!
//! A patch is a promise: what it names is carried out by UpdateMachine, all of it.

use serde_json::{Map, Value};

use super::field_path::{FieldPath, pointer};
use super::settings::Settings;
use super::wire::Objects;

/// Whether the objects are of one machine, or of a set of machines, whose templates are asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Machine,
    MachineSet,
}

impl Shape {
    /// The spec of a machine in an object; null if it has none.
    fn spec(self, object: &Value) -> &Value {
        match self {
            Self::Machine => &object["spec"],
            Self::MachineSet => &object["spec"]["template"]["spec"],
        }
    }

    /// The annotations of a machine in an object; null if it has none.
    pub(super) fn annotations(self, object: &Value) -> &Value {
        match self {
            Self::Machine => &object["metadata"]["annotations"],
            Self::MachineSet => &object["spec"]["template"]["metadata"]["annotations"],
        }
    }
}

/// What differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Difference {
    /// Nothing that counts.
    Nothing,
    /// The OS's image alone: this one is wanted.
    OsImage(String),
    /// More than can change in place: the fields.
    TooMuch(Vec<String>),
}

/// Finds what differs between two states of a machine.
pub(super) fn difference(
    shape: Shape,
    current: &Objects,
    desired: &Objects,
    settings: &Settings,
) -> Difference {
    let mut fields = Vec::new();
    let machine = |objects: &Objects| machine_that_counts(shape.spec(&objects.machine));
    compare("machine", &machine(current), &machine(desired), &mut fields);

    let bootstrap = |objects: &Objects| shape.spec(&objects.bootstrap_config).clone();
    compare(
        "bootstrap config",
        &bootstrap(current),
        &bootstrap(desired),
        &mut fields,
    );

    let wanted = shape.spec(&desired.infrastructure_machine);
    let mut infrastructure = shape.spec(&current.infrastructure_machine).clone();
    let image = exchange_image(&settings.os_image, &mut infrastructure, wanted);
    compare(
        "infrastructure machine",
        &infrastructure,
        wanted,
        &mut fields,
    );

    match (fields.is_empty(), image) {
        (false, _) => Difference::TooMuch(fields),
        (true, Some(image)) => Difference::OsImage(image),
        (true, None) => Difference::Nothing,
    }
}

/// Gives the one the other's image, if both name one and they differ; returns it. An image that is added or taken away is no exchange.
fn exchange_image(path: &FieldPath, current: &mut Value, wanted: &Value) -> Option<String> {
    let wanted = path.of(wanted)?.as_str()?;
    let own = path.of_mut(current)?;
    let is_another = own.as_str()? != wanted && !wanted.is_empty();
    is_another.then(|| {
        *own = Value::from(wanted);
        wanted.to_owned()
    })
}

/// The fields of a machine's spec that Cluster API does not compare: they never change, or change without a rollout.
const NOT_COMPARED: [&str; 7] = [
    "clusterName",
    "bootstrap",
    "infrastructureRef",
    "providerID",
    "minReadySeconds",
    "readinessGates",
    "taints",
];
/// The same of its field `deletion`.
const NOT_COMPARED_OF_DELETION: [&str; 3] = [
    "nodeDrainTimeoutSeconds",
    "nodeVolumeDetachTimeoutSeconds",
    "nodeDeletionTimeoutSeconds",
];

/// A machine's spec as Cluster API compares it. An empty map is as none.
fn machine_that_counts(spec: &Value) -> Value {
    let mut spec = spec.as_object().cloned().unwrap_or_default();
    spec.retain(|name, _| !NOT_COMPARED.contains(&name.as_str()));
    if let Some(Value::Object(deletion)) = spec.get_mut("deletion") {
        deletion.retain(|name, _| !NOT_COMPARED_OF_DELETION.contains(&name.as_str()));
    }
    spec.retain(|_, value| !value.as_object().is_some_and(Map::is_empty));
    Value::Object(spec)
}

/// Notes the fields in which two values differ. Lists are compared as a whole.
fn compare(what: &str, current: &Value, desired: &Value, fields: &mut Vec<String>) {
    let mut differing = Vec::new();
    walk(current, desired, &mut Vec::new(), &mut differing);
    fields.extend(differing.iter().map(|path| format!("{what} /spec{path}")));
}

fn walk<'a>(
    current: &'a Value,
    desired: &'a Value,
    way: &mut Vec<&'a str>,
    differing: &mut Vec<String>,
) {
    if current == desired {
        return;
    }
    let (Value::Object(one), Value::Object(other)) = (current, desired) else {
        differing.push(pointer(way.iter().copied()));
        return;
    };
    let added = other.keys().filter(|key| !one.contains_key(*key));
    for key in one.keys().chain(added) {
        way.push(key);
        let [one, other] = [one, other].map(|map| map.get(key).unwrap_or(&Value::Null));
        walk(one, other, way, differing);
        way.pop();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    fn objects(
        machine: &Value,
        infrastructure: &Value,
        bootstrap: &Value,
        shape: Shape,
    ) -> Objects {
        let object = |spec: &Value| match shape {
            _ if spec.is_null() => Value::Null,
            Shape::Machine => json!({"spec": spec, "metadata": {"name": spec.to_string()}}),
            Shape::MachineSet => json!({"spec": {"replicas": 1, "template": {"spec": spec}}}),
        };
        Objects {
            machine: object(machine),
            infrastructure_machine: object(infrastructure),
            bootstrap_config: object(bootstrap),
        }
    }

    fn found(one: [&Value; 3], other: [&Value; 3]) -> Difference {
        let settings = Settings::of_machine(&BTreeMap::new(), &Value::Null).unwrap();
        let both = [Shape::Machine, Shape::MachineSet].map(|shape| {
            let of = |[machine, infrastructure, bootstrap]: [&Value; 3]| {
                objects(machine, infrastructure, bootstrap, shape)
            };
            difference(shape, &of(one), &of(other), &settings)
        });
        assert_eq!(both[0], both[1]);
        both[0].clone()
    }

    fn too_much(field: &str) -> Difference {
        Difference::TooMuch(vec![field.to_owned()])
    }

    #[test]
    fn an_infrastructure_machine_may_differ_in_its_image_alone() {
        let machine = json!({"version": "v1.36.3"});
        for (current, desired, expected) in [
            (
                json!({"osImage": "a"}),
                json!({"osImage": "b"}),
                Difference::OsImage("b".to_owned()),
            ),
            (
                json!({"osImage": "a", "cpus": 2}),
                json!({"osImage": "a", "cpus": 2}),
                Difference::Nothing,
            ),
            (
                json!({"osImage": "a", "cpus": 2}),
                json!({"osImage": "b", "cpus": 4}),
                too_much("infrastructure machine /spec/cpus"),
            ),
            (
                json!({"osImage": "a", "disk": {"gib": 1}}),
                json!({"osImage": "b", "disk": {"gib": 2}}),
                too_much("infrastructure machine /spec/disk/gib"),
            ),
            (
                json!({"osImage": "a"}),
                json!({}),
                too_much("infrastructure machine /spec/osImage"),
            ),
            (
                json!({}),
                json!({"osImage": "b"}),
                too_much("infrastructure machine /spec/osImage"),
            ),
            (
                json!({"osImage": "a"}),
                json!({"osImage": ""}),
                too_much("infrastructure machine /spec/osImage"),
            ),
            (
                json!({"osImage": "a"}),
                json!({"osImage": ["b"]}),
                too_much("infrastructure machine /spec/osImage"),
            ),
            (
                json!({"x": [1, 2]}),
                json!({"x": [2, 1]}),
                too_much("infrastructure machine /spec/x"),
            ),
        ] {
            let difference = found(
                [&machine, &current, &Value::Null],
                [&machine, &desired, &Value::Null],
            );
            assert_eq!(difference, expected, "{current} {desired}");
        }
    }

    #[test]
    fn what_cluster_api_does_not_compare_does_not_count() {
        let (old, new) = (json!({"osImage": "a"}), json!({"osImage": "b"}));
        let in_place = Difference::OsImage("b".to_owned());
        for (current, desired, expected) in [
            (
                json!({"infrastructureRef": {"name": "a"}}),
                json!({"infrastructureRef": {"name": "b"}}),
                in_place.clone(),
            ),
            (
                json!({"deletion": {"nodeDrainTimeoutSeconds": 1}}),
                json!({}),
                in_place.clone(),
            ),
            (
                json!({"minReadySeconds": 1, "taints": []}),
                json!({"providerID": "x"}),
                in_place.clone(),
            ),
            (
                json!({"version": "v1.35.0"}),
                json!({"version": "v1.36.0"}),
                too_much("machine /spec/version"),
            ),
            (
                json!({}),
                json!({"failureDomain": "z"}),
                too_much("machine /spec/failureDomain"),
            ),
            (
                json!({}),
                json!({"deletion": {"order": "x"}}),
                too_much("machine /spec/deletion"),
            ),
            (
                json!({}),
                json!({"future": true}),
                too_much("machine /spec/future"),
            ),
        ] {
            let difference = found(
                [&current, &old, &Value::Null],
                [&desired, &new, &Value::Null],
            );
            assert_eq!(difference, expected, "{current} {desired}");
        }
    }

    #[test]
    fn another_bootstrap_config_cannot_be_carried_out() {
        let (machine, infrastructure) = (json!({}), json!({"osImage": "a"}));
        for (current, desired, field) in [
            (json!({"files": [1]}), json!({"files": [2]}), "/files"),
            (json!({"a": {"b/c": 1}}), json!({"a": {}}), "/a/b~1c"),
            (Value::Null, json!({"a": 1}), ""),
        ] {
            let difference = found(
                [&machine, &infrastructure, &current],
                [&machine, &infrastructure, &desired],
            );
            assert_eq!(
                difference,
                too_much(&format!("bootstrap config /spec{field}"))
            );
        }
    }
}
