//! A parameter of the running kernel: a file below /proc/sys or /sys.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Limit on the length of a path, in bytes. The longest ones below /sys/devices have some 150.
const LONGEST: usize = 512;

/// The tree of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Tree {
    ProcSys,
    Sys,
}

impl Tree {
    const ALL: [Tree; 2] = [Tree::ProcSys, Tree::Sys];

    fn directory(self) -> &'static str {
        match self {
            Tree::ProcSys => "proc/sys",
            Tree::Sys => "sys",
        }
    }
}

/// A kernel parameter. Every value names a file below its tree, and cannot leave it by `..`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KernelParameter {
    tree: Tree,
    below: String,
}

/// Why a text is not the name of a kernel parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "this is no name of a kernel parameter: parts between dots (`net.ipv4.ip_forward`) or between slashes (`net/ipv4/conf/eth0.5/mtu`) are expected, \
     none of them empty or `..`"
)]
pub struct NotAParameter;

impl KernelParameter {
    /// A parameter below /proc/sys, by a name as in sysctl(8): the first `.` or `/` in it decides which of them separates the parts; if it
    /// is the dot, a slash within a part stands for a dot.
    ///
    /// # Errors
    /// The name is not valid.
    pub fn sysctl(name: &str) -> Result<Self, NotAParameter> {
        Self::named(Tree::ProcSys, name)
    }

    /// A parameter below /sys, by a name of the same form.
    ///
    /// # Errors
    /// The name is not valid.
    pub fn sysfs(name: &str) -> Result<Self, NotAParameter> {
        Self::named(Tree::Sys, name)
    }

    fn named(tree: Tree, name: &str) -> Result<Self, NotAParameter> {
        let separator = name.find(['.', '/']).map(|at| name.as_bytes()[at]);
        let below = match separator {
            Some(b'.') => name
                .chars()
                .map(|letter| match letter {
                    '.' => '/',
                    '/' => '.',
                    other => other,
                })
                .collect(),
            _ => name.to_owned(),
        };
        Self::below(tree, below)
    }

    fn below(tree: Tree, below: String) -> Result<Self, NotAParameter> {
        let is_part = |part: &str| !matches!(part, "" | "." | "..");
        let is_name = below.len() <= LONGEST
            && !below.contains(|letter: char| letter.is_control())
            && below.split('/').all(is_part);
        match is_name {
            true => Ok(Self { tree, below }),
            false => Err(NotAParameter),
        }
    }

    /// The path of its file, on a machine with this root directory.
    pub fn path(&self, root: &Path) -> PathBuf {
        root.join(self.tree.directory()).join(&self.below)
    }
}

/// The absolute path of its file.
impl fmt::Display for KernelParameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}/{}", self.tree.directory(), self.below)
    }
}

/// Parses the absolute path.
impl FromStr for KernelParameter {
    type Err = NotAParameter;

    fn from_str(path: &str) -> Result<Self, NotAParameter> {
        let absolute = path.strip_prefix('/').ok_or(NotAParameter)?;
        let found = Tree::ALL.into_iter().find_map(|tree| {
            let below = absolute.strip_prefix(tree.directory())?;
            Some((tree, below.strip_prefix('/')?))
        });
        let (tree, below) = found.ok_or(NotAParameter)?;
        Self::below(tree, below.to_owned())
    }
}

crate::text_form::serde_by_text!(KernelParameter);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn dots_and_slashes_are_read_as_sysctl_reads_them() {
        for (name, path) in [
            ("net.ipv4.ip_forward", "/proc/sys/net/ipv4/ip_forward"),
            ("net/ipv4/ip_forward", "/proc/sys/net/ipv4/ip_forward"),
            (
                "net/ipv4/conf/eth0.5/forwarding",
                "/proc/sys/net/ipv4/conf/eth0.5/forwarding",
            ),
            (
                "net.ipv4.conf.eth0/5.forwarding",
                "/proc/sys/net/ipv4/conf/eth0.5/forwarding",
            ),
        ] {
            assert_eq!(KernelParameter::sysctl(name).unwrap().to_string(), path);
        }
        let sysfs = KernelParameter::sysfs("kernel.mm.transparent_hugepage.enabled").unwrap();
        assert_eq!(
            sysfs.path(Path::new("/")),
            Path::new("/sys/kernel/mm/transparent_hugepage/enabled")
        );
    }

    #[test]
    fn nothing_leads_out_of_its_tree() {
        for name in [
            "",
            ".",
            "..",
            "/etc/passwd",
            "kernel/../../etc/passwd",
            "kernel..panic",
            "kernel.panic.",
            "kernel//panic",
            "a\nb",
            &"x".repeat(LONGEST + 1),
        ] {
            assert_eq!(KernelParameter::sysctl(name), Err(NotAParameter), "{name}");
        }
    }

    #[test]
    fn a_parameter_comes_back_from_its_path() {
        let parameter = KernelParameter::sysctl("vm.max_map_count").unwrap();
        assert_eq!(parameter.to_string().parse(), Ok(parameter));
        for other in ["vm/max_map_count", "/etc/passwd", "/proc/sys", "/sys/../x"] {
            assert_eq!(other.parse::<KernelParameter>(), Err(NotAParameter));
        }
    }
}
