//! The machine daemon: config, disk, network, time, services, containers, upgrades and the API.
//!
//! Its modules are rooms on floors, and imports run down (`tests/rooms` holds them to that):
//!
//! ```text
//! daemon      starts all of it                              daemon, logging; decoders for fuzzers
//! api         answers callers                               api, apid_service, console
//! sequences   what the machine does as a whole              sequences
//! intent      the config's wishes, in the domains' terms    intent
//! machine     what all of it shares                         machine, status, image_collection
//! upgrade     from one version to the next                  upgrade
//! services    what is kept running                          services
//! store       facts that others wait for                    store
//! domains     one part of the machine each                  disk, network, time, containers, config, …
//! values      names that several domains share              values
//! ground      what knows nothing of the machine             base, sys
//! ```
//!
//! Why in this order: a room is understood with the rooms below it alone. What happens below reaches the rooms above as a value:
//! a fact in the store, a watch channel of its domain, an event.

pub mod api;
pub mod apid;
pub mod apid_service;
pub mod base;
pub mod boot_loader;
pub mod config;
mod confinement;
pub mod console;
pub mod containers;
pub mod daemon;
#[cfg(feature = "fuzzing")]
pub mod decoders;
pub mod disk;
pub mod etc_files;
pub mod files;
pub mod hang_guard;
pub mod image_collection;
pub mod init_link;
pub mod intent;
pub mod kernel_settings;
pub mod logging;
pub mod machine;
pub mod meta;
pub mod modules;
pub mod mounts;
pub mod network;
pub mod operation_lock;
pub mod packet_capture;
pub mod sequences;
pub mod services;
pub mod statistics;
pub mod status;
pub mod store;
pub mod sys;
pub mod time;
pub mod trust;
pub mod upgrade;
pub mod values;
