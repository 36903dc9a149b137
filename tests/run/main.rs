//! `make run` and `make stop`: a node of one's own, from nothing to its first upgrade, with the times measured on the
//! way. `make cluster` and `make cluster-stop`: the same with a machine that is a Kubernetes cluster (`cluster`).
//! `make fleet`: five machines that follow a channel by themselves (`fleet`), which end with the demonstration.
//!
//! Everything happens by the programs that users have: `instarctl`, `image push`, `instar-qemu`. The node and the
//! registry run on afterwards; `make stop` ends both, and so does another `make run`, which begins anew.

mod api;
mod background;
mod cluster;
mod fleet;
mod fleet_page;
mod report;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use instar_qemu::{Accel, PortLease, control, lease_port};
use instar_tests::{Outage, OutageProbe, http, target_directory};

use crate::api::{Api, Facts};
use crate::background::Registry;
use crate::report::Report;

const VERSION_BEFORE: &str = "v0.1.0";
const VERSION_AFTER: &str = "v0.2.0";
/// The kernel's arguments, as in `docs/contracts.md`.
const COMMAND_LINE: &str =
    "console=ttyS0 panic=10 printk.devkmsg=on cryptomgr.notests transparent_hugepage=never";
/// The greeter's port in the node.
const GREETER_PORT: u16 = 8080;
/// Timeout from power-on to an API, and from a config to a container, on a slow and busy host.
const PATIENCE: Duration = Duration::from_secs(240);
/// Timeout for a single question.
const ATTEMPT: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let word = std::env::args().nth(1).unwrap_or_default();
    let place = Place::new(match word.split('-').nth(1) {
        Some("cluster") => "cluster",
        Some("fleet") => "fleet",
        _ => "run",
    });
    let done = match word.as_str() {
        "start" => start(demonstrate(&place)),
        "start-cluster" => start(cluster::demonstrate(&place)),
        "start-fleet" => start(fleet::demonstrate(&place)),
        "stop" | "stop-cluster" => stop(&place),
        _ => Err(anyhow::anyhow!(
            "write `run-node start`, `stop`, `start-cluster`, `stop-cluster` or `start-fleet`"
        )),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            eprintln!("help: the node's console is {}", place.console().display());
            ExitCode::FAILURE
        }
    }
}

/// The folder of the run: `target/run` or `target/cluster`.
struct Place {
    target: PathBuf,
    folder: PathBuf,
}

