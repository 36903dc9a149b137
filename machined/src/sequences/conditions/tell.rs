//! Tells the log of conditions that begin and end: with log forwarding, a fleet's receiver learns of them from the machine itself.

use std::sync::Arc;
use std::time::Duration;

use super::conditions;
use crate::base::blocking_io;
use crate::conditions::{Line, LoggedConditions};
use crate::machine::Machine;

/// Time between two looks: short beside the time in which a person acts, long beside the cost of a look.
const EACH: Duration = Duration::from_secs(20);

/// Looks at the conditions for as long as machined runs.
pub async fn keep(machine: Arc<Machine>) {
    let mut told = LoggedConditions::default();
    loop {
        tokio::time::sleep(EACH).await;
        let looked = machine.clone();
        // Without a limit: a disk that does not answer holds one thread, not another one at each look.
        let looking = blocking_io::to_its_end(move || conditions(&looked));
        let Ok(seen) = looking.await else {
            return;
        };
        let (after, lines) = told.after(&seen);
        told = after;
        for line in lines {
            match line {
                Line::Begins {
                    kind,
                    reason,
                    message,
                } => tracing::warn!("condition {} ({reason}): {message}", kind.name()),
                Line::IsOver(kind) => tracing::info!("condition {} is over", kind.name()),
            }
        }
    }
}
