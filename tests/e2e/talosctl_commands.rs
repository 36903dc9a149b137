//! Every command of talosctl, as recorded from two releases of it, against a node: rows of a table.

use anyhow::{Context as _, bail, ensure};
use instar_api::cosi::resource::GetRequest;
use instar_api::cosi::resource::state_client::StateClient;
use instar_tests::{
    GREETER, Greeter, Identity, ImageUnderTest, MachineConfig, Node, Outcome, Registry, Release,
    Scratch, Talosctl, Test, WrongTimeServer, chapters, plan_with_greeter, tests,
};

use crate::PATIENCE;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        talosctl_commands_do_what_they_were_recorded_to_do,
        talosctl_commands_work_without_a_certificate_in_maintenance_mode
    ]
}

const RELEASES: [Release; 2] = [Release::V1_13, Release::V1_14];

/// A command, its exit code, and words of its output: standard output for code 0, else standard error.
type Row<'a> = (&'a str, i32, &'a [&'a str]);

/// The answer of a node of one machine without Kubernetes.
const NO_KUBERNETES: &[&str] = &["Unimplemented", "no Kubernetes"];

/// Runs all rows, even after one that fails.
async fn rows(talosctl: &Talosctl<'_>, rows: &[Row<'_>]) -> Outcome {
    let mut otherwise = Vec::new();
    for (command, code, words) in rows {
        let said = talosctl.run(command).await;
        let text = match code {
            0 => &said.output,
            _ => &said.complaint,
        };
        if said.code != Some(*code) || !words.iter().all(|word| text.contains(word)) {
            otherwise.push(format!("{command}: not {code} with {words:?}: {said:?}"));
        }
    }
    ensure!(otherwise.is_empty(), "{otherwise:#?}");
    Ok(())
}

/// Runs a command that does not end, until it prints the expected line.
async fn goes_on(talosctl: &Talosctl<'_>, command: &str, is_meant: fn(&str) -> bool) -> Outcome {
    let said = tokio::time::timeout(PATIENCE, talosctl.run_until(command, is_meant)).await?;
    ensure!(said.code.is_none(), "{command}: {said:?}");
    Ok(())
}

async fn talosctl_commands_do_what_they_were_recorded_to_do(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    let plan = plan_with_greeter(&scratch, &registry, |config| config)?.blank_disk()?;
    let node = plan.boot_until_ready(PATIENCE).await?;
    Greeter::of(&node)?.greets()?;
    for release in RELEASES {
        let talosctl = Talosctl::of(&node, release).await?;
        chapters![
            who_looks_is_shown_what_was_recorded(&talosctl, &node),
            who_changes_something_changes_it(&talosctl, &node, &registry, release),
            who_asks_for_everything_is_told_what_there_is(&talosctl, release),
        ]
        .await
        .with_context(|| format!("{release:?}"))?;
    }
    Ok(())
}

async fn who_looks_is_shown_what_was_recorded(talosctl: &Talosctl<'_>, node: &Node) -> Outcome {
    chapters![
        every_name_of_the_node_means_it(talosctl, node),
        the_state_of_the_machine_is_shown(talosctl),
        kubernetes_has_no_containers(talosctl),
        files_are_listed_read_and_copied(talosctl),
        logs_are_as_long_as_asked(talosctl),
        lines_of_the_kernel_have_four_fields(talosctl),
        streams_go_on(talosctl),
        events_begin_after_the_one_that_is_named(talosctl),
        resources_are_listed_and_watched(talosctl),
        the_clock_is_compared_with_a_server(talosctl),
    ]
    .await
}

async fn who_changes_something_changes_it(
    talosctl: &Talosctl<'_>,
    node: &Node,
    registry: &Registry,
    release: Release,
) -> Outcome {
    chapters![
        images_are_pulled_and_those_in_use_are_kept(talosctl, registry),
        services_and_values_change(talosctl),
        the_machine_is_healthy(talosctl),
        configs_are_applied(talosctl, node, release),
        the_config_is_edited(talosctl, node, release),
    ]
    .await
}

async fn who_asks_for_everything_is_told_what_there_is(
    talosctl: &Talosctl<'_>,
    release: Release,
) -> Outcome {
    chapters![
        what_is_not_there_is_refused(talosctl),
        support_lacks_kubernetes_alone(talosctl, release),
        the_newer_release_is_told_how_full_var_is(talosctl, release),
        the_dashboard_shows_everything(talosctl),
    ]
    .await
}

