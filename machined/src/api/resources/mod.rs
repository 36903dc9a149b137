//! Resources as clients see them: made of whatever state a domain has, when somebody asks.
//!
//! The store keeps the facts that other rooms wait for (`store/`); clients are shown more kinds than those, and nothing is kept for
//! the others but the versions that were seen of them.

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
