//! Resources as clients see them, built on request from the state of a domain.
//!
//! The store keeps only the facts that other modules wait for (`store/`). Clients are shown more kinds; for those, only the observed
//! versions are kept.

mod changes;
mod kind;
mod kinds;
mod listing;
mod spec;

pub use changes::{Changes, Difference, LastSent};
pub use kind::{Item, Kind, Namespace, Sensitivity, Source, Viewer, definitions};
pub use kinds::{KINDS, kind};
pub use listing::{Listed, list};
pub use spec::{Record, Spec, Value};