/// Each value of `-n` means this node: its address, its name, the dialled address with port, and the empty value.
async fn every_name_of_the_node_means_it(talosctl: &Talosctl<'_>, node: &Node) -> Outcome {
    let both: &[Row<'_>] = &[("version", 0, &["v0.1.0"]), ("get hostname", 0, &["node"])];
    for name in ["127.0.0.1", "10.0.2.15", "node", &node.endpoint()?] {
        rows(&talosctl.asking_for(name), both).await?;
    }
    // The older release sends an empty name in some calls.
    let nameless = talosctl.asking_for("");
    rows(&nameless, &[("get rd", 0, &["hostnamestatuses"])]).await
}

async fn the_state_of_the_machine_is_shown(talosctl: &Talosctl<'_>) -> Outcome {
    rows(talosctl, STATE_OF_THE_MACHINE).await
}

const STATE_OF_THE_MACHINE: &[Row<'_>] = &[
    (
        "version",
        0,
        &[
            "Tag: v0.1.0",
            "Arch: amd64",
            "Platform: metal",
            "Enabled: RBAC",
        ],
    ),
    ("service", 0, &["apid Running", "greeter Running"]),
    ("service apid", 0, &["apid Running OK"]),
    ("service machined", 0, &["machined Running OK"]),
    ("service apid status", 0, &["apid Running"]),
    ("service no-such", 1, &["is not registered"]),
    (
        "containers",
        0,
        &["system greeter ", "/greeter:v1", "RUNNING"],
    ),
    ("stats", 0, &["system greeter "]),
    (
        "processes",
        0,
        &["/usr/sbin/machined", "kthreadd", "init /init"],
    ),
    ("memory", 0, &["total 2", "available 1"]),
    ("mounts", 0, &["/dev/vda3 ", " /var"]),
    ("netstat", 0, &[":50000 ", " 1 "]),
    ("netstat -a", 0, &[":50000 ", " 10 "]),
    ("netstat -l", 0, &[":50000 ", " 10 "]),
    ("netstat -p", 0, &["/apid"]),
    ("netstat -p -a -t -u -w", 0, &["/apid"]),
    ("netstat -l -4", 0, &["tcp 0.0.0.0:8080"]),
    ("netstat -k", 0, &[]),
    (
        "cgroups",
        0,
        &[
            "/sys/fs/cgroup cgroup.controllers",
            "/sys/fs/cgroup generation.1",
        ],
    ),
    ("inspect dependencies", 0, &["0 edges"]),
    ("pcap -i eth0 --duration 1", 0, &[" bytes"]),
];

async fn kubernetes_has_no_containers(talosctl: &Talosctl<'_>) -> Outcome {
    for command in ["containers -k", "stats -k"] {
        let said = talosctl.run(command).await;
        ensure!(said.code == Some(0) && said.output.is_empty(), "{said:?}");
    }
    Ok(())
}

async fn files_are_listed_read_and_copied(talosctl: &Talosctl<'_>) -> Outcome {
    rows(talosctl, FILES).await?;
    let flat = talosctl.run("list /var").await;
    ensure!(!flat.output.contains('/'), "{flat:?}");
    let directories = talosctl.run("list -t d /etc").await;
    ensure!(
        !directories.output.contains("os-release"),
        "{directories:?}"
    );
    Ok(())
}

const FILES: &[Row<'_>] = &[
    ("list /", 0, &[".\n", "etc\n", "usr\n", "var\n"]),
    ("list /var -r", 0, &["log/machined.log"]),
    ("list /var -d 2", 0, &["lib/instar\n"]),
    ("list -l /dev/null", 0, &["crw-rw-rw- 0 0 0 ."]),
    ("list -l /etc", 0, &["drwx", " -> "]),
    ("list -t d /usr", 0, &["sbin\n"]),
    ("list -t f,l /etc", 0, &["os-release\n"]),
    ("list /no/such", 1, &["/no/such"]),
    ("read /etc/os-release", 0, &["ID=instar"]),
    ("read /proc/sys/kernel/random/boot_id", 0, &["-"]),
    ("read /no/such", 1, &["NotFound", "/no/such"]),
    ("read /etc", 1, &["/etc"]),
    ("copy /var", 0, &["log\n", "log/machined.log\n"]),
    ("copy /no/such", 1, &["NotFound"]),
    ("usage /var", 0, &["."]),
    ("usage -d 1 -a -t 10 /var /etc", 0, &["log\n"]),
];

async fn logs_are_as_long_as_asked(talosctl: &Talosctl<'_>) -> Outcome {
    rows(talosctl, LOGS).await?;
    let all = talosctl.run("logs machined").await.output;
    let last = talosctl.run("logs machined --tail 3").await.output;
    ensure!(
        last.lines().count() == 3 && all.lines().count() > 3,
        "{last}"
    );
    let none = talosctl.run("logs machined --tail 0").await;
    ensure!(none.code == Some(0) && none.output.is_empty(), "{none:?}");
    Ok(())
}

const LOGS: &[Row<'_>] = &[
    ("logs machined", 0, &["booted v0.1.0"]),
    ("logs no-such", 1, &["no-such"]),
    ("logs -k no-such", 1, &["no-such"]),
    ("dmesg", 0, &["kern: ", ": Linux version"]),
    ("dmesg --tail", 0, &[]),
];

/// Checks for "facility: priority: [time]: message", the priority right-aligned in seven places.
async fn lines_of_the_kernel_have_four_fields(talosctl: &Talosctl<'_>) -> Outcome {
    for line in talosctl.run("dmesg").await.output.lines() {
        let fields: Vec<&str> = line.splitn(4, ": ").collect();
        ensure!(
            fields.len() == 4 && fields[1].len() == 7 && fields[2].starts_with("[20"),
            "{line:?}"
        );
    }
    Ok(())
}

async fn streams_go_on(talosctl: &Talosctl<'_>) -> Outcome {
    for (command, is_meant) in STREAMS {
        goes_on(talosctl, command, *is_meant).await?;
    }
    Ok(())
}

/// A command that does not end, and a test for a line that it has to print.
type Stream = (&'static str, fn(&str) -> bool);

const STREAMS: &[Stream] = &[
    ("logs machined -f", |line| line.contains("booted v0.1.0")),
    ("dmesg -f", |line| line.contains("Linux version")),
    ("events --tail -1", |line| {
        line.contains("stage 4 ready true")
    }),
    ("events --duration 3600", |line| {
        line.contains("sequence boot")
    }),
];

async fn events_begin_after_the_one_that_is_named(talosctl: &Talosctl<'_>) -> Outcome {
    let first = talosctl.run_until("events --tail -1", |_| true).await;
    let id = first.output.split(' ').next().unwrap_or_default();
    let since = format!("events --since {id}");
    goes_on(talosctl, &since, |_| true).await?;
    let said = talosctl.run_until(&since, |_| true).await;
    ensure!(
        !said.output.contains(id) && said.output > first.output,
        "{said:?}"
    );
    Ok(())
}

/// No alias is ambiguous.
async fn every_alias_means_one_type(talosctl: &Talosctl<'_>) -> Outcome {
    let said = talosctl.run("get rd -o yaml").await;
    let mut owners = std::collections::BTreeMap::new();
    for line in said.output.lines() {
        let (id, spec) = line.split_once(' ').unwrap_or_default();
        let spec: serde_json::Value = serde_json::from_str(spec)?;
        for alias in spec["allAliases"].as_array().into_iter().flatten() {
            let alias = alias.to_string().to_lowercase();
            let other = owners.insert(alias.clone(), id.to_owned());
            ensure!(other.is_none(), "{alias} means {id} and {other:?}");
        }
    }
    ensure!(owners.len() > 100, "{owners:#?}");
    Ok(())
}

async fn resources_are_listed_and_watched(talosctl: &Talosctl<'_>) -> Outcome {
    every_alias_means_one_type(talosctl).await?;
    rows(talosctl, RESOURCES).await?;
    watches_begin_with_what_there_is(talosctl).await?;
    what_changes_has_no_mark(talosctl).await
}

const RESOURCES: &[Row<'_>] = &[
    (
        "get members",
        0,
        &["HOSTNAME", "cluster Member node ", "controlplane"],
    ),
    (
        "get machinestatus",
        0,
        &["runtime MachineStatus machine", "running true"],
    ),
    (
        "get services",
        0,
        &["runtime Service greeter", " true true"],
    ),
    (
        "get hostname",
        0,
        &["network HostnameStatus hostname 1 node"],
    ),
    ("get hostname hostname", 0, &["hostname 1 node"]),
    ("get HOSTNAME -o yaml", 0, &["\"hostname\":\"node\""]),
    (
        "get rd",
        0,
        &[
            "resourcedefinitions.meta.cosi.dev",
            "hostnamestatuses.net.talos.dev",
        ],
    ),
    ("get nodeaddress current -o yaml", 0, &["10.0.2.15/24"]),
    ("get addresses", 0, &["10.0.2.15/24 eth0"]),
    ("get routes", 0, &["10.0.2.2"]),
    ("get links", 0, &["eth0"]),
    ("get disks vda", 0, &["runtime Disk vda"]),
    ("get systemdisk", 0, &["vda"]),
    ("get mc v1alpha1 -o yaml", 0, &["hostname: node"]),
    ("get machinetype", 0, &["controlplane"]),
    (
        "get hostname --namespace runtime",
        0,
        &["NAMESPACE TYPE ID VERSION HOSTNAME"],
    ),
    // The server is older than the client.
    (
        "get nonsense",
        1,
        &["WARNING: v0.1.0 is older", "is not registered"],
    ),
    ("get services no-such", 1, &["NotFound"]),
    ("get services GREETER", 1, &["NotFound"]),
];

async fn watches_begin_with_what_there_is(talosctl: &Talosctl<'_>) -> Outcome {
    for (command, is_meant) in WATCHES {
        goes_on(talosctl, command, *is_meant).await?;
    }
    Ok(())
}

const WATCHES: &[Stream] = &[
    ("get services -w", |line| {
        line.starts_with("+ ") && line.contains(GREETER)
    }),
    ("get hostname hostname -w", |line| {
        line.starts_with("+ ") && line.contains("node")
    }),
    // An unknown resource: the client is told that it is destroyed, with a document, else the client ends.
    ("get services no-such -w", |line| {
        line.starts_with("- ") && line.contains("no-such")
    }),
];

async fn what_changes_has_no_mark(talosctl: &Talosctl<'_>) -> Outcome {
    let watched = goes_on(talosctl, "get services -w", |line| {
        line.starts_with(" runtime Service greeter")
    });
    let restarted = async {
        let said = talosctl.run("service greeter restart").await;
        ensure!(said.code == Some(0), "{said:?}");
        Ok(())
    };
    tokio::try_join!(watched, restarted).map(drop)
}

async fn images_are_pulled_and_those_in_use_are_kept(
    talosctl: &Talosctl<'_>,
    registry: &Registry,
) -> Outcome {
    let image = registry.image_for_guest("greeter:v1");
    let (name, _) = image.rsplit_once(':').unwrap_or_default();
    let absent = registry.image_for_guest("nothing:v1");
    every_image_is_listed(talosctl, &image).await?;
    an_image_is_pulled_by_each_way(talosctl, &image, &format!("{name}@sha256:")).await?;
    what_may_not_be_done_with_an_image_is_refused(talosctl, &image, &absent).await
}

async fn every_image_is_listed(talosctl: &Talosctl<'_>, image: &str) -> Outcome {
    let listed: &[Row<'_>] = &[
        ("image list", 0, &[image, "sha256:"]),
        ("image list --namespace system", 0, &[image]),
        ("image list --namespace inmem", 0, &[image]),
        ("image legacy-list", 0, &[image, "sha256:"]),
    ];
    rows(talosctl, listed).await
}

/// The newer commands print the image's digest.
async fn an_image_is_pulled_by_each_way(
    talosctl: &Talosctl<'_>,
    image: &str,
    pinned: &str,
) -> Outcome {
    let pull = format!("image pull {image}");
    let pull_for_system = format!("{pull} --namespace system");
    let pull_as_before = format!("image legacy-pull {image}");
    let pulled: &[Row<'_>] = &[
        (&pull, 0, &[pinned]),
        (&pull_for_system, 0, &[pinned]),
        (&pull_as_before, 0, &[image]),
    ];
    rows(talosctl, pulled).await
}

async fn what_may_not_be_done_with_an_image_is_refused(
    talosctl: &Talosctl<'_>,
    image: &str,
    absent: &str,
) -> Outcome {
    let pull_absent = format!("image pull {absent}");
    let remove = format!("image remove {image}");
    let remove_absent = format!("image remove {absent}");
    // The command would run a container with any rights.
    let debug = format!("debug {image}");
    let refused: &[Row<'_>] = &[
        (&pull_absent, 1, &[absent]),
        (&remove, 1, &["is needed by the container greeter"]),
        (&remove_absent, 1, &["there is no image"]),
        (&debug, 1, &["Unimplemented"]),
    ];
    rows(talosctl, refused).await
}

async fn the_clock_is_compared_with_a_server(talosctl: &Talosctl<'_>) -> Outcome {
    let server = WrongTimeServer::start(std::time::Duration::from_secs(1000))?;
    let name = server.host_for_guest();
    let check = format!("time --check {name}");
    let unreachable = ("time --check 127.0.0.1:1", 1, &["127.0.0.1:1"][..]);
    rows(talosctl, &[(&check, 0, &[&name]), unreachable]).await?;
    let said = talosctl.run(&check).await.output;
    let times: Vec<i64> = said.split_whitespace().flat_map(str::parse).collect();
    ensure!((940..1060).contains(&(times[1] - times[0])), "{said}");
    // The node's own time server is on the internet, which a test cannot reach: the answer says so.
    let own = talosctl.run("time").await;
    ensure!(own.code == Some(1) && !own.complaint.is_empty(), "{own:?}");
    Ok(())
}

async fn services_and_values_change(talosctl: &Talosctl<'_>) -> Outcome {
    rows(talosctl, SERVICES_AND_VALUES).await
}

const SERVICES_AND_VALUES: &[Row<'_>] = &[
    ("service greeter stop", 0, &[GREETER]),
    ("service greeter stop", 0, &[GREETER]),
    ("service greeter start", 0, &[GREETER]),
    ("service greeter restart", 0, &[GREETER]),
    ("service no-such stop", 1, &["no-such"]),
    ("service apid stop", 1, &["apid"]),
    (
        "service machined restart",
        1,
        &["machined", "doesn't support restart operation"],
    ),
    ("restart greeter", 0, &[]),
    ("restart no-such", 1, &["no-such"]),
    ("restart -k no-such", 1, &["no-such"]),
    ("meta write 0x0a value", 0, &["write"]),
    ("get meta", 0, &["0x0a", "value"]),
    ("meta delete 10", 0, &["delete"]),
    ("meta delete 10", 1, &["NotFound"]),
    ("health --wait-timeout 120", 0, &[]),
    (
        "config new - --roles os:reader --crt-ttl 3600",
        0,
        &["context:", "crt:", "key:"],
    ),
    ("config new - --roles os:everything", 1, &["is no role"]),
];

async fn the_machine_is_healthy(talosctl: &Talosctl<'_>) -> Outcome {
    let said = talosctl.run("health --wait-timeout 120").await;
    ensure!(said.complaint.contains("healthy"), "{said:?}");
    Ok(())
}

/// The config in force, including the documents that clients of Talos are not shown.
async fn whole_config(node: &Node) -> anyhow::Result<String> {
    let mut state = StateClient::new(node.channel().await?);
    let asked = GetRequest {
        namespace: "config".to_owned(),
        r#type: "MachineConfigs.config.talos.dev".to_owned(),
        id: "v1alpha1".to_owned(),
        ..Default::default()
    };
    let answer = state.get(asked).await?.into_inner();
    let spec = answer.resource.and_then(|resource| resource.spec);
    let spec = spec.context("a config without content")?;
    Ok(serde_saphyr::from_str(&spec.yaml_spec)?)
}

/// Waits until the host name is the config's: machined's network applies it a moment later.
async fn is_called(node: &Node, name: &str) -> Outcome {
    node.wait_until("it has another name", PATIENCE, async || {
        let called = node.hostname().await?;
        ensure!(called == name, "it is called {called}");
        Ok(())
    })
    .await
}

/// A config with another host name.
fn renamed(config: &str) -> String {
    config.replace("hostname: node", "hostname: renamed")
}

async fn configs_are_applied(talosctl: &Talosctl<'_>, node: &Node, release: Release) -> Outcome {
    ensure!(renamed(node.config()) != node.config());
    chapters![
        a_config_is_not_applied_by_a_dry_run(talosctl, node),
        a_config_that_is_none_is_refused(talosctl),
        a_config_is_applied_in_each_mode(talosctl, node),
        a_config_on_trial_ends_with_another(talosctl, node),
        the_older_release_alone_knows_the_mode_reboot(talosctl, node, release),
    ]
    .await
}

async fn the_older_release_alone_knows_the_mode_reboot(
    talosctl: &Talosctl<'_>,
    node: &Node,
    release: Release,
) -> Outcome {
    let reboot = "apply-config --mode reboot --dry-run";
    let said = talosctl.run_with(reboot, &renamed(node.config())).await;
    ensure!(
        (said.code == Some(0)) == (release == Release::V1_13),
        "{said:?}"
    );
    Ok(())
}

async fn a_config_is_not_applied_by_a_dry_run(talosctl: &Talosctl<'_>, node: &Node) -> Outcome {
    let renamed = renamed(node.config());
    let said = talosctl.run_with("apply-config --dry-run", &renamed).await;
    ensure!(
        said.code == Some(0) && said.complaint.contains("+hostname: renamed"),
        "{said:?}"
    );
    ensure!(node.hostname().await? == "node");
    Ok(())
}

async fn a_config_that_is_none_is_refused(talosctl: &Talosctl<'_>) -> Outcome {
    let wrong = "machine: {typ: worker}";
    let said = talosctl.run_with("apply-config", wrong).await;
    ensure!(
        said.code == Some(1) && said.complaint.contains("InvalidArgument"),
        "{said:?}"
    );
    Ok(())
}

async fn a_config_is_applied_in_each_mode(talosctl: &Talosctl<'_>, node: &Node) -> Outcome {
    let before = node.config();
    let renamed = renamed(before);
    for (mode, text, name) in [
        ("no-reboot", renamed.as_str(), "renamed"),
        ("auto", before, "node"),
        ("staged", before, "node"),
    ] {
        let apply = format!("apply-config --mode {mode}");
        let said = talosctl.run_with(&apply, text).await;
        ensure!(said.code == Some(0), "{mode}: {said:?}");
        is_called(node, name).await?;
    }
    Ok(())
}

/// The trial ends by itself after a minute, or when a client applies another config.
async fn a_config_on_trial_ends_with_another(talosctl: &Talosctl<'_>, node: &Node) -> Outcome {
    let renamed = renamed(node.config());
    let said = talosctl.run_with("apply-config --mode try", &renamed).await;
    ensure!(said.code == Some(0), "{said:?}");
    is_called(node, "renamed").await?;
    let said = talosctl.run_with("apply-config", node.config()).await;
    ensure!(said.code == Some(0), "{said:?}");
    is_called(node, "node").await
}

/// The client is shown all documents but the kinds that Talos does not have.
async fn the_config_is_edited(talosctl: &Talosctl<'_>, node: &Node, release: Release) -> Outcome {
    let documents = node.config().split_once("---\napiVersion: instar.dev");
    let (shown, ours) = documents.context("no document of ours in the config")?;
    ensure!(!ours.contains("---\n"), "{ours}");
    match release {
        Release::V1_13 => an_older_client_does_not_know_newer_kinds(talosctl, shown).await,
        Release::V1_14 => {
            a_patch_keeps_what_is_not_shown(talosctl, node, shown).await?;
            an_edit_keeps_what_is_not_shown(talosctl, node, shown).await?;
            nothing_but_the_machine_config_is_patched(talosctl, node).await
        }
    }
}

/// Kinds of Talos's own that an older client does not know.
async fn an_older_client_does_not_know_newer_kinds(
    talosctl: &Talosctl<'_>,
    shown: &str,
) -> Outcome {
    for command in ["patch mc", "edit mc"] {
        let said = talosctl.run_with(command, &renamed(shown)).await;
        let why = "\"UnattendedInstallConfig\" \"v1alpha1\": not registered";
        ensure!(
            said.code == Some(1) && said.complaint.contains(why),
            "{said:?}"
        );
    }
    Ok(())
}

async fn a_patch_keeps_what_is_not_shown(
    talosctl: &Talosctl<'_>,
    node: &Node,
    shown: &str,
) -> Outcome {
    let said = talosctl.run_with("edit mc", shown).await;
    ensure!(said.output == "no changes\n", "{said:?}");
    let said = talosctl.run_with("patch mc", &renamed(shown)).await;
    let kept = "WARNING: ContainerHealthConfig greeter: not shown to clients of Talos";
    ensure!(
        said.code == Some(0) && said.complaint.contains(kept),
        "{said:?}"
    );
    is_called(node, "renamed").await?;
    let whole = whole_config(node).await?;
    ensure!(whole == renamed(node.config()), "{whole}");
    Ok(())
}

async fn an_edit_keeps_what_is_not_shown(
    talosctl: &Talosctl<'_>,
    node: &Node,
    shown: &str,
) -> Outcome {
    let said = talosctl.run_with("edit machineconfig", shown).await;
    ensure!(said.code == Some(0), "{said:?}");
    is_called(node, "node").await?;
    ensure!(whole_config(node).await? == node.config());
    Ok(())
}

async fn nothing_but_the_machine_config_is_patched(
    talosctl: &Talosctl<'_>,
    node: &Node,
) -> Outcome {
    let said = talosctl.run_with("patch hostname", node.config()).await;
    ensure!(said.code == Some(1), "{said:?}");
    Ok(())
}

async fn what_is_not_there_is_refused(talosctl: &Talosctl<'_>) -> Outcome {
    rows(talosctl, NOT_THERE).await
}

const NOT_THERE: &[Row<'_>] = &[
    ("kubeconfig", 1, NO_KUBERNETES),
    ("bootstrap", 1, NO_KUBERNETES),
    ("etcd members", 1, NO_KUBERNETES),
    ("etcd status", 1, NO_KUBERNETES),
    ("etcd snapshot", 1, NO_KUBERNETES),
    ("etcd alarm", 1, NO_KUBERNETES),
    ("upgrade-k8s", 1, NO_KUBERNETES),
    (
        "wipe disk vda",
        1,
        &["FailedPrecondition", "belongs to this machine"],
    ),
    (
        "wipe disk vda3 --drop-partition",
        1,
        &["FailedPrecondition", "belongs to this machine"],
    ),
    ("wipe disk nowhere", 1, &["NotFound"]),
    ("wipe disk loop0", 1, &["FailedPrecondition"]),
    ("reboot --drain", 1, NO_KUBERNETES),
    // The node does not boot from its disk.
    ("rollback", 1, &["FailedPrecondition"]),
    // Contradictory arguments are refused before anything happens.
    (
        "reset --wait=false --wipe-mode user-disks --system-labels-to-wipe STATE",
        1,
        &["InvalidArgument"],
    ),
    (
        "reset --wait=false --wipe-mode system-disk --user-disks-to-wipe /dev/vdb",
        1,
        &["InvalidArgument"],
    ),
    (
        "reset --wait=false --user-disks-to-wipe /dev/nowhere",
        1,
        &["InvalidArgument", "name no user disks"],
    ),
    (
        "rotate-ca --dry-run",
        0,
        &["would rotate ", " bytes on node, of 1 members"],
    ),
];

/// One release reports the lack of Kubernetes as a failure; both have everything else.
async fn support_lacks_kubernetes_alone(talosctl: &Talosctl<'_>, release: Release) -> Outcome {
    let said = talosctl.run("support").await;
    let code = match release {
        Release::V1_13 => 0,
        Release::V1_14 => 1,
    };
    ensure!(
        said.code == Some(code) && said.output.contains("greeter.log"),
        "{said:?}"
    );
    let lacking = said.complaint.lines();
    let missing: Vec<&str> = lacking
        .filter(|line| !line.contains("no Kubernetes"))
        .collect();
    ensure!(missing.is_empty(), "{missing:#?}");
    Ok(())
}

async fn the_newer_release_is_told_how_full_var_is(
    talosctl: &Talosctl<'_>,
    release: Release,
) -> Outcome {
    if release == Release::V1_13 {
        return Ok(());
    }
    let said = talosctl.run("diskfree").await;
    let mut lines = said.output.lines();
    let var = lines.find_map(|line| line.strip_prefix("/var "));
    let words = var.unwrap_or_default().split(' ');
    let figures: Vec<u64> = words.flat_map(str::parse).collect();
    let [size, used, available] = figures[..] else {
        bail!("{said:?}");
    };
    let adds_up = size > 3 << 30 && used > 0 && available <= size - used;
    ensure!(said.code == Some(0) && adds_up, "{said:?}");
    Ok(())
}

async fn the_dashboard_shows_everything(talosctl: &Talosctl<'_>) -> Outcome {
    let said = talosctl.run("dashboard").await;
    ensure!(said.code == Some(0), "{said:?}");
    for shown in DASHBOARD {
        ensure!(said.output.contains(shown), "no {shown}: {said:?}");
    }
    Ok(())
}

const DASHBOARD: &[&str] = &[
    "/LoadAvg ",
    " of 20",
    "since 1",
    " busy true",
    "/CPUInfo 0 AuthenticAMD",
    " eth0 true true",
    " vda true true",
    " kthreadd ",
    "/ServiceList apid greeter",
    "MachineStatuses.runtime.talos.dev 1 stage 4 ready true",
    "MachineTypes.config.talos.dev 1 type 2",
    "HostnameStatuses.net.talos.dev 1 node",
    "Members.cluster.talos.dev 1 node",
    "NetworkStatuses.net.talos.dev 1 connected true",
    "SystemInformations.hardware.talos.dev 1 QEMU",
];

/// Checks the commands that have the flag, in each release, and those that do not.
async fn talosctl_commands_work_without_a_certificate_in_maintenance_mode(
    scratch: Scratch,
) -> Outcome {
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .blank_disk()?
        .without_config(Identity::administrator()?)
        .start()?;
    node.wait_for_line("machined: the API answers on port", PATIENCE)?;
    for release in RELEASES {
        let talosctl = Talosctl::insecure(&node, release).await?;
        chapters![
            what_both_releases_may_ask_a_node_without_a_config(&talosctl),
            what_one_release_alone_may_ask_it(&talosctl, release),
            a_bad_config_is_refused(&talosctl),
        ]
        .await?;
    }
    chapters![maintenance_mode_ends_with_a_config(&node)].await
}

async fn what_both_releases_may_ask_a_node_without_a_config(talosctl: &Talosctl<'_>) -> Outcome {
    rows(talosctl, WITHOUT_A_CONFIG).await
}

const DENIED: &[&str] = &["PermissionDenied"];

const WITHOUT_A_CONFIG: &[Row<'_>] = &[
    ("version", 0, &["Tag: v0.1.0", "Enabled: \n"]),
    ("get machinestatus", 0, &["maintenance"]),
    ("get disks", 0, &["vda"]),
    ("get mc", 1, DENIED),
    ("wipe disk vda", 0, &["wiped"]),
    ("reset --wait=false", 1, DENIED),
    (
        "upgrade --legacy --wait=false --drain=false -i nowhere/image:v1",
        1,
        DENIED,
    ),
    ("reboot --wait=false", 1, DENIED),
];

async fn what_one_release_alone_may_ask_it(talosctl: &Talosctl<'_>, release: Release) -> Outcome {
    if release == Release::V1_13 {
        return rows(talosctl, &[("meta write 10 value", 1, DENIED)]).await;
    }
    rows(talosctl, FOR_THE_NEWER_RELEASE).await?;
    let said = talosctl.run("support").await;
    for part in ["apid.log", "dmesg", "MachineStatuses.runtime.talos.dev"] {
        ensure!(said.output.contains(part), "no {part}: {said:?}");
    }
    Ok(())
}

const FOR_THE_NEWER_RELEASE: &[Row<'_>] = &[
    ("meta write 10 value", 1, &["unknown flag"]),
    ("dmesg", 0, &["Linux version"]),
    ("logs machined", 0, &["maintenance mode"]),
    ("memory", 0, &["total 2"]),
    ("service", 0, &["apid Running"]),
];

async fn a_bad_config_is_refused(talosctl: &Talosctl<'_>) -> Outcome {
    let said = talosctl
        .run_with("apply-config --dry-run", "machine: {typ: worker}")
        .await;
    ensure!(
        said.code == Some(1) && said.complaint.contains("InvalidArgument"),
        "{said:?}"
    );
    Ok(())
}

async fn maintenance_mode_ends_with_a_config(node: &Node) -> Outcome {
    let config = MachineConfig::new(node.identity()).hostname("node");
    let talosctl = Talosctl::insecure(node, Release::V1_14).await?;
    let said = talosctl.run_with("apply-config", &config.to_yaml()).await;
    ensure!(said.code == Some(0), "{said:?}");
    node.wait_for_api(PATIENCE).await.map(drop)
}
