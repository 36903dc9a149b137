//! Extensions of the system itself: trees that add files to its `/usr`, or to its `/etc`.
//!
//! ```text
//! /usr/share/…, /usr/bin/…    files for containers that mount them: an overlay over the system's own /usr
//! /etc/…                      texts, put beside the system's own files
//! ```
//!
//! The decision: such an extension adds, and never replaces. Another file in the place of the system's own would be an operating system
//! that nobody has tested, and that no signature of a release is about. For the same reason the system runs nothing of an extension, and
//! files that would have an effect elsewhere are errors: ignoring them was the other choice, and their author would look for the effect.

mod etc;
mod usr;

use std::io;
use std::path::Path;

pub use etc::EtcText;

use crate::tree::Reader;
use crate::{ExtensionName, Hierarchy, Host, Unusable};

/// An extension of the system itself, whose files were checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OsExtension {
    /// Its `usr` goes over the system's.
    Usr,
    /// These files go below `/etc`.
    Etc(Vec<EtcText>),
}

impl OsExtension {
    /// Reads and checks the tree at this path: one with `etc` is a confext, any other a sysext. `usr` is the system's own, if its files are
    /// there to be compared.
    ///
    /// # Errors
    /// It does not fit the system, has files that would have no effect or replace the system's own, or cannot be read.
    pub fn read(
        tree: &Path,
        name: &ExtensionName,
        host: Host<'_>,
        usr: Option<&Path>,
    ) -> Result<Self, Unusable> {
        let reader = Reader { tree, name };
        match is_confext(tree) {
            true => {
                reader.only(&["etc"])?;
                reader
                    .release(Hierarchy::Etc)?
                    .fits(name, host, Hierarchy::Etc)?;
                etc::texts(tree, name).map(OsExtension::Etc)
            }
            false => {
                reader.only(&["usr"])?;
                reader
                    .release(Hierarchy::Usr)?
                    .fits(name, host, Hierarchy::Usr)?;
                usr::check(tree, name, usr)?;
                Ok(OsExtension::Usr)
            }
        }
    }
}

/// Whether the tree at this path is a confext.
pub fn is_confext(tree: &Path) -> bool {
    std::fs::symlink_metadata(tree.join("etc")).is_ok_and(|it| it.is_dir())
}

/// Returns the error of a file of an extension that cannot be read.
fn failed(path: &Path) -> impl FnOnce(io::Error) -> Unusable {
    let path = path.to_owned();
    move |source| Unusable::Io { path, source }
}
