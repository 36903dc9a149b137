//! The API's view of containers that live through a change of generations, from its first answer on, and their logs of
//! that time.

use std::time::Duration;

use anyhow::{Context, ensure};
use instar_api::common::ContainerDriver;
use instar_api::events::EventPayload;
use instar_api::machine::machine_service_client::MachineServiceClient;
use instar_api::machine::service_state_event::Action;
use instar_api::machine::{
    ContainerInfo, ContainersRequest, Event, EventsRequest, ServiceInfo, ServiceStateEvent, Stat,
    StatsRequest,
};
use instar_tests::{
    Ending, GREETER, GREETER_PORT, Greeter, ImageUnderTest, Instarctl, Machine, MachineConfig,
    Node, Outcome, Registry, Scratch, Test, chapters, plan_with_greeter, push_greeter, tests,
    upgrade_and_follow,
};
use tokio::sync::watch;
use tonic::transport::Endpoint;
use tonic::{Status, Streaming};

use crate::PATIENCE;

/// A container that writes half a line, waits, and writes the rest and half of the next one.
const COUNTER: &str = "counter";
/// The counter's pause in milliseconds.
const HALF: &str = "25";
/// Pause between two questions, so that the node has time for more than answers.
const PAUSE: Duration = Duration::from_millis(10);

pub(crate) fn tests() -> Vec<Test> {
    tests![
        are_shown_as_running_by_every_answer,
        have_whole_logs_without_a_disk,
        have_whole_logs_over_a_rollback,
        live_on_beside_a_disk_that_grows,
        end_in_order_beside_a_foreign_device,
    ]
}

async fn are_shown_as_running_by_every_answer(scratch: Scratch) -> Outcome {
    let registry = registry(&scratch)?;
    let node = with_a_disk(&scratch, &registry).await?;
    let counted = first_log(&node).await?;
    chapters![
        every_answer_over_an_upgrade_shows_them(&node, &registry),
        events_tell_that_they_live_on(&node),
        no_line_of_a_log_is_lost(&node, counted.last),
        var_is_checked_at_the_next_boot(node, &scratch),
    ]
    .await
}

/// A node with a disk, which keeps logs.
async fn with_a_disk(scratch: &Scratch, registry: &Registry) -> anyhow::Result<Node> {
    let image = registry.image_for_guest("greeter:v1");
    plan_with_greeter(scratch, registry, move |config| {
        config.container(COUNTER, &image, &counts())
    })?
    .blank_disk()?
    .boot_until_ready(PATIENCE)
    .await
}

async fn every_answer_over_an_upgrade_shows_them(node: &Node, registry: &Registry) -> Outcome {
    let pids = [
        (GREETER, node.service_pid(GREETER).await?),
        (COUNTER, node.service_pid(COUNTER).await?),
    ];
    let (stop, stopped) = watch::channel(false);
    let way_in = node.way_in(node.identity())?;
    let asked = tokio::spawn(ask_on_and_on(way_in, pids, stopped));
    upgrade(node, registry).await?;
    stop.send(true)?;
    let shown = asked.await?;
    let (answers, early) = (shown.answers, shown.in_between);
    // On a busy host nobody may ask that early; the events of the next chapter say what answers were in that time.
    println!("{answers} answers, {early} of them before a disk was there");
    ensure!(answers > 0 && shown.wrong.is_empty(), "{shown:#?}");
    Ok(())
}

async fn no_line_of_a_log_is_lost(node: &Node, before: u64) -> Outcome {
    let now = whole_log(node, before).await?;
    ensure!(now.first == 0, "lines are lost: {now:?}");
    Ok(())
}

/// /var stayed in use over the upgrade, so that it could not be checked.
async fn var_is_checked_at_the_next_boot(node: Node, scratch: &Scratch) -> Outcome {
    the_check_waits_for_a_boot(&node, scratch).await?;
    let node = node.power_cycle().await?;
    node.wait_until_ready(PATIENCE).await?;
    let console = node.vm().console();
    let last = console.lines().rfind(|line| line.contains(VAR_DISK));
    println!("{}", last.unwrap_or_default());
    ensure!(checks_of_var(&console) == 1, "{console}");
    let shown = volumes(&node, scratch).await?;
    ensure!(!shown.contains("check: "), "{shown}");
    Ok(())
}

