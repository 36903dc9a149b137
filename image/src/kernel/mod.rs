//! The kernel's package: its version, and the places of its modules.

pub mod bzimage;
pub mod modinfo;
pub mod modules;
