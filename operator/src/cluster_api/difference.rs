//! The difference between a machine and the one that it is to become, and whether all of it can change in place. Pure.
//!
//! ```text
//!  only the OS's image, Kubernetes' version and patches of the config differ, each in a way that can be carried out
//!      ──► patches of exactly that: Cluster API then finds nothing left, and updates in place
//!  anything else differs as well
//!      ──► no patch at all, and the fields by name: Cluster API replaces, or may not
//! ```
//!
//! A patch is a promise: what it names is carried out by UpdateMachine, all of it.

use instar_values::Version;
use serde_json::{Map, Value};

use super::config_patches::check_that_they_are_appended;
use super::field_path::{FieldPath, pointer};
use super::kubernetes::check_step;
use super::settings::Settings;
use super::wanted::Specs;
use super::wire::Objects;

/// Whether the objects are of one machine, or of a set of machines, whose templates are asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Machine,
    MachineSet,
}

impl Shape {
    /// The specs of a machine in its objects.
    pub(super) fn specs(self, objects: &Objects) -> Specs<'_> {
        Specs {
            machine: self.spec(&objects.machine),
            infrastructure_machine: self.spec(&objects.infrastructure_machine),
            bootstrap_config: self.spec(&objects.bootstrap_config),
        }
    }

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

/// The difference between two states of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Difference {
    /// Nothing that counts.
    Nothing,
    /// Only what can change in place: the patches that bring the one state to the other.
    InPlace(SpecPatches),
    /// More than can change in place: the fields, with a reason where there is one.
    TooMuch(Vec<String>),
}

/// Merge patches of a machine's specs; none where nothing of a spec changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SpecPatches {
    pub(super) machine: Option<Value>,
    pub(super) infrastructure_machine: Option<Value>,
    pub(super) bootstrap_config: Option<Value>,
}

/// Finds what differs between two states of a machine.
pub(super) fn difference(
    shape: Shape,
    current: &Objects,
    desired: &Objects,
    settings: &Settings,
) -> Difference {
    let (current, desired) = (shape.specs(current), shape.specs(desired));

    let [from, to] = [current.machine, desired.machine].map(machine_that_counts);
    let mut machine = Part::new("machine", &from, &to);
    machine.change(&FieldPath::named("version"), |from, to| {
        check_version(settings, from, to)
    });

    let [from, to] = [current.bootstrap_config, desired.bootstrap_config];
    let mut bootstrap = Part::new("bootstrap config", from, to);
    if let Some(path) = &settings.config_patches {
        bootstrap.change(path, check_that_they_are_appended);
    }

    let from = current.infrastructure_machine;
    let to = desired.infrastructure_machine;
    let mut infrastructure = Part::new("infrastructure machine", from, to);
    infrastructure.change(&settings.os_image, check_image);

    let mut fields = Vec::new();
    let patches = SpecPatches {
        machine: machine.end(&mut fields),
        bootstrap_config: bootstrap.end(&mut fields),
        infrastructure_machine: infrastructure.end(&mut fields),
    };
    match fields.is_empty() {
        false => Difference::TooMuch(fields),
        true if patches == SpecPatches::default() => Difference::Nothing,
        true => Difference::InPlace(patches),
    }
}

/// Whether Kubernetes can go from one version to the other.
fn check_version(settings: &Settings, from: Option<&Value>, to: &Value) -> Result<(), String> {
    if settings.kubernetes_patch.is_none() {
        return Err("it changes in place only with the setting kubernetesPatch".to_owned());
    }
    let version = |value: &Value| {
        let text = value.as_str().unwrap_or_default();
        text.parse::<Version>().map_err(|error| error.to_string())
    };
    let from = from.ok_or("there was no version that it could follow")?;
    check_step(&version(from)?, &version(to)?)
}

/// Whether the one image can take the place of the other.
fn check_image(from: Option<&Value>, to: &Value) -> Result<(), String> {
    let is_image = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
    match from.is_some_and(is_image) && is_image(to) {
        true => Ok(()),
        false => Err("in place, one image takes the place of another".to_owned()),
    }
}

/// One of a machine's specs, on its way from one state to the other.
struct Part<'a> {
    name: &'static str,
    current: Value,
    desired: &'a Value,
    /// The merge patch of the changes so far.
    patch: Option<Value>,
    /// The fields that cannot change in place.
    fields: Vec<String>,
}

impl<'a> Part<'a> {
    fn new(name: &'static str, current: &Value, desired: &'a Value) -> Self {
        Self {
            name,
            current: current.clone(),
            desired,
            patch: None,
            fields: Vec::new(),
        }
    }

    /// Takes a field that differs over into the current state, if it may change so.
    fn change(
        &mut self,
        path: &FieldPath,
        check: impl FnOnce(Option<&Value>, &Value) -> Result<(), String>,
    ) {
        let current = path.of(&self.current);
        let desired = path.of(self.desired).filter(|it| current != Some(*it));
        // A field that is taken away is found with all others that differ.
        let Some(desired) = desired else {
            return;
        };
        match check(current, desired) {
            Ok(()) => self.patch = Some(path.set_to(desired.clone())),
            Err(why) => self.fields.push(format!("{} {path} ({why})", self.name)),
        }
        path.set_in(&mut self.current, desired.clone());
    }

