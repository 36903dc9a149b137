//! The directory that an extension adds files to.

/// A directory, with the kind of extension that is made for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hierarchy {
    /// `/usr`: a system extension (sysext).
    Usr,
    /// `/etc`: a configuration extension (confext).
    Etc,
}

impl Hierarchy {
    /// The folder of release files in the tree of an extension.
    pub(crate) fn releases(self) -> &'static str {
        match self {
            Hierarchy::Usr => "usr/lib/extension-release.d",
            Hierarchy::Etc => "etc/extension-release.d",
        }
    }

    /// The field of a release file that says which systems it fits, whatever their versions are.
    pub(crate) fn level_field(self) -> &'static str {
        match self {
            Hierarchy::Usr => "SYSEXT_LEVEL",
            Hierarchy::Etc => "CONFEXT_LEVEL",
        }
    }
}