impl Place {
    fn new(name: &str) -> Self {
        let target = target_directory();
        Self {
            folder: target.join(name),
            target,
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn node(&self) -> PathBuf {
        self.file("node")
    }

    fn console(&self) -> PathBuf {
        self.node().join("console.log")
    }

    fn image(&self, version: &str) -> PathBuf {
        self.target.join("image").join(version)
    }

    /// Returns the path of a program of the workspace, which is in this program's folder.
    fn program(&self, name: &str) -> Result<PathBuf> {
        let own = std::env::current_exe().context("cannot find this program's own file")?;
        let path = own.with_file_name(name);
        ensure!(path.exists(), "{} is not built: run `make`", path.display());
        Ok(path)
    }
}

fn stop(place: &Place) -> Result<()> {
    let runs = control::is_running(&place.node());
    control::quit(&place.node()).context("cannot stop the node")?;
    let registry = Registry::stop(&place.folder)?;
    match (runs, registry) {
        (false, false) => println!("nothing runs"),
        _ => println!(
            "node and registry are stopped; their files stay in {}",
            place.folder.display()
        ),
    }
    Ok(())
}

fn start(demonstration: impl Future<Output = Result<()>>) -> Result<()> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(demonstration)
}

async fn demonstrate(place: &Place) -> Result<()> {
    let begun = Instant::now();
    clear(place)?;
    let registry = step("registry", || registry_with_images(place))?;
    let ports = Ports::lease()?;
    let endpoint = format!("127.0.0.1:{}", ports.api.port());
    step("keys and machine config", || {
        make_config(place, &endpoint, &registry)
    })?;
    let accel = Accel::detect()?;
    let api = step("boot", || {
        boot(place, &ports, accel)?;
        Ok(Api::new(&endpoint, &place.file("talosconfig")))
    })?;
    let running = || control::is_running(&place.node());
    wait("its API answers", running, || api.version()).await?;
    let greeter = format!("127.0.0.1:{}", ports.greeter.port());
    let greeting = wait("the container answers", running, || greet(&greeter)).await?;
    println!(
        "  the container says: {greeting} ({:.0} s since the start)",
        begun.elapsed().as_secs_f64()
    );
    let before = api.facts().await?;
    let clock = Clock::of(accel);
    let outage = upgrade(place, &api, clock, &registry, &before).await?;
    let after = api.facts().await?;
    wait("the container answers again", running, || greet(&greeter)).await?;
    check(&before, &after)?;
    let report = Report {
        endpoint,
        client_config: place.file("talosconfig"),
        machine_config: place.file("machine.yaml"),
        before,
        after,
        outage,
        outage_clock: clock,
        seconds_total: begun.elapsed().as_secs_f64(),
    };
    show(place, &report, &greeter)
}

/// Starts a registry with both versions and the container's image.
fn registry_with_images(place: &Place) -> Result<Registry> {
    let registry = Registry::start(&place.folder)?;
    for (layout, name) in [
        (
            place.image(VERSION_BEFORE).join("installer"),
            "instar/installer:v0.1.0",
        ),
        (
            place.image(VERSION_AFTER).join("installer"),
            "instar/installer:v0.2.0",
        ),
        (place.target.join("image/greeter"), "demo/greeter:v1"),
    ] {
        let mut push = Command::new(place.program("image")?);
        push.args(["push", "--plain-http"]).arg(layout);
        quiet(push.arg(format!("{}/{name}", registry.address())))?;
    }
    Ok(registry)
}

/// Upgrades by instarctl; returns how long the API did not answer.
async fn upgrade(
    place: &Place,
    api: &Api,
    clock: Clock,
    registry: &Registry,
    before: &Facts,
) -> Result<Outage> {
    println!(
        "upgrade from {} to {VERSION_AFTER}, asking for the version all the while",
        before.version
    );
    let mut probe = probe(api, clock, place.node());
    probe.warm().await?;
    let image = registry.name_for_guest("instar/installer:v0.2.0");
    let upgraded = tokio::process::Command::new(place.program("instarctl")?)
        .arg("--talosconfig")
        .arg(place.file("talosconfig"))
        .args(["upgrade", "--image", &image, "--wait"])
        .status()
        .await
        .context("cannot run instarctl")?;
    ensure!(
        upgraded.success(),
        "instarctl upgrade failed ({upgraded}): see the lines above"
    );
    probe.outage(Duration::from_secs(60)).await
}

fn show(place: &Place, report: &Report, greeter: &str) -> Result<()> {
    report.write(&place.file("result.json"))?;
    println!("{report}");
    let instarctl = place.program("instarctl")?;
    println!(
        "{}",
        report.next_steps(&instarctl, greeter, &place.console())
    );
    Ok(())
}

/// Ends the processes of an earlier run, and removes its files.
fn clear(place: &Place) -> Result<()> {
    control::quit(&place.node()).context("cannot stop the node of an earlier run")?;
    Registry::stop(&place.folder)?;
    match std::fs::remove_dir_all(&place.folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).context(format!("cannot clear {}", place.folder.display()));
        }
        _ => {}
    }
    std::fs::create_dir_all(&place.folder)
        .with_context(|| format!("cannot make {}", place.folder.display()))
}

/// The host's ports that are forwarded to the node.
struct Ports {
    api: PortLease,
    greeter: PortLease,
}

impl Ports {
    fn lease() -> Result<Self> {
        Ok(Self {
            api: lease_port()?,
            greeter: lease_port()?,
        })
    }
}

/// Writes the config of `instarctl gen config`, and two documents for the container.
fn make_config(place: &Place, endpoint: &str, registry: &Registry) -> Result<()> {
    let mut generate = Command::new(place.program("instarctl")?);
    generate.args(["gen", "config", "run", endpoint]);
    generate.args(["--install-disk", "/dev/vda", "--hostname", "instar"]);
    quiet(generate.arg("--output-dir").arg(&place.folder))?;
    let path = place.file("machine.yaml");
    let mut config = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}", path.display()))?;
    config.push_str(&format!(
        "---\n\
         apiVersion: v1alpha1\n\
         kind: RegistryMirrorConfig\n\
         name: {registry}\n\
         endpoints:\n\
         \x20 - url: http://{registry}\n\
         ---\n\
         apiVersion: v1alpha1\n\
         kind: ContainerConfig\n\
         name: greeter\n\
         image: {image}\n\
         network: {{mode: host}}\n\
         ---\n\
         apiVersion: instar.dev/v1alpha1\n\
         kind: ContainerHealthConfig\n\
         name: greeter\n\
         http: {{url: \"http://127.0.0.1:{GREETER_PORT}/\"}}\n\
         interval: 2s\n",
        registry = registry.host_for_guest(),
        image = registry.name_for_guest("demo/greeter:v1"),
    ));
    std::fs::write(&path, config).with_context(|| format!("cannot write {}", path.display()))
}

