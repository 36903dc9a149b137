//! Which containers live through a change of generations, by the machine config of the next one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};

use super::container::{keeps, spec};
use super::disk::disk_to_own;
use super::registries::policy;
use crate::base::blocking_io::{self, ANSWER};
use crate::boot_loader;
use crate::config::{Container, MachineConfig};
use crate::containers::{Described, ImagesInForce, Runtime, no_foreign_devices};
use crate::machine::{Configured, Machine};
use crate::oci::ImageStore;
use crate::services::{Cgroup, KeptByConfig};

/// The containers of the next config, each with the reason if it ends.
type Fates = BTreeMap<String, Result<(), String>>;

/// Returns a function that says whether this config, that of the next generation, lets a container live through the change: only if the
/// next generation would make the same container. The rules for containers of another version are not known here: where they differ, the
/// next generation ends the container, and says so.
///
/// All that is on a disk is looked up here, and nothing of it by the function. If a disk does not answer in time, all containers end in order, as
/// if they were others: the next generation starts those that can be started. The kernel's block devices are looked at each time: one may have
/// come while other containers ended.
pub async fn kept_by(
    machine: &Machine,
    next: Option<Arc<Configured>>,
) -> Box<KeptByConfig<'static>> {
    let look_at_devices =
        || -> anyhow::Result<()> { Ok(no_foreign_devices(Path::new("/proc"), Path::new("/sys"))?) };
    let Some(next) = next else {
        return Box::new(move |_| look_at_devices());
    };
    let fates = match why_nothing_stays(machine, &next.config).await {
        Some(why) => Err(why),
        None => {
            let (images, in_force) = (machine.images.clone(), machine.images_in_force.clone());
            let is_the_same =
                move |config: &MachineConfig, container: &Container| -> anyhow::Result<()> {
                    is_the_same(&images, &in_force, config, container)
                };
            looked_up(ANSWER, move || fates(&next.config, is_the_same)).await
        }
    };
    Box::new(move |name| match &fates {
        Ok(fates) => fate(fates, name).and_then(|()| look_at_devices()),
        Err(why) => bail!("{why}"),
    })
}

/// Looks the fates up on a thread: the records are on /var, whose device may be silent.
async fn looked_up(
    limit: Duration,
    look_up: impl FnOnce() -> Fates + Send + 'static,
) -> Result<Fates, String> {
    let fates = blocking_io::within(limit, look_up).await;
    fates.map_err(|late| {
        format!("it is unknown whether the next generation would make it the same way: {late}")
    })
}

/// Returns the fates of the containers of the next config; `is_the_same` compares one with the container that runs.
fn fates(
    next: &MachineConfig,
    is_the_same: impl Fn(&MachineConfig, &Container) -> anyhow::Result<()>,
) -> Fates {
    let judge = |container: &Container| {
        if !keeps(container) {
            bail!("its ContainerUpgradeConfig says restart");
        }
        // Only a denial is certain: a signature that is not here may be at the registry, which the next generation asks.
        policy(next).refuse_denied(&container.image)?;
        is_the_same(next, container).context("it would be made anew")
    };
    let containers = next.containers.iter();
    let judged = containers.map(|container| {
        let fate = judge(container).map_err(|why| format!("{why:#}"));
        (container.name.to_string(), fate)
    });
    judged.collect()
}

/// Returns the fate of the container of this name.
fn fate(fates: &Fates, name: &str) -> anyhow::Result<()> {
    let unnamed = || anyhow!("the machine config of the next generation does not name it");
    let fate = fates.get(name).ok_or_else(unnamed)?;
    fate.clone().map_err(anyhow::Error::msg)
}

/// Returns why no container can live on: what lies below all of them changes, and only a boot changes it otherwise.
async fn why_nothing_stays(machine: &Machine, next: &MachineConfig) -> Option<String> {
    let now = machine.config()?;
    if leaves_cluster(&now.config, next) {
        return Some("the next generation leaves its cluster, and nothing of it may stay".into());
    }
    if names_the_same_disk(&now.config, next) {
        return None;
    }
    let used = machine.disk.status().borrow().disk.clone();
    let meant = disk_of(machine, next, used.as_deref()).await;
    why_another_disk(used.as_deref(), meant)
}

fn leaves_cluster(now: &MachineConfig, next: &MachineConfig) -> bool {
    now.kubernetes.is_some() && next.kubernetes.is_none()
}

