//! Images on a node.

use clap::Subcommand;

/// Actions on images.
#[derive(Debug, Subcommand)]
pub(crate) enum Image {
    /// List images
    #[command(visible_alias = "ls")]
    List,
    /// Pull an image to the node
    Pull {
        /// Image reference
        image: String,
    },
    /// Ask whether the node's rules allow an image, and by which signature
    Verify {
        /// The image
        image: String,
    },
    /// Approve the image that waits behind the name that a container follows; "get updates" shows it
    Approve {
        /// The container
        container: String,
        /// The image's digest
        digest: String,
    },
    /// Remove an image that no container needs
    #[command(visible_alias = "rm")]
    Remove {
        /// Image reference
        image: String,
    },
}
