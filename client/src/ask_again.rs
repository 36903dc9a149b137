//! Continues a stream after a change of versions or a broken connection, and says so if that takes long.

use instar_client::{BACK_WITHIN, Interruption, Node};
use tonic::Status;

/// Asks the node again for a stream that ended with this status. If it does not answer soon, the user is told once on standard error: silence
/// would look like a node on which nothing happens.
///
/// # Errors
/// As [`instar_client::ask_again`].
pub(crate) async fn ask_again<T>(
    node: &Node,
    ended: Status,
    ask: impl AsyncFn() -> Result<T, Status>,
) -> Result<T, Status> {
    let tell = |why| eprintln!("{}", text(node.name(), why));
    instar_client::ask_again(ended, ask, tell).await
}

fn text(node: &str, why: Interruption) -> String {
    let what = match why {
        Interruption::ChangesVersion => "the node is changing to another version",
        Interruption::Broken => "the connection is broken",
    };
    let limit = BACK_WITHIN.as_secs();
    format!("{node}: {what}; the node is asked again for up to {limit} s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_learns_which_node_is_waited_for_and_how_long() {
        assert_eq!(
            text("lamp-1", Interruption::Broken),
            "lamp-1: the connection is broken; the node is asked again for up to 60 s"
        );
    }
}
