//! The kinds that the resource API shows, a file for each field: what of the machine's state becomes which resource.
//!
//! Nothing is kept for it: a resource is made of the state that a domain has anyway, when somebody asks.

mod block;
mod config;
mod hardware;
mod images;
mod kernel;
mod meta;
mod network;
mod runtime;
mod secrets;
mod security;
mod upgrades;

use super::kind::{Item, Kind, Namespace, Sensitivity, Source, definitions};
use super::spec::{Record, Spec, Value};

/// Every kind. Of two that would have the same initials, the first one is called by them.
pub static KINDS: [&Kind; 31] = [
    &meta::DEFINITIONS,
    &meta::NAMESPACES,
    &runtime::MACHINE_STATUSES,
    &runtime::VERSIONS,
    &runtime::SERVICES,
    &runtime::DIAGNOSTICS,
    &runtime::TIME_STATUSES,
    &runtime::KERNEL_COMMAND_LINES,
    &runtime::BOOT_IDS,
    &runtime::META_KEYS,
    &kernel::PARAMETERS,
    &security::SECURITY_STATES,
    &upgrades::UPGRADES,
    &images::IMAGES,
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

/// The kind of this full name.
pub fn kind(name: &str) -> Option<&'static Kind> {
    KINDS.iter().copied().find(|kind| kind.name == name)
}
