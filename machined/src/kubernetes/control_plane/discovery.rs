//! The paths of objects at the API server, which tells the resource of each kind.

use std::collections::BTreeMap;

use instar_http_client::Body;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};
use serde_json::Value;

use super::own_api::OwnApi;
use crate::config::ManifestObject;

/// The namespace of objects that name none.
const NAMESPACE: &str = "default";
/// Bytes that a part of a path does not have as they are.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b':');

/// The resources of each apiVersion that the API server was asked for. What it learns later is in the next one.
#[derive(Default)]
pub(super) struct Discovery {
    resources: BTreeMap<String, Value>,
}

impl Discovery {
    /// Returns the path of an object; `None` if the API server does not serve its kind, which may be one that it is about to learn.
    ///
    /// # Errors
    /// The API server does not answer.
    pub(super) async fn path(
        &mut self,
        api: &OwnApi<'_>,
        object: &ManifestObject,
    ) -> anyhow::Result<Option<String>> {
        let version = &object.api_version;
        if !self.resources.contains_key(version) {
            // One that is refused has no resources: the server of an extension of the API may be away.
            let list = api.ask(&root(version), Body::None).await?;
            let list = list.unwrap_or_default();
            self.resources.insert(version.clone(), list);
        }
        let list = self.resources.get(version);
        Ok(list.and_then(|list| path(list, object)))
    }
}

/// Returns the path of an apiVersion.
fn root(api_version: &str) -> String {
    match api_version.split_once('/') {
        None => format!("/api/{}", part(api_version)),
        Some((group, version)) => format!("/apis/{}/{}", part(group), part(version)),
    }
}

/// Finds an object's kind in the list of its apiVersion's resources (`APIResourceList`).
fn path(list: &Value, object: &ManifestObject) -> Option<String> {
    let mut resources = list["resources"].as_array()?.iter();
    let (resource, is_namespaced) = resources.find_map(|resource| {
        let name = resource["name"].as_str()?;
        // Those with a slash are parts of objects, such as `deployments/scale`.
        let is_meant = resource["kind"] == object.kind.as_str() && !name.contains('/');
        is_meant.then_some((name, resource["namespaced"] == true))
    })?;
    let namespace = object.namespace.as_deref().unwrap_or(NAMESPACE);
    let within = match is_namespaced {
        true => format!("/namespaces/{}", part(namespace)),
        false => String::new(),
    };
    let (root, name) = (root(&object.api_version), part(&object.name));
    Some(format!("{root}{within}/{resource}/{name}"))
}

fn part(text: &str) -> PercentEncode<'_> {
    utf8_percent_encode(text, RESERVED)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn object(api_version: &str, kind: &str, namespace: &str, name: &str) -> ManifestObject {
        ManifestObject {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            namespace: (!namespace.is_empty()).then(|| namespace.to_owned()),
            name: name.to_owned(),
            content: Value::Null,
        }
    }

    #[test]
    fn the_path_of_an_object_follows_from_its_kind() {
        let resource = |name: &str, kind: &str, namespaced: bool| json!({"name": name, "kind": kind, "namespaced": namespaced});
        let list = json!({"kind": "APIResourceList", "resources": [
            resource("deployments/scale", "Scale", true),
            resource("deployments/status", "Deployment", true),
            resource("deployments", "Deployment", true),
            resource("clusterroles", "ClusterRole", false),
        ]});
        for (object, expected) in [
            (
                object("apps/v1", "Deployment", "web", "a"),
                Some("/apis/apps/v1/namespaces/web/deployments/a"),
            ),
            (
                object("v1", "Deployment", "", "a"),
                Some("/api/v1/namespaces/default/deployments/a"),
            ),
            (
                object("rbac/v1", "ClusterRole", "ignored", "system:x y?"),
                Some("/apis/rbac/v1/clusterroles/system:x%20y%3F"),
            ),
            (object("apps/v1", "Scale", "", "a"), None),
            (object("apps/v1", "Widget", "", "a"), None),
        ] {
            assert_eq!(path(&list, &object).as_deref(), expected, "{object:?}");
        }
    }

    #[test]
    fn without_resources_there_is_no_path() {
        let object = object("example.org/v1", "Widget", "", "a");
        assert_eq!(path(&Value::Null, &object), None);
    }
}
