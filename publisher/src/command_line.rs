//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use instar_channel::{ChannelName, Label};
use instar_values::{ImageReference, Version};

use crate::lifetime::Lifetime;

/// Makes channels of releases, and serves them
#[derive(Debug, Parser)]
#[command(version)]
pub(crate) struct Arguments {
    /// The folder of the channels
    #[arg(long, global = true, value_name = "DIR", default_value = "channels")]
    pub(crate) folder: PathBuf,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Signs what a command writes.
#[derive(Debug, Args)]
pub(crate) struct Signing {
    /// The private key (PEM) that signs the list; without it the list is written beside, to be signed by another program before the next change
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// Start no upgrade by this list after this time, such as 90d, or "never"; the channel has to be published again before
    /// [default: the time that the list before was given; never for a new channel]
    #[arg(long, value_name = "TIME")]
    pub(crate) expires_in: Option<Lifetime>,
}

/// Says who has signed the list that a command changes, and signs the next one.
#[derive(Debug, Args)]
pub(crate) struct Changing {
    /// The public key by which the list so far is signed [default: that of --key]
    #[arg(long, value_name = "FILE")]
    pub(crate) public_key: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) signing: Signing,
}

/// An image, and where it is read.
#[derive(Debug, Args)]
pub(crate) struct Source {
    /// The installer image, by the name by which machines pull it
    pub(crate) image: ImageReference,
    #[command(flatten)]
    pub(crate) place: Place,
}

/// The place where an image is read.
#[derive(Debug, Args)]
pub(crate) struct Place {
    /// Read the image from this OCI layout instead of its registry
    #[arg(long, value_name = "DIR")]
    pub(crate) layout: Option<PathBuf>,
    /// Documents of a machine config that say how registries are reached
    #[arg(long, value_name = "FILE")]
    pub(crate) registries: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make a key that signs lists: FILE, and FILE.pub for machines
    Key {
        /// The file
        #[arg(value_name = "FILE")]
        to: PathBuf,
    },
    /// Make a channel
    Create {
        /// Its name, such as stable
        channel: ChannelName,
        #[command(flatten)]
        signing: Signing,
    },
    /// Add a release: an official installer image, by its labels
    Add {
        /// The channel
        channel: ChannelName,
        #[command(flatten)]
        source: Source,
        /// Notes for people, such as "faster boots"
        #[arg(long, default_value = "")]
        notes: String,
        /// Only machines with one of these labels go to it, such as canary=yes; "open" opens it to all
        #[arg(long, value_name = "LABEL", value_delimiter = ',')]
        only_for: Vec<Label>,
        /// Take an image without the label of official releases
        #[arg(long)]
        unofficial: bool,
        #[command(flatten)]
        changing: Changing,
    },
    /// Take a release of another channel over, with the same image, if it is a candidate by its labels
    Promote {
        /// The release: its digest or version
        release: String,
        /// The channel that has it
        #[arg(long)]
        from: ChannelName,
        /// The public key by which the list of that channel is signed [default: that by which the list of --to is]
        #[arg(long, value_name = "FILE")]
        from_public_key: Option<PathBuf>,
        /// The channel that gets it
        #[arg(long)]
        to: ChannelName,
        #[command(flatten)]
        place: Place,
        /// Only machines with one of these labels go to it, such as canary=yes; "open" opens it to all
        #[arg(long, value_name = "LABEL", value_delimiter = ',')]
        only_for: Vec<Label>,
        /// Take an image without the label of official releases
        #[arg(long)]
        unofficial: bool,
        #[command(flatten)]
        changing: Changing,
    },
    /// Open a release to all machines
    Open {
        /// The channel
        channel: ChannelName,
        /// The release
        version: Version,
        #[command(flatten)]
        changing: Changing,
    },
    /// Withdraw a release: no machine goes to it any more
    Withdraw {
        /// The channel
        channel: ChannelName,
        /// The release
        version: Version,
        /// Why, for people
        #[arg(long)]
        why: String,
        #[command(flatten)]
        changing: Changing,
    },
    /// Take old releases out of the list, and print their images
    Prune {
        /// The channel
        channel: ChannelName,
        /// Keep this many of the newest releases
        #[arg(long, default_value_t = 3)]
        newest: usize,
        /// A file with versions and digests that media have or machines run, one a line; each of them and its way to the newest release stays
        #[arg(
            long,
            value_name = "FILE",
            required_unless_present = "keep_newest_alone"
        )]
        keep: Option<PathBuf>,
        /// Keep the newest releases alone: no medium has another one, and no machine runs another one
        #[arg(long, conflicts_with = "keep")]
        keep_newest_alone: bool,
        /// Only print what would go
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        changing: Changing,
    },
    /// Publish the same releases again, before their list expires
    Renew {
        /// The channel
        channel: ChannelName,
        /// Take the list as it is, whoever has signed it: after a power cut, or when its key is lost. Compare it with a copy before
        #[arg(long, conflicts_with = "public_key")]
        sign_as_it_is: bool,
        #[command(flatten)]
        changing: Changing,
    },
    /// Approve a release for machines that want the signature of another key
    Approve {
        /// The channel
        channel: ChannelName,
        /// The release
        version: Version,
        /// The private key of whoever approves
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// The public key by which the channel's list is signed [default: that of --key]
        #[arg(long, value_name = "FILE")]
        public_key: Option<PathBuf>,
    },
    /// Show a channel
    Show {
        /// The channel
        channel: ChannelName,
        /// Check that it is signed by this public key
        #[arg(long, value_name = "FILE")]
        public_key: Option<PathBuf>,
    },
    /// Serve the channels
    Serve(Serve),
}

/// How channels are served.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Where to listen
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080")]
    pub(crate) listen: SocketAddr,
    /// The certificate chain (PEM), for https
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_certificate: Option<PathBuf>,
    /// Its private key
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub(crate) tls_key: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_whole() {
        Arguments::command().debug_assert();
    }

    /// Nothing else tells the publisher which releases are still needed.
    #[test]
    fn prune_is_told_what_stays() {
        let takes = |more: &[&str]| {
            let line = ["instar-channel", "prune", "stable"].iter().chain(more);
            Arguments::try_parse_from(line).is_ok()
        };
        assert!(takes(&["--keep", "media"]));
        assert!(takes(&["--keep-newest-alone", "--newest", "2"]));
        assert!(!takes(&[]));
        assert!(!takes(&["--dry-run"]));
        assert!(!takes(&["--keep", "media", "--keep-newest-alone"]));
    }
}
