//! Files of a node.

use clap::{Args, ValueEnum};

/// Arguments of `list`.
#[derive(Args, Debug)]
pub(crate) struct List {
    /// Absolute path
    #[arg(default_value = "/")]
    pub(crate) path: String,
    /// Mode, owner, size and time too
    #[arg(short, long)]
    pub(crate) long: bool,
    /// What is below, too
    #[arg(short, long)]
    pub(crate) recurse: bool,
    /// So many levels of what is below
    #[arg(short, long, value_name = "LEVELS")]
    pub(crate) depth: Option<u16>,
    /// Only files of these types
    #[arg(
        short = 't',
        long = "type",
        value_enum,
        value_name = "TYPE",
        value_delimiter = ','
    )]
    pub(crate) types: Vec<FileType>,
}

/// Types of files.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum FileType {
    /// Regular files
    F,
    /// Directories
    D,
    /// Symbolic links
    L,
}

/// Arguments of `usage`.
#[derive(Args, Debug)]
pub(crate) struct Usage {
    /// Absolute paths
    #[arg(required = true)]
    pub(crate) paths: Vec<String>,
    /// Files too, not only directories
    #[arg(short, long)]
    pub(crate) all: bool,
    /// So many levels below each path have lines of their own
    #[arg(short, long, value_name = "LEVELS", default_value_t = 0)]
    pub(crate) depth: u16,
    /// Leave out what is smaller, in bytes; what is larger if negative
    #[arg(
        short,
        long,
        value_name = "BYTES",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    pub(crate) threshold: i64,
}