/// Whether both configs name the machine's disk in the same way.
fn names_the_same_disk(now: &MachineConfig, next: &MachineConfig) -> bool {
    let selector = |config| disk_to_own(config).map(|spec| spec.disk);
    match (selector(now), selector(next)) {
        (Ok(now), Ok(next)) => now == next,
        _ => false,
    }
}

/// Returns the disk that a generation with this config would own, on a machine that uses this one.
async fn disk_of(
    machine: &Machine,
    next: &MachineConfig,
    used: Option<&Path>,
) -> anyhow::Result<Option<PathBuf>> {
    match disk_to_own(next)?.disk {
        Some(selector) => Ok(Some(machine.disk.selected(&selector).await?)),
        // A machine that was started from a disk finds its own without a name.
        None => match blocking_io::within(ANSWER, boot_loader::booted).await?? {
            Some(_) => Ok(used.map(Path::to_owned)),
            None => Ok(None),
        },
    }
}

/// Returns why the next generation does not own the disk in use; None if it does. A disk that is not found is another one.
fn why_another_disk(used: Option<&Path>, meant: anyhow::Result<Option<PathBuf>>) -> Option<String> {
    let why = match meant {
        Ok(meant) if meant.as_deref() == used => return None,
        Ok(Some(meant)) => meant.display().to_string(),
        Ok(None) => "none".to_owned(),
        Err(error) => format!("{error:#}"),
    };
    Some(format!(
        "the machine config of the next generation names another disk: {why}"
    ))
}

