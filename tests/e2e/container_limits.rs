//! Hostile containers: they get what the config gives them and no more, and do no harm to the machine or its shutdown.

use std::cell::Cell;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use instar_api::machine::{RebootRequest, ServiceStartRequest, ServiceStopRequest, StatsRequest};
use instar_qemu::ConsoleMark;
use instar_tests::{
    Greeter, ImageUnderTest, Instarctl, Machine, MachineConfig, Node, OciImage, Outcome, Registry,
    Scratch, Test, chapters, guest_program, push_greeter, tests,
};

use tonic::Code;

use crate::PATIENCE;

/// A container that sees the node's /var and may write to it.
const WRITER: &str = "writer";
const WRITER_PORT: u16 = 8080;
const RESTRICTED: &str = "restricted";
const RESTRICTED_PORT: u16 = 8081;
const PRIVILEGED: &str = "privileged";
const PRIVILEGED_PORT: u16 = 8082;
/// A container whose health check prints more than any reader can take.
const FLOODED: &str = "flooded";
/// A container that mounts the writer's link.
const MOUNTS_A_LINK: &str = "mounts-a-link";
/// A container whose image has the user -1.
const MINUS_ONE: &str = "minus-one";
/// A container that takes half a minute to end, and may: time for the calls that come meanwhile.
const SLOW: &str = "slow";
const ENDS_SLOWLY: &str = "args: [slow, \"30\"]\n";
const MAY_END_SLOWLY: &str =
    "apiVersion: instar.dev/v1alpha1\nkind: ContainerStopConfig\nname: slow\ntimeout: 60s\n";
/// Limit on the time from the call to init's turn, by the machine's clock: half a minute is the slow container's.
const SHUT_DOWN: Duration = Duration::from_secs(90);
/// A container that prints as fast as it can, once this file exists.
const PRINTER: &str = "printer";
const PRINT: &str = "data/print";
/// How long the printer prints, by its own clock.
const PRINTING: Duration = Duration::from_secs(10);
/// Limit on the bytes per second that the printer costs the disk, journal and other logs included; half of it is the
/// log's.
const WRITTEN: u64 = 2 << 20;
const BOMBS: usize = 8;
/// The file that bombs wait for.
const GO: &str = "data/go";
const WAITS_FOR_GO: &str = "args: [bomb]\ndependsOn: {paths: [/var/go]}\n";
/// The writer's mount.
const VAR: &str = "mounts:\n  - hostPath: {source: /var, destination: /data, options: [rw]}\n";
const FLOODING_CHECK: &str =
    "exec: {command: [/greeter, flood]}\ninterval: 1s\ntimeout: 5s\nrequired: false\n";
const ESCAPE: &str = "args: [slow, \"0\"]\ndependsOn: {paths: [/var/escape]}\n\
                      mounts:\n  - hostPath: {source: /var/escape, destination: /escape}\n";
const PRINTS: &str = "args: [flood]\ndependsOn: {paths: [/var/print]}\n";

pub(crate) fn tests() -> Vec<Test> {
    tests![containers_get_no_more_than_they_are_given]
}

async fn containers_get_no_more_than_they_are_given(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    let node = start(&scratch, &registry).await?;
    let writer = Greeter::at(&node, WRITER_PORT)?;
    chapters![
        greeters_answer(&node),
        what_is_said_and_printed_is_bounded(&node, &writer),
        containers_are_ended_before_the_machine(&node),
        a_container_opens_no_socket_past_the_network(&writer),
        profiles_are_those_of_talos(&node),
        a_container_is_not_root_by_a_number(&node),
        a_container_mounts_no_link(&node, &writer),
        bombs_disturb_nobody(&node, &writer),
        a_reboot_goes_on_beside_a_start(&node, &scratch),
    ]
    .await
}

async fn what_is_said_and_printed_is_bounded(node: &Node, writer: &Greeter) -> Outcome {
    chapters![
        machined_is_not_flooded_by_a_health_check(node),
        a_container_that_prints_does_not_wear_the_disk_out(node, writer),
    ]
    .await
}

async fn bombs_disturb_nobody(node: &Node, writer: &Greeter) -> Outcome {
    chapters![
        bombs_go_off(node, writer),
        the_machine_works_beside_bombs(node),
        bombs_have_figures(node),
        bombs_are_stopped(node, writer),
    ]
    .await
}

