//! A Machine with its infrastructure and bootstrap objects, in the management cluster.

use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::address::{is_kind, is_label, is_name, is_version};
use super::trouble::Trouble;

/// The annotation of a Machine that MachineHealthChecks leave alone.
const SKIP_REMEDIATION: &str = "cluster.x-k8s.io/skip-remediation";
/// Its value where it is ours. One with another value is a person's, and stays.
const OURS: &str = "instar-capi-extension";

/// Who keeps health checks away from a Machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Nobody,
    Us,
    Another,
}

/// A Machine.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Machine {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    /// The cluster of which it is a node.
    pub(super) cluster: String,
    /// Its node there.
    pub(super) node: String,
    /// Null if it has none.
    pub(super) annotations: Value,
    pub(super) spec: Value,
    pub(super) infrastructure: Reference,
    /// None for a Machine that only names the Secret with its config.
    pub(super) bootstrap: Option<Reference>,
    version: String,
    mark: Mark,
}

/// An object of the same namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reference {
    group: String,
    kind: String,
    name: String,
}

impl Machine {
    /// Reads it. A caller writes both names.
    pub(super) async fn read(
        client: &Client,
        namespace: &str,
        name: &str,
    ) -> Result<Self, Trouble> {
        if !is_label(namespace) || !is_name(name) {
            return Err(Trouble::Lasting(format!(
                "the request names a Machine {namespace:?}/{name:?}, which no Machine can be called"
            )));
        }
        let what = format!("Machine {namespace}/{name}");
        let object = machines(client, namespace).get(name).await;
        let object = object.map_err(Trouble::of(format!("{what} cannot be read")))?;
        check_that_it_is(&object, namespace, name, &what)?;
        let object = serde_json::to_value(object).unwrap_or_default();
        Self::of(&object)
            .map_err(|field| Trouble::Lasting(format!("{what} has no {field} that can be used")))
    }

    /// The Machine of an object; otherwise the field that is missing, or cannot be a part of an address.
    fn of(object: &Value) -> Result<Self, &'static str> {
        let text = |path: &'static str, is_fit: fn(&str) -> bool| {
            let found = object.pointer(path).and_then(Value::as_str);
            found
                .filter(|text| is_fit(text))
                .map(str::to_owned)
                .ok_or(path)
        };
        let bootstrap = match object["spec"]["bootstrap"]["configRef"].is_null() {
            true => None,
            false => Some(Reference {
                group: text("/spec/bootstrap/configRef/apiGroup", is_name)?,
                kind: text("/spec/bootstrap/configRef/kind", is_kind)?,
                name: text("/spec/bootstrap/configRef/name", is_name)?,
            }),
        };
        let mark = object["metadata"]["annotations"].get(SKIP_REMEDIATION);
        Ok(Self {
            namespace: text("/metadata/namespace", is_label)?,
            name: text("/metadata/name", is_name)?,
            uid: text("/metadata/uid", is_label)?,
            cluster: text("/spec/clusterName", is_name)?,
            node: text("/status/nodeRef/name", is_name)?,
            annotations: object["metadata"]["annotations"].clone(),
            spec: object["spec"].clone(),
            infrastructure: Reference {
                group: text("/spec/infrastructureRef/apiGroup", is_name)?,
                kind: text("/spec/infrastructureRef/kind", is_kind)?,
                name: text("/spec/infrastructureRef/name", is_name)?,
            },
            bootstrap,
            version: text("/metadata/resourceVersion", |_| true)?,
            mark: match mark.map(|it| it == OURS) {
                None => Mark::Nobody,
                Some(true) => Mark::Us,
                Some(false) => Mark::Another,
            },
        })
    }

    /// The spec of one of its objects. A request has that object as well, but anybody may send one; who changes the object itself is the API
    /// server's business. Of the request is the version of its type alone.
    pub(super) async fn spec_of(
        &self,
        client: &Client,
        object: &Reference,
        api_version: &str,
    ) -> Result<Value, Trouble> {
        let name = &object.name;
        let what = format!("{} {}/{name}", object.kind, self.namespace);
        let kind = object.resource(api_version).ok_or_else(|| {
            Trouble::Lasting(format!(
                "{what} is not of the type {api_version:?} of the request"
            ))
        })?;
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &self.namespace, &kind);
        let object = api.get(name).await;
        let object = object.map_err(Trouble::of(format!("{what} cannot be read")))?;
        check_that_it_is(&object, &self.namespace, name, &what)?;
        Ok(object.data["spec"].clone())
    }

    /// Keeps health checks away from it, or lets them come; a person's own mark stays.
    pub(super) async fn protect(&self, client: &Client, is_wanted: bool) -> Result<(), Trouble> {
        let value = match (self.mark, is_wanted) {
            (Mark::Nobody, true) => Value::from(OURS),
            (Mark::Us, false) => Value::Null,
            _ => return Ok(()),
        };
        // Only over what was read: a mark that came meanwhile is a person's.
        let patch = json!({"metadata": {"resourceVersion": self.version, "annotations": {SKIP_REMEDIATION: value}}});
        let doing = format!("Machine {}/{} cannot be marked", self.namespace, self.name);
        let machines = machines(client, &self.namespace);
        let patched = machines
            .patch(&self.name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        patched.map(|_| ()).map_err(Trouble::of(doing))
    }
}

