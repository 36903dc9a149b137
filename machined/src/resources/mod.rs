//! The one store of what is true: typed, versioned resources that can be read, listed and watched.
//!
//! Each domain publishes its own state here and reads that of the others; domains do not call each other.
//! The store holds facts only for as long as a generation lives.
//!
//! What clients see (`kinds`) is more than that: made of whatever state a domain has, at the moment somebody asks.

mod changes;
mod facts;
mod kind;
mod kinds;
mod ledger;
mod listing;
mod spec;
mod store;

pub use changes::{Changes, Difference, Told};
pub use facts::{ClockFact, MachineStage, MachineStatus, NetworkFact, Problem, ServiceFact};
pub use kind::{Item, Kind, Namespace, Sensitivity, Source, Viewer, definitions};
pub use kinds::{KINDS, kind};
pub use ledger::Ledger;
pub use listing::{Listed, list};
pub use spec::{Record, Spec, Value};
pub use store::{Change, Metadata, Resource, Store};