async fn start(scratch: &Scratch, registry: &Registry) -> Result<Node> {
    push_greeter(registry)?;
    push_minus_one(registry)?;
    let host = registry.host_for_guest();
    Node::plan(scratch, &ImageUnderTest::first()?)
        // The limit on threads of all containers depends on memory: bombs reach it soon on a small machine.
        .memory_mib(384)
        .blank_disk()?
        .forward(WRITER_PORT)
        .forward(RESTRICTED_PORT)
        .forward(PRIVILEGED_PORT)
        .configure(move |config| with_containers(config, &host))
        .boot()
        .await
}

fn push_minus_one(registry: &Registry) -> Outcome {
    let program = guest_program("greeter")?;
    OciImage::starting(&["/greeter"])
        .files(&[("greeter", &program)])?
        .user("4294967295")
        .push(registry, "greeter", "minus-one")?;
    Ok(())
}

fn with_containers(config: MachineConfig, host: &str) -> MachineConfig {
    let image = format!("{host}/greeter:v1");
    let config = config.install_disk("/dev/vda").registry(host);
    let config = with_others(with_greeters(config, &image), &image).container(
        MINUS_ONE,
        &format!("{host}/greeter:minus-one"),
        "",
    );
    (0..BOMBS).fold(config, |config, bomb| {
        config.container(&format!("bomb-{bomb}"), &image, WAITS_FOR_GO)
    })
}

fn with_greeters(config: MachineConfig, image: &str) -> MachineConfig {
    let (restricted, privileged) = (profile("restricted"), profile("privileged"));
    config
        .greeter_at(WRITER, image, WRITER_PORT, VAR)
        .greeter_at(RESTRICTED, image, RESTRICTED_PORT, &restricted)
        .greeter_at(PRIVILEGED, image, PRIVILEGED_PORT, &privileged)
}

fn profile(name: &str) -> String {
    format!("security: {{profile: {name}}}\n")
}

fn with_others(config: MachineConfig, image: &str) -> MachineConfig {
    config
        .container(FLOODED, image, "args: [slow, \"0\"]\n")
        .document(&format!(
            "apiVersion: instar.dev/v1alpha1\nkind: ContainerHealthConfig\nname: {FLOODED}\n{FLOODING_CHECK}"
        ))
        .container(MOUNTS_A_LINK, image, ESCAPE)
        .container(PRINTER, image, PRINTS)
        .container(SLOW, image, ENDS_SLOWLY)
        .document(MAY_END_SLOWLY)
}

async fn greeters_answer(node: &Node) -> Outcome {
    for port in [WRITER_PORT, RESTRICTED_PORT, PRIVILEGED_PORT] {
        let greeter = Greeter::at(node, port)?;
        node.wait_until("the greeters answer", PATIENCE, async || greeter.greets())
            .await?;
    }
    Ok(())
}

/// The pid on the node of the process with these words among its arguments.
async fn process_with(node: &Node, words: &str) -> Result<u32> {
    let listed = node.machine().await?.processes(()).await?.into_inner();
    let mut processes = listed.messages.into_iter().flat_map(|list| list.processes);
    let found = processes
        .find(|process| process.args.contains(words))
        .with_context(|| format!("no process has {words:?}"))?;
    Ok(u32::try_from(found.pid)?)
}

async fn machined(node: &Node) -> Result<u32> {
    process_with(node, "/sbin/machined").await
}

/// A process's memory, in KiB.
async fn memory_of(node: &Node, pid: u32) -> Result<u64> {
    let status = node.read(&format!("/proc/{pid}/status")).await?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.with_context(|| format!("no VmRSS in {status}"))?;
    Ok(kib.trim().trim_end_matches(" kB").parse()?)
}

/// A health check that prints more than machined can hold fails by its timeout, and machined goes on.
async fn machined_is_not_flooded_by_a_health_check(node: &Node) -> Outcome {
    let pid = machined(node).await?;
    let before = memory_of(node, pid).await?;
    let check = || process_with(node, "/greeter flood");
    node.wait_until("the check runs", PATIENCE, check).await?;
    let most = most_memory_until_the_check_fails(node, pid).await?;
    println!("machined: {before} KiB before the flood, {most} KiB at most in it");
    ensure!(
        most < before + (16 << 10),
        "machined grew from {before} to {most} KiB"
    );
    Ok(())
}

async fn most_memory_until_the_check_fails(node: &Node, pid: u32) -> Result<u64> {
    let most = Cell::new(0);
    node.wait_until("the check has failed by its time", PATIENCE, async || {
        most.set(most.get().max(memory_of(node, pid).await?));
        let health = node.service(FLOODED).await?.health.unwrap_or_default();
        ensure!(
            health.last_message.contains("no answer within"),
            "{health:?}"
        );
        Ok(())
    })
    .await?;
    Ok(most.get())
}

