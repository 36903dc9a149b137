//! The tree of an extension: its release file, the units in it, and which of them are started.

mod hidden;
mod started;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::unit::NotAUnit;
use crate::{ExtensionName, Hierarchy, Host, Misfit, Release, ServiceUnit, Unserved};

/// Limit on a release file, a unit or a drop-in, in bytes.
const LARGEST: u64 = 256 << 10;
/// Limit on the units that an extension starts, and on the drop-ins of one unit.
const MOST: usize = 64;

/// An extension that fits a system, and whose units are served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extension {
    /// Its name.
    pub name: ExtensionName,
    /// The services that it starts, each after those that it is to start after.
    pub started: Vec<ServiceUnit>,
}

/// Why an extension cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// It does not fit the system.
    #[error(transparent)]
    Misfit(#[from] Misfit),
    /// It has no release file of its name.
    #[error("{name} has no /{folder}/extension-release.{name}: {found}")]
    NoRelease {
        /// The extension.
        name: ExtensionName,
        /// The folder of such files.
        folder: &'static str,
        /// The file that is there.
        found: String,
    },
    /// It brings files outside of the directories that it may bring files for.
    #[error("{name} has /{found}: it may bring files below /{} only", .allowed.join(" and /"))]
    Outside {
        /// The extension.
        name: ExtensionName,
        /// The first other entry.
        found: String,
        /// The directories that it may bring files for.
        allowed: &'static [&'static str],
    },
    /// It would replace a file of the system.
    #[error(
        "{name} has {path}, which the system has as well: an extension adds files, and replaces none; take the file out of it"
    )]
    OfTheSystem {
        /// The extension.
        name: ExtensionName,
        /// The file.
        path: PathBuf,
    },
    /// It would hide programs of the base.
    #[error(
        "{name} has /{path}, which would hide what the base has there, with programs that the node needs: {advice}"
    )]
    Hides {
        /// The extension.
        name: ExtensionName,
        /// The file or directory.
        path: &'static str,
        /// What to do instead.
        advice: &'static str,
    },
    /// It brings files that would have no effect, or one that nobody expects.
    #[error("{name} has {path}, which has no place in an extension of the system itself: {advice}")]
    WithoutEffect {
        /// The extension.
        name: ExtensionName,
        /// The file or directory.
        path: PathBuf,
        /// Why, or what to do instead.
        advice: &'static str,
    },
    /// It brings something else than a file.
    #[error("{name} has {path}, which is neither {may_be}")]
    NoFile {
        /// The extension.
        name: ExtensionName,
        /// Its path.
        path: PathBuf,
        /// The kinds that it may be of, as words after "neither".
        may_be: &'static str,
    },
    /// A file is no unit.
    #[error(transparent)]
    Unit(#[from] NotAUnit),
    /// Its units ask for more than is served.
    #[error("{name}: {}", list(.unserved))]
    Unserved {
        /// The extension.
        name: ExtensionName,
        /// All of it.
        unserved: Vec<Unserved>,
    },
    /// It starts a unit that it does not have.
    #[error("{name} starts {unit}, which it does not have as a service")]
    Missing {
        /// The extension.
        name: ExtensionName,
        /// The unit.
        unit: String,
    },
    /// Services start after each other in a circle.
    #[error("{name}: {unit} is to start after itself")]
    Circle {
        /// The extension.
        name: ExtensionName,
        /// One of them.
        unit: String,
    },
    /// A file is too large, or there are too many.
    #[error("{name}: {path} is more than a machine reads: {limit}")]
    TooMuch {
        /// The extension.
        name: ExtensionName,
        /// The file or directory.
        path: PathBuf,
        /// The limit.
        limit: String,
    },
    /// A file cannot be read.
    #[error("reading {path} failed")]
    Io {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

fn list(unserved: &[Unserved]) -> String {
    let all: Vec<_> = unserved.iter().map(Unserved::to_string).collect();
    all.join("; ")
}

impl Extension {
    /// Reads and checks the tree at this path.
    ///
    /// # Errors
    /// It does not fit, or asks for what is not served; a file cannot be read.
    pub fn read(
        tree: &Path,
        name: &ExtensionName,
        host: Host<'_>,
        host_name: &str,
    ) -> Result<Self, Unusable> {
        Reader { tree, name }.hides_nothing()?;
        Self::read_taken(tree, name, host, host_name)
    }

    /// Reads and checks the tree of an extension that its node has taken already: what would hide programs of the base is not looked for. A version
    /// without that check may have taken it, and a node that was ready with it would not be without.
    ///
    /// # Errors
    /// It does not fit, or asks for what is not served; a file cannot be read.
    pub fn read_taken(
        tree: &Path,
        name: &ExtensionName,
        host: Host<'_>,
        host_name: &str,
    ) -> Result<Self, Unusable> {
        let reader = Reader { tree, name };
        reader.only(&["usr", "opt"])?;
        reader
            .release(Hierarchy::Usr)?
            .fits(name, host, Hierarchy::Usr)?;
        let units = reader.services(host_name)?;
        Ok(Extension {
            name: name.clone(),
            started: in_order(name, units)?,
        })
    }
}

/// Reads the files of one tree. Links are not followed: a tree that is not mounted yet could lead outside.
pub(crate) struct Reader<'a> {
    pub(crate) tree: &'a Path,
    pub(crate) name: &'a ExtensionName,
}

impl Reader<'_> {
    /// Checks that the tree has no other directories than these.
    pub(crate) fn only(&self, allowed: &'static [&'static str]) -> Result<(), Unusable> {
        let entries = self.entries(Path::new(""), usize::MAX)?;
        let other = entries
            .into_iter()
            .find(|entry| !allowed.contains(&entry.as_str()));
        match other {
            None => Ok(()),
            Some(found) => Err(Unusable::Outside {
                name: self.name.clone(),
                found,
                allowed,
            }),
        }
    }

    /// Reads the release file.
    pub(crate) fn release(&self, hierarchy: Hierarchy) -> Result<Release, Unusable> {
        let folder = hierarchy.releases();
        let path = Path::new(folder).join(format!("extension-release.{}", self.name));
        if let Some(text) = self.text(&path)? {
            return Ok(Release::parse(&text)?);
        }
        let there = self.entries(Path::new(folder), MOST)?;
        Err(Unusable::NoRelease {
            name: self.name.clone(),
            folder,
            found: match there.is_empty() {
                true => "there is no release file".to_owned(),
                false => format!("there is {}", there.join(", ")),
            },
        })
    }

    /// The text of a regular file; `None` if there is none of this name.
    fn text(&self, path: &Path) -> Result<Option<String>, Unusable> {
        let path = self.tree.join(path);
        let failed = |source| Unusable::Io {
            path: path.clone(),
            source,
        };
        match fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.is_file() && metadata.len() <= LARGEST => {
                fs::read_to_string(&path).map(Some).map_err(failed)
            }
            Ok(metadata) if metadata.is_file() => {
                Err(self.too_much(&path, format!("{LARGEST} bytes")))
            }
            Ok(_) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    /// The names in a directory, sorted; none if it is missing, or no directory.
    fn entries(&self, directory: &Path, most: usize) -> Result<Vec<String>, Unusable> {
        let path = self.tree.join(directory);
        let failed = |source| Unusable::Io {
            path: path.clone(),
            source,
        };
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if is_no_directory(&error) => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            if names.len() == most {
                return Err(self.too_much(&path, format!("{most} entries")));
            }
            let entry = entry.map_err(failed)?;
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }

    fn too_much(&self, path: &Path, limit: String) -> Unusable {
        Unusable::TooMuch {
            name: self.name.clone(),
            path: path.to_owned(),
            limit,
        }
    }
}

