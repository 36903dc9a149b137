//! Files of a node.

use clap::{Args, ValueEnum};

/// Arguments of `list`.
#[derive(Args, Debug)]
pub(crate) struct List {
    /// Absolute path
    #[arg(default_value = "/")]
    pub(crate) path: String,
    /// Also show mode, owner, size and time
    #[arg(short, long)]
    pub(crate) long: bool,
    /// List directories recursively
    #[arg(short, long)]
    pub(crate) recurse: bool,
    /// List this many levels of directories
    #[arg(short, long, value_name = "LEVELS")]
    pub(crate) depth: Option<u16>,
    /// List only files of these types
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
    /// Also show files, not only directories
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Show a line for each directory down to this many levels below each path
    #[arg(short, long, value_name = "LEVELS", default_value_t = 0)]
    pub(crate) depth: u16,
    /// Leave out entries smaller than this many bytes; if negative, entries larger than that
    #[arg(
        short,
        long,
        value_name = "BYTES",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    pub(crate) threshold: i64,
}
