//! `dashboard`: nine polls, the kernel's log, and twenty watches, which may fail for lack of permission only.

use tonic::Code;

use super::Talosctl;
use super::screen::{Screen, Step, Stop};
use super::session::Release;
use super::wire::Fields;

/// The methods that are polled every three seconds.
const POLLS: [&str; 9] = [
    "/machine.MachineService/LoadAvg",
    "/machine.MachineService/Memory",
    "/machine.MachineService/SystemStat",
    "/machine.MachineService/CPUFreqStats",
    "/machine.MachineService/CPUInfo",
    "/machine.MachineService/NetworkDeviceStats",
    "/machine.MachineService/DiskStats",
    "/machine.MachineService/Processes",
    "/machine.MachineService/ServiceList",
];

/// The watches: namespace, type, and the id if it is of one resource.
const WATCHES: [(&str, &str, Option<&str>); 20] = [
    (
        "runtime",
        "MachineStatuses.runtime.talos.dev",
        Some("machine"),
    ),
    ("runtime", "SecurityStates.talos.dev", Some("securitystate")),
    (
        "config",
        "MachineTypes.config.talos.dev",
        Some("machine-type"),
    ),
    ("k8s", "KubeletSpecs.k8s.talos.dev", Some("kubelet")),
    ("k8s", "KubeletStatuses.k8s.talos.dev", Some("kubelet")),
    (
        "network",
        "ResolverStatuses.net.talos.dev",
        Some("resolvers"),
    ),
    (
        "network",
        "TimeServerStatuses.net.talos.dev",
        Some("timeservers"),
    ),
    (
        "hardware",
        "SystemInformations.hardware.talos.dev",
        Some("systeminformation"),
    ),
    ("cluster", "Infos.cluster.talos.dev", Some("current")),
    ("network", "NetworkStatuses.net.talos.dev", Some("status")),
    (
        "network",
        "HostnameStatuses.net.talos.dev",
        Some("hostname"),
    ),
    ("runtime", "Versions.runtime.talos.dev", Some("version")),
    ("runtime", "MetaKeys.runtime.talos.dev", None),
    ("k8s", "StaticPodStatuses.k8s.talos.dev", None),
    ("network", "RouteStatuses.net.talos.dev", None),
    ("network", "LinkStatuses.net.talos.dev", None),
    ("cluster", "Members.cluster.talos.dev", None),
    ("network", "NodeAddresses.net.talos.dev", None),
    (
        "siderolink",
        "SiderolinkStatuses.siderolink.talos.dev",
        None,
    ),
    ("runtime", "Diagnostics.runtime.talos.dev", None),
];

impl Talosctl<'_> {
    /// Runs one round of the dashboard. A missing value, which the client would show as empty, is an error here.
    pub(super) async fn dashboard(&self, screen: &mut Screen) -> Step {
        if self.session.release == Release::V1_13 {
            let version = "/machine.MachineService/Version";
            let version = self.session.element(version, Fields::none()).await?;
            let metadata = version.message_of(1).unwrap_or_default();
            if metadata.text_of(1).is_empty() {
                let why = "returned no IP in version response";
                return Err(Stop::Failed(why.to_owned()));
            }
        }
        for method in POLLS {
            let element = self.session.element(method, Fields::none()).await?;
            screen.line(&format!("{method} {}", polled(method, &element)))?;
        }
        let asked = Fields::none().number(1, 1);
        let mut log = self
            .session
            .naming_one()
            .stream("/machine.MachineService/Dmesg", asked)
            .await?;
        if log.next().await?.is_none() {
            return Err(Stop::Failed("the kernel's log ended".to_owned()));
        }
        for (namespace, kind, id) in WATCHES {
            match self.watched_at_first(namespace, kind, id).await {
                Ok(specs) => screen.line(&format!("{kind} {}", shown(kind, &specs)))?,
                Err(status) if status.code() == Code::PermissionDenied => {
                    screen.complain(&format!("skipped: {kind}"));
                }
                Err(status) => return Err(status.into()),
            }
        }
        Ok(())
    }
}

/// Returns a figure or a name of each page.
fn polled(method: &str, element: &Fields) -> String {
    let listed = |field: u32, of: fn(&Fields) -> String| {
        let all: Vec<String> = element.messages_of(field).iter().map(of).collect();
        all.join(" ")
    };
    match method.rsplit('/').next().unwrap_or_default() {
        "LoadAvg" => format!("{:.2}", element.double_of(2)),
        "Memory" => {
            let info = element.message_of(2).unwrap_or_default();
            format!("{} of {} KiB", info.number_of(3), info.number_of(1))
        }
        "SystemStat" => {
            let all = element.message_of(3).unwrap_or_default();
            let busy = all.double_of(1) + all.double_of(3);
            format!("since {} busy {}", element.number_of(2), busy > 0.0)
        }
        "CPUInfo" => listed(2, |cpu| format!("{} {}", cpu.number_of(1), cpu.text_of(2))),
        "NetworkDeviceStats" => listed(3, |link| {
            format!("{} {} {}", link.text_of(1), link.is(2), link.is(10))
        }),
        "DiskStats" => listed(3, |disk| {
            format!("{} {} {}", disk.text_of(1), disk.is(4), disk.is(8))
        }),
        "Processes" => listed(2, |process| process.text_of(8)),
        "ServiceList" => listed(2, |service| service.text_of(1)),
        _ => format!("{} frequencies", element.messages_of(2).len()),
    }
}

/// Returns the header's text for a resource.
fn shown(kind: &str, specs: &[Fields]) -> String {
    let first = specs.first().cloned().unwrap_or_default();
    let said = match kind.split('.').next().unwrap_or_default() {
        "MachineStatuses" => {
            let ready = first.message_of(2).unwrap_or_default().is(1);
            format!("stage {} ready {ready}", first.number_of(1))
        }
        "MachineTypes" => format!("type {}", first.number_of(1)),
        "HostnameStatuses" | "Versions" => first.text_of(1),
        "ResolverStatuses" => format!("{:?}", first.message_of(1).unwrap_or_default().bytes_of(1)),
        "SystemInformations" => first.text_of(1),
        "Members" => first.text_of(3),
        "NetworkStatuses" => format!("connected {}", first.is(2)),
        _ => String::new(),
    };
    format!("{} {said}", specs.len())
}
