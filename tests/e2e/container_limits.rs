//! Containers that mean harm, to the machine or to its end: they get what the config gives them and no more.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use instar_api::machine::{RebootRequest, ServiceStartRequest, ServiceStopRequest, StatsRequest};
use instar_tests::{
    Greeter, ImageUnderTest, Instarctl, Machine, MachineConfig, Node, OciImage, Outcome, Registry,
    Scratch, Test, chapters, guest_program, push_greeter, tests,
};

use crate::PATIENCE;

/// Sees the node's /var and may write to it.
const WRITER: &str = "writer";
const WRITER_PORT: u16 = 8080;
const RESTRICTED: &str = "restricted";
const RESTRICTED_PORT: u16 = 8081;
const PRIVILEGED: &str = "privileged";
const PRIVILEGED_PORT: u16 = 8082;
/// Its health check says more than anybody can hear.
const FLOODED: &str = "flooded";
/// Mounts what the writer makes.
const MOUNTS_A_LINK: &str = "mounts-a-link";
/// Its image's user is -1.
const MINUS_ONE: &str = "minus-one";
/// Takes eight seconds to end.
const SLOW: &str = "slow";
/// Prints as fast as it can, once there is this file.
const PRINTER: &str = "printer";
const PRINT: &str = "data/print";
/// How long it does, by its own clock.
const PRINTING: Duration = Duration::from_secs(10);
/// What the disk may take of it each second, journal and other logs included: the log itself has half of that.
const WRITTEN: u64 = 2 << 20;
const BOMBS: usize = 8;
/// Bombs wait for it.
const GO: &str = "data/go";

pub(crate) fn tests() -> Vec<Test> {
    tests![containers_get_no_more_than_they_are_given]
}

async fn containers_get_no_more_than_they_are_given(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    let node = start(&scratch, &registry).await?;
    let writer = Greeter::at(&node, WRITER_PORT)?;
    chapters![
        greeters_answer(&node),
        is_not_flooded(&node),
        does_not_wear_the_disk_out(&node, &writer),
        dies_last(&node),
        opens_no_socket_past_the_network(&writer),
        has_its_profile(&node),
        is_not_root_by_a_number(&node),
        mounts_no_link(&node, &writer),
        bombs_go_off(&node, &writer),
        the_machine_works_beside_bombs(&node),
        bombs_are_stopped(&node, &writer),
        reboots_beside_a_start(&node, &scratch),
    ]
    .await
}

async fn start(scratch: &Scratch, registry: &Registry) -> anyhow::Result<Node> {
    push_greeter(registry)?;
    let program = guest_program("greeter")?;
    OciImage::starting(&["/greeter"])
        .files(&[("greeter", &program)])?
        .user("4294967295")
        .push(registry, "greeter", "minus-one")?;
    let host = registry.host_for_guest();
    Node::plan(scratch, &ImageUnderTest::first()?)
        // The number of threads that a machine lets all of them have goes by its memory: bombs go off soon where there is little.
        .memory_mib(384)
        .blank_disk()?
        .forward(WRITER_PORT)
        .forward(RESTRICTED_PORT)
        .forward(PRIVILEGED_PORT)
        .configure(move |config| {
            with_bombs(with_others(with_greeters(config, &host), &host), &host)
        })
        .boot()
        .await
}

fn with_greeters(config: MachineConfig, host: &str) -> MachineConfig {
    let image = format!("{host}/greeter:v1");
    let var = "mounts:\n  - hostPath: {source: /var, destination: /data, options: [rw]}\n";
    let with_profile = |profile: &str| format!("security: {{profile: {profile}}}\n");
    config
        .install_disk("/dev/vda")
        .registry(host)
        .greeter_at(WRITER, &image, WRITER_PORT, var)
        .greeter_at(
            RESTRICTED,
            &image,
            RESTRICTED_PORT,
            &with_profile("restricted"),
        )
        .greeter_at(
            PRIVILEGED,
            &image,
            PRIVILEGED_PORT,
            &with_profile("privileged"),
        )
}

