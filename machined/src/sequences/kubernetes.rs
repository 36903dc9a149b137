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

mod admitted;
mod node_modules;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use instar_kubernetes_plan::{Plan, PlannedExtension, STATUS, Status};
use rustix::process::Signal;

use self::admitted::Admitted;
use crate::base::error_chain::chain;
use crate::base::{blocking_io, whole_file};
use crate::config::{Extension, Kubernetes};
use crate::containers::Runtime;
use crate::kubernetes::{
    self, ExtensionFact, ExtensionState, KubernetesFact, NodeFile, NodeService,
};
use crate::machine::{Configured, Machine};
use crate::oci::VerifiedImage;
use crate::store::Resource;
use crate::values::{ContainerName, Digest};

/// The interval between two looks, so that the resource shows how the services go.
const LOOK: Duration = Duration::from_secs(2);
/// The interval while the machine runs no Kubernetes.
const IDLE: Duration = Duration::from_secs(300);

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
        let configured = configured.filter(|configured| configured.config.kubernetes.is_some());
        let pause = match configured {
            Some(configured) => {
                // In memory of its own, which is there only on a node.
                let keeper = keeper.get_or_insert_with(|| Box::new(Keeper::new(machine.clone())));
                Box::pin(keeper.turn(&configured)).await;
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
    modules_of: Option<Digest>,
    admitted: Admitted,
    /// What was carried out last, without a problem.
    done: Option<Wanted>,
    /// The problems of the last turn; each is logged once.
    problems: Vec<String>,
}

/// All that the files and the plan of a node are made from.
#[derive(Clone)]
struct Wanted {
    configured: Arc<Configured>,
    node: String,
    /// The extensions in the order of the config.
    images: Vec<Option<VerifiedImage>>,
}

impl Wanted {
    fn is(&self, other: &Wanted) -> bool {
        let digests = |it: &Wanted| {
            let images = it.images.iter();
            images
                .map(|image| Some(image.as_ref()?.digest()))
                .collect::<Vec<_>>()
        };
        Arc::ptr_eq(&self.configured, &other.configured)
            && self.node == other.node
            && digests(self) == digests(other)
    }
}

impl Keeper {
    fn new(machine: Arc<Machine>) -> Self {
        Keeper {
            machine,
            modules_of: None,
            admitted: Admitted::default(),
            done: None,
            problems: Vec::new(),
        }
    }

    /// Carries out what has changed, and shows how it goes.
    async fn turn(&mut self, configured: &Arc<Configured>) {
        let Some(kubernetes) = &configured.config.kubernetes else {
            return;
        };
        let node = node_name();
        let mut problems = Vec::new();
        let images = self.images(configured, kubernetes, &mut problems).await;
        let wanted = Wanted {
            configured: configured.clone(),
            node: node.clone(),
            images,
        };
        if !self.done.as_ref().is_some_and(|done| done.is(&wanted)) {
            match self.carry_out(kubernetes, &wanted, &mut problems).await {
                Ok(true) => self.done = Some(wanted),
                Ok(false) => {}
                Err(error) => problems.push(format!("{error:#}")),
            }
        }
        self.show(kubernetes, &node, problems).await;
    }

    /// Shows the node, its services, and what is wrong.
    async fn show(&mut self, kubernetes: &Kubernetes, node: &str, mut problems: Vec<String>) {
        let status = read_status().await;
        problems.extend(status.errors);
        for problem in &problems {
            if !self.problems.contains(problem) {
                tracing::warn!("Kubernetes: {problem}");
            }
        }
        self.problems.clone_from(&problems);
        show_nothing_but(&self.machine, kubernetes, node);
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
        put(&self.machine, node, KubernetesFact { problems, services });
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

    /// Returns the images of the extensions, in the order of the config; `None` for one that is not here, or may not be used.
    async fn images(
        &mut self,
        configured: &Arc<Configured>,
        kubernetes: &Kubernetes,
        problems: &mut Vec<String>,
    ) -> Vec<Option<VerifiedImage>> {
        let mut images = Vec::new();
        for extension in &kubernetes.extensions {
            let admitted = self
                .admitted
                .get(&self.machine, configured, &extension.image)
                .await;
            let state = match &admitted {
                Ok(Some(_)) => None,
                Ok(None) => Some(ExtensionState::Fetching),
                Err(error) => {
                    problems.push(format!("the extension {}: {error:#}", extension.name));
                    Some(ExtensionState::Refused(format!("{error:#}")))
                }
            };
            if let Some(state) = state {
                show_extension(&self.machine, extension, None, state);
            }
            images.push(admitted.unwrap_or_default());
        }
        images
    }

    /// Loads the modules, writes the files, and tells the container its plan; returns false if something is not here yet, or is refused.
    async fn carry_out(
        &mut self,
        kubernetes: &Kubernetes,
        wanted: &Wanted,
        problems: &mut Vec<String>,
    ) -> anyhow::Result<bool> {
        if !self.load_modules(kubernetes).await? {
            return Ok(false);
        }
        let registries = &wanted.configured.config.registries;
        let (files, environment) = kubernetes::files(kubernetes, registries, &wanted.node);
        blocking_io::within(blocking_io::ANSWER, move || write(&files)).await??;
        let planned = self.checked(kubernetes, wanted, problems);
        let Some(extensions) = planned.into_iter().collect() else {
            return Ok(false);
        };
        let plan = Plan {
            node: wanted.node.clone(),
            extensions,
            environment,
            ..Plan::default()
        };
        let is_new = self.machine.node_plan.set(plan).await;
        if is_new.context("write the node's plan")? {
            tracing::info!("Kubernetes: the node {} has a new plan", wanted.node);
            have_it_read().await?;
        }
        Ok(true)
    }

    /// Loads the kernel modules of the image that the container runs; false if it is not here yet.
    async fn load_modules(&mut self, kubernetes: &Kubernetes) -> anyhow::Result<bool> {
        let machine = &self.machine;
        let digest = machine
            .images_in_force
            .get(Kubernetes::CONTAINER, &kubernetes.image);
        let Some(image) = digest.and_then(|digest| machine.images.get(digest)) else {
            return Ok(false);
        };
        let digest = image.digest();
        if self.modules_of != Some(digest) {
            node_modules::load(image).await?;
            self.modules_of = Some(digest);
        }
        Ok(true)
    }

    /// Checks the extensions and shows them, in the order of the config; `None` for one that cannot be used.
    fn checked(
        &self,
        kubernetes: &Kubernetes,
        wanted: &Wanted,
        problems: &mut Vec<String>,
    ) -> Vec<Option<PlannedExtension>> {
        let version = &self.machine.running.version;
        let mut planned = Vec::new();
        for (extension, image) in kubernetes.extensions.iter().zip(&wanted.images) {
            let Some(image) = image else {
                planned.push(None);
                continue;
            };
            let checked = kubernetes::checked(&extension.name, image, version, &wanted.node);
            let state = match &checked {
                Ok(_) => ExtensionState::Planned,
                Err(error) => {
                    problems.push(format!("the extension {}: {error:#}", extension.name));
                    ExtensionState::Refused(format!("{error:#}"))
                }
            };
            show_extension(&self.machine, extension, Some(image.digest()), state);
            planned.push(checked.ok());
        }
        planned
    }
}

/// Writes the node's files. A node of another cluster joins it anew.
fn write(files: &[NodeFile]) -> anyhow::Result<()> {
    let changed = kubernetes::write(files).context("write the node's files")?;
    if changed.cluster {
        tracing::info!(
            "the config names another cluster, or another address of it: the node joins anew"
        );
        kubernetes::remove_membership().context("forget the membership in the cluster before")?;
    }
    Ok(())
}

fn show_extension(
    machine: &Machine,
    extension: &Extension,
    digest: Option<Digest>,
    state: ExtensionState,
) {
    let fact = ExtensionFact {
        image: extension.image.to_string(),
        digest: digest.map(|digest| digest.to_string()),
        state,
    };
    put(machine, &extension.name, fact);
}

/// Puts a fact that differs.
fn put<R: Resource + PartialEq>(machine: &Machine, id: &str, fact: R) {
    if machine.store.get::<R>(id).as_ref() != Some(&fact) {
        machine.store.put(id, fact);
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
