//! Commands that ask for everything are told what there is.

use anyhow::bail;

use super::*;

pub(super) async fn what_is_not_there_is_refused(talosctl: &Talosctl<'_>) -> Outcome {
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
pub(super) async fn support_lacks_kubernetes_alone(
    talosctl: &Talosctl<'_>,
    release: Release,
) -> Outcome {
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

pub(super) async fn the_newer_release_is_told_how_full_var_is(
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

pub(super) async fn the_dashboard_shows_everything(talosctl: &Talosctl<'_>) -> Outcome {
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
