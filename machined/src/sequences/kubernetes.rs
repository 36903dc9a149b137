//! Keeps this machine a node: fetches its extensions, loads the kernel modules of its image, writes its files, and says what runs in its
//! container.
//!
//! ```text
//! settings change, an image has come, the host name changed
//!      │
//!      ▼
//!  modules of the image ──► files that differ ──► extensions checked ──► the plan, if it differs ──► SIGHUP to the container
//! ```
//!
//! The container starts with the machine's other containers, and waits for the plan. Its extensions are pinned images
//! (`sequences/image_pins.rs`): fetched once, kept for as long as the config names them, and here without a registry after that.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use instar_kubernetes_plan::{Plan, STATUS, Status};
use rustix::process::Signal;

use crate::base::error_chain::chain;
use crate::base::{blocking_io, whole_file};
use crate::config::{Extension, Kubernetes};
use crate::containers::Runtime;
use crate::kubernetes::{
    self, Environment, ExtensionFact, ExtensionState, KubernetesFact, NodeService,
    UnpackedExtension,
};
use crate::machine::Machine;
use crate::modules::Drivers;
use crate::oci::PulledImage;
use crate::pins::{PinFact, State};
use crate::values::ContainerName;

/// The interval between two looks, so that the resource shows how the services go.
const LOOK: Duration = Duration::from_secs(2);
/// The interval while the machine runs no Kubernetes.
const IDLE: Duration = Duration::from_secs(300);

/// The modules that the first pods need; the others may come while kubelet starts.
const FIRST_MODULES: [&str; 3] = ["overlay", "veth", "bridge"];

