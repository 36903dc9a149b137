//! Every method of the API: the walk hangs up on it, or it changes nothing.

use std::collections::BTreeSet;

use anyhow::ensure;
use instar_api::FILE_DESCRIPTOR_SET;
use instar_tests::{Outcome, Scratch};
use prost::Message;
use prost_types::FileDescriptorSet;

/// The methods that the walk hangs up on.
const WALKED: &[&str] = &[
    "machine.MachineService/ApplyConfiguration",
    "machine.MachineService/ImagePull",
    "machine.MachineService/MetaDelete",
    "machine.MachineService/MetaWrite",
    "machine.MachineService/Reboot",
    "machine.MachineService/Reset",
    "machine.MachineService/Restart",
    "machine.MachineService/Rollback",
    "machine.MachineService/ServiceRestart",
    "machine.MachineService/ServiceStart",
    "machine.MachineService/ServiceStop",
    "machine.MachineService/Shutdown",
    "machine.MachineService/Upgrade",
    "machine.ImageService/Pull",
    "machine.ImageService/Remove",
    "machine.LifecycleService/Install",
    "machine.LifecycleService/Upgrade",
    "storage.StorageService/BlockDeviceWipe",
];

/// Methods that `bundles` and `replace` hang up on.
const WALKED_ELSEWHERE: &[&str] = &[
    "instar.BundleService/Begin",
    "instar.BundleService/Write",
    "instar.BundleService/Import",
    "instar.UpgradeService/Replace",
];

/// Methods that only read, and methods that this version refuses.
const CHANGE_NOTHING: &[&str] = &[
    "machine.MachineService/Bootstrap",
    "machine.MachineService/Containers",
    "machine.MachineService/Copy",
    "machine.MachineService/CPUFreqStats",
    "machine.MachineService/CPUInfo",
    "machine.MachineService/DiskStats",
    "machine.MachineService/DiskUsage",
    "machine.MachineService/Dmesg",
    "machine.MachineService/EtcdAlarmDisarm",
    "machine.MachineService/EtcdAlarmList",
    "machine.MachineService/EtcdDefragment",
    "machine.MachineService/EtcdMemberList",
    "machine.MachineService/EtcdRecover",
    "machine.MachineService/EtcdSnapshot",
    "machine.MachineService/EtcdStatus",
    "machine.MachineService/Events",
    "machine.MachineService/GenerateClientConfiguration",
    "machine.MachineService/Hostname",
    "machine.MachineService/ImageList",
    "machine.MachineService/Kubeconfig",
    "machine.MachineService/List",
    "machine.MachineService/LoadAvg",
    "machine.MachineService/Logs",
    "machine.MachineService/LogsContainers",
    "machine.MachineService/Memory",
    "machine.MachineService/Mounts",
    "machine.MachineService/Netstat",
    "machine.MachineService/NetworkDeviceStats",
    "machine.MachineService/PacketCapture",
    "machine.MachineService/Processes",
    "machine.MachineService/Read",
    "machine.MachineService/ServiceList",
    "machine.MachineService/Stats",
    "machine.MachineService/SystemStat",
    "machine.MachineService/Version",
    "machine.ImageService/List",
    "machine.ImageService/Verify",
    "machine.StorageService/Statfs",
    "storage.StorageService/Disks",
    "time.TimeService/Time",
    "time.TimeService/TimeCheck",
    "cluster.ClusterService/HealthCheck",
    "inspect.InspectService/ControllerRuntimeDependencies",
    "instar.BundleService/Export",
    "instar.MetricsService/Read",
    "instar.UpgradeService/Plan",
    // It is refused on this port.
    "securityapi.SecurityService/Certificate",
    "instar.NodeCertificateService/Show",
    // It makes one write, of the certificate.
    "instar.NodeCertificateService/Grant",
    // These change memory alone.
    "instar.TemporaryRegistryService/Serve",
    "instar.TemporaryRegistryService/Stop",
    // These make one write, to the record of pinned images.
    "instar.UpgradeService/Prepare",
    "instar.ImagePinService/Pin",
    "instar.ImagePinService/Unpin",
    // It makes one write, to the record of images that wait.
    "instar.ImageUpdateService/Approve",
    // These make one write, to the record of the channel.
    "instar.UpgradeFollowService/Approve",
    "instar.UpgradeFollowService/Hold",
    "instar.UpgradeFollowService/Bring",
    "instar.UpgradeFollowService/Check",
    "instar.UpgradeFollowService/Status",
    "cosi.resource.State/Get",
    "cosi.resource.State/List",
    "cosi.resource.State/Watch",
    "cosi.resource.State/Create",
    "cosi.resource.State/Update",
    "cosi.resource.State/Destroy",
    "cosi.resource.State/Teardown",
    "cosi.resource.State/TeardownAndDestroy",
];

pub(super) async fn every_method_is_walked_or_changes_nothing(_: Scratch) -> Outcome {
    let walked = WALKED.iter().chain(WALKED_ELSEWHERE);
    let known: BTreeSet<&str> = walked.chain(CHANGE_NOTHING).copied().collect();
    let methods = methods()?;
    let unknown: Vec<_> = methods
        .iter()
        .filter(|method| !known.contains(method.as_str()))
        .collect();
    ensure!(
        unknown.is_empty(),
        "say whether they change the machine, and hang up on those that do: {unknown:#?}"
    );
    let walked = WALKED.iter().filter(|method| !methods.contains(**method));
    ensure!(walked.count() == 0, "there are no such methods");
    Ok(())
}

/// Returns the methods of the API's contract.
fn methods() -> anyhow::Result<BTreeSet<String>> {
    let mut methods = BTreeSet::new();
    for file in FileDescriptorSet::decode(FILE_DESCRIPTOR_SET)?.file {
        for service in &file.service {
            let path = format!("{}.{}", file.package(), service.name());
            let names = service.method.iter().map(|method| method.name());
            methods.extend(names.map(|name| format!("{path}/{name}")));
        }
    }
    Ok(methods)
}