const STATE_DISK: &str = "/dev/vda2";
const VAR_DISK: &str = "/dev/vda3";

async fn the_check_waits_for_a_boot(node: &Node, scratch: &Scratch) -> Outcome {
    let console = node.vm().console();
    let why = "containers that live on use the filesystem: it is checked at the next boot";
    ensure!(console.contains(why), "{console}");
    let state = format!("the filesystem is clean: this kernel unmounted it device={STATE_DISK}");
    ensure!(console.contains(&state), "{console}");
    // This boot made the filesystem, and has not checked it since.
    ensure!(checks_of_var(&console) == 0, "{console}");
    let shown = volumes(node, scratch).await?;
    let why = "at the next boot: containers that live on";
    ensure!(shown.contains(why), "{shown}");
    Ok(())
}

fn checks_of_var(console: &str) -> usize {
    let lines = console.lines().filter(|line| line.contains(VAR_DISK));
    let checks = lines.filter(|line| line.contains("filesystem is checked"));
    checks.count()
}

async fn volumes(node: &Node, scratch: &Scratch) -> anyhow::Result<String> {
    let client = Instarctl::of(node, scratch)?;
    Ok(client.run(&["get", "volumes", "-o", "yaml"]).await?.output)
}

async fn have_whole_logs_without_a_disk(scratch: Scratch) -> Outcome {
    let registry = registry(&scratch)?;
    let node = without_a_disk(&scratch, &registry).await?;
    let pid = node.service_pid(COUNTER).await?;
    let counted = first_log(&node).await?;
    upgrade(&node, &registry).await?;
    ensure!(node.service_pid(COUNTER).await? == pid, "it was not kept");
    let now = whole_log(&node, counted.last).await?;
    println!("{counted:?} before the upgrade, {now:?} after it");
    ensure!(now.first <= counted.last, "lines are lost: {now:?}");
    Ok(())
}

async fn without_a_disk(scratch: &Scratch, registry: &Registry) -> anyhow::Result<Node> {
    without_a_disk_and(scratch, registry, |config| config).await
}

async fn without_a_disk_and(
    scratch: &Scratch,
    registry: &Registry,
    more: impl FnOnce(MachineConfig) -> MachineConfig + Send + 'static,
) -> anyhow::Result<Node> {
    push_greeter(registry)?;
    let host = registry.host_for_guest();
    Node::plan(scratch, &ImageUnderTest::first()?)
        .configure(move |config| {
            let image = format!("{host}/greeter:v1");
            more(config.registry(&host).container(COUNTER, &image, &counts()))
        })
        .boot_until_ready(PATIENCE)
        .await
}

async fn live_on_beside_a_disk_that_grows(scratch: Scratch) -> Outcome {
    let registry = registry(&scratch)?;
    let node = with_a_disk(&scratch, &registry).await?;
    let pid = node.service_pid(COUNTER).await?;
    node.vm().qmp().human("block_resize drive0 6G")?;
    upgrade(&node, &registry).await?;
    ensure!(node.service_pid(COUNTER).await? == pid, "it was not kept");
    ensure!(!node.vm().console().contains(GROWN), "in use, and changed");
    let node = node.power_cycle().await?;
    node.wait_until_ready(PATIENCE).await?;
    node.wait_for_line(GROWN, PATIENCE).map(drop)
}

/// The kernel's line when the filesystem of the grown partition is made as large.
const GROWN: &str = "resized filesystem to ";

