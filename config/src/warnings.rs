//! Warnings of settings that are not served, by path. The served ones are in the table of [`super::settings`].

use std::fmt;

use instar_values::TimeServer;

use super::{
    documents::Identified,
    problem::{Position, Problem},
    settings::{is_kind_served, is_served},
    shape::{Field, Shape, join},
    yaml::{Node, Value},
};

/// Values that ask only for the default behaviour, at paths that are not served otherwise.
const SERVED_VALUES: &[(&str, &str)] = &[
    ("debug", "false"),
    ("persist", "true"),
    ("machine.features.rbac", "true"),
    ("machine.features.stableHostname", "true"),
    ("machine.features.apidCheckExtKeyUsage", "true"),
    ("machine.network.interfaces.ignore", "false"),
    ("machine.network.interfaces.dummy", "false"),
    ("machine.network.interfaces.dhcpOptions.ipv6", "false"),
    ("machine.network.interfaces.routes.mtu", "0"),
    ("LinkConfig.routes.mtu", "0"),
    ("TimeSyncConfig.ntp.useNTS", "false"),
    ("ResolverConfig.nameservers.protocol", "Do53"),
    ("ContainerConfig.security.machinedAccess", "false"),
    // Kubernetes has no such policies any more.
    ("cluster.apiServer.disablePodSecurityPolicy", "true"),
];

/// Sections for programs of Kubernetes. Where it does not run, one warning names each as a whole.
const OF_PROGRAMS: &[&str] = &[
    "cluster.apiServer",
    "cluster.controllerManager",
    "cluster.proxy",
    "cluster.scheduler",
];

/// The number of name servers that the C library's resolver asks (`MAXNS` of resolv.h); further ones in resolv.conf mean nothing to it.
const RESOLVERS: usize = 3;

/// A setting that is not served, or that may not do what it is set for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// `KubeletConfig` for a whole document, `machine.kubelet.image` for a field.
    pub path: String,
    /// Its position.
    pub at: Position,
    /// The consequence for the user.
    pub message: String,
}

impl Warning {
    /// The warning of a part of a config that was taken before there was a check for it. Problems of a part have a position.
    pub(super) fn of_left_out(problem: Problem) -> Option<Self> {
        Some(Warning {
            at: problem.at?,
            path: problem.path,
            message: format!("{}; this is left out", problem.message),
        })
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.path, self.message, self.at)
    }
}

