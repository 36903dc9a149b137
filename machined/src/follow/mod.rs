//! Following a channel: the state of the machine as a value, its record, and the resource that shows it.
//!
//! The work is a sequence (`sequences/follow.rs`): it asks for lists, gathers facts, asks [`step`] for the next action, and carries it
//! out. Lists and the choice of a release are the crate `channel`.

mod delay;
mod fact;
mod record;
mod standing;
#[cfg(test)]
mod tests;

pub use delay::Delays;
pub use fact::{FollowFact, Heard, ReleaseFact};
pub use record::Follow;
pub use standing::{
    Act, Attempt, Chosen, Facts, Fetched, Hold, LockAnswer, LockPlace, OwedLock, Owes, Policy,
    Record, Stage, Standing, Step, Target, Wait, step,
};
