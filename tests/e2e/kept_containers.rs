//! What the API shows of containers that live through a change of generations, from its first answer on; and what their logs have of it.

use std::time::Duration;

use anyhow::{Context, ensure};
use instar_api::common::ContainerDriver;
use instar_api::events::EventPayload;
use instar_api::machine::machine_service_client::MachineServiceClient;
use instar_api::machine::service_state_event::Action;
use instar_api::machine::{ContainersRequest, EventsRequest, ServiceStateEvent, StatsRequest};
use instar_tests::{
    Ending, GREETER, ImageUnderTest, Instarctl, Node, OciImage, Outcome, Registry, Scratch, Test,
    plan_with_greeter, push_greeter, tests, upgrade_and_follow,
};
use tokio::sync::watch;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::PATIENCE;

/// Writes half a line, waits, and writes the rest and half of the next one.
const COUNTER: &str = "counter";
/// Its pause in milliseconds.
const HALF: &str = "25";
/// Between two questions, so that the node has time for more than answers.
const PAUSE: Duration = Duration::from_millis(10);

pub(crate) fn tests() -> Vec<Test> {
    tests![
        are_shown_as_running_by_every_answer,
        have_whole_logs_without_a_disk
    ]
}

async fn are_shown_as_running_by_every_answer(scratch: Scratch) -> Outcome {
    let registry = registry(&scratch)?;
    let image = format!("{}/greeter:v1", registry.host_for_guest());
    let node = plan_with_greeter(&scratch, &registry, move |config| {
        config.container(COUNTER, &image, &counts())
    })?
    .blank_disk()?
    .boot()
    .await?;
    node.wait_until_ready(PATIENCE).await?;
    let pids = [
        (GREETER, node.service_pid(GREETER).await?),
        (COUNTER, node.service_pid(COUNTER).await?),
    ];
    let (stop, stopped) = watch::channel(false);
    let way_in = node.way_in(node.identity())?;
    let asked = tokio::spawn(ask_on_and_on(way_in, pids, stopped));
    let counted = counted(&node.log(COUNTER).await?)?;

    upgrade(&node, &registry).await?;
    stop.send(true)?;
    let shown = asked.await?;
    println!(
        "{} answers, {} of them before a disk was there",
        shown.answers, shown.in_between
    );
    ensure!(shown.wrong.is_empty(), "{shown:#?}");
    ensure!(shown.in_between > 0, "nobody asked early: {shown:#?}");
    events_tell_that_they_live_on(&node).await?;
    let now = whole_log(&node, counted.last).await?;
    ensure!(now.first == 0, "lines are lost: {now:?}");
    var_is_checked_at_the_next_boot(node, &scratch).await
}

/// It stayed in use over the upgrade, so that nobody could.
async fn var_is_checked_at_the_next_boot(node: Node, scratch: &Scratch) -> Outcome {
    const WHY: &str = "containers that live on use the filesystem: it is checked at the next boot";
    let volumes = async |node: &Node| {
        let client = Instarctl::of(node, scratch)?;
        anyhow::Ok(client.run(&["get", "volumes", "-o", "yaml"]).await?.output)
    };
    let checks = |console: &str| {
        let lines = console.lines().filter(|line| line.contains("/dev/vda3"));
        let checks = lines.filter(|line| line.contains("filesystem is checked"));
        checks.count()
    };
    let console = node.vm().console();
    ensure!(console.contains(WHY), "{console}");
    // It was made by this boot, and not looked at since.
    ensure!(checks(&console) == 0, "{console}");
    let shown = volumes(&node).await?;
    ensure!(
        shown.contains("at the next boot: containers that live on"),
        "{shown}"
    );
    let node = node.power_cycle().await?;
    node.wait_until_ready(PATIENCE).await?;
    let console = node.vm().console();
    let last = console.lines().rfind(|line| line.contains("/dev/vda3"));
    println!("{}", last.unwrap_or_default());
    ensure!(checks(&console) == 1, "{console}");
    let shown = volumes(&node).await?;
    ensure!(!shown.contains("check: "), "{shown}");
    Ok(())
}

async fn have_whole_logs_without_a_disk(scratch: Scratch) -> Outcome {
    let registry = registry(&scratch)?;
    push_greeter(&registry)?;
    let host = registry.host_for_guest();
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .configure(move |config| {
            let image = format!("{host}/greeter:v1");
            config.registry(&host).container(COUNTER, &image, &counts())
        })
        .boot()
        .await?;
    node.wait_until_ready(PATIENCE).await?;
    let pid = node.service_pid(COUNTER).await?;
    let counted = counted(&node.log(COUNTER).await?)?;
    upgrade(&node, &registry).await?;
    ensure!(node.service_pid(COUNTER).await? == pid, "it was not kept");
    let now = whole_log(&node, counted.last).await?;
    println!("{counted:?} before the upgrade, {now:?} after it");
    ensure!(now.first <= counted.last, "lines are lost: {now:?}");
    Ok(())
}

fn registry(scratch: &Scratch) -> anyhow::Result<Registry> {
    let registry = Registry::start(scratch)?;
    let second = ImageUnderTest::second()?;
    OciImage::read(&second.installer())?
        .first_layer_alone()
        .push(&registry, "instar/installer", second.version())?;
    Ok(registry)
}

fn counts() -> String {
    format!("args: [halves, \"{HALF}\"]\n")
}

