//! kubelet, as it is told to run.

use super::{Item, Kind, Namespace, Record, Sensitivity, Source, Value};
use crate::kubernetes::{KubeletSpec, KubernetesFact, kubelet_spec};
use crate::machine::Machine;
use crate::store::ExtensionFact;

/// The id of the one resource, and the name of the service.
const KUBELET: &str = "kubelet";
/// The fields of its configuration, and its options, that say where it reads static pods from: they may have credentials.
const ADDRESS: &str = "staticPodURL";
const HEADERS: &str = "staticPodURLHeader";
const ADDRESS_OPTION: &str = "--manifest-url=";
const HEADERS_OPTION: &str = "--manifest-url-header=";
/// The text that readers see in the place of a secret.
const MASK: &str = "***";

/// The image, options and configuration of kubelet. Its image is that of the extension that it is of.
pub(super) const SPECS: Kind = Kind {
    name: "KubeletSpecs.kubernetes.talos.dev",
    singular: "KubeletSpec",
    namespace: Namespace::Kubernetes,
    aliases: &[],
    columns: &[("Image", "{.image}"), ("Nodename", "{.expectedNodename}")],
    sensitivity: Sensitivity::Open,
    sources: &[Source::Unannounced],
    read: |machine| {
        let configured = machine.config();
        let kubernetes = configured.as_ref();
        let kubernetes = kubernetes.and_then(|it| it.config.kubernetes.as_ref());
        let node = machine.store.list::<KubernetesFact>().into_iter().next();
        let (Some(kubernetes), Some((metadata, fact))) = (kubernetes, node) else {
            return Ok(Vec::new());
        };
        let told = kubelet_spec(kubernetes)?;
        let image = image(machine, &fact);
        Ok(vec![item(&metadata.id, image, told)])
    },
};

/// The image of the extension that brings kubelet; empty while none does.
fn image(machine: &Machine, fact: &KubernetesFact) -> String {
    let mut services = fact.services.iter();
    let service = services.find(|service| service.name == KUBELET);
    let extension = service.and_then(|it| machine.store.get::<ExtensionFact>(&it.extension));
    extension
        .map(|extension| extension.source)
        .unwrap_or_default()
}

/// Hides the credentials in kubelet's configuration, which everybody who may read resources sees.
fn mask_configuration(configuration: &mut serde_json::Value) {
    let Some(fields) = configuration.as_object_mut() else {
        return;
    };
    if let Some(address) = fields.get_mut(ADDRESS) {
        *address = match address.as_str() {
            Some(text) => masked_address(text).into(),
            None => MASK.into(),
        };
    }
    match fields.get_mut(HEADERS) {
        Some(serde_json::Value::Object(headers)) => {
            for values in headers.values_mut() {
                *values = serde_json::json!([MASK]);
            }
        }
        Some(other) => *other = MASK.into(),
        None => {}
    }
}

/// Hides the credentials in an option.
fn masked_option(option: String) -> String {
    if option.starts_with(HEADERS_OPTION) {
        return format!("{HEADERS_OPTION}{MASK}");
    }
    match option.strip_prefix(ADDRESS_OPTION) {
        Some(address) => format!("{ADDRESS_OPTION}{}", masked_address(address)),
        None => option,
    }
}

/// Hides user name and password in an address. What has another form than an address is hidden as a whole.
fn masked_address(address: &str) -> String {
    let Some((scheme, rest)) = address.split_once("://") else {
        return MASK.to_owned();
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    match authority.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}://{MASK}@{host}{path}"),
        None => address.to_owned(),
    }
}

fn item(node: &str, image: String, mut told: KubeletSpec) -> Item {
    mask_configuration(&mut told.configuration);
    let arguments = told.arguments.into_iter().map(masked_option);
    let spec = Record::default()
        .with("image", 1, image)
        .with("args", 2, Value::from_iter(arguments))
        .with("expectedNodename", 4, node)
        .with("config", 5, Value::Json(told.configuration));
    Item::new(KUBELET.to_owned(), spec)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use prost::Message as _;
    use serde_json::json;

    use super::*;

    /// Talos's message of how kubelet is told to run: the API's own contract has it not, as nothing here decodes one.
    #[derive(Clone, PartialEq, prost::Message)]
    struct KubeletSpecMessage {
        #[prost(string, tag = "1")]
        image: String,
        #[prost(string, repeated, tag = "2")]
        args: Vec<String>,
        #[prost(string, tag = "4")]
        expected_nodename: String,
        #[prost(message, optional, tag = "5")]
        config: Option<prost_types::Struct>,
    }

    #[test]
    fn readers_see_no_credentials_for_static_pods() {
        for (address, expected) in [
            (
                "https://pods.example.com/a@b",
                "https://pods.example.com/a@b",
            ),
            (
                "https://me:se@cret@pods.example.com:8/x?y",
                "https://***@pods.example.com:8/x?y",
            ),
            ("secret", "***"),
        ] {
            let told = KubeletSpec {
                arguments: vec![
                    format!("--manifest-url={address}"),
                    "--manifest-url-header=Token:secret".to_owned(),
                    "--v=2".to_owned(),
                ],
                configuration: json!({
                    "maxPods": 7,
                    "staticPodURL": address,
                    "staticPodURLHeader": {"Token": ["secret", "other"]},
                }),
            };
            let item = item("worker-1", String::new(), told);
            let yaml: serde_json::Value = serde_saphyr::from_str(&item.spec.yaml()).unwrap();
            assert_eq!(
                yaml["config"],
                json!({
                    "maxPods": 7,
                    "staticPodURL": expected,
                    "staticPodURLHeader": {"Token": ["***"]},
                })
            );
            let option = format!("--manifest-url={expected}");
            assert_eq!(
                yaml["args"],
                json!([option, "--manifest-url-header=***", "--v=2"])
            );
        }
        let mut other = json!({"staticPodURL": 7, "staticPodURLHeader": "Token: secret"});
        mask_configuration(&mut other);
        assert_eq!(
            other,
            json!({"staticPodURL": "***", "staticPodURLHeader": "***"})
        );
    }

    #[test]
    fn kubelet_is_told_as_talos_does() {
        let told = KubeletSpec {
            arguments: vec!["--v=2".to_owned(), "--node-ip=192.0.2.7".to_owned()],
            configuration: json!({"kind": "KubeletConfiguration", "maxPods": 7}),
        };
        let item = item("worker-1", "r.io/kubernetes:v1.36.3".to_owned(), told);
        let message = KubeletSpecMessage::decode(item.spec.protobuf().as_slice()).unwrap();
        assert_eq!(message.image, "r.io/kubernetes:v1.36.3");
        assert_eq!(message.args, ["--v=2", "--node-ip=192.0.2.7"]);
        assert_eq!(message.expected_nodename, "worker-1");
        assert_eq!(message.config.unwrap().fields.len(), 2);
        let yaml: serde_json::Value = serde_saphyr::from_str(&item.spec.yaml()).unwrap();
        assert_eq!(
            yaml,
            json!({
                "image": "r.io/kubernetes:v1.36.3",
                "args": ["--v=2", "--node-ip=192.0.2.7"],
                "expectedNodename": "worker-1",
                "config": {"kind": "KubeletConfiguration", "maxPods": 7},
            })
        );
    }
}