/// A container that prints without an end costs the disk no more than a log's limit.
async fn a_container_that_prints_does_not_wear_the_disk_out(
    node: &Node,
    writer: &Greeter,
) -> Outcome {
    let before = machined(node).await?;
    writer.get(&format!("/write/{PRINT}"))?;
    is_in_state(node, PRINTER, "Running").await?;
    the_disk_takes_what_a_log_may(node).await?;
    // The container printed more than the limit, and the log says so.
    let log = node.read(&format!("/var/log/{PRINTER}.log")).await?;
    ensure!(
        log.contains("older lines were dropped]"),
        "nothing was lost"
    );
    stop(&mut node.machine().await?, PRINTER).await?;
    writer.get(&format!("/remove/{PRINT}"))?;
    ensure!(machined(node).await? == before, "machined has died");
    Ok(())
}

/// Waits for this state of a service.
async fn is_in_state(node: &Node, service: &str, expected: &str) -> Outcome {
    let what = format!("{service} is {expected}");
    node.wait_until(&what, PATIENCE, async || {
        let state = node.service(service).await?.state;
        ensure!(state == expected, "{state}");
        Ok(())
    })
    .await
}

async fn the_disk_takes_what_a_log_may(node: &Node) -> Outcome {
    let begun = (node.uptime().await?, written(node).await?);
    node.wait_until("it has printed for a while", PATIENCE, async || {
        let since = node.uptime().await?.saturating_sub(begun.0);
        ensure!(since >= PRINTING, "{since:?}");
        Ok(())
    })
    .await?;
    let took = node.uptime().await?.saturating_sub(begun.0);
    let bytes = written(node).await? - begun.1;
    println!("of a container that prints on and on the disk took {bytes} bytes in {took:?}");
    let most = WRITTEN as f64 * took.as_secs_f64();
    ensure!((bytes as f64) < most, "{bytes} bytes in {took:?}");
    Ok(())
}

/// Bytes written to the disk.
async fn written(node: &Node) -> Result<u64> {
    let figures = node.machine().await?.disk_stats(()).await?.into_inner();
    let disks = figures.messages.into_iter().flat_map(|list| list.devices);
    let mut disks = disks.filter(|disk| disk.name == "vda");
    let disk = disks.next().context("no figures of the disk")?;
    Ok(disk.write_sectors * 512)
}

/// Where memory runs out the kernel ends containers first, then the machine's helpers, then machined and apid, and never init.
async fn containers_are_ended_before_the_machine(node: &Node) -> Outcome {
    for (id, pid, expected) in [
        ("machined", machined(node).await?, -900),
        ("apid", node.service_pid("apid").await?, -900),
        (WRITER, node.service_pid(WRITER).await?, 100),
    ] {
        let score = oom_score(node, pid).await?;
        ensure!(score == expected, "{id}: {score}");
    }
    what_machined_starts_does_not_inherit_its_place(node).await
}

async fn oom_score(node: &Node, pid: u32) -> Result<i32> {
    let text = node.read(&format!("/proc/{pid}/oom_score_adj")).await?;
    Ok(text.trim().parse()?)
}