fn boot(place: &Place, ports: &Ports, accel: Accel) -> Result<()> {
    let qemu = place.program("instar-qemu")?;
    let disk = place.file("disk.img");
    quiet(
        Command::new(&qemu)
            .arg("blank")
            .arg(&disk)
            .args(["--size", "4G"]),
    )?;
    let image = place.image(VERSION_BEFORE);
    let mut start = Command::new(&qemu);
    start.arg("start").arg("--dir").arg(place.node());
    start.arg("--kernel").arg(image.join("vmlinuz"));
    start.arg("--initrd").arg(image.join("initramfs"));
    start.arg("--drive").arg(&disk);
    start.args(["--memory", "512", "--append", COMMAND_LINE]);
    let config = place.file("machine.yaml");
    start.arg("--fw-cfg");
    start.arg(format!("opt/dev.instar/config={}", config.display()));
    for (guest, host) in [
        (instar_api::PORT, &ports.api),
        (GREETER_PORT, &ports.greeter),
    ] {
        start
            .arg("--forward")
            .arg(format!("{guest}:{}", host.port()));
    }
    if accel == Accel::Tcg {
        start.arg("--counted");
    }
    quiet(&mut start)
}

/// The clock that measures the outage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Clock {
    /// The guest's clock, which under emulation counts instructions: the host's load changes nothing.
    Guest,
    /// The host's clock: under KVM both are the same.
    Host,
}

impl Clock {
    fn of(accel: Accel) -> Self {
        match accel {
            Accel::Tcg => Self::Guest,
            Accel::Kvm => Self::Host,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Guest => "guest",
            Self::Host => "host",
        }
    }
}

fn probe(api: &Api, clock: Clock, node: PathBuf) -> OutageProbe {
    let api = api.clone();
    let begun = Instant::now();
    OutageProbe::start(
        move || {
            let api = api.clone();
            async move { api.version().await }
        },
        move || match clock {
            Clock::Guest => Ok(control::guest_clock(&node)?),
            Clock::Host => Ok(begun.elapsed()),
        },
    )
}

/// Checks the facts of a soft upgrade, whatever the tools printed.
fn check(before: &Facts, after: &Facts) -> Result<()> {
    ensure!(
        before.version == VERSION_BEFORE && after.version == VERSION_AFTER,
        "it went from {} to {}",
        before.version,
        after.version
    );
    ensure!(
        before.kernel_boot_id == after.kernel_boot_id,
        "the kernel was rebooted"
    );
    ensure!(
        before.generation != after.generation,
        "it is still generation {}",
        after.generation
    );
    Ok(())
}

async fn greet(address: &str) -> Result<String> {
    let address = address.to_owned();
    tokio::task::spawn_blocking(move || {
        let answer = http(&address, "GET", "/", &[], &[])?;
        ensure!(answer.status == 200, "it answers {}", answer.status);
        Ok(String::from_utf8_lossy(&answer.body).trim().to_owned())
    })
    .await?
}

/// Asks until the answer is no error; fails at once when the node is gone.
async fn wait<T, Asked>(
    what: &str,
    running: impl Fn() -> bool,
    ask: impl Fn() -> Asked,
) -> Result<T>
where
    Asked: Future<Output = Result<T>>,
{
    let until = Instant::now() + PATIENCE;
    loop {
        // A connection from before the node had its network may stay without an answer for ever.
        let error = match tokio::time::timeout(ATTEMPT, ask()).await {
            Ok(Ok(value)) => {
                println!("  {what}");
                return Ok(value);
            }
            Ok(Err(error)) => error,
            Err(_) => anyhow::anyhow!("no answer within {} s", ATTEMPT.as_secs()),
        };
        ensure!(running(), "the node ended before {what}");
        if Instant::now() >= until {
            return Err(error).context(format!("waited {} s until {what}", PATIENCE.as_secs()));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn step<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    println!("{name}");
    work().with_context(|| format!("{name} failed"))
}

/// Runs a program to its end; shows its output only when it fails.
fn quiet(command: &mut Command) -> Result<()> {
    let name = Path::new(command.get_program()).display().to_string();
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {name}"))?;
    ensure!(
        output.status.success(),
        "{name} failed ({}): {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}