/// All warnings, in the order of the file.
pub(super) fn collect(documents: &[Identified<'_>]) -> Vec<Warning> {
    let mut warnings = Vec::new();
    // Without our own document, the settings of Kubernetes have no effect.
    let runs = |kind| documents.iter().any(|document| document.kind.name == kind);
    let runs_kubernetes = runs("KubernetesConfig");
    for document in documents {
        let root = if document.is_machine() {
            ""
        } else {
            document.kind.name
        };
        if !document.is_machine() && !is_kind_served(root, runs_kubernetes) {
            warnings.push(of_whole_document(document));
            continue;
        }
        if let Some(warning) = volume_of_another_type(document) {
            warnings.push(warning);
            continue;
        }
        warnings.extend(patterns_without_effect(document));
        warnings.extend(clock_devices(document));
        warnings.extend(resolvers_beyond_the_first(document));
        if runs_kubernetes && runs("KubeNodeConfig") {
            warnings.extend(scheduling_beside_its_document(document));
        }
        let mut walk = Walk {
            warnings: &mut warnings,
            runs_kubernetes,
        };
        walk.fields(document.root, document.kind.fields, root, root);
    }
    warnings.sort_by_key(|warning| warning.at);
    warnings
}

/// The warning of a document that is not served at all.
fn of_whole_document(document: &Identified<'_>) -> Warning {
    let number = document.number;
    let message = match document.name {
        Some(name) => format!(
            "document {number} (`{}`) is known, but not served by this version",
            super::shape::shorten(name)
        ),
        None => format!("document {number} is known, but not served by this version"),
    };
    Warning {
        path: document.kind.name.to_owned(),
        at: document.root.at,
        message,
    }
}

/// The warning of a user volume of a type that is not served.
fn volume_of_another_type(document: &Identified<'_>) -> Option<Warning> {
    if document.kind.name != "UserVolumeConfig" {
        return None;
    }
    let given = document.root.get("volumeType");
    // Talos's default type.
    let kind = given
        .and_then(Node::text)
        .filter(|kind| !kind.is_empty())
        .unwrap_or("partition");
    (kind != "directory").then(|| Warning {
        path: "UserVolumeConfig.volumeType".to_owned(),
        at: given.unwrap_or(document.root).at,
        message: format!(
            "volumes of the type `{kind}` are known, but not made by this version, only those of the type `directory`; \
             containers that mount `{}` wait",
            super::shape::shorten(document.name.unwrap_or_default())
        ),
    })
}

/// The warnings of clocks of the machine among time servers, which Talos takes.
fn clock_devices(document: &Identified<'_>) -> Vec<Warning> {
    if !document.is_machine() {
        return Vec::new();
    }
    let time = document.root.get("machine").and_then(|it| it.get("time"));
    let servers = time.and_then(|time| time.get("servers")).map(Node::items);
    let servers = servers.unwrap_or_default().iter().enumerate();
    let devices = servers.filter(|(_, it)| it.text().is_some_and(TimeServer::is_clock_device));
    let warnings = devices.map(|(number, device)| Warning {
        path: format!("machine.time.servers[{number}]"),
        at: device.at,
        message: "clocks of the machine (PTP) are known, but not read by this version: the other servers are asked; without any, \
                  those of a machine whose config names none"
            .to_owned(),
    });
    warnings.collect()
}

/// The warnings of name servers that are never asked.
fn resolvers_beyond_the_first(document: &Identified<'_>) -> Option<Warning> {
    let (of, path) = match document.kind.name {
        "ResolverConfig" => (Some(document.root), "ResolverConfig.nameservers"),
        _ => {
            let machine = document
                .root
                .get("machine")
                .filter(|_| document.is_machine());
            let network = machine.and_then(|machine| machine.get("network"));
            (network, "machine.network.nameservers")
        }
    };
    let servers = of?.get("nameservers")?.items().iter().enumerate();
    // Servers of other protocols are left out, and have a warning of their own.
    let is_asked = |server: &Node| {
        let protocol = server.get("protocol").and_then(Node::text);
        matches!(protocol, None | Some("" | "Do53"))
    };
    let mut asked = servers.filter(|(_, server)| is_asked(server));
    let (number, further) = asked.nth(RESOLVERS)?;
    Some(Warning {
        path: format!("{path}[{number}]"),
        at: further.at,
        message: format!(
            "the resolver asks the first {RESOLVERS} name servers; this one and those after it are never asked"
        ),
    })
}

/// The warnings of what the large document says about pods on a control plane, where `KubeNodeConfig` says it.
fn scheduling_beside_its_document(document: &Identified<'_>) -> Vec<Warning> {
    let cluster = document
        .root
        .get("cluster")
        .filter(|_| document.is_machine());
    let fields = ["allowSchedulingOnControlPlanes", "allowSchedulingOnMasters"].into_iter();
    let warnings = fields.filter_map(|field| {
        Some(Warning {
            path: format!("cluster.{field}"),
            at: cluster?.get(field)?.at,
            message: "without effect beside a `KubeNodeConfig`, whose `taints` decide: \
                      remove this, and have the taint of control planes there or not"
                .to_owned(),
        })
    });
    warnings.collect()
}

/// The warnings of rules for images whose pattern matches no image.
fn patterns_without_effect(document: &Identified<'_>) -> Vec<Warning> {
    if document.kind.name != "ImageVerificationConfig" {
        return Vec::new();
    }
    let rules = document.root.get("rules").map(Node::items);
    let patterns = rules.unwrap_or_default().iter().enumerate();
    let warnings = patterns.filter_map(|(number, rule)| {
        let pattern = rule.get("image")?;
        Some(Warning {
            path: format!("ImageVerificationConfig.rules[{number}].image"),
            at: pattern.at,
            message: fault_of_pattern(pattern.text()?)?.to_owned(),
        })
    });
    warnings.collect()
}

fn fault_of_pattern(pattern: &str) -> Option<&'static str> {
    let path = pattern.split_once('/').map(|(_, path)| path);
    if pattern == "*" {
        None
    } else if pattern.contains('@') {
        Some("a pattern is compared without digest: with `@` it matches no image")
    } else if path.is_some_and(|path| path.contains(':')) {
        Some("a pattern is compared without tag: with `:` in its path it matches no image")
    } else if path.is_none() {
        Some(
            "a pattern is compared with registry and repository: without `/` it may match nothing, `nginx` is `docker.io/library/nginx`",
        )
    } else {
        None
    }
}

struct Walk<'a> {
    warnings: &'a mut Vec<Warning>,
    runs_kubernetes: bool,
}

impl Walk<'_> {
    /// `path` is the path for people, `row` the one in the table: without the indexes of lists.
    fn fields(&mut self, node: &Node, fields: &'static [Field], path: &str, row: &str) {
        for entry in node.entries() {
            if let Some(field) = fields.iter().find(|field| field.name == entry.key) {
                self.value(
                    &entry.node,
                    &field.shape,
                    &join(path, field.name),
                    &join(row, field.name),
                );
            }
        }
    }

    fn value(&mut self, node: &Node, shape: &'static Shape, path: &str, row: &str) {
        match (shape, &node.value) {
            _ if !self.runs_kubernetes && OF_PROGRAMS.contains(&row) => self.leaf(node, path, row),
            (Shape::Fields(fields), _) => self.fields(node, fields, path, row),
            (Shape::List(item @ Shape::Fields(_)) | Shape::OneOrMore(item), Value::List(items)) => {
                for (i, node) in items.iter().enumerate() {
                    self.value(node, item, &format!("{path}[{i}]"), row);
                }
            }
            (Shape::OneOrMore(item), _) => self.value(node, item, path, row),
            (Shape::MapOf(item), _) => {
                for entry in node.entries() {
                    self.value(&entry.node, item, &join(path, &entry.key), row);
                }
            }
            _ => self.leaf(node, path, row),
        }
    }

    fn leaf(&mut self, node: &Node, path: &str, row: &str) {
        let is_usual = |text| SERVED_VALUES.contains(&(row, text));
        let asks = node.is_set() && !node.text().is_some_and(is_usual);
        if asks && !is_served(row, self.runs_kubernetes) {
            self.warnings.push(Warning {
                path: path.to_owned(),
                at: node.at,
                message: "known, but not served by this version".to_owned(),
            });
        }
    }
}
