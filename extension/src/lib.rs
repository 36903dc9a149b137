//! System extensions as they are published for systemd (sysext): a read-only tree of `/usr`, a file that says what it fits, and units.
//!
//! ```text
//! kubernetes-v1.36.3-x86-64.raw                      FileName    one tree, squashfs without a partition table
//! /usr/lib/extension-release.d/
//!     extension-release.kubernetes                   Release     the systems that it fits
//! /usr/lib/systemd/system/kubelet.service,
//!     kubelet.service.d/*.conf                       ServiceUnit what it runs
//!     multi-user.target.d/*.conf                     Upholds=    what is started
//! SHA256SUMS                                         Sums        the files of a publisher
//! kubernetes-v1.36.@v-%a.raw                         Pattern     which of them is the next version
//! ```
//!
//! An extension of the system itself (`OsExtension`) starts nothing, and adds files to `/usr`, or to `/etc` (confext).
//!
//! Everything here is pure or reads one directory: a machine checks an extension before it uses it, and `image extension` checks the same
//! before it is published.
//!
//! The decision: units are read as data, and a directive that is not served is an error that names it. Running systemd beside machined was
//! the other choice: two programs would own the machine. Ignoring the rest was a third: a service without the limit or the order that its
//! author asked for fails later, and somewhere else.
//!
//! Sources: systemd-sysext(8), os-release(5), systemd.unit(5), systemd.service(5), systemd.syntax(7), and the version format specification
//! of the UAPI group.

#![forbid(unsafe_code)]

mod architecture;
mod file_name;
mod hierarchy;
mod os;
mod pattern;
mod release;
mod sums;
mod tree;
mod unit;
mod version;

pub use architecture::Architecture;
pub use file_name::{ExtensionName, FileName, NotAName};
pub use hierarchy::Hierarchy;
pub use os::{EtcText, OsExtension, is_confext};
pub use pattern::{NotAPattern, Pattern};
pub use release::{Host, Misfit, Release};
pub use sums::{NotASum, Published, Sums};
pub use tree::{Extension, Unusable};
pub use unit::{Command, KillMode, Limit, NotAUnit, Restart, ServiceKind, ServiceUnit, Unserved};
pub use version::ExtensionVersion;
