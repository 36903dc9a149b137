//! The definition of a kind of resource: names, table columns, who may see it, and the source of its content.

use crate::machine::Machine;

use super::spec::{Record, Spec, Value};
use crate::store::Metadata;

/// The namespace of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Namespace {
    /// Definitions of resources.
    Meta,
    /// The running machine.
    Runtime,
    /// Links, addresses, names.
    Network,
    /// Other machines.
    Cluster,
    /// The machine config.
    Config,
    /// Keys and tokens.
    Secrets,
    /// The machine's hardware.
    Hardware,
    /// Images and keys that the machine accepts.
    Security,
    /// The machine as a Kubernetes node.
    Kubernetes,
}

impl Namespace {
    /// All namespaces, each with a description.
    pub const ALL: [(Namespace, &'static str); 9] = [
        (Namespace::Meta, "what kinds of resources there are"),
        (Namespace::Runtime, "the machine as it runs"),
        (Namespace::Network, "links, addresses, routes, names"),
        (Namespace::Cluster, "the machines of the cluster"),
        (Namespace::Config, "the machine config"),
        (Namespace::Secrets, "keys and tokens of the machine config"),
        (Namespace::Hardware, "what the machine is built of"),
        (Namespace::Security, "what the machine lets in"),
        (Namespace::Kubernetes, "the machine as a Kubernetes node"),
    ];

    /// Returns the name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Namespace::Meta => "meta",
            Namespace::Runtime => "runtime",
            Namespace::Network => "network",
            Namespace::Cluster => "cluster",
            Namespace::Config => "config",
            Namespace::Secrets => "secrets",
            Namespace::Hardware => "hardware",
            Namespace::Security => "security",
            Namespace::Kubernetes => "k8s",
        }
    }

    /// Returns the namespace of this name.
    pub fn of(name: &str) -> Option<Self> {
        let mut all = Self::ALL.iter().map(|(namespace, _)| *namespace);
        all.find(|namespace| namespace.name() == name)
    }
}

/// The callers that may see a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sensitivity {
    /// Every role that may see resources.
    Open,
    /// Only `os:admin`.
    Secret,
}

/// The way in which a watcher learns that a resource may have changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A resource of this type changed in the store.
    Store(&'static str),
    /// The network's state changed.
    Network,
    /// The state of the owned disk changed.
    Disk,
    /// Another machine config came into force.
    Config,
    /// The nodes of the cluster: they are asked for while there is a reader, and not more often than every 15 seconds.
    Cluster,
    /// The statuses of static pods: the machine's own API server is asked for them while there is a reader.
    StaticPods,
    /// Changes are not announced: the resources are read every few seconds while there is a watcher.
    Unannounced,
}

/// The kind of client that sees a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Viewer {
    /// A client that is shown everything.
    Any,
    /// A client of Talos, which knows only Talos's kinds of documents.
    Talos,
}

/// One resource, built on request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// The id, unique within its kind.
    pub id: String,
    /// Its content.
    pub spec: Spec,
    /// The content without secrets, if it differs from `spec`.
    pub without_secrets: Option<Spec>,
    /// The content for clients of Talos, if it differs from `spec`.
    pub spec_for_talos: Option<Spec>,
    /// Version and times, if the store keeps the resource.
    pub stored: Option<Metadata>,
    /// Annotations for clients.
    pub annotations: &'static [(&'static str, &'static str)],
}

impl Item {
    /// Creates a resource that the store does not keep.
    pub fn new(id: impl Into<String>, spec: impl Into<Spec>) -> Self {
        Item {
            id: id.into(),
            spec: spec.into(),
            without_secrets: None,
            spec_for_talos: None,
            stored: None,
            annotations: &[],
        }
    }

    /// Creates a resource that the store keeps.
    pub fn stored(metadata: Metadata, spec: impl Into<Spec>) -> Self {
        Item {
            stored: Some(metadata.clone()),
            ..Item::new(metadata.id, spec)
        }
    }
}

/// A kind of resource.
pub struct Kind {
    /// The full name for clients, `Plural.group.domain`.
    pub name: &'static str,
    /// The singular name.
    pub singular: &'static str,
    /// The namespace of the resources.
    pub namespace: Namespace,
    /// Names in addition to those that are derived from the full one.
    pub aliases: &'static [&'static str],
    /// Columns of a table: title, and the path of the value in the YAML.
    pub columns: &'static [(&'static str, &'static str)],
    /// The callers that may see the resources.
    pub sensitivity: Sensitivity,
    /// The sources that announce changes; empty if the resources never change.
    pub sources: &'static [Source],
    /// Reads all resources of the kind.
    pub read: fn(&Machine) -> anyhow::Result<Vec<Item>>,
}

impl Kind {
    /// Returns whether reading may wait for a disk, as with kinds whose changes are not announced: their state is not in memory.
    pub fn may_wait(&self) -> bool {
        self.sources.contains(&Source::Unannounced)
    }

    /// Returns whether the cluster has to be asked before the resources are read.
    pub fn is_of_cluster(&self) -> bool {
        self.sources.contains(&Source::Cluster)
    }

    /// Returns whether the API server has to be asked for static pods before the resources are read.
    pub fn is_of_static_pods(&self) -> bool {
        self.sources.contains(&Source::StaticPods)
    }

