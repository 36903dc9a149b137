//! The machine's files as callers of the API may see them: one place that decides, and walks, contents and archives over it.
//!
//! Nothing here opens a path by itself but [`View`]: it opens first, without acting on what it opens, asks the kernel what
//! that is, and decides on the answer. So neither `..` nor a symbolic link nor a rename in between leads around it.

mod archive;
mod content;
mod disk_usage;
mod policy;
mod view;
mod walk;

pub use archive::Archive;
pub use content::Content;
pub use disk_usage::{DiskUsage, Usage};
pub use view::{FileError, Found, Kind, View};
pub use walk::{Depth, Entry, Step, Walk};
