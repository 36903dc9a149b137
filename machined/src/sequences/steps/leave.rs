//! The last step of a sequence that ends the generation, and the pause before its first one.

use std::time::Duration;

use crate::init_link::End;
use crate::machine::Machine;

/// Pause after the reply before anything starts: clients subscribe to events at the same time as they call, and would miss events that come
/// before their subscription.
pub(in crate::sequences) const ANSWER_FIRST: Duration = Duration::from_millis(500);
/// Time that events need to reach their readers.
const LAST_EVENTS: Duration = Duration::from_millis(200);

/// Tells init how the machine has to end. Does not return if init accepts.
pub(in crate::sequences) async fn leave(machine: &Machine, end: End) {
    tokio::time::sleep(LAST_EVENTS).await;
    match machine.init.end(end).await {
        Ok(()) => std::future::pending().await,
        Err(error) => tracing::error!("init did not take the request to {end:?}: {error:#}"),
    }
}
