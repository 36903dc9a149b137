//! The kinds of the resource API, a file for each field: the mapping from the machine's state to resources.
//!
//! No resource is stored for it: each is built on request from the state that a domain has anyway.

mod block;
mod conditions;
mod config;
mod extensions;
mod hardware;
mod images;
mod kernel;
mod kubelet;
mod kubernetes;
mod kubernetes_pods;
mod meta;
mod network;
mod runtime;
mod secrets;
mod security;
mod upgrades;

use super::kind::{Item, Kind, Namespace, Sensitivity, Source, definitions};
use super::spec::{Record, Spec, Value};

/// All kinds. If two would have the same initials, the first one gets them.
pub static KINDS: [&Kind; 47] = [
    &meta::DEFINITIONS,
    &meta::NAMESPACES,
    &runtime::MACHINE_STATUSES,
    &runtime::VERSIONS,
    &runtime::SERVICES,
    &runtime::DIAGNOSTICS,
    &conditions::CONDITIONS,
    &runtime::TIME_STATUSES,
    &runtime::KERNEL_COMMAND_LINES,
    &runtime::BOOT_IDS,
    &runtime::META_KEYS,
    &kernel::PARAMETERS,
    &security::SECURITY_STATES,
    &security::IMAGE_VERIFICATION_RULES,
    &security::NODE_CERTIFICATES,
    &upgrades::UPGRADES,
    &upgrades::FOLLOWS,
    &images::IMAGES,
    &images::BUNDLES,
    &images::IMAGE_UPDATES,
    &images::IMAGE_PINS,
    &images::TEMPORARY_REGISTRIES,
    &kubernetes::NODE_NAMES,
    &kubernetes::NODES,
    &kubernetes::SERVICES,
    &kubelet::SPECS,
    &kubernetes_pods::NODE_STATUSES,
    &kubernetes_pods::STATIC_PODS,
    &kubernetes_pods::STATIC_POD_STATUSES,
    &extensions::EXTENSIONS,
    &network::HOSTNAMES,
    &network::NODE_ADDRESSES,
    &network::ADDRESSES,
    &network::LINKS,
    &network::ROUTES,
    &network::RESOLVERS,
    &network::TIME_SERVERS,
    &network::STATUSES,
    &config::MEMBERS,
    &config::MACHINE_TYPES,
    &config::MACHINE_CONFIGS,
    &secrets::OS_ROOT_SECRETS,
    &hardware::SYSTEM,
    &block::DISKS,
    &block::SYSTEM_DISKS,
    &block::VOLUMES,
    &block::MOUNTS,
];

/// Returns the kind of this full name.
pub fn kind(name: &str) -> Option<&'static Kind> {
    KINDS.iter().copied().find(|kind| kind.name == name)
}
