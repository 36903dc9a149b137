//! The machine daemon: config, disk, network, time, services, containers, upgrades and the API.
//!
//! A request flows one way: `api` → sequence or store → domain → `sys`; facts flow back through the store.

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
pub mod files;
pub mod hang_guard;
pub mod image_collection;
pub mod init_link;
pub mod intent;
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
