//! The kernel package: which kernel it is, and which of its modules go where.

pub mod bzimage;
pub mod modinfo;
pub mod modules;