/// Neither crun nor its children inherit machined's OOM score.
async fn what_machined_starts_does_not_inherit_its_place(node: &Node) -> Outcome {
    for words in ["/usr/bin/crun", "/greeter flood"] {
        node.wait_until("a check runs", PATIENCE, async || {
            let score = oom_score(node, process_with(node, words).await?).await?;
            ensure!(score >= 0, "{words}: {score}");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

async fn a_container_opens_no_socket_past_the_network(greeter: &Greeter) -> Outcome {
    for (family, name) in [(38, "AF_ALG"), (40, "AF_VSOCK")] {
        let said = greeter.get(&format!("/socket/{family}"));
        let said = said.err().with_context(|| format!("{name} is opened"))?;
        // The filter answers EPERM; a kernel without the family answers otherwise.
        ensure!(said.to_string().contains("os error 1)"), "{name}: {said}");
    }
    // AF_UNIX
    greeter.get("/socket/1")?;
    Ok(())
}

/// `restricted` and `privileged` as in Talos; the default is what programs usually need.
async fn profiles_are_those_of_talos(node: &Node) -> Outcome {
    let profiles = Profiles {
        usual: Greeter::at(node, WRITER_PORT)?,
        restricted: Greeter::at(node, RESTRICTED_PORT)?,
        privileged: Greeter::at(node, PRIVILEGED_PORT)?,
    };
    chapters![
        each_profile_has_its_capabilities(&profiles),
        a_restricted_container_cannot_write_to_its_own_files(&profiles),
        a_privileged_container_alone_sees_the_disk(&profiles),
        a_privileged_container_alone_sets_the_kernel(&profiles),
    ]
    .await
}

/// A container of each profile.
struct Profiles {
    usual: Greeter,
    restricted: Greeter,
    privileged: Greeter,
}

async fn each_profile_has_its_capabilities(profiles: &Profiles) -> Outcome {
    for (greeter, expected) in [
        (&profiles.usual, "00000000000004fb"),
        (&profiles.restricted, "0000000000000000"),
        (&profiles.privileged, "000001ffffffffff"),
    ] {
        let status = greeter.get("/read/proc/self/status")?;
        for field in ["CapBnd:", "CapEff:"] {
            let line = status.lines().find_map(|line| line.strip_prefix(field));
            ensure!(
                line.map(str::trim) == Some(expected),
                "{expected}: {status}"
            );
        }
    }
    Ok(())
}

async fn a_restricted_container_cannot_write_to_its_own_files(profiles: &Profiles) -> Outcome {
    let own = "/write/own";
    profiles.usual.get(own)?;
    profiles.privileged.get(own)?;
    let refused = profiles.restricted.get(own);
    let refused = refused.err().context("it writes to its own files")?;
    ensure!(refused.to_string().contains("Read-only"), "{refused}");
    Ok(())
}

async fn a_privileged_container_alone_sees_the_disk(profiles: &Profiles) -> Outcome {
    for (greeter, expected) in [
        (&profiles.usual, false),
        (&profiles.restricted, false),
        (&profiles.privileged, true),
    ] {
        let devices = greeter.get("/list/dev")?;
        ensure!(devices.contains("vda\n") == expected, "{devices}");
    }
    Ok(())
}

async fn a_privileged_container_alone_sets_the_kernel(profiles: &Profiles) -> Outcome {
    let switch = "/write/sys/kernel/mm/transparent_hugepage/enabled?never";
    let by_usual = profiles.usual.get(switch);
    ensure!(by_usual.is_err(), "{by_usual:?}");
    let by_restricted = profiles.restricted.get(switch);
    ensure!(by_restricted.is_err(), "{by_restricted:?}");
    profiles.privileged.get(switch).map(drop)
}

/// To setresuid(2) -1 means "unchanged", and that would be root.
async fn a_container_is_not_root_by_a_number(node: &Node) -> Outcome {
    says(node, MINUS_ONE, "4294967295").await?;
    has_never_run(node, MINUS_ONE).await
}

async fn has_never_run(node: &Node, service: &str) -> Outcome {
    let events = node.service(service).await?.events.unwrap_or_default();
    ensure!(
        events.events.iter().all(|event| event.state != "Running"),
        "{events:#?}"
    );
    Ok(())
}

/// Waits until the service's events contain these words.
async fn says(node: &Node, service: &str, words: &str) -> Outcome {
    node.wait_until("the service says why", PATIENCE, async || {
        let events = node.service(service).await?.events.unwrap_or_default();
        ensure!(
            events.events.iter().any(|event| event.msg.contains(words)),
            "{events:#?}"
        );
        Ok(())
    })
    .await
}

/// One container puts a link to the machine's secrets into its volume, and another is to mount it.
async fn a_container_mounts_no_link(node: &Node, writer: &Greeter) -> Outcome {
    writer.get("/link/data/escape?/system/state")?;
    says(node, MOUNTS_A_LINK, "symbolic link").await?;
    has_never_run(node, MOUNTS_A_LINK).await?;
    writer.get("/remove/data/escape")?;
    writer.get("/write/data/escape?a file")?;
    let runs = || node.service_pid(MOUNTS_A_LINK);
    node.wait_until("what is no link is mounted", PATIENCE, runs)
        .await?;
    Ok(())
}

/// Eight containers take all the threads that their limit allows.
async fn bombs_go_off(node: &Node, writer: &Greeter) -> Outcome {
    writer.get(&format!("/write/{GO}"))?;
    let most = number_in(node, "/sys/fs/cgroup/workloads/pids.max").await?;
    let threads_max = number_in(node, "/proc/sys/kernel/threads-max").await?;
    ensure!(most <= threads_max / 2, "{most} of {threads_max}");
    node.wait_until("the bombs have gone off", PATIENCE, async || {
        let now = number_in(node, "/sys/fs/cgroup/workloads/pids.current").await?;
        // The limit does not hold up processes that join the container from outside, e.g. a health check.
        ensure!(now >= most, "{now} of {most}");
        Ok(())
    })
    .await?;
    for bomb in 0..BOMBS {
        has_gone_off(node, &format!("bomb-{bomb}")).await?;
    }
    Ok(())
}

async fn number_in(node: &Node, path: &str) -> Result<u64> {
    let text = node.read(path).await?;
    let number = text.trim().parse();
    number.with_context(|| format!("{path}: {text}"))
}

async fn has_gone_off(node: &Node, bomb: &str) -> Outcome {
    node.wait_until("each bomb has gone off", PATIENCE, async || {
        let log = node.log(bomb).await?;
        ensure!(log.contains("threads, no more"), "{bomb}: {log}");
        Ok(())
    })
    .await
}

/// The machine starts processes and threads of its own, and answers as before.
async fn the_machine_works_beside_bombs(node: &Node) -> Outcome {
    let console = node.vm().console();
    let restarts = console.matches("starting machined again").count();
    ensure!(restarts == 0, "machined has died");
    ensure!(node.service_pid("apid").await? > 0);
    node.version_for_newcomers().await.map(drop)
}

async fn bombs_have_figures(node: &Node) -> Outcome {
    let mut machine = node.machine().await?;
    let figures = machine.stats(StatsRequest {
        namespace: "system".to_owned(),
        ..StatsRequest::default()
    });
    let figures = figures.await?.into_inner().messages;
    let figures: Vec<_> = figures.into_iter().flat_map(|list| list.stats).collect();
    let mut bombs = figures.iter().filter(|stat| stat.id.starts_with("bomb-"));
    ensure!(bombs.clone().count() == BOMBS, "{figures:?}");
    ensure!(bombs.all(|stat| stat.memory_usage > 0), "{figures:?}");
    Ok(())
}

async fn bombs_are_stopped(node: &Node, writer: &Greeter) -> Outcome {
    let mut machine = node.machine().await?;
    for bomb in 0..BOMBS {
        stop(&mut machine, &format!("bomb-{bomb}")).await?;
    }
    writer.get(&format!("/remove/{GO}")).map(drop)
}

async fn stop(machine: &mut Machine, id: &str) -> Outcome {
    let id = id.to_owned();
    machine.service_stop(ServiceStopRequest { id }).await?;
    Ok(())
}

/// Starting a service during a shutdown is refused, and the shutdown goes on.
async fn a_reboot_goes_on_beside_a_start(node: &Node, scratch: &Scratch) -> Outcome {
    let kernel = node.kernel_boot_id().await?;
    let mut machine = node.machine().await?;
    let instarctl = Instarctl::of(node, scratch)?;
    node.service_pid(SLOW).await?;
    let mark = node.vm().console_mark()?;
    machine.reboot(RebootRequest::default()).await?;
    is_in_state(node, SLOW, "Stopping").await?;
    a_start_is_refused(&mut machine, &instarctl).await?;
    shuts_down_in_time(node, mark)?;
    has_rebooted(node, &kernel).await
}

/// The boot that follows is not counted, nor is the time until the call is heard.
fn shuts_down_in_time(node: &Node, mark: ConsoleMark) -> Outcome {
    let within = SHUT_DOWN + PATIENCE;
    let asked = node
        .vm()
        .wait_for_line_after(mark, "reboot asked for by", within)?;
    let ended = "machined asks for reboot";
    let ended = node.vm().wait_for_line_after(asked.end, ended, within)?;
    let times = asked.kernel_time().zip(ended.kernel_time());
    let (asked, ended) = times.context("the lines have no time of the kernel")?;
    let took = ended.saturating_sub(asked);
    println!("shut down within {took:?}");
    ensure!(took < SHUT_DOWN, "{took:?}");
    Ok(())
}

/// Waits until another kernel runs.
async fn has_rebooted(node: &Node, kernel: &str) -> Outcome {
    node.wait_until("it has rebooted", PATIENCE, async || {
        ensure!(node.kernel_boot_id().await? != kernel);
        Ok(())
    })
    .await
}

async fn a_start_is_refused(machine: &mut Machine, instarctl: &Instarctl) -> Outcome {
    let id = SLOW.to_owned();
    let refused = machine.service_start(ServiceStartRequest { id }).await;
    let refused = refused
        .err()
        .context("it is started while the machine reboots")?;
    ensure!(refused.code() == Code::FailedPrecondition, "{refused:?}");
    let why = refused.message().to_lowercase();
    ensure!(why.contains("reboot"), "{refused:?}");
    let said = instarctl.run(&["restart", SLOW]).await?;
    ensure!(said.code != Some(0), "{said:?}");
    let complaint = said.complaint.to_lowercase();
    ensure!(complaint.contains("reboot"), "{said:?}");
    Ok(())
}