    /// Notes the fields that cannot change; returns the patch of those that can.
    fn end(mut self, fields: &mut Vec<String>) -> Option<Value> {
        fields.append(&mut self.fields);
        compare(self.name, &self.current, self.desired, fields);
        self.patch
    }
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
    #![allow(clippy::panic, clippy::unwrap_used)]
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
        found_with(&json!({}), one, other)
    }

    /// The same with settings.
    fn found_with(settings: &Value, one: [&Value; 3], other: [&Value; 3]) -> Difference {
        let settings: BTreeMap<_, _> = serde_json::from_value(settings.clone()).unwrap();
        let settings = Settings::of_machine(&settings, &Value::Null).unwrap();
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

    fn another_image(image: &str) -> Difference {
        Difference::InPlace(SpecPatches {
            infrastructure_machine: Some(json!({"osImage": image})),
            ..SpecPatches::default()
        })
    }

    const NO_IMAGE: &str =
        "infrastructure machine /spec/osImage (in place, one image takes the place of another)";

    #[test]
    fn an_infrastructure_machine_may_differ_in_its_image_alone() {
        let machine = json!({"version": "v1.36.3"});
        for (current, desired, expected) in [
            (
                json!({"osImage": "a"}),
                json!({"osImage": "b"}),
                another_image("b"),
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
            (json!({}), json!({"osImage": "b"}), too_much(NO_IMAGE)),
            (
                json!({"osImage": "a"}),
                json!({"osImage": ""}),
                too_much(NO_IMAGE),
            ),
            (
                json!({"osImage": "a"}),
                json!({"osImage": ["b"]}),
                too_much(NO_IMAGE),
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
        let in_place = another_image("b");
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
                too_much(
                    "machine /spec/version (it changes in place only with the setting kubernetesPatch)",
                ),
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

    #[test]
    fn kubernetes_goes_on_with_the_setting() {
        let with = json!({"kubernetesPatch": "image: r/k:{version}"});
        let image = json!({"osImage": "a"});
        let version = |version: &str| json!({"version": version});
        let found = |from: &Value, to: &Value| {
            found_with(
                &with,
                [from, &image, &Value::Null],
                [to, &image, &Value::Null],
            )
        };
        let patch = |version: Value| {
            Difference::InPlace(SpecPatches {
                machine: Some(version),
                ..SpecPatches::default()
            })
        };
        let own = version("v1.36.3");
        for next in ["v1.36.4", "v1.37.0"].map(version) {
            assert_eq!(found(&own, &next), patch(next.clone()));
        }
        assert_eq!(found(&own, &own), Difference::Nothing);
        for (from, to, words) in [
            (&own, version("v1.38.0"), "next minor version at most"),
            (&own, version("v1.36.2"), "does not go back"),
            (&own, version("1.37"), "not a version"),
            (&own, json!({"version": 1}), "not a version"),
            (&own, json!({}), "machine /spec/version"),
            (&json!({}), own.clone(), "no version that it could follow"),
            (
                &own,
                json!({"version": "v1.37.0", "failureDomain": "z"}),
                "machine /spec/failureDomain",
            ),
        ] {
            let Difference::TooMuch(fields) = found(from, &to) else {
                panic!("{from} {to}");
            };
            assert_eq!(fields.len(), 1, "{fields:?}");
            assert!(fields[0].contains(words), "{fields:?}");
        }
    }

    #[test]
    fn patches_of_the_config_are_appended() {
        let with = json!({"configPatchesPath": "/spec/of/patches"});
        let (machine, image) = (json!({}), json!({"osImage": "a"}));
        let found = |from: &Value, to: &Value| {
            found_with(&with, [&machine, &image, from], [&machine, &image, to])
        };
        let listed = |patches: Value| json!({"of": {"patches": patches}, "type": "worker"});
        let old = listed(json!(["a"]));
        let patch = |patches: Value| {
            Difference::InPlace(SpecPatches {
                bootstrap_config: Some(json!({"of": {"patches": patches}})),
                ..SpecPatches::default()
            })
        };
        for from in [&old, &listed(json!([])), &json!({"type": "worker"})] {
            let to = json!(["a", "b"]);
            assert_eq!(found(from, &listed(to.clone())), patch(to));
        }
        for (from, to, words) in [
            (&old, listed(json!(["b", "a"])), "only appended"),
            (&old, listed(json!([])), "only appended"),
            (&old, listed(json!("a")), "no list of patches"),
            (&old, json!({"type": "worker"}), "bootstrap config /spec/of"),
            (
                &old,
                json!({"of": {"patches": ["a", "b"]}, "type": "other"}),
                "bootstrap config /spec/type",
            ),
            (
                &json!({"of": 1, "type": "worker"}),
                listed(json!(["a"])),
                "bootstrap config /spec/of",
            ),
            (&Value::Null, listed(json!(["a"])), "bootstrap config /spec"),
        ] {
            let Difference::TooMuch(fields) = found(from, &to) else {
                panic!("{from} {to}");
            };
            assert_eq!(fields.len(), 1, "{fields:?}");
            assert!(fields[0].contains(words), "{fields:?}");
        }
    }

    #[test]
    fn all_that_changes_in_place_may_change_together() {
        let with = json!({"kubernetesPatch": "x: {version}", "configPatchesPath": "/spec/patches"});
        let old = [
            &json!({"version": "v1.36.3"}),
            &json!({"osImage": "a"}),
            &json!({}),
        ];
        let new = [
            &json!({"version": "v1.37.0"}),
            &json!({"osImage": "b"}),
            &json!({"patches": ["p"]}),
        ];
        let all = SpecPatches {
            machine: Some(new[0].clone()),
            infrastructure_machine: Some(new[1].clone()),
            bootstrap_config: Some(new[2].clone()),
        };
        assert_eq!(found_with(&with, old, new), Difference::InPlace(all));
    }
}
