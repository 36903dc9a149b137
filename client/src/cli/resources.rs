//! Resources.

use clap::Args;

/// Arguments of `get`.
#[derive(Args, Debug)]
pub(crate) struct Get {
    /// Type of the resources: its name or an alias
    #[arg(value_name = "TYPE")]
    pub(crate) kind: String,
    /// Id of one resource [default: all of the type]
    pub(crate) id: Option<String>,
    /// Namespace [default: that of the type]
    #[arg(long, value_name = "NAME")]
    pub(crate) namespace: Option<String>,
    /// Keep printing changes
    #[arg(short, long)]
    pub(crate) watch: bool,
}
