//! Resolves documents to the model: each setting is read from its place, in either shape.
//!
//! [`super::conflicts`] has made sure that no setting is in both shapes. A section of the large document may still be beside a document of its
//! own, empty or with other fields: [`both_shapes`] reads such a concern field by field.

mod both_shapes;
mod cluster;
mod containers;
mod control_plane;
mod extensions;
mod image_pins;
mod image_rules;
mod install;
mod kubernetes;
mod manifests;
mod network;
mod node_metadata;
mod observation;
mod registries;
mod system;
mod trust;
mod upgrade_follow;
mod window;

pub(super) use manifests::objects as manifest_objects;
pub use system::source_of_own_file;

use std::collections::HashMap;

use super::{
    documents::Identified,
    model::*,
    problem::Problems,
    section::{Scalar, Section},
};

/// The sections that the parts of the model come from, to report later problems with their positions.
#[derive(Default)]
pub(super) struct Origins<'a> {
    /// Containers, by name.
    pub(super) containers: HashMap<ContainerName, Section<'a>>,
    /// Health checks, by the name of their container.
    pub(super) health: Vec<(ContainerName, Section<'a>)>,
    /// Settings of upgrades and updates, by the name of their container.
    pub(super) of_containers: Vec<(ContainerName, Section<'a>)>,
}

/// All documents, as sections of their kind.
struct Documents<'a> {
    /// The section `machine` of the large document.
    machine: Option<Section<'a>>,
    /// The section `cluster` of the large document.
    cluster: Option<Section<'a>>,
    all: &'a [Identified<'a>],
    problems: &'a Problems,
}

impl<'a> Documents<'a> {
    /// A section of the section `machine`.
    fn section(&self, name: &'a str) -> Option<Section<'a>> {
        self.machine.as_ref()?.section(name)
    }

    /// The names and texts of a map of the section `machine`.
    fn named_texts(&self, field: &str) -> Vec<(&'a str, Scalar<'a>)> {
        let machine = self.machine.as_ref();
        machine.map_or_else(Vec::new, |machine| machine.named_texts(field))
    }

    /// The documents of a kind, in the order of the file.
    fn of(&self, kind: &str) -> impl Iterator<Item = Section<'a>> {
        let problems = self.problems;
        self.all
            .iter()
            .filter(move |document| document.kind.name == kind)
            .map(move |document| Section::of(document, problems))
    }

    /// The single document of a kind.
    fn one(&self, kind: &str) -> Option<Section<'a>> {
        self.of(kind).next()
    }
}

/// Reads everything. `None` if there is no machine document; other errors are reported and their settings left out.
pub(super) fn config<'a>(
    all: &'a [Identified<'a>],
    problems: &'a Problems,
) -> Option<(MachineConfig, Origins<'a>)> {
    let root = Section::of(all.iter().find(|document| document.is_machine())?, problems);
    let machine = root.section("machine")?;
    let (machine_type, token) = (machine.text("type"), machine.secret("token"));
    let documents = Documents {
        machine: Some(machine),
        cluster: root.section("cluster"),
        all,
        problems,
    };
    let mut origins = Origins::default();
    let trust = trust::trust(&documents);
    let mut containers = containers::containers(&documents, &mut origins);
    let extensions = extensions::extensions(&documents);
    let kubernetes = kubernetes::kubernetes(&documents, extensions.of_kubernetes);
    if let Some(container) = kubernetes.as_ref().and_then(Kubernetes::container) {
        if let Some(taken) = origins.containers.get(&container.name) {
            taken.wrong_field("name", "Kubernetes runs in a container of this name");
        }
        containers.push(container);
    }
    let mut sysctls = system::sysctls(&documents);
    if kubernetes.is_some() {
        system::add_parameters_of_a_node(&mut sysctls);
    }
    let config = MachineConfig {
        machine_type: match machine_type {
            Some("controlplane") => MachineType::ControlPlane,
            _ => MachineType::Worker,
        },
        token,
        control_plane_host: trust::control_plane_host(&documents),
        hostname: system::hostname(&documents),
        install: install::spec(&documents),
        containers,
        upgrade_gate: containers::upgrade_gate(&documents),
        upgrade_keys: trust::upgrade_keys(&documents),
        user_volumes: containers::user_volumes(&documents),
        time: system::time(&documents),
        registries: registries::registries(&documents),
        image_rules: image_rules::rules(&documents),
        bundles: image_rules::bundles(&documents),
        image_pins: image_pins::pins(&documents),
        upgrade_follow: upgrade_follow::upgrade_follow(&documents),
        kubernetes,
        os_extensions: extensions.of_os,
        network: network::network(&documents),
        sysctls,
        sysfs: system::sysfs(&documents),
        kernel_modules: system::kernel_modules(&documents),
        environment: system::environment(&documents),
        etc_files: system::etc_files(&documents),
        trusted_roots: trust::trusted_roots(&documents),
        log_destinations: observation::log_destinations(&documents),
        metrics: observation::metrics(&documents),
        // Last: if it is missing, everything else has been read and its problems reported.
        trust: trust?,
    };
    Some((config, origins))
}

/// Reads only where images come from. The documents need not make a whole config.
pub(super) fn image_sources<'a>(all: &'a [Identified<'a>], problems: &'a Problems) -> ImageSources {
    let machine = all.iter().find(|document| document.is_machine());
    let documents = Documents {
        machine: machine.and_then(|document| Section::of(document, problems).section("machine")),
        cluster: None,
        all,
        problems,
    };
    ImageSources {
        registries: registries::registries(&documents),
        trusted_roots: trust::trusted_roots(&documents),
    }
}