/// init keeps no workload beside a block device that a freshly booted machine does not have.
async fn end_in_order_beside_a_foreign_device(scratch: Scratch) -> Outcome {
    let registry = registry(&scratch)?;
    let node = with_a_privileged_greeter(&scratch, &registry).await?;
    let pid = node.service_pid(COUNTER).await?;
    Greeter::at(&node, GREETER_PORT)?.get("/attach/dev/shm/disk")?;
    the_dry_run_names_the_device(&node, &scratch, &registry).await?;
    upgrade(&node, &registry).await?;
    ensure!(node.service_pid(COUNTER).await? != pid, "it was kept");
    let console = node.vm().console();
    let told = format!("service {COUNTER} ends with this upgrade: the block device loop");
    ensure!(console.contains(&told), "{console}");
    ensure!(!console.contains("the workloads end as well"), "{console}");
    Ok(())
}

async fn with_a_privileged_greeter(scratch: &Scratch, registry: &Registry) -> anyhow::Result<Node> {
    push_greeter(registry)?;
    let host = registry.host_for_guest();
    let image = registry.image_for_guest("greeter:v1");
    let plan = Node::plan(scratch, &ImageUnderTest::first()?).forward(GREETER_PORT);
    plan.configure(move |config| {
        let config = config.registry(&host).container(COUNTER, &image, &counts());
        let privileged = "security: {profile: privileged}\n";
        config.greeter_at(GREETER, &image, GREETER_PORT, privileged)
    })
    .boot_until_ready(PATIENCE)
    .await
}

async fn the_dry_run_names_the_device(
    node: &Node,
    scratch: &Scratch,
    registry: &Registry,
) -> Outcome {
    let image = registry.installer_for_guest("v0.2.0");
    let client = Instarctl::of(node, scratch)?;
    let dry = ["upgrade", "--dry-run", "--image", &image];
    let said = client.run(&dry).await?;
    let why = "is in use, which the next generation must not find";
    ensure!(said.output.contains(why), "{said:?}");
    Ok(())
}

/// The version on trial runs for as long as its gate waits, and takes the containers over; then it hands them back.
async fn have_whole_logs_over_a_rollback(scratch: Scratch) -> Outcome {
    let registry = registry(&scratch)?;
    let node = with_a_gate_that_stays_shut(&scratch, &registry).await?;
    let pid = node.service_pid(COUNTER).await?;
    let counted = first_log(&node).await?;
    let image = registry.installer_for_guest("v0.2.0");
    let followed = upgrade_and_follow(&node, &image, PATIENCE).await?;
    ensure!(followed.ending != Ending::Done, "{followed:#?}");
    ensure!(node.version().await?.tag == "v0.1.0", "{followed:#?}");
    node.wait_until_ready(PATIENCE).await?;
    ensure!(node.service_pid(COUNTER).await? == pid, "it was not kept");
    let now = whole_log(&node, counted.last + LINES_OF_A_TRIAL).await?;
    println!("{counted:?} before the upgrade, {now:?} after its rollback");
    ensure!(now.first <= counted.last, "lines are lost: {now:?}");
    Ok(())
}

/// How long the version on trial runs.
const OF_A_TRIAL: Duration = Duration::from_secs(20);
/// At two halves of 25 ms for each line the counter writes some 300 until its gate gives up; a slow machine fewer.
const LINES_OF_A_TRIAL: u64 = 40;

async fn with_a_gate_that_stays_shut(
    scratch: &Scratch,
    registry: &Registry,
) -> anyhow::Result<Node> {
    let gate = |config: MachineConfig| config.gate_asks_the_web(OF_A_TRIAL, "http://127.0.0.1:1/");
    without_a_disk_and(scratch, registry, gate).await
}

fn registry(scratch: &Scratch) -> anyhow::Result<Registry> {
    let registry = Registry::start(scratch)?;
    registry.push_installer_without_kernel(&ImageUnderTest::second()?)?;
    Ok(registry)
}

fn counts() -> String {
    format!("args: [halves, \"{HALF}\"]\n")
}