fn is_no_directory(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// Sorts services so that each comes after those of `After=`.
fn in_order(
    name: &ExtensionName,
    services: Vec<ServiceUnit>,
) -> Result<Vec<ServiceUnit>, Unusable> {
    let mut waiting: BTreeMap<String, ServiceUnit> = services
        .into_iter()
        .map(|service| (service.name.clone(), service))
        .collect();
    let mut sorted = Vec::new();
    while !waiting.is_empty() {
        let is_next = |service: &ServiceUnit| {
            !service
                .after
                .iter()
                .any(|before| waiting.contains_key(before))
        };
        let next = waiting.values().find(|service| is_next(service));
        let Some(next) = next.map(|service| service.name.clone()) else {
            let unit = waiting.into_keys().next().unwrap_or_default();
            return Err(Unusable::Circle {
                name: name.clone(),
                unit,
            });
        };
        sorted.extend(waiting.remove(&next));
    }
    Ok(sorted)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Architecture;

    const HOST: Host<'_> = Host {
        id: "instar",
        version: "v0.1.0",
        level: None,
        architecture: Architecture::X86_64,
    };
    const RELEASE: &str = "usr/lib/extension-release.d/extension-release.kubernetes";
    const TARGET_DROP_IN: &str =
        "usr/lib/systemd/system/multi-user.target.d/10-kubelet-service.conf";

    /// The units of the Kubernetes extension as they are published, in its own words shortened to what differs.
    fn files() -> Vec<(&'static str, &'static str)> {
        vec![
            (
                RELEASE,
                "ID=_any\nARCHITECTURE=x86-64\nEXTENSION_RELOAD_MANAGER=1\n",
            ),
            (
                "usr/lib/systemd/system/kubelet.service",
                "[Unit]\nDescription=kubelet\nWants=network-online.target\nAfter=network-online.target containerd.service\n\
                 [Service]\nExecStart=/usr/bin/kubelet\nRestart=always\nStartLimitInterval=0\nRestartSec=10\n",
            ),
            (
                "usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf",
                "[Service]\nEnvironment=\"KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml\"\n\
                 EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env\nExecStartPre=/usr/bin/mkdir -p /opt/cni/bin\nExecStart=\n\
                 ExecStart=/usr/bin/kubelet $KUBELET_CONFIG_ARGS $KUBELET_EXTRA_ARGS\n",
            ),
            (
                TARGET_DROP_IN,
                "[Unit]\nUpholds=kubelet.service containerd.service\n",
            ),
            (
                "usr/lib/systemd/system/containerd.service",
                "[Service]\nDelegate=yes\nEnvironment=CONTAINERD_CONFIG=/usr/share/containerd/config.toml\n\
                 ExecStart=/usr/bin/containerd --config ${CONTAINERD_CONFIG}\nKillMode=process\nRestart=always\nLimitNOFILE=1048576\n",
            ),
            ("usr/bin/kubelet", "a program"),
        ]
    }

    fn read(files: &[(&str, &str)]) -> Result<Extension, String> {
        let directory = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let name = "kubernetes".parse().unwrap();
        Extension::read(directory.path(), &name, HOST, "node-1").map_err(|error| error.to_string())
    }

    #[test]
    fn the_services_that_an_extension_starts_are_in_order() {
        let extension = read(&files()).unwrap();
        let names: Vec<_> = extension
            .started
            .iter()
            .map(|service| service.name.as_str())
            .collect();
        assert_eq!(names, ["containerd.service", "kubelet.service"]);
        let kubelet = &extension.started[1];
        let start = kubelet.start.as_ref().unwrap();
        assert_eq!(
            start.arguments(&kubelet.environment),
            ["--config=/var/lib/kubelet/config.yaml"]
        );
        assert_eq!(kubelet.start_pre.len(), 1);
    }

    #[test]
    fn an_extension_that_cannot_be_used_is_refused_with_the_reason() {
        let with = |path: &'static str, content: &'static str| {
            let mut files = files();
            files.retain(|(known, _)| *known != path);
            files.push((path, content));
            files
        };
        for (files, why) in [
            (with("etc/passwd", ""), "has /etc"),
            (
                with(RELEASE, "ID=flatcar\nVERSION_ID=1\n"),
                "is for ID \"flatcar\"",
            ),
            (
                files().into_iter().skip(1).collect(),
                "has no /usr/lib/extension-release.d/extension-release.kubernetes: there is no release file",
            ),
            (
                with(TARGET_DROP_IN, "[Unit]\nUpholds=other.service\n"),
                "starts other.service, which it does not have",
            ),
            (
                with(TARGET_DROP_IN, "[Unit]\nUpholds=../kubelet.service\n"),
                "starts ../kubelet.service",
            ),
            (
                with(
                    "usr/lib/systemd/system/containerd.service",
                    "[Unit]\nAfter=kubelet.service\n[Service]\nExecStart=/usr/bin/containerd\n",
                ),
                "is to start after itself",
            ),
            (
                with(
                    "usr/lib/systemd/system/containerd.service",
                    "[Service]\nExecStart=/usr/bin/containerd\nSlice=a.slice\n",
                ),
                "containerd.service:3: Slice= is not served",
            ),
            (
                with("usr/lib/systemd/system/containerd.service", "nonsense"),
                "containerd.service:1",
            ),
        ] {
            let refused = read(&files).unwrap_err();
            assert!(refused.contains(why), "{why}: {refused}");
        }
        let mut others = files();
        others[0].0 = "usr/lib/extension-release.d/extension-release.other";
        let refused = read(&others).unwrap_err();
        assert!(
            refused.contains("there is extension-release.other"),
            "{refused}"
        );
    }
}
