//! Pulls from a real registry.

#![allow(clippy::unwrap_used, clippy::panic)]

mod broken_downloads;
mod bundles;
mod credentials;
mod damage;
mod given_up;
mod interrupted;
mod kept_blobs;
mod locked_registry;
mod memory;
mod mirrors;
mod names;
mod pulling;
mod refused_images;
mod registry;
mod signatures;
