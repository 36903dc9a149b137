//! Files that are made without a node: secrets, machine configs, client configurations.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::talos_version::TalosVersion;

/// Things to generate.
#[derive(Debug, Subcommand)]
pub(crate) enum Gen {
    /// Generate an authority, a machine config and a client configuration
    Config(GenConfig),
    /// Generate the secrets of a fleet, which all its machine configs share
    Secrets(GenSecrets),
}

/// Arguments of `gen secrets`.
#[derive(Args, Debug)]
pub(crate) struct GenSecrets {
    /// Output file; - is standard output
    #[arg(long, value_name = "FILE", default_value = "secrets.yaml")]
    pub(crate) output_file: PathBuf,
    /// Take the secrets from the machine config of a control plane node; missing ones are generated
    #[arg(long, value_name = "FILE")]
    pub(crate) from_controlplane_config: Option<PathBuf>,
    /// Take the secrets of a cluster from the PKI directory of a kubeadm control plane node, such as /etc/kubernetes/pki: its seven files
    /// have to be there; other secrets are generated
    #[arg(
        short = 'p',
        long,
        value_name = "DIR",
        conflicts_with = "from_controlplane_config"
    )]
    pub(crate) from_kubernetes_pki: Option<PathBuf>,
    /// Token for joining that cluster, as `kubeadm token create` prints it [default: a new token, which the cluster does not know]
    #[arg(
        short = 't',
        long,
        value_name = "TOKEN",
        requires = "from_kubernetes_pki"
    )]
    pub(crate) kubernetes_bootstrap_token: Option<String>,
    /// Version of Talos whose file format is written, v1.0 to v1.14 [default: the newest]
    #[arg(long, value_name = "VERSION")]
    pub(crate) talos_version: Option<TalosVersion>,
    /// Replace an existing file
    #[arg(short, long)]
    pub(crate) force: bool,
}

/// Arguments of `gen config`.
#[derive(Args, Debug)]
pub(crate) struct GenConfig {
    /// Name of the context in the client configuration
    pub(crate) name: String,
    /// Address that clients connect to: host or host:port
    pub(crate) endpoint: String,
    /// Secrets of the node's fleet, as written by `gen secrets` [default: new ones]
    #[arg(long, value_name = "FILE")]
    pub(crate) with_secrets: Option<PathBuf>,
    /// Disk that the node may own
    #[arg(long, value_name = "DEVICE")]
    pub(crate) install_disk: Option<String>,
    /// Hostname [default: a stable one that the node derives]
    #[arg(long, value_name = "NAME")]
    pub(crate) hostname: Option<String>,
    /// Further names and addresses for the node's certificate
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) additional_sans: Vec<String>,
    /// Patch for it: a part of a machine config, a JSON patch, or @FILE with one; may be repeated
    #[arg(short = 'p', long = "config-patch", value_name = "PATCH")]
    pub(crate) patches: Vec<String>,
    /// Output directory for machine.yaml and talosconfig
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) output_dir: PathBuf,
    /// Replace existing files
    #[arg(short, long)]
    pub(crate) force: bool,
}
