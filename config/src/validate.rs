//! Checks that need the whole config: references between documents.

use std::collections::HashSet;

use super::{
    model::{ContainerName, ContainerNetwork, HealthProbe, MachineConfig},
    resolve::Origins,
};

/// Reports references to missing names, and containers that wait for each other in a circle.
pub(super) fn references(config: &MachineConfig, origins: &Origins<'_>) {
    let volume_exists = |name: &str| {
        config
            .user_volumes
            .iter()
            .any(|known| known.name.as_str() == name)
    };
    let container_exists = |name: &str| {
        config
            .containers
            .iter()
            .any(|known| known.name.as_str() == name)
    };
    for document in origins.containers.values() {
        for (_, mount) in document.sections("mounts") {
            let Some(volume) = mount.section("userVolume") else {
                continue;
            };
            if let Some(name) = volume.text("name").filter(|name| !volume_exists(name)) {
                volume.wrong_field(
                    "name",
                    format_args!("there is no UserVolumeConfig `{name}`"),
                );
            }
        }
        let depends_on = document
            .section("dependsOn")
            .map(|section| section.texts("containers"));
        for name in depends_on.unwrap_or_default() {
            if !container_exists(name.text) {
                name.wrong(format_args!("there is no ContainerConfig `{}`", name.text));
            }
        }
    }
    for (name, document) in &origins.health {
        if !container_exists(name.as_str()) {
            document.wrong_field("name", format_args!("there is no ContainerConfig `{name}`"));
        }
        if config.containers.iter().any(|container| {
            container.name == *name
                && container.network == ContainerNetwork::None
                && container
                    .health
                    .as_ref()
                    .is_some_and(|health| !matches!(health.check, HealthProbe::Exec(_)))
        }) {
            document.wrong(format_args!(
                "`{name}` cannot be reached from outside: its `network.mode` is `none`, as it is when nothing is said; \
                 give it `host`, or check it with `exec`"
            ));
        }
    }
    for (name, document) in &origins.of_containers {
        if !container_exists(name.as_str()) {
            document.wrong_field("name", format_args!("there is no ContainerConfig `{name}`"));
        }
    }
    if let Some(circle) = circle(config)
        && let Some(document) = circle.first().and_then(|name| origins.containers.get(name))
    {
        let path: Vec<&str> = circle
            .iter()
            .chain(circle.first())
            .map(ContainerName::as_str)
            .collect();
        document.wrong_field(
            "dependsOn",
            format_args!("these wait for each other: {}", path.join(" → ")),
        );
    }
}

/// A circle of containers that wait for each other, if there is one.
///
/// Containers that wait for no remaining one are removed until there are no more; each one that remains waits for another, so following
/// these must lead in a circle.
fn circle(config: &MachineConfig) -> Option<Vec<ContainerName>> {
    let mut waiting: Vec<_> = config.containers.iter().collect();
    loop {
        let before = waiting.len();
        let names: HashSet<&ContainerName> =
            waiting.iter().map(|container| &container.name).collect();
        waiting.retain(|container| {
            container
                .depends_on
                .containers
                .iter()
                .any(|name| names.contains(name))
        });
        if waiting.len() == before {
            break;
        }
    }
    let mut path: Vec<ContainerName> = Vec::new();
    let mut current = waiting.first()?;
    loop {
        if let Some(start) = path.iter().position(|name| *name == current.name) {
            return Some(path.split_off(start));
        }
        path.push(current.name.clone());
        current = waiting
            .iter()
            .find(|container| current.depends_on.containers.contains(&container.name))?;
    }
}
