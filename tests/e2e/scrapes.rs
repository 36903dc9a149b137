//! A reader of metrics over an upgrade without a reboot, and over a restart of machined: who connects while nobody serves the port waits for the
//! next page.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{anyhow, ensure};
use instar_tests::{
    Ending, GREETER, GREETER_PORT, Greeter, ImageUnderTest, MachineConfig, Node, Outcome, Registry,
    Scratch, Test, WITH_CGROUPS, http, push_greeter, tests, upgrade_and_follow,
};

use crate::PATIENCE;
use crate::observing::METRICS_PORT;

/// The pause between two pages. A port that is closed for as long as generations change refuses several of them.
const PAUSE: Duration = Duration::from_millis(20);
/// The page that is under way as apid ends may be cut off.
const CUT_OFF: usize = 1;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        readers_of_metrics_wait_for_the_next_version,
        readers_of_metrics_wait_while_machined_starts_again,
    ]
}

async fn readers_of_metrics_wait_for_the_next_version(scratch: Scratch) -> Outcome {
    let registry = Registry::with_both_installers_without_kernel(&scratch)?;
    let node = with_metrics_for_anyone(&scratch, &registry).await?;
    let scrapes = Scrapes::begin(node.guest_port(METRICS_PORT)?);
    for version in ["v0.2.0", "v0.1.0"] {
        let name = registry.installer_for_guest(version);
        let followed = upgrade_and_follow(&node, &name, PATIENCE).await?;
        ensure!(followed.ending == Ending::Done, "{followed:#?}");
    }
    let (pages, failed) = scrapes.end()?;
    println!("{pages} pages, {} failed: {failed:#?}", failed.len());
    ensure!(pages > 20, "{pages} pages");
    ensure!(failed.len() <= 2 * CUT_OFF, "{failed:#?}");
    Ok(())
}

async fn with_metrics_for_anyone(scratch: &Scratch, registry: &Registry) -> anyhow::Result<Node> {
    let host = registry.host_for_guest();
    Node::plan(scratch, &ImageUnderTest::first()?)
        .configure(move |config| for_anyone(config.registry(&host)))
        .forward(METRICS_PORT)
        .boot_until_ready(PATIENCE)
        .await
}

fn for_anyone(config: MachineConfig) -> MachineConfig {
    config.document(&format!(
        "apiVersion: instar.dev/v1alpha1\nkind: MetricsConfig\nlisten: \"[::]:{METRICS_PORT}\"\nreaders: anyone\n"
    ))
}

async fn readers_of_metrics_wait_while_machined_starts_again(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    push_greeter(&registry)?;
    let node = with_one_that_kills(&scratch, &registry).await?;
    let scrapes = Scrapes::begin(node.guest_port(METRICS_PORT)?);
    machined_dies_and_comes_back(&node).await?;
    let (pages, failed) = scrapes.end()?;
    println!("{pages} pages, {} failed: {failed:#?}", failed.len());
    ensure!(failed.len() <= 2 * CUT_OFF, "{failed:#?}");
    a_container_keeps_its_past(&node).await
}

async fn machined_dies_and_comes_back(node: &Node) -> Outcome {
    let mark = node.vm().console_mark()?;
    let kill = "/write/cgroup/generation.1/machined/cgroup.kill?1";
    Greeter::at(node, GREETER_PORT)?.get(kill)?;
    for line in ["starting machined again", "metrics are served at"] {
        node.vm().wait_for_line_after(mark, line, PATIENCE)?;
    }
    node.wait_for_api(PATIENCE).await?;
    Ok(())
}

/// Its events begin before the machined that shows them.
async fn a_container_keeps_its_past(node: &Node) -> Outcome {
    let look = async || {
        let events = node.service(GREETER).await?.events.unwrap_or_default();
        let told: Vec<&str> = events.events.iter().map(|it| it.msg.as_str()).collect();
        for begin in ["started as process ", "taken over as process "] {
            let is_told = told.iter().any(|it| it.starts_with(begin));
            ensure!(is_told, "{begin}: {told:?}");
        }
        Ok(())
    };
    let what = "the greeter is taken over with its past";
    node.wait_until(what, PATIENCE, look).await
}

/// A node with metrics, and a container that can kill machined.
async fn with_one_that_kills(scratch: &Scratch, registry: &Registry) -> anyhow::Result<Node> {
    let (host, image) = (
        registry.host_for_guest(),
        registry.image_for_guest("greeter:v1"),
    );
    let plan = Node::plan(scratch, &ImageUnderTest::first()?)
        .forward(METRICS_PORT)
        .forward(GREETER_PORT);
    plan.configure(move |config| {
        let config = for_anyone(config.registry(&host));
        config.greeter_at(GREETER, &image, GREETER_PORT, WITH_CGROUPS)
    })
    .boot_until_ready(PATIENCE)
    .await
}

/// Asks for one page after the other until it is ended.
struct Scrapes {
    is_over: Arc<AtomicBool>,
    /// The number of pages, and the errors.
    told: JoinHandle<(usize, Vec<String>)>,
}

impl Scrapes {
    fn begin(address: String) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let told = std::thread::spawn(move || {
            let (mut pages, mut failed) = (0, Vec::new());
            while !over.load(Ordering::Relaxed) {
                match http(&address, "GET", "/metrics", &[], b"") {
                    Ok(answer) if answer.status == 200 => pages += 1,
                    Ok(answer) => failed.push(format!("{answer:?}")),
                    Err(error) => failed.push(format!("{error:#}")),
                }
                std::thread::sleep(PAUSE);
            }
            (pages, failed)
        });
        Self { is_over, told }
    }

    fn end(self) -> anyhow::Result<(usize, Vec<String>)> {
        self.is_over.store(true, Ordering::Relaxed);
        self.told.join().map_err(|_| anyhow!("the reader panicked"))
    }
}
