//! Every command of talosctl, as recorded from two releases of it, against a node: rows of a table.

mod configs;
mod everything;
mod files;
mod images;
mod machine;
mod maintenance_mode;
mod resources;
mod services;
mod streams;

use anyhow::{Context as _, ensure};
use instar_tests::{
    Greeter, Node, Outcome, Registry, Release, Scratch, Talosctl, Test, chapters,
    plan_with_greeter, tests,
};

use crate::PATIENCE;
use configs::{configs_are_applied, the_config_is_edited};
use everything::{
    support_lacks_kubernetes_alone, the_dashboard_shows_everything,
    the_newer_release_is_told_how_full_var_is, what_is_not_there_is_refused,
};
use files::files_are_listed_read_and_copied;
use images::images_are_pulled_and_those_in_use_are_kept;
use machine::{
    every_name_of_the_node_means_it, kubernetes_has_no_containers,
    the_clock_is_compared_with_a_server, the_machine_is_healthy, the_state_of_the_machine_is_shown,
};
use maintenance_mode::talosctl_commands_work_without_a_certificate_in_maintenance_mode;
use resources::resources_are_listed_and_watched;
use services::services_and_values_change;
use streams::{
    events_begin_after_the_one_that_is_named, lines_of_the_kernel_have_four_fields,
    logs_are_as_long_as_asked, streams_go_on,
};

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

/// A command that does not end, and a test for a line that it has to print.
type Stream = (&'static str, fn(&str) -> bool);