fn with_others(config: MachineConfig, host: &str) -> MachineConfig {
    let image = format!("{host}/greeter:v1");
    config
        .container(FLOODED, &image, "args: [slow, \"0\"]\n")
        .document(&format!(
            "apiVersion: instar.dev/v1alpha1\nkind: ContainerHealthConfig\nname: {FLOODED}\nexec: {{command: [/greeter, flood]}}\n\
             interval: 1s\ntimeout: 5s\nrequired: false\n"
        ))
        .container(
            MOUNTS_A_LINK,
            &image,
            "args: [slow, \"0\"]\ndependsOn: {paths: [/var/escape]}\n\
             mounts:\n  - hostPath: {source: /var/escape, destination: /escape}\n",
        )
        .container(
            PRINTER,
            &image,
            "args: [flood]\ndependsOn: {paths: [/var/print]}\n",
        )
        .container(MINUS_ONE, &format!("{host}/greeter:minus-one"), "")
        .container(SLOW, &image, "args: [slow, \"8\"]\n")
}

fn with_bombs(config: MachineConfig, host: &str) -> MachineConfig {
    let image = format!("{host}/greeter:v1");
    let waits = "args: [bomb]\ndependsOn: {paths: [/var/go]}\n";
    (0..BOMBS).fold(config, |config, bomb| {
        config.container(&format!("bomb-{bomb}"), &image, waits)
    })
}

async fn greeters_answer(node: &Node) -> Outcome {
    for port in [WRITER_PORT, RESTRICTED_PORT, PRIVILEGED_PORT] {
        let greeter = Greeter::at(node, port)?;
        node.wait_until("the greeters answer", PATIENCE, async || greeter.greets())
            .await?;
    }
    Ok(())
}

/// The pid of the node's process whose arguments hold this.
async fn process_with(node: &Node, words: &str) -> anyhow::Result<u32> {
    let listed = node.machine().await?.processes(()).await?.into_inner();
    let mut processes = listed.messages.into_iter().flat_map(|list| list.processes);
    let found = processes
        .find(|process| process.args.contains(words))
        .with_context(|| format!("no process has {words:?}"))?;
    Ok(u32::try_from(found.pid)?)
}

async fn machined(node: &Node) -> anyhow::Result<u32> {
    process_with(node, "/sbin/machined").await
}

/// In KiB.
async fn memory_of(node: &Node, pid: u32) -> anyhow::Result<u64> {
    let status = node.read(&format!("/proc/{pid}/status")).await?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.with_context(|| format!("no VmRSS in {status}"))?;
    Ok(kib.trim().trim_end_matches(" kB").parse()?)
}

/// A check that says more than machined can hold fails by its time, and machined stays as it is.
async fn is_not_flooded(node: &Node) -> Outcome {
    let pid = machined(node).await?;
    let before = memory_of(node, pid).await?;
    let most = std::cell::Cell::new(before);
    node.wait_until("the check runs", PATIENCE, async || {
        process_with(node, "/greeter flood").await
    })
    .await?;
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
    let most = most.get();
    println!("machined: {before} KiB before the flood, {most} KiB at most in it");
    ensure!(
        most < before + (16 << 10),
        "machined grew from {before} to {most} KiB"
    );
    Ok(())
}

/// A container that prints without an end costs the disk what a log may.
async fn does_not_wear_the_disk_out(node: &Node, writer: &Greeter) -> Outcome {
    let before = machined(node).await?;
    writer.get(&format!("/write/{PRINT}"))?;
    node.wait_until("it prints", PATIENCE, async || {
        let state = node.service(PRINTER).await?.state;
        ensure!(state == "Running", "{state}");
        Ok(())
    })
    .await?;
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
    ensure!(
        (bytes as f64) < WRITTEN as f64 * took.as_secs_f64(),
        "{bytes} bytes in {took:?}"
    );
    // It printed more than that, and that is said.
    let log = node.read(&format!("/var/log/{PRINTER}.log")).await?;
    ensure!(
        log.contains("older lines were dropped]"),
        "nothing was lost"
    );
    let mut machine = node.machine().await?;
    stop(&mut machine, PRINTER).await?;
    writer.get(&format!("/remove/{PRINT}"))?;
    ensure!(machined(node).await? == before, "machined has died");
    Ok(())
}

