//! The machine daemon: config, disk, network, time, services, containers, upgrades and the API.
//!
//! A request flows one way: `api` → sequence or store → domain → `sys`; facts flow back through the store.

pub mod config;
pub mod containers;
pub mod disk;
pub mod modules;
pub mod network;
pub mod resources;
pub mod sys;
pub mod time;
