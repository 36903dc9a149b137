//! The last step of whatever ends the generation, and the pause before its first one.

use std::time::Duration;

use crate::init_link::End;
use crate::machine::Machine;

/// Clients subscribe to events at the same time as they ask, and what comes before their subscription is lost to
/// them: nothing starts before this has passed since the reply.
pub(in crate::sequences) const ANSWER_FIRST: Duration = Duration::from_millis(500);
/// Events that were emitted just now reach their readers within this.
const LAST_EVENTS: Duration = Duration::from_millis(200);

/// Tells init how the machine is to end. Does not return when init does as it is told.
pub(in crate::sequences) async fn leave(machine: &Machine, end: End) {
    tokio::time::sleep(LAST_EVENTS).await;
    match machine.init.end(end).await {
        Ok(()) => std::future::pending().await,
        Err(error) => tracing::error!("init did not take the request to {end:?}: {error:#}"),
    }
}