/// Bytes that the disk has taken.
async fn written(node: &Node) -> anyhow::Result<u64> {
    let figures = node.machine().await?.disk_stats(()).await?.into_inner();
    let disks = figures.messages.into_iter().flat_map(|list| list.devices);
    let mut disks = disks.filter(|disk| disk.name == "vda");
    let disk = disks.next().context("no figures of the disk")?;
    Ok(disk.write_sectors * 512)
}

/// Where memory runs out the kernel ends containers first, then the machine's helpers, then machined and apid, and never init.
async fn dies_last(node: &Node) -> Outcome {
    let score = async |pid: u32| -> anyhow::Result<i32> {
        let text = node.read(&format!("/proc/{pid}/oom_score_adj")).await?;
        Ok(text.trim().parse()?)
    };
    ensure!(score(machined(node).await?).await? == -900);
    ensure!(score(node.service_pid("apid").await?).await? == -900);
    ensure!(score(node.service_pid(WRITER).await?).await? == 100);
    // What machined starts does not inherit its place: crun, and what crun starts.
    for (words, least) in [("/usr/bin/crun", 0), ("/greeter flood", 0)] {
        node.wait_until("a check runs", PATIENCE, async || {
            let found = score(process_with(node, words).await?).await?;
            ensure!(found >= least, "{words}: {found}");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

async fn opens_no_socket_past_the_network(greeter: &Greeter) -> Outcome {
    for (family, name) in [(38, "AF_ALG"), (40, "AF_VSOCK")] {
        let said = greeter.get(&format!("/socket/{family}"));
        let said = said.err().with_context(|| format!("{name} is opened"))?;
        // The filter's answer: a kernel without the family has another one.
        ensure!(said.to_string().contains("os error 1)"), "{name}: {said}");
    }
    // AF_UNIX
    greeter.get("/socket/1")?;
    Ok(())
}

/// `restricted` and `privileged` as in Talos; what says nothing has what programs usually need.
async fn has_its_profile(node: &Node) -> Outcome {
    let capabilities = |greeter: &Greeter| -> anyhow::Result<String> {
        let status = greeter.get("/read/proc/self/status")?;
        let bounding = status.lines().find_map(|line| line.strip_prefix("CapBnd:"));
        let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        ensure!(bounding == effective, "{status}");
        Ok(effective.context("no CapEff")?.trim().to_owned())
    };
    let usual = Greeter::at(node, WRITER_PORT)?;
    let restricted = Greeter::at(node, RESTRICTED_PORT)?;
    let privileged = Greeter::at(node, PRIVILEGED_PORT)?;
    ensure!(
        capabilities(&usual)? == "00000000000004fb",
        "{}",
        capabilities(&usual)?
    );
    ensure!(capabilities(&restricted)? == "0000000000000000");
    ensure!(capabilities(&privileged)? == "000001ffffffffff");

    usual.get("/write/own")?;
    let refused = restricted.get("/write/own");
    ensure!(
        refused
            .as_ref()
            .is_err_and(|error| error.to_string().contains("Read-only")),
        "{refused:?}"
    );
    privileged.get("/write/own")?;

    let disk =
        |greeter: &Greeter| Ok::<_, anyhow::Error>(greeter.get("/list/dev")?.contains("vda\n"));
    ensure!(!disk(&usual)? && !disk(&restricted)? && disk(&privileged)?);
    // Its content, too: the first sectors of a GPT are text.
    let switch = "/write/sys/kernel/mm/transparent_hugepage/enabled?never";
    ensure!(usual.get(switch).is_err() && restricted.get(switch).is_err());
    privileged.get(switch)?;
    Ok(())
}

/// To setresuid(2) -1 means "as it is", and that is root.
async fn is_not_root_by_a_number(node: &Node) -> Outcome {
    says(node, MINUS_ONE, "4294967295").await?;
    let events = node.service(MINUS_ONE).await?.events.unwrap_or_default();
    ensure!(
        events.events.iter().all(|event| event.state != "Running"),
        "{events:#?}"
    );
    Ok(())
}

/// Waits until something has happened to a service that was told in these words.
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

/// A container makes a link in its volume to where the machine's secrets are, and another mounts what is there.
async fn mounts_no_link(node: &Node, writer: &Greeter) -> Outcome {
    writer.get("/link/data/escape?/system/state")?;
    says(node, MOUNTS_A_LINK, "symbolic link").await?;
    let events = node
        .service(MOUNTS_A_LINK)
        .await?
        .events
        .unwrap_or_default();
    ensure!(
        events.events.iter().all(|event| event.state != "Running"),
        "{events:#?}"
    );
    writer.get("/remove/data/escape")?;
    writer.get("/write/data/escape?a file")?;
    node.wait_until("what is no link is mounted", PATIENCE, async || {
        node.service_pid(MOUNTS_A_LINK).await
    })
    .await?;
    Ok(())
}

/// Eight containers take all the threads that they are let.
async fn bombs_go_off(node: &Node, writer: &Greeter) -> Outcome {
    writer.get(&format!("/write/{GO}"))?;
    let most = number_in(node, "/sys/fs/cgroup/workloads/pids.max").await?;
    let threads_max = number_in(node, "/proc/sys/kernel/threads-max").await?;
    ensure!(most <= threads_max / 2, "{most} of {threads_max}");
    node.wait_until("the bombs have gone off", PATIENCE, async || {
        let now = number_in(node, "/sys/fs/cgroup/workloads/pids.current").await?;
        // Who joins from outside, as a check does, is not held up.
        ensure!(now >= most, "{now} of {most}");
        Ok(())
    })
    .await?;
    for bomb in 0..BOMBS {
        has_gone_off(node, &format!("bomb-{bomb}")).await?;
    }
    Ok(())
}

async fn number_in(node: &Node, path: &str) -> anyhow::Result<u64> {
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

/// It starts processes and threads of its own, and answers as before.
async fn the_machine_works_beside_bombs(node: &Node) -> Outcome {
    let restarts = node
        .vm()
        .console()
        .matches("starting machined again")
        .count();
    ensure!(restarts == 0, "machined has died");
    ensure!(node.service_pid("apid").await? > 0);
    node.version_for_newcomers().await?;
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

/// An operator who starts a service while the machine goes down is refused, and the machine goes down.
async fn reboots_beside_a_start(node: &Node, scratch: &Scratch) -> Outcome {
    let kernel = node.kernel_boot_id().await?;
    let mut machine = node.machine().await?;
    let instarctl = Instarctl::of(node, scratch)?;
    node.service_pid(SLOW).await?;
    let asked = Instant::now();
    machine.reboot(RebootRequest::default()).await?;
    the_slow_one_is_being_stopped(node).await?;
    a_start_is_refused(&mut machine, &instarctl).await?;
    node.wait_until("it has rebooted", PATIENCE, async || {
        ensure!(node.kernel_boot_id().await? != kernel);
        Ok(())
    })
    .await?;
    let took = asked.elapsed();
    println!("rebooted within {took:?}");
    ensure!(took < Duration::from_secs(90), "{took:?}");
    Ok(())
}

async fn the_slow_one_is_being_stopped(node: &Node) -> Outcome {
    node.wait_until("the slow one is being stopped", PATIENCE, async || {
        let state = node.service(SLOW).await?.state;
        ensure!(state == "Stopping", "{state}");
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
    ensure!(
        refused.code() == tonic::Code::FailedPrecondition
            && refused.message().to_lowercase().contains("reboot"),
        "{refused:?}"
    );
    let said = instarctl.run(&["restart", SLOW]).await?;
    ensure!(
        said.code != Some(0) && said.complaint.to_lowercase().contains("reboot"),
        "{said:?}"
    );
    Ok(())
}
