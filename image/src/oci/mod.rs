//! Images of the Open Container Initiative: written as a layout on disk, read back, pushed to a registry.

pub mod layout;
pub mod model;
pub mod push;
