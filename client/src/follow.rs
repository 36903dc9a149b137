//! Follows an action to its end, and shows the progress on standard error.

use std::time::Duration;

use instar_client::{Done, Failure, Goal, Node};

use crate::progress::ProgressDisplay;

/// Starts the action and follows it to its goal. `act` sends the request and returns the actor id of the reply.
pub(crate) async fn follow(
    node: &Node,
    goal: Goal,
    limit: Duration,
    act: impl AsyncFnOnce(&Node) -> Result<String, Failure>,
) -> Result<Done, Failure> {
    let mut display = ProgressDisplay::new(node.name());
    let result = instar_client::follow(node, goal, limit, &mut display, act).await;
    display.finish();
    result
}
