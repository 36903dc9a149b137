//! A node without a config.

use instar_tests::{Identity, ImageUnderTest, MachineConfig};

use super::*;

/// Checks the commands that have the flag, in each release, and those that do not.
pub(super) async fn talosctl_commands_work_without_a_certificate_in_maintenance_mode(
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