async fn upgrade(node: &Node, registry: &Registry) -> Outcome {
    let kernel = node.kernel_boot_id().await?;
    let image = registry.installer_for_guest("v0.2.0");
    let followed = upgrade_and_follow(node, &image, PATIENCE).await?;
    ensure!(followed.ending == Ending::Done, "{followed:#?}");
    ensure!(
        node.kernel_boot_id().await? == kernel,
        "the kernel rebooted"
    );
    Ok(())
}

/// The API's answers about containers that run all the time.
#[derive(Debug, Default)]
struct Shown {
    answers: usize,
    /// Answers of a new generation that has not taken the containers over yet.
    in_between: usize,
    wrong: Vec<String>,
    /// The processor time of each container, which only grows.
    cpu: [u64; 2],
}

/// Asks for services, containers and their figures until it is stopped.
async fn ask_on_and_on(
    way_in: Endpoint,
    pids: [(&'static str, u32); 2],
    stopped: watch::Receiver<bool>,
) -> Shown {
    let mut shown = Shown::default();
    while !*stopped.borrow() {
        // Another test checks that no call fails.
        let Ok(channel) = way_in.connect().await else {
            continue;
        };
        let mut machine = MachineServiceClient::new(channel);
        while !*stopped.borrow() && ask(&mut machine, pids, &mut shown).await.is_ok() {
            tokio::time::sleep(PAUSE).await;
        }
    }
    shown
}

/// Makes each of the calls that show containers once; returns the faults in the answers.
async fn ask(
    machine: &mut Machine,
    pids: [(&str, u32); 2],
    shown: &mut Shown,
) -> Result<(), Status> {
    let answers = Answers::of(machine).await?;
    shown.answers += 1;
    for (number, (name, pid)) in pids.into_iter().enumerate() {
        let container = answers.about(name);
        let cpu = &mut shown.cpu[number];
        if !container.runs(pid, *cpu) || !container.is_well() {
            shown.wrong.push(format!("{name}: {container:?}"));
        }
        *cpu = container.figures.map_or(0, |it| it.cpu_usage);
        if container.lives_on(pid) {
            shown.in_between += 1;
        }
    }
    Ok(())
}

fn all_containers() -> ContainersRequest {
    ContainersRequest {
        driver: ContainerDriver::Containerd.into(),
        ..ContainersRequest::default()
    }
}

fn all_stats() -> StatsRequest {
    StatsRequest {
        driver: ContainerDriver::Containerd.into(),
        ..StatsRequest::default()
    }
}

/// The answers of the calls that show containers.
struct Answers {
    services: Vec<ServiceInfo>,
    containers: Vec<ContainerInfo>,
    stats: Vec<Stat>,
}

impl Answers {
    async fn of(machine: &mut Machine) -> Result<Self, Status> {
        let services = machine.service_list(()).await?.into_inner();
        let containers = machine.containers(all_containers()).await?.into_inner();
        let stats = machine.stats(all_stats()).await?.into_inner();
        let (services, containers) = (services.messages, containers.messages);
        Ok(Self {
            services: services.into_iter().flat_map(|it| it.services).collect(),
            containers: containers
                .into_iter()
                .flat_map(|it| it.containers)
                .collect(),
            stats: stats.messages.into_iter().flat_map(|it| it.stats).collect(),
        })
    }

    fn about(&self, name: &str) -> AboutContainer<'_> {
        AboutContainer {
            service: self.services.iter().find(|it| it.id == name),
            container: self.containers.iter().find(|it| it.id == name),
            figures: self.stats.iter().find(|it| it.id == name),
        }
    }
}

/// The parts of the answers about one container.
#[derive(Debug)]
struct AboutContainer<'a> {
    service: Option<&'a ServiceInfo>,
    container: Option<&'a ContainerInfo>,
    figures: Option<&'a Stat>,
}

