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
mod backup;
pub mod beginning;
mod chosen;
mod control_plane;
mod etcdutl;
mod in_cluster;
mod meeting;
mod members;
mod node_modules;
mod node_name;
mod plan_again;
mod pods_registry;
mod pods_socket;
mod prism;
mod published;
mod reboot_for_pod;
mod reboot_required;
mod static_pods;

pub use members::look_at_members;
pub use static_pods::look_at_static_pods;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use instar_http_client::SYSTEM_BUNDLE;
use instar_kubernetes_plan::{Plan, PlannedExtension, STATUS};
use rustix::process::Signal;

use self::backup::Situation;
use self::beginning::kubelet_has_run;
use self::chosen::Choices;
use self::control_plane::Plane;
use self::in_cluster::{InCluster, Seen};
use self::node_name::{host_name, node_name};
use self::plan_again::PlanAgain;
use self::pods_registry::PodsRegistry;
use self::prism::Prism;
use self::reboot_for_pod::reboot_for_pod;
use self::reboot_required::reboot_required;
use crate::base::blocking_io;
use crate::base::error_chain::chain;
use crate::config::{Extension, Kubernetes, SubnetRule};
use crate::containers::Runtime;
use crate::kubernetes::control_plane::{has_begun, version_of};
use crate::kubernetes::trial::{Chosen, Images, Look, Readiness, Trial, choose, without_wanted};
use crate::kubernetes::version_file::VersionFile;
use crate::kubernetes::waits_for_room::WaitsForRoom;
use crate::kubernetes::{
    self, KubernetesFact, NodeFile, NodeService, NodeStatus, OfMachine, ServiceState,
    node_addresses,
};
use crate::left_sockets::Socket;
use crate::machine::{Configured, FirstPlan, Machine};
use crate::store::{ExtensionFact, ExtensionState, ExtensionTarget, Store};
use crate::values::{ContainerName, Digest};

/// The interval between two looks, so that the resource shows how the services go.
const LOOK: Duration = Duration::from_secs(2);
/// The interval between two questions to the cluster, whether the node is ready: on trial, or while something is wrong, and otherwise.
const ASK: Duration = Duration::from_secs(10);
const ASK_SELDOM: Duration = Duration::from_secs(60);
/// The interval while the machine runs no Kubernetes.
const IDLE: Duration = Duration::from_secs(300);

