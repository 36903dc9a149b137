//! The machine daemon: config, disk, network, time, services, containers, upgrades and the API.
//!
//! Its modules are rooms on floors, and imports run down (`tests/rooms` holds them to that):
//!
//! ```text
//! daemon      starts all of it                              daemon, logging; decoders for fuzzers
//! api         answers callers and receivers                 api, apid_service, console, log_forwarding
//! sequences   boot, upgrade, reset and the like             sequences
//! intent      the config as specs in the domains' terms     intent
//! machine     the state that the parts share                machine, status, image_collection
//! upgrade     from one version to the next                  upgrade
//! services    processes kept running; bundles, pinned images  services, bundles, pins, follow, temporary_registry, kubernetes,
//!             extensions of the machine                     os_extensions
//! store       facts that others wait for                    store
//! domains     one part of the machine each                  disk, network, time, containers, modules, …
//! ```
//!
//! Below them are crates of their own, whose walls the compiler keeps. docs/architecture.md, "What each part may know", has each crate with the
//! crates that it uses; a test compares that table with the manifests, so it is not repeated here.
//!
//! Why in this order: a room is understood with the rooms below it alone. An event below reaches the rooms above as a value:
//! a fact in the store, a watch channel of its domain, an event.
//!
//! The decision: rooms of one crate, and a test for their order; a crate of its own for code that faces strangers, or that works without a
//! machine. A crate for each room was the other choice: items that two rooms share would become the public interfaces of forty crates, for an
//! order that the test keeps as well.

#![forbid(unsafe_code)]

// Crates of their own, by the names that the rooms know them by.
pub use instar_apid as apid;
pub use instar_base as base;
pub use instar_config as config;
pub use instar_oci as oci;
pub use instar_sys as sys;
pub use instar_values as values;

pub mod api;
pub mod apid_service;
pub mod boot_loader;
pub mod bundles;
pub mod command_line;
pub mod conditions;
pub mod config_source;
pub mod console;
pub mod containers;
pub mod daemon;
#[cfg(feature = "fuzzing")]
pub mod decoders;
pub mod disk;
pub mod etc_files;
pub mod files;
pub mod follow;
pub mod hang_guard;
pub mod image_collection;
pub mod init_link;
pub mod intent;
pub mod kernel_settings;
pub mod kubernetes;
pub mod left_sockets;
pub mod log_forwarding;
pub mod logging;
pub mod machine;
pub mod meta;
pub mod modules;
pub mod mounts;
pub mod network;
pub mod operation_lock;
pub mod os_extensions;
pub mod packet_capture;
pub mod pins;
pub mod record_file;
pub mod sequences;
pub mod services;
pub mod state_partition;
pub mod statistics;
pub mod status;
pub mod store;
pub mod temporary_registry;
pub mod terminals;
pub mod time;
pub mod trust;
pub mod upgrade;