/// Checks that the running container is the one that the next config describes.
fn is_the_same(
    images: &ImageStore,
    in_force: &ImagesInForce,
    next: &MachineConfig,
    container: &Container,
) -> anyhow::Result<()> {
    let cgroup = Cgroup::where_it_runs(container.name.as_str())?;
    let cgroup = cgroup.context("no process of it runs")?;
    let described = Described {
        spec: &spec(container, next, cgroup.path().to_owned()),
        image: &container.image,
    };
    let same = described.same_image(&Runtime::default(), images, in_force);
    same.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;
    use crate::disk::{OwnedDisk, Paths};
    use crate::values::DiskSelector;

    const MACHINE: &str = include_str!("../../../config/tests/data/served-1.14.yaml");
    const WORKER: &str = include_str!("../../../config/tests/data/1.14/worker.yaml");
    const CONTAINERS: &str = "
---
apiVersion: v1alpha1
kind: ContainerConfig
name: stays
image: registry.local/a@sha256:0000000000000000000000000000000000000000000000000000000000000000
---
apiVersion: v1alpha1
kind: ContainerConfig
name: again
image: registry.local/a@sha256:0000000000000000000000000000000000000000000000000000000000000000
---
apiVersion: instar.dev/v1alpha1
kind: ContainerUpgradeConfig
name: again
strategy: restart
";

    fn parse(text: &str) -> anyhow::Result<MachineConfig> {
        Ok(config::parse(text.as_bytes())?.config)
    }

    #[test]
    fn the_next_config_says_who_lives_through() -> anyhow::Result<()> {
        let rules = |action: &str| {
            format!(
                "---\napiVersion: v1alpha1\nkind: ImageVerificationConfig\nrules:\n  - image: \"registry.local/*\"\n    {action}\n"
            )
        };
        let said = |next: &MachineConfig, name: &str| {
            let fates = fates(next, |_, _| Ok(()));
            fate(&fates, name).err().map(|why| why.to_string())
        };
        // Its own rules for images deny all that they do not name.
        let (first, _) = MACHINE.split_once("---\n").context("documents")?;
        let next = parse(&[first, CONTAINERS].concat())?;
        assert_eq!(said(&next, "stays"), None);
        let restart = "its ContainerUpgradeConfig says restart";
        assert_eq!(said(&next, "again").as_deref(), Some(restart));
        let gone = "the machine config of the next generation does not name it";
        assert_eq!(said(&next, "gone").as_deref(), Some(gone));
        // Its rules for images count as well, as at the take-over.
        let denied = parse(&[first, CONTAINERS, &rules("deny: true")].concat())?;
        let why = said(&denied, "stays");
        assert!(why.is_some_and(|why| why.contains("registry.local")));
        let allowed = parse(&[first, CONTAINERS, &rules("skip: true")].concat())?;
        assert_eq!(said(&allowed, "stays"), None);

        let other = fates(&next, |_, _| bail!("another image is in force"));
        let anew = "it would be made anew: another image is in force";
        let why = fate(&other, "stays").err().map(|why| why.to_string());
        assert_eq!(why.as_deref(), Some(anew));
        Ok(())
    }

    #[tokio::test]
    async fn a_silent_disk_ends_the_question_and_not_the_api() {
        let (answer, question) = std::sync::mpsc::channel::<()>();
        let silent = move || {
            // It ends when the test drops the other half.
            let _ = question.recv();
            Fates::new()
        };
        let looked = looked_up(Duration::from_millis(20), silent).await;
        drop(answer);
        let why = looked.err().unwrap_or_default();
        assert!(why.starts_with("it is unknown whether"), "{why}");
    }

    #[test]
    fn only_another_way_to_name_the_disk_is_looked_up() -> anyhow::Result<()> {
        let now = parse(MACHINE)?;
        assert!(names_the_same_disk(&now, &now));
        // The image to install says nothing about the disk.
        let image = parse(&MACHINE.replace("installer:v0.1.0", "installer:v0.2.0"))?;
        assert_ne!(image, now);
        assert!(names_the_same_disk(&now, &image));
        let mut other = now.clone();
        other.install = None;
        assert!(!names_the_same_disk(&now, &other));
        Ok(())
    }

    #[test]
    fn nothing_stays_on_another_disk() {
        let (a, b) = (Path::new("/dev/vda"), Path::new("/dev/vdb"));
        for (used, meant, stays) in [
            (Some(a), Ok(Some(a)), true),
            (Some(a), Ok(Some(b)), false),
            (Some(a), Ok(None), false),
            (None, Ok(Some(a)), false),
            (None, Ok(None), true),
            (Some(a), Err("no disk matches"), false),
            (None, Err("no disk matches"), false),
        ] {
            let answer = meant.map(|it| it.map(Path::to_owned));
            let why = why_another_disk(used, answer.map_err(anyhow::Error::msg));
            assert_eq!(why.is_none(), stays, "{used:?} {meant:?}");
            assert!(why.is_none_or(|why| why.contains("another disk")));
        }
    }

    /// A staged config may name the disk in use by its path, or by one of its other names.
    #[tokio::test]
    async fn all_names_of_a_disk_mean_one_disk() -> anyhow::Result<()> {
        let sysfs = tempfile::tempdir()?;
        let class = sysfs.path().join("class/block");
        std::fs::create_dir_all(&class)?;
        for (name, serial) in [("vda", "first"), ("vdb", "second")] {
            let node = sysfs.path().join("devices/pci0000:00/virtio1/block");
            let node = node.join(name);
            std::fs::create_dir_all(&node)?;
            std::fs::write(node.join("size"), "67108864\n")?;
            std::fs::write(node.join("serial"), serial)?;
            std::os::unix::fs::symlink(&node, class.join(name))?;
        }
        let disk = OwnedDisk::new(Paths {
            sysfs: sysfs.path().to_owned(),
            ..Paths::default()
        });
        let used = Path::new("/dev/vda");
        for (name, stays) in [
            ("/dev/vda", true),
            ("/dev/disk/by-id/virtio-first", true),
            ("/dev/disk/by-id/virtio-second", false),
            ("/dev/disk/by-id/virtio-third", false),
        ] {
            let meant = disk.selected(&DiskSelector::Path(name.into())).await;
            let why = why_another_disk(Some(used), meant.map(Some).map_err(Into::into));
            assert_eq!(why.is_none(), stays, "{name}: {why:?}");
        }
        Ok(())
    }

    #[test]
    fn nothing_stays_of_a_cluster_that_is_left() -> anyhow::Result<()> {
        let kubernetes = "
---
apiVersion: instar.dev/v1alpha1
kind: KubernetesConfig
image: r.example.com/kubernetes:v0.1.0
---
apiVersion: instar.dev/v1alpha1
kind: ExtensionConfig
name: kubernetes
image: r.example.com/ext/kubernetes:v1.36.3
---
apiVersion: instar.dev/v1alpha1
kind: ExtensionConfig
name: containerd
image: r.example.com/ext/containerd:v2.4.2
";
        let worker = parse(&[WORKER, kubernetes].concat())?;
        let mut outside = worker.clone();
        outside.kubernetes = None;
        for (now, next, leaves) in [
            (&worker, &outside, true),
            (&worker, &worker, false),
            (&outside, &worker, false),
            (&outside, &outside, false),
        ] {
            assert_eq!(leaves_cluster(now, next), leaves);
        }
        Ok(())
    }
}