/// Keeps the machine a node for as long as it runs.
pub async fn keep(machine: Arc<Machine>) {
    let mut begins = machine.watch_node_begins();
    if begins.wait_for(|begins| *begins).await.is_err() {
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
                pods_registry::tell_closed(&machine);
                show_nothing(&machine);
                for socket in [Socket::Pods, Socket::ImagesForPods] {
                    machine.left_sockets.close(socket);
                }
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
    machine.store.retain::<KubernetesFact>(|_| false);
    machine.store.retain::<NodeStatus>(|_| false);
    retain_extensions(&machine.store, |_| false);
}

/// One node, over its turns.
struct Keeper {
    machine: Arc<Machine>,
    /// When the machine began to be a node.
    since: Instant,
    /// The digest of the image whose modules are loaded.
    modules_of: Option<Digest>,
    choices: Choices,
    plane: Plane,
    pods_registry: PodsRegistry,
    prism: Prism,
    trial: Option<Trial>,
    in_cluster: InCluster,
    plan_again: PlanAgain,
    /// The work that was carried out last, without a problem.
    done: Option<Done>,
    /// When that was.
    done_at: Instant,
    /// The problems of the last turn; each is logged once.
    problems: Vec<String>,
}

/// All that the files and the plan of a node are made from.
#[derive(Clone)]
struct Done {
    configured: Arc<Configured>,
    node: String,
    /// The node's addresses; none if kubelet chooses.
    addresses: Vec<IpAddr>,
    extensions: Vec<PlannedExtension>,
    reboot_required: Option<String>,
    plane: Option<control_plane::Facts>,
    /// The registries that the machine serves images of to containerd.
    images_of: BTreeSet<String>,
    /// Whether the previous programs run on, as others wait for a snapshot of etcd.
    is_held: bool,
    /// How often the plan had been removed by then: it goes with a container that has ended, also under a machined that goes on.
    times_forgotten: u64,
}

impl Done {
    fn is(&self, other: &Done) -> bool {
        Arc::ptr_eq(&self.configured, &other.configured)
            && self.node == other.node
            && self.addresses == other.addresses
            && self.extensions == other.extensions
            && self.reboot_required == other.reboot_required
            && self.plane == other.plane
            && self.images_of == other.images_of
            && self.is_held == other.is_held
            && self.times_forgotten == other.times_forgotten
    }
}

impl Keeper {
    fn new(machine: Arc<Machine>) -> Self {
        Keeper {
            modules_of: None,
            choices: Choices::of(machine.clone()),
            machine,
            since: Instant::now(),
            plane: Plane::default(),
            pods_registry: PodsRegistry::default(),
            prism: Prism::default(),
            trial: None,
            in_cluster: InCluster::new(),
            plan_again: PlanAgain::default(),
            done: None,
            done_at: Instant::now(),
            problems: Vec::new(),
        }
    }

    /// Carries out what has changed, and shows how it goes.
    async fn turn(&mut self, configured: &Arc<Configured>) {
        let Some(kubernetes) = &configured.config.kubernetes else {
            return;
        };
        let mut problems = Vec::new();
        let (services, errors) = self.hear(&mut problems).await;
        if let Err(error) = pods_socket::keep(&self.machine).await {
            problems.push(format!("{error:#}"));
        }
        if let Err(error) = self.prism.tend(kubernetes).await {
            problems.push(format!("{error:#}"));
        }
        let node = match node_name(&self.machine, self.since.elapsed()).await {
            Ok(node) => node,
            Err(error) => {
                problems.push(format!("{error:#}"));
                return self
                    .show(kubernetes, &host_name(), services, problems)
                    .await;
            }
        };
        let wanted = self
            .wanted(configured, kubernetes, &node, &mut problems)
            .await;
        let chosen = self
            .choose(
                (configured, kubernetes),
                Seen {
                    node: &node,
                    services: &services,
                    errors: &errors,
                },
                wanted,
                &mut problems,
            )
            .await;
        let images_of = self.pods_registry.tend(&self.machine).await;
        let images_of = images_of.unwrap_or_else(|error| {
            problems.push(format!("{error:#}"));
            BTreeSet::new()
        });
        if let Some(chosen) = chosen {
            let planned = self.planned(configured, &node, &chosen).await;
            let addresses = self.addresses(&kubernetes.node.address_rules);
            match planned.and_then(|extensions| Ok((extensions, addresses?))) {
                Ok((extensions, addresses)) => {
                    let reboot_required = reboot_required(&self.machine).await;
                    let next = Done {
                        configured: configured.clone(),
                        node: node.clone(),
                        addresses,
                        plane: control_plane::facts(&self.machine, kubernetes, &node),
                        extensions,
                        images_of,
                        is_held: false,
                        times_forgotten: self.machine.node_plan.times_forgotten(),
                        reboot_required: reboot_required.unwrap_or_else(|error| {
                            problems.push(format!("whether a reboot waits: {error:#}"));
                            None
                        }),
                    };
                    let proven = self.machine.node_record.get().proven;
                    let is_return = proven.as_ref() == Some(&chosen);
                    self.carry_out_if_new(kubernetes, next, is_return, &mut problems)
                        .await;
                    self.tend_plane(configured, kubernetes, &node, &mut problems)
                        .await;
                }
                Err(error) => problems.push(format!("{error:#}")),
            }
        }
        self.show(kubernetes, &node, services, problems).await;
    }

    /// Hears from the container, and does what it asks for. Returns its services, and what is wrong with the plan.
    async fn hear(&mut self, problems: &mut Vec<String>) -> (Vec<NodeService>, Vec<String>) {
        let told = read_status().await;
        problems.extend(told.errors.iter().cloned().chain(told.warnings));
        if told.reboot_asked {
            problems.extend(reboot_for_pod(&self.machine).await);
        }
        if self.plan_again.is_due(&told.errors, Instant::now())
            && let Err(error) = have_it_read().await
        {
            problems.push(format!("{error:#}"));
        }
        (told.services, told.errors)
    }

    /// Without EPHEMERAL, as before its mount and in a reset, nobody knows whether the cluster has begun: then nobody is told to begin one.
    async fn tend_plane(
        &mut self,
        configured: &Arc<Configured>,
        kubernetes: &Kubernetes,
        node: &str,
        problems: &mut Vec<String>,
    ) {
        if !self.machine.disk.status().borrow().var_mounted {
            return;
        }
        let InCluster {
            readiness, meeting, ..
        } = &self.in_cluster;
        self.plane
            .tend(configured, kubernetes, node, (readiness, meeting), problems)
            .await;
    }

    /// Carries out what is new, as soon as the container's image is here, and etcd's data are kept if another version writes them.
    async fn carry_out_if_new(
        &mut self,
        kubernetes: &Kubernetes,
        next: Done,
        is_return: bool,
        problems: &mut Vec<String>,
    ) {
        if !self.done.as_ref().is_some_and(|done| done.is(&next)) {
            match self.load_modules(kubernetes).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return problems.push(format!("{error:#}")),
            }
            if let Err(why) = self.keep_data_before(kubernetes, &next, is_return).await {
                problems.push(format!("{why:#}"));
                if self.plane.holds() {
                    let run_on = self.run_on(kubernetes, next).await;
                    problems.extend(run_on.err().map(|error| format!("{error:#}")));
                }
                return;
            }
            if let Err(error) = self.have_done(kubernetes, next).await {
                return problems.push(format!("{error:#}"));
            }
        }
        self.plane.let_go();
        if let Some(trial) = &mut self.trial {
            trial.plan_is_given();
        }
    }

    /// Carries this out, and remembers it. After a failure nobody knows which part of it holds: then the work before is done again as well.
    async fn have_done(&mut self, kubernetes: &Kubernetes, next: Done) -> anyhow::Result<()> {
        self.done = None;
        self.carry_out(kubernetes, &next).await?;
        self.done = Some(next);
        self.done_at = Instant::now();
        Ok(())
    }

    /// Keeps etcd's data in a snapshot, if programs of another version are to write them.
    ///
    /// # Errors
    /// They wait for it, or nobody knows their version.
    async fn keep_data_before(
        &mut self,
        kubernetes: &Kubernetes,
        next: &Done,
        is_return: bool,
    ) -> anyhow::Result<()> {
        let facts = next.plane.as_ref();
        let change = Plane::change(kubernetes, facts, &next.extensions);
        let Some(change) = change.await? else {
            self.plane.let_go();
            return Ok(());
        };
        let situation = Situation {
            is_return,
            runs_on: self.extensions_of_before(next).await.is_some(),
            kubelet_has_run: kubelet_has_run(&self.machine.store).await,
            has_waited_for_room: WaitsForRoom::has(&change.snapshot).await,
        };
        self.plane.before(kubernetes, &change, situation).await
    }

    /// Has the previous programs run on, with all else that is new, while others wait for a snapshot of etcd.
    async fn run_on(&mut self, kubernetes: &Kubernetes, next: Done) -> anyhow::Result<()> {
        // Without them what runs goes on as it is.
        let Some(extensions) = self.extensions_of_before(&next).await else {
            return Ok(());
        };
        let before = Done {
            extensions,
            is_held: true,
            ..next
        };
        if self.done.as_ref().is_some_and(|done| done.is(&before)) {
            return Ok(());
        }
        let kubernetes = control_plane::with_etcd_of_before(kubernetes).await?;
        self.have_done(&kubernetes, before).await
    }

    /// Returns extensions with the version of Kubernetes that the control plane's files were written for last; `None` if none are here.
    async fn extensions_of_before(&mut self, next: &Done) -> Option<Vec<PlannedExtension>> {
        let version = VersionFile::read().await?;
        let is_of_before = |extensions: &Vec<PlannedExtension>| {
            version_of(extensions).is_ok_and(|known| known == version)
        };
        // Those to come are of that version where etcd alone is another one.
        let known = self.done.as_ref().map(|done| &done.extensions);
        let known = [Some(&next.extensions), known].map(Option::<&_>::cloned);
        let known = known.into_iter().flatten().find(is_of_before);
        if known.is_some() {
            return known;
        }
        // After a start of machined.
        let proven = self.machine.node_record.get().proven?;
        let planned = self.planned(&next.configured, &next.node, &proven).await;
        planned.ok().filter(is_of_before)
    }

    /// Shows the node, its services, and what is wrong.
    async fn show(
        &mut self,
        kubernetes: &Kubernetes,
        node: &str,
        services: Vec<NodeService>,
        problems: Vec<String>,
    ) {
        for problem in &problems {
            if !self.problems.contains(problem) {
                tracing::warn!("Kubernetes: {problem}");
            }
        }
        self.problems.clone_from(&problems);
        show_nothing_but(&self.machine, kubernetes, node);
        self.follow_logs(&services).await;
        let fact = KubernetesFact {
            problems,
            services,
            readiness: self.in_cluster.readiness.clone(),
            has_begun: kubernetes.control_plane.is_none() || has_begun(),
        };
        self.machine.store.put(node, fact);
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

    /// Returns the images that the config names, if all of them are here and can be used; shows how far each is.
    async fn wanted(
        &mut self,
        configured: &Arc<Configured>,
        kubernetes: &Kubernetes,
        node: &str,
        problems: &mut Vec<String>,
    ) -> Option<Images> {
        if let Err(error) = self.choices.forget_publishers(kubernetes).await {
            problems.push(format!("the record of extensions: {error:#}"));
        }
        let mut wanted = Some(Images::new());
        for extension in &kubernetes.extensions {
            let choices = &mut self.choices;
            let chosen = choices
                .chosen((configured, node), extension, problems)
                .await;
            let (chosen, planned) = match chosen {
                Ok(Some(choice)) => {
                    let planned = choices.planned_or_fetched(configured, node, extension, &choice);
                    (Some(choice.chosen.clone()), planned.await)
                }
                Ok(None) => (None, Ok(None)),
                Err(error) => (None, Err(error)),
            };
            let state = match &planned {
                Ok(Some(_)) => ExtensionState::Planned,
                Ok(None) => ExtensionState::Fetching,
                Err(error) => {
                    problems.push(format!("the extension {}: {error:#}", extension.name));
                    ExtensionState::Refused(format!("{error:#}"))
                }
            };
            match (chosen.clone(), &mut wanted, &state) {
                (Some(chosen), Some(wanted), ExtensionState::Planned) => {
                    wanted.insert(extension.name.clone(), chosen);
                }
                _ => wanted = None,
            }
            show_extension(&self.machine.store, extension, chosen, state);
        }
        wanted
    }

    /// Chooses the extensions that run: those that the config names, or the proven ones while these are not here or have failed.
    async fn choose(
        &mut self,
        (configured, kubernetes): (&Arc<Configured>, &Kubernetes),
        seen: Seen<'_>,
        wanted: Option<Images>,
        problems: &mut Vec<String>,
    ) -> Option<Images> {
        let mut record = self.machine.node_record.get();
        let is_on_trial = wanted.is_some() && record.proven != wanted;
        let in_cluster = &mut self.in_cluster;
        let is_well = in_cluster.readiness == Readiness::Ready
            && seen.errors.is_empty()
            && seen.services.iter().all(NodeService::is_well);
        let interval = match is_well && !is_on_trial {
            true => ASK_SELDOM,
            false => ASK,
        };
        let elapsed = in_cluster
            .ask_if_due(&self.machine, configured, seen, interval)
            .await;
        problems.extend(in_cluster.problem.clone());
        let Some(wanted) = wanted else {
            return without_wanted(&record, &mut self.trial);
        };
        let before = record.clone();
        // A snapshot before them may have taken minutes, in which others ran.
        let elapsed = elapsed.min(self.done_at.elapsed());
        let waits = Readiness::Unknown("these wait for a snapshot of etcd".to_owned());
        let (readiness, elapsed) = match self.plane.holds() {
            // Others run, and neither prove anything about these nor speak against them.
            true => (&waits, Duration::ZERO),
            false => (&self.in_cluster.readiness, elapsed),
        };
        let choice = choose(
            &mut record,
            &mut self.trial,
            &wanted,
            Look {
                readiness,
                services: seen.services,
                elapsed,
            },
            kubernetes.ready_within,
        );
        problems.extend(choice.instead);
        if record != before {
            if record.proven.as_ref() == Some(&wanted) {
                tracing::info!("Kubernetes: the node is ready with its extensions, which are kept");
            }
            if let Err(error) = self.machine.node_record.set(record).await {
                problems.push(format!("the record of extensions: {error:#}"));
            }
        }
        Some(choice.images)
    }

    /// Checks the extensions that were chosen.
    async fn planned(
        &mut self,
        configured: &Arc<Configured>,
        node: &str,
        chosen: &Images,
    ) -> anyhow::Result<Vec<PlannedExtension>> {
        let mut planned = Vec::new();
        for (name, chosen) in chosen {
            let extension = self.choices.plan(configured, node, name, chosen).await?;
            let here = extension.with_context(|| {
                format!(
                    "the extension {name}: {} is not here any more",
                    chosen.digest
                )
            });
            planned.push(here?);
        }
        Ok(planned)
    }

    /// Returns the addresses that the rules choose for the node; none without rules, which leave it to kubelet.
    fn addresses(&self, rules: &[SubnetRule]) -> anyhow::Result<Vec<IpAddr>> {
        if rules.is_empty() {
            return Ok(Vec::new());
        }
        let status = self.machine.network.status();
        let here: Vec<IpAddr> = status.borrow().ip_addresses().collect();
        let chosen = node_addresses::choose(rules, &here);
        ensure!(
            !chosen.is_empty(),
            "no address of the machine is in a subnet that nodeIP.validSubnets takes: a kubelet that runs goes on as before, and one that has \
             not started since the boot waits for such an address; give the machine one, or change nodeIP.validSubnets"
        );
        Ok(chosen)
    }

    /// Writes the files, and tells the container its plan.
    async fn carry_out(&mut self, kubernetes: &Kubernetes, next: &Done) -> anyhow::Result<()> {
        let config = &next.configured.config;
        let roots = config.trusted_roots.clone();
        let read = move || kubernetes::authorities(Path::new(SYSTEM_BUNDLE), &roots);
        let authorities = blocking_io::within(blocking_io::ANSWER, read).await?;
        let authorities = authorities.with_context(|| format!("read {SYSTEM_BUNDLE}"))?;
        let of_machine = OfMachine {
            images_of: &next.images_of,
            registries: &config.registries,
            environment: &config.environment,
            authorities: &authorities,
        };
        let (files, environment) =
            kubernetes::files(kubernetes, of_machine, &next.node, &next.addresses);
        let node = next.node.clone();
        blocking_io::within(blocking_io::ANSWER, move || write(&files, &node)).await??;
        if let Some(facts) = &next.plane {
            Plane::write(kubernetes, facts, &next.extensions).await?;
            if !next.is_held {
                WaitsForRoom::forget().await?;
            }
        }
        let plan = Plan {
            node: next.node.clone(),
            extensions: next.extensions.clone(),
            environment,
            shutdown_seconds: Some(kubernetes.node.shutdown_period().as_secs()),
            reboot_required: next.reboot_required.clone(),
            ..Plan::default()
        };
        let is_new = self.machine.node_plan.set(plan).await;
        let is_new = is_new.context("write the node's plan")?;
        if is_new {
            tracing::info!("Kubernetes: the node {} has a new plan", next.node);
        }
        // Of one that is there already as well: nobody may have told the container of it, and one that knows it changes nothing.
        self.machine.node_plan.tell(have_it_read()).await?;
        self.machine.note_plan(match is_new {
            true => FirstPlan::New,
            false => FirstPlan::AsBefore,
        });
        Ok(())
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
}

/// Writes the node's files. A node of another cluster, or with another name, joins anew.
fn write(files: &[NodeFile], node: &str) -> anyhow::Result<()> {
    let written = kubernetes::write(files, || {
        join_anew("the config names another cluster, or another address of it")
    });
    written.context("write the node's files")?;
    let member = kubernetes::member_name().context("read kubelet's certificate")?;
    if member.is_some_and(|member| member != node) {
        join_anew("the machine has another name")?;
    }
    Ok(())
}

fn join_anew(why: &str) -> anyhow::Result<()> {
    let removed = kubernetes::remove_membership();
    if removed.context("forget the membership in the cluster before")? {
        tracing::info!("{why}: the node joins anew");
    }
    Ok(())
}

fn show_extension(
    store: &Store,
    extension: &Extension,
    chosen: Option<Chosen>,
    state: ExtensionState,
) {
    let fact = ExtensionFact {
        target: ExtensionTarget::Kubernetes,
        source: extension.source.to_string(),
        digest: chosen.map(|chosen| chosen.digest.to_string()),
        state,
    };
    store.put(&extension.name, fact);
}

/// Has a service in the container start again: kubelet, or containerd, whose pods run on.
///
/// # Errors
/// The plan cannot be written, or the container cannot be told.
pub async fn restart_service(machine: &Machine, name: &str) -> anyhow::Result<()> {
    let written = machine.node_plan.restart(name).await;
    written.context("write the node's plan")?;
    machine.node_plan.tell(have_it_read()).await
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
    machine.store.retain::<KubernetesFact>(|id| id == node);
    machine.store.retain::<NodeStatus>(|id| id == node);
    retain_extensions(&machine.store, |id| {
        let mut named = kubernetes.extensions.iter();
        named.any(|extension| extension.name == id)
    });
}

/// Shows no extension of Kubernetes but those that are to stay.
fn retain_extensions(store: &Store, stays: impl Fn(&str) -> bool) {
    let is_of_others = |fact: &ExtensionFact| fact.target != ExtensionTarget::Kubernetes;
    store.retain_by_content::<ExtensionFact>(|id, fact| is_of_others(fact) || stays(id));
}

/// What kubernetes-init says.
#[derive(Default)]
struct Told {
    services: Vec<NodeService>,
    /// Whether a pod asks for a reboot.
    reboot_asked: bool,
    /// What is wrong with the plan.
    errors: Vec<String>,
    /// What is wrong beside it.
    warnings: Vec<String>,
}

/// Reads the status of the container.
async fn read_status() -> Told {
    let file = kubernetes::control().join(STATUS);
    let read = move || kubernetes::read_status(&file);
    let read = blocking_io::within(blocking_io::ANSWER, read).await;
    let status = match read.map_err(anyhow::Error::from).flatten() {
        Ok(status) => status.unwrap_or_default(),
        Err(error) => {
            let error = format!("its status cannot be read: {error:#}");
            return Told {
                errors: vec![error],
                ..Told::default()
            };
        }
    };
    let services = status.services.into_iter();
    let services = services.map(|(name, service)| NodeService {
        name,
        extension: service.extension,
        state: service.state,
        since: service.since,
        restarts: service.restarts,
        has_finished: service.state == ServiceState::Ended
            && service.error.is_none()
            && service.last_success == Some(true),
        last: service.error.or(service.last_exit),
    });
    Told {
        services: services.collect(),
        reboot_asked: status.reboot_asked,
        errors: status.errors,
        warnings: status.warnings,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sequences::image_pins::machine_for_tests::configured;

    /// An upgrade by a reboot that failed, or a reset, has ended the container under a machined that goes on.
    #[test]
    fn a_plan_that_was_removed_since_is_given_again() {
        let done = Done {
            configured: configured(&[]),
            node: "worker-1".to_owned(),
            addresses: Vec::new(),
            extensions: Vec::new(),
            reboot_required: None,
            plane: None,
            images_of: BTreeSet::new(),
            is_held: false,
            times_forgotten: 0,
        };
        assert!(done.is(&done.clone()));
        let next = Done {
            times_forgotten: 1,
            ..done.clone()
        };
        assert!(!done.is(&next));
    }
}
