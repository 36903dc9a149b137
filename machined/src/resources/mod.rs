//! The one store of what is true: typed, versioned resources that can be read, listed and watched.
//!
//! Each domain publishes its own state here and reads that of the others; domains do not call each other.
//! The store holds facts only for as long as a generation lives.

mod facts;
mod store;

pub use facts::{
    ClockFact, EphemeralFact, MachineStage, MachineStatus, NetworkFact, Problem, ServiceFact,
};
pub use store::{Change, Metadata, Resource, Store};
