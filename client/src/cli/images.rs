//! Images on a node.

use std::time::Duration;

use clap::{Args, Subcommand};
use instar_values::{Bandwidth, Window};

use super::durations::duration;

/// When images may be fetched, and how fast.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub(crate) struct FetchTerms {
    /// Fetch only in these hours, such as "02:00-05:00" or "Sat,Sun 02:00-05:00 +01:00"; in `upgrade` with --prepare only
    #[arg(long, value_name = "HOURS")]
    pub(crate) window: Option<Window>,
    /// Fetch no faster than this, such as 2MiB/s; in `upgrade` with --prepare only
    #[arg(long, value_name = "BYTES/s")]
    pub(crate) bandwidth: Option<Bandwidth>,
}

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
    /// Have images fetched ahead and kept until the next upgrade has been committed; "get pins" shows how far they are
    Pin {
        /// The images
        #[arg(required = true)]
        images: Vec<String>,
        #[command(flatten)]
        terms: FetchTerms,
    },
    /// Take a pin back
    Unpin {
        /// The image
        image: String,
    },
    /// Serve images of the node as a read-only registry for a while, over HTTP or with --tls over HTTPS; "get registries" shows it
    Serve {
        /// Where to listen
        #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:5000")]
        listen: String,
        /// For how long
        #[arg(long = "for", value_name = "TIME", default_value = "1h", value_parser = duration)]
        time: Duration,
        /// The images, instead of all that are pinned or came by a bundle
        #[arg(long, value_delimiter = ',')]
        images: Vec<String>,
        /// With TLS, by the certificate of the node's API; clients trust the authority of its machine config
        #[arg(long)]
        tls: bool,
        /// Stop serving
        #[arg(long, conflicts_with_all = ["listen", "time", "images", "tls"])]
        stop: bool,
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