impl AboutContainer<'_> {
    /// Whether the container runs as this process, with at least as much processor time as before.
    fn runs(&self, pid: u32, cpu: u64) -> bool {
        self.service.is_some_and(|it| it.state == "Running")
            && (self.container).is_some_and(|it| it.status == "RUNNING" && it.pid == pid)
            && (self.figures).is_some_and(|it| it.memory_usage > 0 && it.cpu_usage >= cpu)
    }

    /// Whether the greeter's check counts as passed: it has passed before, and no later check says otherwise.
    fn is_well(&self) -> bool {
        let has_check = self.service.is_none_or(|it| it.id == GREETER);
        let health = self.service.and_then(|it| it.health.as_ref());
        !has_check || health.is_some_and(|it| it.healthy && !it.unknown)
    }

    /// Whether the container runs and has not been taken over yet.
    fn lives_on(&self, pid: u32) -> bool {
        let events = self.service.and_then(|it| it.events.as_ref());
        let last = events.and_then(|it| it.events.last());
        last.is_some_and(|it| it.msg == format!("lives on as process {pid}"))
    }
}

/// A follower of the events sees the containers run, and nothing else.
async fn events_tell_that_they_live_on(node: &Node) -> Outcome {
    for name in [GREETER, COUNTER] {
        let events = states_of(node, name).await?;
        let told: Vec<&str> = events.iter().map(|it| it.message.as_str()).collect();
        ensure!(
            told.len() >= 2
                && told[0].starts_with("lives on as process ")
                && told[1].starts_with("taken over as process ")
                && events.iter().all(|it| it.action() == Action::Running),
            "{name}: {events:#?}"
        );
    }
    Ok(())
}

/// The events of a service in this generation, until it was taken over.
async fn states_of(node: &Node, service: &str) -> anyhow::Result<Vec<ServiceStateEvent>> {
    let request = EventsRequest {
        tail_events: -1,
        ..EventsRequest::default()
    };
    let stream = node.machine().await?.events(request).await?.into_inner();
    let states = tokio::time::timeout(PATIENCE, until_taken_over(stream, service));
    let states = states.await;
    states.with_context(|| format!("nobody took {service} over"))?
}

async fn until_taken_over(
    mut stream: Streaming<Event>,
    service: &str,
) -> anyhow::Result<Vec<ServiceStateEvent>> {
    let mut states: Vec<ServiceStateEvent> = Vec::new();
    while let Some(event) = stream.message().await? {
        let payload = event.data.as_ref().map(EventPayload::unpack).transpose()?;
        if let Some(Some(EventPayload::ServiceState(state))) = payload
            && state.service == service
        {
            states.push(state);
        }
        let last = states.last();
        if last.is_some_and(|it| it.message.starts_with("taken over")) {
            break;
        }
    }
    Ok(states)
}

/// The line numbers of a log.
#[derive(Debug)]
struct Counted {
    first: u64,
    last: u64,
}

/// Checks that every line is whole and follows the one before it.
fn counted(log: &str) -> anyhow::Result<Counted> {
    let mut numbers: Option<Counted> = None;
    for line in log.lines() {
        let number = number_of(line).with_context(|| format!("{line:?} after {numbers:?}"))?;
        let first = match &numbers {
            None => number,
            Some(before) => {
                let next = before.last + 1;
                ensure!(number == next, "{number} where {next} was to come");
                before.first
            }
        };
        let last = number;
        numbers = Some(Counted { first, last });
    }
    numbers.context("nothing was written")
}

fn number_of(line: &str) -> anyhow::Result<u64> {
    let rest = line.strip_prefix("line ");
    let number = rest.and_then(|rest| rest.strip_suffix(" is whole")?.parse().ok());
    number.context("this is not what was written")
}

/// Returns the counter's log as soon as it has a line: a node is ready once the counter is started, before it has written.
async fn first_log(node: &Node) -> anyhow::Result<Counted> {
    let look = async || counted(&node.log(COUNTER).await?);
    node.wait_until("it counts", PATIENCE, look).await
}

/// Returns the counter's log after it has gone on for a while.
async fn whole_log(node: &Node, before: u64) -> anyhow::Result<Counted> {
    node.wait_until("it counts on", PATIENCE, async || {
        let now = counted(&node.log(COUNTER).await?)?;
        ensure!(now.last > before + 40, "{now:?}");
        Ok(now)
    })
    .await
}
