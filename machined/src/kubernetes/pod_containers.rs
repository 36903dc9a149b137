//! The containers of pods, as containerd keeps them: a bundle each, with the container's annotations and its cgroup (config.json of the OCI
//! runtime specification; the annotations are those of containerd's CRI plugin).
//!
//! The decision: the bundles are read, and containerd is not asked by CRI. A client for CRI is another stack of messages in machined, for one
//! list; the annotations have been the same since containerd 1.1.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Dir, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use serde::Deserialize;

use super::container_root::{container_root, open_directory};
use crate::services::Cgroup;

/// The folder of bundles in the container of Kubernetes.
const BUNDLES: &str = "run/containerd/io.containerd.runtime.v2.task/k8s.io";
/// Limits: kubelet runs 110 pods unless it is told otherwise; a bundle's config has some 20 KiB.
const MOST: usize = 4096;
const LARGEST: u64 = 1 << 20;

/// A container of a pod, or the pod's own sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodContainer {
    /// Its id at containerd.
    pub id: String,
    /// Namespace and name of its pod.
    pub pod: String,
    /// The pod's uid.
    pub pod_uid: String,
    /// Its name; none for a sandbox.
    pub name: Option<String>,
    /// Its image; empty for a sandbox.
    pub image: String,
    /// Its cgroup, below that of the container of Kubernetes.
    pub cgroup: PathBuf,
}

/// The fields that are read of a bundle's config.
#[derive(Debug, Deserialize)]
struct Bundle {
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    linux: Linux,
}

#[derive(Debug, Deserialize)]
struct Linux {
    #[serde(rename = "cgroupsPath")]
    cgroups_path: String,
}

/// Lists the containers of pods, sandboxes first in each pod. `container`: the first process of the container of Kubernetes, which runs in
/// this cgroup. Blocks.
///
/// # Errors
/// The container's files cannot be reached.
pub fn pod_containers(container: u32, cgroup: &Cgroup) -> io::Result<Vec<PodContainer>> {
    let Some(root) = container_root(container, cgroup)? else {
        return Ok(Vec::new());
    };
    read(&root)
}

/// No link is followed: a pod may have put it there.
const WITHIN: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);

fn read(root: &OwnedFd) -> io::Result<Vec<PodContainer>> {
    let bundles = match open_directory(root, BUNDLES, OFlags::RDONLY, WITHIN) {
        Ok(bundles) => bundles,
        // No pod has run yet.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in Dir::read_from(&bundles)?.take(MOST) {
        let name = entry?.file_name().to_string_lossy().into_owned();
        // A container that ends meanwhile is gone, and a bundle that is just made is not whole.
        let config = config(&bundles, &name).unwrap_or_default();
        found.extend(parse(&name, &config));
    }
    found.sort_by(|one, other| (&one.pod, &one.name).cmp(&(&other.pod, &other.name)));
    Ok(found)
}

fn config(bundles: &OwnedFd, id: &str) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat2(
        bundles,
        format!("{id}/config.json"),
        flags,
        Mode::empty(),
        WITHIN,
    );
    let file: OwnedFd = file.map_err(|errno: Errno| io::Error::from(errno))?;
    let mut bytes = Vec::new();
    File::from(file).take(LARGEST).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn parse(id: &str, config: &[u8]) -> Option<PodContainer> {
    let bundle: Bundle = serde_json::from_slice(config).ok()?;
    let of = |name: &str| {
        let annotation = bundle.annotations.get(&format!("io.kubernetes.cri.{name}"));
        annotation.cloned()
    };
    let cgroup = Path::new(&bundle.linux.cgroups_path).components();
    let cgroup = cgroup.filter(|part| !matches!(part, Component::RootDir));
    let cgroup: PathBuf = cgroup.collect();
    let leads_out = |part| !matches!(part, Component::Normal(_));
    if cgroup.components().any(leads_out) {
        return None;
    }
    Some(PodContainer {
        id: id.to_owned(),
        pod: format!("{}/{}", of("sandbox-namespace")?, of("sandbox-name")?),
        pod_uid: of("sandbox-uid").unwrap_or_default(),
        name: of("container-name"),
        image: of("image-name").unwrap_or_default(),
        cgroup,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustix::fs::CWD;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn config_of(name: Option<&str>, cgroup: &str) -> String {
        let mut annotations = serde_json::json!({
            "io.kubernetes.cri.sandbox-namespace": "default",
            "io.kubernetes.cri.sandbox-name": "web-1",
            "io.kubernetes.cri.sandbox-uid": "u-1",
        });
        if let Some(name) = name {
            annotations["io.kubernetes.cri.container-name"] = name.into();
            annotations["io.kubernetes.cri.image-name"] = "r/web:v1".into();
        }
        serde_json::json!({"annotations": annotations, "linux": {"cgroupsPath": cgroup}})
            .to_string()
    }

    fn opened(root: &Path) -> OwnedFd {
        let path = root.to_str().unwrap();
        open_directory(CWD, path, OFlags::PATH, ResolveFlags::empty()).unwrap()
    }

    #[test]
    fn pods_and_their_containers_are_found_in_their_bundles() {
        let root = tempfile::tempdir().unwrap();
        let bundles = root.path().join(BUNDLES);
        let texts = [
            ("b", config_of(Some("web"), "/kubepods/pod1/b")),
            ("a", config_of(None, "/kubepods/pod1/a")),
            ("c", config_of(Some("bad"), "/../../etc")),
            ("d", "{".to_owned()),
        ];
        for (id, text) in texts {
            fs::create_dir_all(bundles.join(id)).unwrap();
            fs::write(bundles.join(id).join("config.json"), text).unwrap();
        }
        symlink("b", bundles.join("link")).unwrap();
        let opened = opened(root.path());
        let found = read(&opened).unwrap();
        let names: Vec<_> = found
            .iter()
            .map(|it| (it.id.as_str(), it.name.as_deref()))
            .collect();
        assert_eq!(names, [("a", None), ("b", Some("web"))]);
        assert_eq!(found[1].pod, "default/web-1");
        assert_eq!(found[1].cgroup, Path::new("kubepods/pod1/b"));
        assert_eq!(found[1].image, "r/web:v1");
    }

    #[test]
    fn a_machine_without_pods_has_none() {
        let root = tempfile::tempdir().unwrap();
        let opened = opened(root.path());
        assert_eq!(read(&opened).unwrap(), []);
    }
}
