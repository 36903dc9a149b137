//! Files that nodes could not look at: each is told as it comes, and the command fails at its end.

use instar_client::{Failure, FailureKind, Node};

use crate::output::tell;

/// The number of them.
#[derive(Default)]
pub(crate) struct UnreadFiles(usize);

impl UnreadFiles {
    /// Tells the node's error about a file, if there is one; returns whether there is.
    pub(crate) fn tell(&mut self, node: &Node, error: &str) -> bool {
        if error.is_empty() {
            return false;
        }
        tell(&format!("{}: {error}", node.name()));
        self.0 += 1;
        true
    }

    /// Ends the command.
    ///
    /// # Errors
    /// There was such a file.
    pub(crate) fn end(self) -> Result<(), Failure> {
        match self.0 {
            0 => Ok(()),
            count => Err(Failure::new(
                FailureKind::Failed,
                format!("{count} of the files could not be looked at"),
            )),
        }
    }
}
