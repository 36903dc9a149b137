//! Files with secrets, and ways around: not even an administrator can read them.

use std::path::Path;

use anyhow::ensure;
use instar_api::common::Data;
use instar_api::machine::machine_service_client::MachineServiceClient;
use instar_api::machine::{CopyRequest, DiskUsageRequest, ListRequest, ReadRequest};
use instar_pki::Role;
use instar_tests::{Greeter, Machine, Node, Outcome};
use tonic::{Code, Status};

use super::all;

/// Paths of secrets, and ways around: through a container's links, and through processes.
const SECRETS: [&str; 23] = [
    "/system/state",
    "/system/state/config.yaml",
    "/usr/../system/./state/config.yaml",
    "/proc/self/root/system/state/config.yaml",
    "/proc/1/root/system/state/config.yaml",
    "/proc/2/root/proc/sys/kernel/random/boot_id",
    "/proc/self/cwd/system/state/config.yaml",
    "/proc/self/fd/3",
    "/proc/self/environ",
    "/proc/1/environ",
    "/proc/1/mem",
    "/proc/self/task/1/mem",
    "/proc/kmsg",
    "/proc/keys",
    "/proc/kallsyms",
    "/proc/sys/net/ipv4/tcp_fastopen_key",
    "/run/workloads",
    "/run/workloads/crun",
    // The config that the firmware handed over.
    "/sys/firmware/qemu_fw_cfg/by_name/opt/dev.instar/config/raw",
    "/var/link-to-state",
    "/var/link-to-root",
    "/var/link-to-root/etc/os-release",
    "/var/link-out",
];

/// Not even an administrator can read secrets: not by another name, not by a link, not through another process.
pub(super) async fn secrets_stay(node: &Node, greeter: &Greeter) -> Outcome {
    let mut machine = node.machine().await?;
    // The container has the node's /var, and may be hostile.
    for (name, target) in [
        ("link-to-state", "/system/state/config.yaml"),
        ("link-to-root", "/proc/1/root"),
        ("link-out", "../system/state/config.yaml"),
    ] {
        greeter.link_in_var(name, target)?;
    }
    for path in SECRETS {
        no_method_gives_a_secret_away(&mut machine, path).await?;
    }
    secrets_do_not_come_along_with_what_is_around_them(&mut machine).await?;
    what_is_no_secret_can_still_be_read(node).await
}

async fn no_method_gives_a_secret_away(machine: &mut Machine, path: &str) -> Outcome {
    for (method, refused) in asked_by_every_method(machine, path).await {
        let code = refused.as_ref().err().map(Status::code);
        // A file that the process does not have discloses nothing.
        let absent = path == "/proc/self/task/1/mem" && code == Some(Code::NotFound);
        ensure!(
            code == Some(Code::PermissionDenied) || absent,
            "{method} of {path}: {refused:?}"
        );
    }
    Ok(())
}

/// Calls the methods that read files; returns how each ended.
async fn asked_by_every_method(
    machine: &mut Machine,
    path: &str,
) -> [(&'static str, Result<(), Status>); 4] {
    [
        ("Read", read(machine, path).await),
        ("Copy", copy(machine, path).await.map(drop)),
        ("List", list(machine, path).await),
        ("DiskUsage", count(machine, path).await),
    ]
}

async fn copy(machine: &mut Machine, path: &str) -> Result<Vec<Data>, Status> {
    let request = CopyRequest {
        root_path: path.to_owned(),
    };
    all(machine.copy(request).await).await
}

async fn list(machine: &mut Machine, path: &str) -> Result<(), Status> {
    let request = ListRequest {
        root: path.to_owned(),
        recurse: true,
        ..ListRequest::default()
    };
    all(machine.list(request).await).await.map(drop)
}

async fn count(machine: &mut Machine, path: &str) -> Result<(), Status> {
    let request = DiskUsageRequest {
        paths: vec![path.to_owned()],
        all: true,
        ..DiskUsageRequest::default()
    };
    all(machine.disk_usage(request).await).await.map(drop)
}

async fn secrets_do_not_come_along_with_what_is_around_them(machine: &mut Machine) -> Outcome {
    let pieces = copy(machine, "/system").await?.into_iter();
    let packed: Vec<u8> = pieces.flat_map(|piece| piece.bytes).collect();
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(packed.as_slice()));
    for entry in archive.entries()? {
        let name = entry?.path()?.into_owned();
        ensure!(name.components().count() <= 2, "{}", name.display());
        let is_known = name == Path::new(".") || name.ends_with("state");
        ensure!(is_known, "{}", name.display());
    }
    Ok(())
}

async fn what_is_no_secret_can_still_be_read(node: &Node) -> Outcome {
    ensure!(node.boot_id().await? != node.kernel_boot_id().await?);
    ensure!(node.read("/proc/1/status").await?.contains("init"));
    ensure!(!node.read("/proc/cmdline").await?.is_empty());
    Ok(())
}

pub(super) async fn readers_see_less(node: &Node) -> Outcome {
    let reader = node.identity().with_role(Role::Reader)?;
    let mut machine = MachineServiceClient::new(node.channel_as(&reader).await?);
    ensure!(machine.processes(()).await.is_ok());
    let refused = read(&mut machine, "/etc/os-release").await;
    let code = refused.as_ref().err().map(Status::code);
    ensure!(code == Some(Code::PermissionDenied), "{refused:?}");
    Ok(())
}

async fn read(machine: &mut Machine, path: &str) -> Result<(), Status> {
    let request = ReadRequest {
        path: path.to_owned(),
    };
    all(machine.read(request).await).await.map(drop)
}
