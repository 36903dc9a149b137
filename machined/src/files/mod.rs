//! The machine's files as callers of the API may see them: one place that decides, and walks, contents and archives on top of it.
//!
//! Only [`View`] opens a path. It first opens a handle that has no effect on the file, asks the kernel about the file, and decides on
//! the answer. So neither `..` nor a symbolic link nor a rename in between leads around the decision.

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