/// Keeps the machine a node for as long as it runs.
pub async fn keep(machine: Arc<Machine>) {
    let mut settled = machine.watch_settled();
    if settled.wait_for(|settled| *settled).await.is_err() {
        return;
    }
    let mut config = machine.watch_config();
    let mut keeper = None;
    loop {
        let configured = machine.config();
        let wanted = configured.as_ref().and_then(|configured| {
            let config = &configured.config;
            Some((config.kubernetes.as_ref()?, config))
        });
        let pause = match wanted {
            Some((kubernetes, config)) => {
                // In memory of its own, which is there only on a node.
                let keeper = keeper.get_or_insert_with(|| Box::new(Keeper::new(machine.clone())));
                Box::pin(keeper.turn(kubernetes, &config.registries)).await;
                LOOK
            }
            None => {
                keeper = None;
                show_nothing(&machine);
                machine.node_logs.follow(&kubernetes::logs(), &[]);
                IDLE
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = config.changed() => {}
        }
    }
}

fn show_nothing(machine: &Machine) {
    for (metadata, _) in machine.store.list::<KubernetesFact>() {
        machine.store.remove::<KubernetesFact>(&metadata.id);
    }
    for (metadata, _) in machine.store.list::<ExtensionFact>() {
        machine.store.remove::<ExtensionFact>(&metadata.id);
    }
}

/// One node, over its turns.
struct Keeper {
    machine: Arc<Machine>,
    /// The digest of the image whose modules are loaded.
    modules_of: Option<crate::values::Digest>,
    /// What this generation has told the container last.
    told: Option<Plan>,
    /// The problems of the last turn; each is logged once.
    problems: Vec<String>,
}

impl Keeper {
    fn new(machine: Arc<Machine>) -> Self {
        Keeper {
            machine,
            modules_of: None,
            told: None,
            problems: Vec::new(),
        }
    }

    /// Carries out what has changed, and shows how it goes.
    async fn turn(&mut self, kubernetes: &Kubernetes, registries: &crate::config::Registries) {
        let node = node_name();
        let mut problems = Vec::new();
        let unpacked = self.unpacked(kubernetes);
        let done = self
            .prepare(kubernetes, registries, &node, &unpacked, &mut problems)
            .await;
        if let Err(error) = done {
            problems.push(format!("{error:#}"));
        }
        let status = read_status().await;
        problems.extend(status.errors.iter().cloned());
        for problem in &problems {
            if !self.problems.contains(problem) {
                tracing::warn!("Kubernetes: {problem}");
            }
        }
        self.problems.clone_from(&problems);
        show_nothing_but(&self.machine, kubernetes, &node);
        let services = status
            .services
            .into_iter()
            .map(|(name, service)| NodeService {
                name,
                extension: service.extension,
                state: service.state,
                since: service.since,
                restarts: service.restarts,
                last: service.error.or(service.last_exit),
            });
        let services: Vec<NodeService> = services.collect();
        self.follow_logs(&services).await;
        let fact = KubernetesFact { problems, services };
        if self.machine.store.get(&node).as_ref() != Some(&fact) {
            self.machine.store.put(&node, fact);
        }
    }

    async fn follow_logs(&self, services: &[NodeService]) {
        let names: Vec<String> = services.iter().map(|it| it.name.clone()).collect();
        let logs = self.machine.node_logs.clone();
        let follow = move || logs.follow(&kubernetes::logs(), &names);
        if let Err(error) = blocking_io::within(blocking_io::ANSWER, follow).await {
            tracing::debug!(
                "logs of the node's services cannot be read: {}",
                chain(&error)
            );
        }
    }

    /// Loads the modules, writes the files, and tells the container its plan.
    async fn prepare(
        &mut self,
        kubernetes: &Kubernetes,
        registries: &crate::config::Registries,
        node: &str,
        unpacked: &[Option<UnpackedExtension>],
        problems: &mut Vec<String>,
    ) -> anyhow::Result<()> {
        if !self.load_modules(kubernetes).await? {
            return Ok(());
        }
        let (files, environment) = kubernetes::files(kubernetes, registries, node);
        let write = move || -> anyhow::Result<()> {
            let changed = kubernetes::write(&files).context("write the node's files")?;
            if changed.cluster {
                tracing::info!(
                    "the config names another cluster, or another address of it: the node joins anew"
                );
                kubernetes::remove_membership()
                    .context("forget the membership in the cluster before")?;
            }
            Ok(())
        };
        blocking_io::within(blocking_io::ANSWER, write).await??;
        let Some(plan) = self.plan(kubernetes, node, environment, unpacked, problems) else {
            return Ok(());
        };
        if self.told.as_ref() != Some(&plan) {
            self.tell(plan).await?;
        }
        Ok(())
    }

    /// Loads the kernel modules of the image that the container runs, some of them in the background; false if it is not here yet.
    async fn load_modules(&mut self, kubernetes: &Kubernetes) -> anyhow::Result<bool> {
        let machine = &self.machine;
        let digest = machine
            .images_in_force
            .get(Kubernetes::CONTAINER, &kubernetes.image);
        let Some(image) = digest.and_then(|digest| machine.images.get(digest)) else {
            return Ok(false);
        };
        if self.modules_of == Some(image.digest()) {
            return Ok(true);
        }
        let release = rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned();
        let directory = image.rootfs().join("usr/lib/modules").join(&release);
        let drivers = Drivers::read(&directory, Path::new("/sys")).with_context(|| {
            format!(
                "{} has no kernel modules for the kernel that runs, {release}: take the image of the same release as the system",
                kubernetes.image
            )
        })?;
        for name in FIRST_MODULES {
            let loaded = drivers.load_named(name).await;
            loaded.with_context(|| format!("load the module {name}"))?;
        }
        self.modules_of = Some(image.digest());
        tokio::spawn(load_all(drivers, image));
        Ok(true)
    }

    /// Returns the extensions in the order of the config; `None` for one that is not here.
    fn unpacked(&self, kubernetes: &Kubernetes) -> Vec<Option<UnpackedExtension>> {
        let unpacked = |extension: &Extension| {
            let id = extension.image.to_string();
            let State::Pinned { digest } = self.machine.store.get::<PinFact>(&id)?.state else {
                return None;
            };
            let image = self.machine.images.get(digest)?;
            Some(UnpackedExtension {
                name: extension.name.clone(),
                digest,
                tree: image.rootfs(),
            })
        };
        kubernetes.extensions.iter().map(unpacked).collect()
    }

    /// Checks the extensions and shows them; returns the plan once all of them are here. A refused one keeps the plan of before.
    fn plan(
        &self,
        kubernetes: &Kubernetes,
        node: &str,
        environment: Environment,
        unpacked: &[Option<UnpackedExtension>],
        problems: &mut Vec<String>,
    ) -> Option<Plan> {
        let version = &self.machine.running.version;
        let mut planned = Vec::new();
        for (extension, unpacked) in kubernetes.extensions.iter().zip(unpacked) {
            let checked = unpacked
                .as_ref()
                .map(|unpacked| kubernetes::checked(unpacked, version, node));
            let state = match checked {
                None => ExtensionState::Fetching,
                Some(Ok(extension)) => {
                    planned.push(extension);
                    ExtensionState::Planned
                }
                Some(Err(error)) => {
                    problems.push(format!("the extension {}: {error:#}", extension.name));
                    ExtensionState::Refused(format!("{error:#}"))
                }
            };
            let fact = ExtensionFact {
                image: extension.image.to_string(),
                digest: unpacked.as_ref().map(|it| it.digest.to_string()),
                state,
            };
            if self.machine.store.get(&extension.name).as_ref() != Some(&fact) {
                self.machine.store.put(&extension.name, fact);
            }
        }
        (planned.len() == kubernetes.extensions.len()).then(|| Plan {
            node: node.to_owned(),
            extensions: planned,
            environment,
            ..Plan::default()
        })
    }

    /// Writes the plan, and has the container read it.
    async fn tell(&mut self, plan: Plan) -> anyhow::Result<()> {
        let is_new = self.machine.node_plan.set(plan.clone()).await;
        if is_new.context("write the node's plan")? {
            tracing::info!("Kubernetes: the node {} has a new plan", plan.node);
            have_it_read().await?;
        }
        self.told = Some(plan);
        Ok(())
    }
}

/// Has a service in the container start again: kubelet, or containerd, whose pods run on.
///
/// # Errors
/// The plan cannot be written, or the container cannot be told.
pub async fn restart_service(machine: &Machine, name: &str) -> anyhow::Result<()> {
    let written = machine.node_plan.restart(name).await;
    written.context("write the node's plan")?;
    have_it_read().await
}

/// Loads all other modules of the node's image, which has to stay until then.
async fn load_all(drivers: Drivers, _image: PulledImage) {
    match drivers.load_all().await {
        Ok(loaded) => {
            for refused in &loaded.refused {
                tracing::warn!("Kubernetes: {}", chain(refused));
            }
            tracing::info!(
                "Kubernetes: {} more kernel modules are loaded",
                loaded.names.len()
            );
        }
        Err(error) => tracing::warn!("Kubernetes: {}", chain(&error)),
    }
}

/// Has the container read its plan again. One that has not started yet reads it then.
async fn have_it_read() -> anyhow::Result<()> {
    let name: ContainerName = Kubernetes::CONTAINER.parse()?;
    let running = Runtime::default().adopt(&name).await?;
    if let Some(container) = running {
        container
            .kill(Signal::HUP)
            .context("have the container read its plan")?;
    }
    Ok(())
}

/// Shows no node and no extension but these.
fn show_nothing_but(machine: &Machine, kubernetes: &Kubernetes, node: &str) {
    for (metadata, _) in machine.store.list::<KubernetesFact>() {
        if metadata.id != node {
            machine.store.remove::<KubernetesFact>(&metadata.id);
        }
    }
    for (metadata, _) in machine.store.list::<ExtensionFact>() {
        let mut named = kubernetes.extensions.iter();
        if !named.any(|extension| extension.name == metadata.id) {
            machine.store.remove::<ExtensionFact>(&metadata.id);
        }
    }
}

async fn read_status() -> Status {
    let file = kubernetes::control().join(STATUS);
    let read = move || whole_file::read_json::<Status>(&file);
    let read = blocking_io::within(blocking_io::ANSWER, read).await;
    match read.map_err(anyhow::Error::from).flatten() {
        Ok(status) => status.unwrap_or_default(),
        Err(error) => Status {
            errors: vec![format!("its status cannot be read: {error:#}")],
            ..Status::default()
        },
    }
}

/// Returns the node's name: the host's, as Kubernetes writes names.
fn node_name() -> String {
    let host = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .to_lowercase();
    host
}