    /// Returns `Plural` of `Plural.group.domain`.
    fn plural(&self) -> &'static str {
        self.name
            .split_once('.')
            .map_or(self.name, |(plural, _)| plural)
    }

    /// Returns the initials, `ms` of `MachineStatus`; none for a name of one word.
    fn initials(&self) -> Option<String> {
        let initials: String = self
            .plural()
            .chars()
            .filter(char::is_ascii_uppercase)
            .collect();
        (initials.len() > 1).then(|| initials.to_ascii_lowercase())
    }

    /// Lists the names without the group: the given ones, the singular, and the initials with and without a plural s.
    ///
    /// `is_free` says whether a name is not taken yet; initials are given to one kind only.
    fn short_names(&self, is_free: impl Fn(&str) -> bool) -> Vec<String> {
        let mut names: Vec<String> = self.aliases.iter().map(|&name| name.to_owned()).collect();
        names.push(self.singular.to_ascii_lowercase());
        if let Some(initials) = self.initials() {
            let plural = (!initials.ends_with('s')).then(|| format!("{initials}s"));
            names.extend(
                std::iter::once(initials)
                    .chain(plural)
                    .filter(|name| is_free(name)),
            );
        }
        let mut seen = Vec::new();
        names.retain(|name| {
            !seen.contains(name) && {
                seen.push(name.clone());
                true
            }
        });
        names
    }

    /// Lists the plural with ever more of the group: `plural`, `plural.group`, …; without the full name, which is the id.
    fn long_names(&self) -> Vec<String> {
        let full = self.name.to_ascii_lowercase();
        let dots = full.match_indices('.').map(|(at, _)| at);
        dots.map(|at| full[..at].to_owned()).collect()
    }
}

/// Builds the definitions of the kinds, in their order.
pub fn definitions(kinds: &[&'static Kind]) -> Vec<Item> {
    let mut taken: Vec<String> = kinds
        .iter()
        .flat_map(|kind| {
            let given = kind.aliases.iter().map(|&name| name.to_owned());
            given
                .chain([kind.singular.to_ascii_lowercase()])
                .chain(kind.long_names())
        })
        .collect();
    let mut items = Vec::new();
    for kind in kinds {
        let short = kind.short_names(|name| !taken.iter().any(|taken| taken == name));
        taken.extend(short.iter().cloned());
        items.push(definition(kind, short));
    }
    items
}

fn definition(kind: &Kind, short: Vec<String>) -> Item {
    let all: Vec<String> = kind
        .long_names()
        .into_iter()
        .chain(short.iter().cloned())
        .collect();
    let columns = kind.columns.iter().map(|(name, path)| {
        Record::default()
            .with("name", 1, *name)
            .with("jsonPath", 2, *path)
    });
    let sensitivity = match kind.sensitivity {
        Sensitivity::Open => Value::Word(0, ""),
        Sensitivity::Secret => Value::Word(1, "sensitive"),
    };
    Item::new(
        kind.name.to_ascii_lowercase(),
        Record::default()
            .with("type", 1, kind.name)
            .with("displayType", 2, kind.singular)
            .with("defaultNamespace", 3, kind.namespace.name())
            .with("aliases", 4, short.into_iter().collect::<Value>())
            .with("allAliases", 5, all.into_iter().collect::<Value>())
            .with("printColumns", 6, columns.collect::<Value>())
            .with("sensitivity", 7, sensitivity),
    )
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]
    use instar_api::cosi::resource::meta::ResourceDefinitionSpec;
    use prost::Message as _;

    use super::*;

    const STATUS: Kind = Kind {
        name: "MachineStatuses.runtime.talos.dev",
        singular: "MachineStatus",
        namespace: Namespace::Runtime,
        aliases: &[],
        columns: &[("Stage", "{.stage}")],
        sensitivity: Sensitivity::Open,
        sources: &[],
        read: |_| Ok(Vec::new()),
    };
    const MOUNT: Kind = Kind {
        name: "MountStatuses.block.talos.dev",
        singular: "MountStatus",
        aliases: &["mounts"],
        sensitivity: Sensitivity::Secret,
        ..STATUS
    };
    const DEFINITION: Kind = Kind {
        name: "ResourceDefinitions.meta.cosi.dev",
        singular: "ResourceDefinition",
        ..STATUS
    };

    #[test]
    fn names_follow_from_the_full_one() {
        let kinds: [&'static Kind; 3] = [&STATUS, &MOUNT, &DEFINITION];
        let items = definitions(&kinds);
        let specs: Vec<ResourceDefinitionSpec> = items
            .iter()
            .map(|item| ResourceDefinitionSpec::decode(item.spec.protobuf().as_slice()).unwrap())
            .collect();
        assert_eq!(items[0].id, "machinestatuses.runtime.talos.dev");
        assert_eq!(specs[0].aliases, ["machinestatus", "ms"]);
        assert_eq!(
            specs[0].all_aliases,
            [
                "machinestatuses",
                "machinestatuses.runtime",
                "machinestatuses.runtime.talos",
                "machinestatus",
                "ms"
            ]
        );
        // Its initials belong to the first kind that has them.
        assert_eq!(specs[1].aliases, ["mounts", "mountstatus"]);
        assert_eq!(specs[2].aliases, ["resourcedefinition", "rd", "rds"]);
        assert_eq!(specs[0].print_columns[0].json_path, "{.stage}");
        assert_eq!((specs[0].sensitivity, specs[1].sensitivity), (0, 1));
        let yaml: serde_json::Value = serde_saphyr::from_str(&items[1].spec.yaml()).unwrap();
        assert_eq!(yaml["displayType"], "MountStatus");
        assert_eq!(yaml["printColumns"][0]["name"], "Stage");
        assert_eq!(yaml["sensitivity"], "sensitive");
    }
}
