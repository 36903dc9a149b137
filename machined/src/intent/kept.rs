//! Which containers live through a change of generations, by the machine config of the next one.

use anyhow::{Context as _, bail};

use super::container::{keeps, spec};
use crate::config::{Container, MachineConfig};
use crate::containers::{Described, Runtime};
use crate::machine::{Configured, Machine};
use crate::services::Cgroup;

/// Returns a function that says whether this config, that of the next generation, lets a container live through the change: only if the
/// next generation would make the same container. The rules for containers of another version are not known here: where they differ, the
/// next generation ends the container, and says so.
pub fn kept_by<'a>(
    machine: &'a Machine,
    next: Option<&'a Configured>,
) -> impl Fn(&str) -> anyhow::Result<()> + Send + Sync + 'a {
    let now = machine.config();
    let ends_all = now
        .zip(next)
        .and_then(|(now, next)| why_nothing_stays(&now.config, &next.config));
    move |name| match (next, ends_all) {
        (None, _) => Ok(()),
        (Some(_), Some(why)) => bail!(why),
        (Some(next), None) => {
            let container = named(&next.config, name)?;
            is_the_same(machine, &next.config, container).context("it would be made anew")
        }
    }
}

/// Returns why no container can live on: what lies below all of them changes, and only a boot changes it otherwise.
fn why_nothing_stays(now: &MachineConfig, next: &MachineConfig) -> Option<&'static str> {
    let disk = |config: &MachineConfig| config.install.as_ref().map(|it| it.selector.clone());
    if disk(now) != disk(next) {
        return Some("the machine config of the next generation names another disk");
    }
    let leaves_cluster = now.kubernetes.is_some() && next.kubernetes.is_none();
    leaves_cluster.then_some("the next generation leaves its cluster, and nothing of it may stay")
}

/// Returns the container of this name, if the config keeps it.
fn named<'a>(next: &'a MachineConfig, name: &str) -> anyhow::Result<&'a Container> {
    let mut containers = next.containers.iter();
    match containers.find(|container| container.name.as_str() == name) {
        Some(container) if keeps(container) => Ok(container),
        Some(_) => bail!("its ContainerUpgradeConfig says restart"),
        None => bail!("the machine config of the next generation does not name it"),
    }
}

/// Checks that the running container is the one that the next config describes.
fn is_the_same(
    machine: &Machine,
    next: &MachineConfig,
    container: &Container,
) -> anyhow::Result<()> {
    let cgroup = Cgroup::where_it_runs(container.name.as_str())?;
    let cgroup = cgroup.context("no process of it runs")?;
    let described = Described {
        spec: &spec(container, next, cgroup.path().to_owned()),
        image: &container.image,
    };
    let same = described.same_image(
        &Runtime::default(),
        &machine.images,
        &machine.images_in_force,
    );
    same.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    const MACHINE: &str = include_str!("../../../config/tests/data/served-1.14.yaml");
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

    #[test]
    fn the_next_config_says_who_lives_through() -> anyhow::Result<()> {
        let next = config::parse([MACHINE, CONTAINERS].concat().as_bytes())?.config;
        let said = |name: &str| named(&next, name).err().map(|why| why.to_string());
        assert_eq!(said("stays"), None);
        let restart = "its ContainerUpgradeConfig says restart";
        assert_eq!(said("again").as_deref(), Some(restart));
        let gone = "the machine config of the next generation does not name it";
        assert_eq!(said("gone").as_deref(), Some(gone));
        Ok(())
    }

    #[test]
    fn nothing_stays_on_another_disk() -> anyhow::Result<()> {
        let parse = |text: &str| anyhow::Ok(config::parse(text.as_bytes())?.config);
        let now = parse(MACHINE)?;
        assert_eq!(why_nothing_stays(&now, &now), None);
        // The image to install says nothing about the disk.
        let image = parse(&MACHINE.replace("installer:v0.1.0", "installer:v0.2.0"))?;
        assert_ne!(image, now);
        assert_eq!(why_nothing_stays(&now, &image), None);
        let mut other = now.clone();
        other.install = None;
        let why = why_nothing_stays(&now, &other);
        assert!(
            why.is_some_and(|why| why.contains("another disk")),
            "{why:?}"
        );
        Ok(())
    }
}
