//! Bundles of images.

use std::path::PathBuf;

use clap::{Args, Subcommand};

const CREATE_EXAMPLES: &str = "\
Examples:
  instarctl bundle create --image registry.local/app:2.6.2 --installer registry.local/instar/installer:v0.2.0 --to site.bundle
  instarctl bundle create --extension site-v1-x86-64.raw --to site.bundle
  instarctl bundle create --installer registry.local/instar/installer:v0.2.0 --channel channels/stable --to site.bundle";

/// Actions on bundles.
#[derive(Debug, Subcommand)]
pub(crate) enum Bundle {
    /// Make a bundle of images from registries, with their signatures
    ///
    /// The same images give the same bytes. Other tools read a bundle as an OCI layout or archive:
    /// `skopeo inspect oci-archive:FILE:REFERENCE`.
    #[command(after_help = CREATE_EXAMPLES)]
    Create(CreateBundle),
    /// Show what is in a bundle, once every byte of it was verified
    Show {
        /// The bundle, a file or a directory
        bundle: PathBuf,
        /// Say which images are signed by the owner of this public key, in a PEM file
        #[arg(long, value_name = "FILE")]
        key: Vec<PathBuf>,
    },
    /// Verify every byte of a bundle, and that all images are signed
    Verify {
        /// The bundle, a file or a directory
        bundle: PathBuf,
        /// A public key in a PEM file: each image has to be signed by the owner of one of these keys
        #[arg(long, value_name = "FILE")]
        key: Vec<PathBuf>,
    },
    /// Bring a bundle to nodes: they verify it, and import its images if their rules allow them
    ///
    /// An upload that was cut off goes on where it was when the same bundle is uploaded again.
    Upload {
        /// The bundle, a file or a directory
        bundle: PathBuf,
        /// Leave the verification of every byte to the nodes
        #[arg(long)]
        unchecked: bool,
    },
    /// Bring images from the store of one node to others, with their signatures
    ///
    /// The nodes verify and judge them as those of an upload. No registry is asked.
    Fetch {
        /// Image references
        #[arg(value_name = "REFERENCE", required = true)]
        images: Vec<String>,
        /// The node that has the images
        #[arg(long, value_name = "NODE")]
        from: String,
    },
}

/// The images, files and lists that go into a bundle, and the place where it is written.
#[derive(Args, Debug)]
pub(crate) struct CreateBundle {
    /// Image reference
    #[arg(long, value_name = "REFERENCE", required_unless_present_any = ["installer", "extension"])]
    pub(crate) image: Vec<String>,
    /// Reference of an installer image, to upgrade nodes with
    #[arg(long, value_name = "REFERENCE")]
    pub(crate) installer: Vec<String>,
    /// File of an extension (.raw), for nodes whose config names it by url and sha256
    #[arg(long, value_name = "FILE")]
    pub(crate) extension: Vec<PathBuf>,
    /// Folder of a channel whose list goes with the images, for nodes that follow it and reach no server of it
    #[arg(long, value_name = "DIR")]
    pub(crate) channel: Vec<PathBuf>,
    /// Kubernetes manifests that the images are for: warn of their containers that do not start from this bundle alone
    #[arg(long, value_name = "FILE")]
    pub(crate) manifests: Vec<PathBuf>,
    /// Machine config whose manifests the images are for: warn as for --manifests
    #[arg(long, value_name = "FILE")]
    pub(crate) machine_config: Vec<PathBuf>,
    /// Platform of the images
    #[arg(long, value_name = "OS/ARCH", default_value = "linux/amd64")]
    pub(crate) platform: Vec<String>,
    /// Documents of a machine config that say how to reach registries: RegistryMirrorConfig, RegistryAuthConfig, RegistryTLSConfig,
    /// TrustedRootsConfig
    #[arg(long, value_name = "FILE")]
    pub(crate) registries: Option<PathBuf>,
    /// Docker's file of credentials [default: $DOCKER_CONFIG/config.json or ~/.docker/config.json, if there is one]
    #[arg(long, value_name = "FILE")]
    pub(crate) docker_config: Option<PathBuf>,
    /// File to write, or directory (an existing one, or a name that ends with a slash), such as a mounted stick
    #[arg(
        short = 'O',
        long = "to",
        alias = "output-file",
        value_name = "FILE|DIR"
    )]
    pub(crate) to: PathBuf,
    /// Replace an existing file, or the bundle in an existing directory
    #[arg(short, long)]
    pub(crate) force: bool,
}