async fn upgrade(node: &Node, registry: &Registry) -> Outcome {
    let kernel = node.kernel_boot_id().await?;
    let image = registry.image_for_guest("instar/installer:v0.2.0");
    let followed = upgrade_and_follow(node, &image, PATIENCE).await?;
    ensure!(followed.ending == Ending::Done, "{followed:#?}");
    ensure!(
        node.kernel_boot_id().await? == kernel,
        "the kernel rebooted"
    );
    Ok(())
}

/// What was shown of containers that run all the time.
#[derive(Debug, Default)]
struct Shown {
    answers: usize,
    /// Of a new generation that has not taken them over yet.
    in_between: usize,
    wrong: Vec<String>,
    /// The processor time of each, which only grows.
    cpu: [u64; 2],
}

/// Asks for services, containers and their figures until told to stop.
async fn ask_on_and_on(
    way_in: Endpoint,
    pids: [(&'static str, u32); 2],
    stopped: watch::Receiver<bool>,
) -> Shown {
    let mut shown = Shown::default();
    while !*stopped.borrow() {
        // Whether calls fail is another test's question.
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

async fn ask(
    machine: &mut MachineServiceClient<Channel>,
    pids: [(&str, u32); 2],
    shown: &mut Shown,
) -> Result<(), Status> {
    let listed = machine.service_list(()).await?.into_inner().messages;
    let services: Vec<_> = listed.into_iter().flat_map(|it| it.services).collect();
    let request = ContainersRequest {
        driver: ContainerDriver::Containerd.into(),
        ..ContainersRequest::default()
    };
    let listed = machine.containers(request).await?.into_inner().messages;
    let containers: Vec<_> = listed.into_iter().flat_map(|it| it.containers).collect();
    let request = StatsRequest {
        driver: ContainerDriver::Containerd.into(),
        ..StatsRequest::default()
    };
    let listed = machine.stats(request).await?.into_inner().messages;
    let stats: Vec<_> = listed.into_iter().flat_map(|it| it.stats).collect();
    shown.answers += 1;
    for (number, (name, pid)) in pids.into_iter().enumerate() {
        let service = services.iter().find(|it| it.id == name);
        let container = containers.iter().find(|it| it.id == name);
        let figures = stats.iter().find(|it| it.id == name);
        let runs = service.is_some_and(|it| it.state == "Running")
            && container.is_some_and(|it| it.status == "RUNNING" && it.pid == pid)
            && figures.is_some_and(|it| it.memory_usage > 0 && it.cpu_usage >= shown.cpu[number]);
        // Its check has passed before, and nobody has found anything else since.
        let health = service.and_then(|it| it.health.as_ref());
        let is_well = name != GREETER || health.is_some_and(|it| it.healthy && !it.unknown);
        if !runs || !is_well {
            let seen = format!("{name}: {service:?} {container:?} {figures:?}");
            shown.wrong.push(seen);
        }
        shown.cpu[number] = figures.map_or(0, |it| it.cpu_usage);
        let events = service.and_then(|it| it.events.as_ref());
        let last = events.and_then(|it| it.events.last());
        if last.is_some_and(|it| it.msg == format!("lives on as process {pid}")) {
            shown.in_between += 1;
        }
    }
    Ok(())
}

/// Whoever follows the events sees them run, and nothing else.
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

/// What the node has told of a service in this generation until it was taken over.
async fn states_of(node: &Node, service: &str) -> anyhow::Result<Vec<ServiceStateEvent>> {
    let request = EventsRequest {
        tail_events: -1,
        ..EventsRequest::default()
    };
    let mut stream = node.machine().await?.events(request).await?.into_inner();
    let mut states = Vec::new();
    let read = async {
        while let Some(event) = stream.message().await? {
            let payload = event.data.as_ref().map(EventPayload::unpack).transpose()?;
            if let Some(Some(EventPayload::ServiceState(state))) = payload
                && state.service == service
            {
                let is_last = state.message.starts_with("taken over");
                states.push(state);
                if is_last {
                    break;
                }
            }
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(PATIENCE, read)
        .await
        .with_context(|| format!("nobody took {service} over"))??;
    Ok(states)
}

/// The numbers of the lines of a log.
#[derive(Debug)]
struct Counted {
    first: u64,
    last: u64,
}

/// Every line is whole, and follows the one before it.
fn counted(log: &str) -> anyhow::Result<Counted> {
    let mut numbers: Option<Counted> = None;
    for line in log.lines() {
        let number = line
            .strip_prefix("line ")
            .and_then(|rest| rest.strip_suffix(" is whole")?.parse::<u64>().ok())
            .with_context(|| format!("{line:?} is not what was written; after {numbers:?}"))?;
        match &mut numbers {
            None => {
                let (first, last) = (number, number);
                numbers = Some(Counted { first, last });
            }
            Some(numbers) => {
                let next = numbers.last + 1;
                ensure!(number == next, "{number} where {next} was to come");
                numbers.last = number;
            }
        }
    }
    numbers.context("nothing was written")
}

/// The log of the counter once it has gone on for a while.
async fn whole_log(node: &Node, before: u64) -> anyhow::Result<Counted> {
    node.wait_until("it counts on", PATIENCE, async || {
        let now = counted(&node.log(COUNTER).await?)?;
        ensure!(now.last > before + 40, "{now:?}");
        Ok(now)
    })
    .await
}
