//! Resources.

use clap::Args;

/// Arguments of `get`.
#[derive(Args, Debug)]
pub(crate) struct Get {
    /// Type of the resources, by any of its names
    #[arg(value_name = "TYPE")]
    pub(crate) kind: String,
    /// The one with this id; all of the type if absent
    pub(crate) id: Option<String>,
    /// Where to look [default: where resources of the type are]
    #[arg(long, value_name = "NAME")]
    pub(crate) namespace: Option<String>,
    /// Go on with what changes
    #[arg(short, long)]
    pub(crate) watch: bool,
}