impl Reference {
    /// Its type, in the version that a caller names; none if that is not the version of this group.
    fn resource(&self, api_version: &str) -> Option<ApiResource> {
        let version = api_version.strip_prefix(&self.group)?.strip_prefix('/')?;
        let kind = GroupVersionKind::gvk(&self.group, version, &self.kind);
        is_version(version).then(|| ApiResource::from_gvk(&kind))
    }
}

/// Whether an answer is the object that was asked for.
fn check_that_it_is(
    object: &DynamicObject,
    namespace: &str,
    name: &str,
    what: &str,
) -> Result<(), Trouble> {
    let found = &object.metadata;
    let found = (found.namespace.as_deref(), found.name.as_deref());
    match found == (Some(namespace), Some(name)) {
        true => Ok(()),
        false => Err(Trouble::Lasting(format!(
            "{what} was asked for, and the API server has answered with another object: {found:?}"
        ))),
    }
}

fn machines(client: &Client, namespace: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("cluster.x-k8s.io", "v1beta2", "Machine");
    Api::namespaced_with(client.clone(), namespace, &ApiResource::from_gvk(&kind))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn object(annotations: &Value) -> Value {
        json!({
            "metadata": {"namespace": "n", "name": "m", "uid": "u", "resourceVersion": "7", "annotations": annotations},
            "spec": {"clusterName": "c", "infrastructureRef": {"apiGroup": "g", "kind": "K", "name": "i"}},
            "status": {"nodeRef": {"name": "worker-1"}},
        })
    }

    #[test]
    fn a_mark_is_ours_only_by_its_value() {
        for (annotations, expected) in [
            (Value::Null, Mark::Nobody),
            (json!({"x": "y"}), Mark::Nobody),
            (json!({SKIP_REMEDIATION: OURS}), Mark::Us),
            (json!({SKIP_REMEDIATION: ""}), Mark::Another),
        ] {
            assert_eq!(Machine::of(&object(&annotations)).unwrap().mark, expected);
        }
    }

    #[test]
    fn a_field_that_is_missing_is_named() {
        let mut without_node = object(&Value::Null);
        without_node["status"] = json!({});
        assert_eq!(Machine::of(&without_node), Err("/status/nodeRef/name"));
    }

    #[test]
    fn a_field_that_would_be_another_path_is_named() {
        for field in [
            "/metadata/namespace",
            "/spec/clusterName",
            "/spec/infrastructureRef/apiGroup",
            "/spec/infrastructureRef/kind",
            "/spec/infrastructureRef/name",
            "/status/nodeRef/name",
        ] {
            let mut machine = object(&Value::Null);
            *machine.pointer_mut(field).unwrap() = "x/../y?".into();
            assert_eq!(Machine::of(&machine), Err(field));
        }
    }

    /// Each caller names a version, and nothing but a version.
    #[test]
    fn a_caller_does_not_choose_which_object_is_read() {
        let reference = Reference {
            group: "bootstrap.cluster.x-k8s.io".to_owned(),
            kind: "KubeadmConfig".to_owned(),
            name: "x".to_owned(),
        };
        let read = |version: &str| reference.resource(&format!("{}/{version}", reference.group));
        let kind = read("v1beta2").unwrap();
        assert_eq!(kind.api_version, "bootstrap.cluster.x-k8s.io/v1beta2");
        assert_eq!(kind.plural, "kubeadmconfigs");
        for version in [
            "",
            "v1beta2/",
            "v1beta2?",
            "v1beta2/namespaces/evil/kubeadmconfigs/x?",
            "../v1",
        ] {
            assert_eq!(read(version), None, "{version}");
        }
        for api_version in [
            "v1beta2",
            "another.io/v1beta2",
            "bootstrap.cluster.x-k8s.io",
        ] {
            assert_eq!(reference.resource(api_version), None, "{api_version}");
        }
    }

    #[test]
    fn an_answer_is_the_object_that_was_asked_for() {
        let answer = |metadata: Value| {
            let object =
                json!({"apiVersion": "b/v1", "kind": "C", "metadata": metadata, "spec": {}});
            let object = serde_json::from_value(object).unwrap();
            check_that_it_is(&object, "n", "x", "C n/x")
        };
        assert_eq!(answer(json!({"namespace": "n", "name": "x"})), Ok(()));
        for other in [
            json!({"namespace": "evil", "name": "x"}),
            json!({"namespace": "n", "name": "y"}),
            json!({"name": "x"}),
        ] {
            assert!(answer(other.clone()).is_err(), "{other}");
        }
    }

    #[test]
    fn a_bootstrap_config_may_be_a_secret_alone() {
        let mut machine = object(&Value::Null);
        assert_eq!(Machine::of(&machine).unwrap().bootstrap, None);
        machine["spec"]["bootstrap"] =
            json!({"configRef": {"apiGroup": "b", "kind": "C", "name": "x"}});
        let bootstrap = Machine::of(&machine).unwrap().bootstrap.unwrap();
        assert_eq!(bootstrap.name, "x");
        machine["spec"]["bootstrap"]["configRef"]["kind"] = Value::Null;
        let missing = Machine::of(&machine).unwrap_err();
        assert_eq!(missing, "/spec/bootstrap/configRef/kind");
    }
}
