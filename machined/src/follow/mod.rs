//! Following a channel: the state of the machine as a value, its record, and the resource that shows it.
//!
//! The work is a sequence (`sequences/follow.rs`): it asks for lists, gathers facts, asks [`step`] for the next action, and carries it
//! out. Lists and the choice of a release are the crate `channel`.

mod delay;
mod facts;
mod record;
mod resource;
mod stage;
mod standing;
mod step;
#[cfg(test)]
mod tests;

pub use delay::Delays;
pub use facts::{Chosen, Facts, Fetched, LockAnswer, LockPlace, Policy};
pub use record::Follow;
pub use resource::{FollowFact, Heard, ReleaseFact};
pub use stage::{Attempt, Hold, OwedLock, Owes, Record, Stage, Target};
pub use standing::{Act, Standing, Wait};
pub use step::{Step, step};
