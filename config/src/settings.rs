//! **The table of settings**: the name of each part of the machine config, the paths that it is read from, and when a change of it takes
//! effect.
//!
//! Warnings of settings that are not served, the comparison of two configs, the work at a boot and at a change, and the table in
//! docs/machine-config.md all follow from it: serving another setting begins with its row here.

use super::MachineConfig;

/// A part of the machine config that takes effect as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Setting {
    /// Whether the machine holds the authority's key.
    MachineType,
    /// The authorities that the API trusts, and its own identity.
    Trust,
    /// How a machine without the authority's key gets a certificate from one that has it.
    WorkerCertificates,
    /// The host name.
    Hostname,
    /// The disk that the machine owns.
    Disk,
    /// Containers, their health checks, and their upgrade strategies.
    Containers,
    /// The conditions for keeping a new version.
    UpgradeGate,
    /// The keys for root filesystems of upgrades.
    UpgradeTrust,
    /// Directories for data of containers.
    UserVolumes,
    /// The sources of the time.
    Time,
    /// The sources of images.
    Registries,
    /// Authorities for verifying registries.
    TrustedRoots,
    /// The images that may be used, and the signatures that they need.
    ImageVerification,
    /// Bundles of images.
    Bundles,
    /// Images that are fetched ahead and kept.
    ImagePins,
    /// The channel that the machine follows.
    UpgradeFollow,
    /// The cluster that the machine is a node of.
    Kubernetes,
    /// Extensions of the machine itself.
    OsExtensions,
    /// Links, addresses, routes, DNS.
    Network,
    /// Kernel parameters below /proc/sys.
    Sysctls,
    /// Kernel parameters below /sys.
    Sysfs,
    /// Kernel modules.
    KernelModules,
    /// Environment variables of services, and the proxies that images are pulled through.
    Environment,
    /// Files below /etc.
    EtcFiles,
    /// The receivers of logs.
    LogForwarding,
    /// Where metrics are served.
    Metrics,
}

/// A step that applies one or more settings, at a boot and at a change. Steps run in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Host name, links, addresses, routes, DNS.
    Network,
    /// Modules and parameters of the kernel.
    Kernel,
    /// Files below /etc.
    EtcFiles,
    /// The clock.
    Clock,
    /// Directories on /var.
    Volumes,
}

/// When a change of a setting takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakenOver {
    /// At once: this step applies it.
    ByStep(Step),
    /// At once: this step applies it. That a config no longer has it takes effect at the next boot.
    UntilRemoved(Step),
    /// At once: it is read from the config in force at each use.
    AtUse,
    /// At once: containers that differ are started or stopped.
    ByContainers,
    /// At once; all containers are restarted.
    WithContainers,
    /// At the next boot.
    AtBoot,
}

impl TakenOver {
    /// The step that applies the setting.
    pub fn step(self) -> Option<Step> {
        match self {
            TakenOver::ByStep(step) | TakenOver::UntilRemoved(step) => Some(step),
            TakenOver::AtUse
            | TakenOver::ByContainers
            | TakenOver::WithContainers
            | TakenOver::AtBoot => None,
        }
    }

    /// The words for the docs.
    #[cfg(test)]
    fn words(self) -> &'static str {
        match self {
            TakenOver::UntilRemoved(_) => "at once; its removal with a boot",
            TakenOver::ByStep(_) | TakenOver::AtUse | TakenOver::ByContainers => "at once",
            TakenOver::WithContainers => "at once; containers start again",
            TakenOver::AtBoot => "with a boot",
        }
    }
}

/// A row of the table.
#[derive(Debug)]
pub struct Row {
    /// The setting.
    pub setting: Setting,
    /// Its name in messages.
    pub name: &'static str,
    /// When a change of it takes effect.
    pub taken_over: TakenOver,
    /// The paths that it is read from, with everything below them. The name of a kind is the whole document.
    pub served: &'static [&'static str],
    /// Paths below those that are ignored.
    pub except: &'static [&'static str],
}

impl Row {
    /// Whether a change of this setting to that of `new` takes effect only at the next boot.
    pub fn needs_boot(&self, new: &MachineConfig) -> bool {
        match self.taken_over {
            TakenOver::AtBoot => true,
            TakenOver::UntilRemoved(_) => self.is_absent(new),
            TakenOver::ByStep(_)
            | TakenOver::AtUse
            | TakenOver::ByContainers
            | TakenOver::WithContainers => false,
        }
    }

    /// Whether the config has nothing of a setting that can be taken out as a whole.
    fn is_absent(&self, config: &MachineConfig) -> bool {
        self.setting == Setting::Kubernetes && config.kubernetes.is_none()
    }

    fn is_in_force(&self, runs_kubernetes: bool) -> bool {
        runs_kubernetes || self.setting != Setting::Kubernetes
    }
}

/// Every setting, in the order of the docs.
pub const SETTINGS: [Row; 26] = [
    Row {
        setting: Setting::MachineType,
        name: "the machine's type",
        taken_over: TakenOver::AtBoot,
        served: &["machine.type"],
        except: &[],
    },
    Row {
        setting: Setting::Trust,
        name: "the API's trust",
        taken_over: TakenOver::AtUse,
        served: &["machine.ca", "machine.acceptedCAs", "machine.certSANs"],
        except: &[],
    },
    Row {
        setting: Setting::WorkerCertificates,
        name: "certificates of workers",
        taken_over: TakenOver::AtUse,
        served: &[
            "machine.token",
            "cluster.controlPlane.endpoint",
            "KubeClusterConfig.endpoint",
        ],
        except: &[],
    },
    Row {
        setting: Setting::Hostname,
        name: "the host name",
        taken_over: TakenOver::ByStep(Step::Network),
        served: &["machine.network.hostname", "HostnameConfig"],
        except: &[],
    },
    Row {
        setting: Setting::Disk,
        name: "the disk",
        taken_over: TakenOver::AtBoot,
        served: &[
            "machine.install.disk",
            "machine.install.diskSelector",
            "machine.install.image",
            "machine.install.wipe",
            "UnattendedInstallConfig",
        ],
        except: &[],
    },
    Row {
        setting: Setting::Containers,
        name: "containers",
        taken_over: TakenOver::ByContainers,
        served: &[
            "ContainerConfig",
            "ContainerHealthConfig",
            "ContainerStopConfig",
            "ContainerUpdateConfig",
            "ContainerUpgradeConfig",
        ],
        except: &["ContainerConfig.security.machinedAccess"],
    },
    Row {
        setting: Setting::UpgradeGate,
        name: "the upgrade gate",
        taken_over: TakenOver::AtUse,
        served: &["UpgradeGateConfig"],
        except: &[],
    },
    Row {
        setting: Setting::UpgradeTrust,
        name: "the upgrade trust",
        taken_over: TakenOver::AtUse,
        served: &["UpgradeTrustConfig"],
        except: &[],
    },
    Row {
        setting: Setting::UserVolumes,
        name: "user volumes",
        taken_over: TakenOver::ByStep(Step::Volumes),
        served: &["UserVolumeConfig.name", "UserVolumeConfig.volumeType"],
        except: &[],
    },
    Row {
        setting: Setting::Time,
        name: "time",
        taken_over: TakenOver::ByStep(Step::Clock),
        served: &[
            "machine.time",
            "TimeSyncConfig.enabled",
            "TimeSyncConfig.ntp.servers",
        ],
        except: &["machine.time.bootTimeout"],
    },
    Row {
        setting: Setting::Registries,
        name: "registries",
        taken_over: TakenOver::AtUse,
        served: &[
            "machine.registries",
            "RegistryMirrorConfig",
            "RegistryTLSConfig",
            "RegistryAuthConfig",
        ],
        except: &[],
    },
    Row {
        setting: Setting::TrustedRoots,
        name: "trusted roots",
        taken_over: TakenOver::AtUse,
        served: &["TrustedRootsConfig"],
        except: &[],
    },
    Row {
        setting: Setting::ImageVerification,
        name: "the verification of images",
        taken_over: TakenOver::AtUse,
        served: &["ImageVerificationConfig"],
        except: &[],
    },
    Row {
        setting: Setting::Bundles,
        name: "bundles of images",
        taken_over: TakenOver::AtUse,
        served: &["BundleConfig"],
        except: &[],
    },
    Row {
        setting: Setting::ImagePins,
        name: "pinned images",
        taken_over: TakenOver::AtUse,
        served: &["ImagePinConfig"],
        except: &[],
    },
    Row {
        setting: Setting::UpgradeFollow,
        name: "the channel that the machine follows",
        taken_over: TakenOver::AtUse,
        served: &["UpgradeFollowConfig"],
        except: &[],
    },
    Row {
        setting: Setting::OsExtensions,
        name: "extensions of the machine itself",
        taken_over: TakenOver::AtUse,
        served: &["ExtensionConfig"],
        except: &[],
    },
    Row {
        setting: Setting::Kubernetes,
        name: "Kubernetes",
        // Pods leave links, addresses and rules for packets in the machine's network, which only a reboot removes for certain.
        taken_over: TakenOver::UntilRemoved(Step::Volumes),
        served: &[
            "KubernetesConfig",
            "ExtensionConfig",
            "machine.kubelet.clusterDNS",
            "machine.kubelet.extraArgs",
            "machine.kubelet.extraConfig",
            "machine.kubelet.defaultRuntimeSeccompProfileEnabled",
            "machine.kubelet.nodeIP",
            "machine.nodeLabels",
            "machine.nodeAnnotations",
            "machine.nodeTaints",
            "cluster.controlPlane.endpoint",
            "cluster.network.dnsDomain",
            "cluster.network.serviceSubnets",
            "cluster.token",
            "cluster.ca.crt",
            "cluster.acceptedCAs",
            "cluster.ca.key",
            "cluster.clusterName",
            "cluster.controlPlane.localAPIServerPort",
            "cluster.network.podSubnets",
            "cluster.aescbcEncryptionSecret",
            "cluster.secretboxEncryptionSecret",
            "cluster.aggregatorCA",
            "cluster.serviceAccount",
            "cluster.apiServer.image",
            "cluster.apiServer.extraArgs",
            "cluster.apiServer.certSANs",
            "cluster.apiServer.admissionControl",
            "cluster.apiServer.auditPolicy",
            "cluster.controllerManager.image",
            "cluster.controllerManager.extraArgs",
            "cluster.scheduler.image",
            "cluster.scheduler.extraArgs",
            "cluster.proxy.disabled",
            "cluster.proxy.image",
            "cluster.proxy.extraArgs",
            "cluster.coreDNS",
            "cluster.inlineManifests",
            "cluster.etcd.image",
            "cluster.etcd.ca",
            "cluster.etcd.extraArgs",
            "cluster.allowSchedulingOnMasters",
            "cluster.allowSchedulingOnControlPlanes",
            "KubeAPIServerConfig.image",
            "KubeAPIServerConfig.extraArgs",
            "KubeAPIServerConfig.apiPort",
            "KubeAPIServerConfig.certExtraSANs",
            "KubeAdmissionControlConfig",
            "KubeAuditPolicyConfig",
            "KubeAggregatorCAConfig.issuingCA",
            "KubeServiceAccountConfig.issuer",
            "KubeEtcdEncryptionConfig",
            "KubeControllerManagerConfig.image",
            "KubeControllerManagerConfig.extraArgs",
            "KubeSchedulerConfig.image",
            "KubeSchedulerConfig.extraArgs",
            "KubeProxyConfig.enabled",
            "KubeProxyConfig.image",
            "KubeProxyConfig.extraArgs",
            "KubeCoreDNSConfig",
            "KubeInlineManifestConfig",
            "KubeClusterConfig.clusterName",
            "KubeNetworkConfig.podSubnets",
            "KubeletConfig.clusterDNS",
            "KubeletConfig.config",
            "KubeletConfig.extraArgs",
            "KubeletConfig.defaultRuntimeSeccompProfileEnabled",
            "KubeNodeConfig.nodeIP",
            "KubeNodeConfig.labels",
            "KubeNodeConfig.annotations",
            "KubeNodeConfig.taints",
            "KubeClusterConfig.endpoint",
            "KubeNetworkConfig.dnsDomain",
            "KubeNetworkConfig.serviceSubnets",
            "KubeAPIServerCAConfig",
            "machine.features.kubePrism",
            "KubePrismConfig.port",
        ],
        except: &[],
    },
    Row {
        setting: Setting::Network,
        name: "the network",
        taken_over: TakenOver::ByStep(Step::Network),
        served: &[
            "machine.network.interfaces.interface",
            "machine.network.interfaces.addresses",
            "machine.network.interfaces.cidr",
            "machine.network.interfaces.routes",
            "machine.network.interfaces.mtu",
            "machine.network.interfaces.dhcp",
            "machine.network.interfaces.dhcpOptions.routeMetric",
            "machine.network.interfaces.dhcpOptions.ipv4",
            "machine.network.nameservers",
            "machine.network.searchDomains",
            "machine.network.extraHostEntries",
            "LinkConfig",
            "DHCPv4Config.name",
            "DHCPv4Config.routeMetric",
            "DHCPv4Config.ignoreHostname",
            "DHCPv4Config.ignoreRoutes",
            "ResolverConfig.nameservers.address",
            "ResolverConfig.searchDomains.domains",
            "StaticHostConfig",
        ],
        except: &[
            "machine.network.interfaces.routes.mtu",
            "LinkConfig.addresses.routePriority",
            "LinkConfig.routes.mtu",
            "LinkConfig.routes.table",
            "LinkConfig.multicast",
        ],
    },
    Row {
        setting: Setting::Sysctls,
        name: "sysctls",
        taken_over: TakenOver::ByStep(Step::Kernel),
        served: &["machine.sysctls", "SysctlConfig"],
        except: &[],
    },
    Row {
        setting: Setting::Sysfs,
        name: "sysfs",
        taken_over: TakenOver::ByStep(Step::Kernel),
        served: &["machine.sysfs", "SysfsConfig"],
        except: &[],
    },
    Row {
        setting: Setting::KernelModules,
        name: "kernel modules",
        taken_over: TakenOver::ByStep(Step::Kernel),
        served: &["machine.kernel.modules", "KernelModuleConfig"],
        except: &[],
    },
    Row {
        setting: Setting::Environment,
        name: "the environment",
        taken_over: TakenOver::WithContainers,
        served: &["machine.env", "EnvironmentConfig"],
        except: &[],
    },
    Row {
        setting: Setting::EtcFiles,
        name: "files below /etc",
        taken_over: TakenOver::ByStep(Step::EtcFiles),
        served: &["EtcFileConfig"],
        except: &[],
    },
    Row {
        setting: Setting::LogForwarding,
        name: "forwarded logs",
        taken_over: TakenOver::AtUse,
        served: &["machine.logging", "KmsgLogConfig", "EventLogConfig"],
        except: &[],
    },
    Row {
        setting: Setting::Metrics,
        name: "metrics",
        taken_over: TakenOver::AtUse,
        served: &["MetricsConfig"],
        except: &[],
    },
];

/// The settings in which two configs differ, in the order of the table.
pub fn differing(old: &MachineConfig, new: &MachineConfig) -> Vec<&'static Row> {
    // Each field by name, so that a new one without a setting does not compile.
    let MachineConfig {
        machine_type,
        trust,
        token,
        control_plane_host,
        hostname,
        install,
        containers,
        upgrade_gate,
        upgrade_keys,
        user_volumes,
        time,
        registries,
        image_rules,
        bundles,
        image_pins,
        upgrade_follow,
        kubernetes,
        os_extensions,
        network,
        sysctls,
        sysfs,
        kernel_modules,
        environment,
        etc_files,
        trusted_roots,
        log_destinations,
        metrics,
    } = old;
    let differs = |row: &&Row| match row.setting {
        Setting::MachineType => *machine_type != new.machine_type,
        Setting::Trust => *trust != new.trust,
        Setting::WorkerCertificates => {
            (token, control_plane_host) != (&new.token, &new.control_plane_host)
        }
        Setting::Hostname => *hostname != new.hostname,
        Setting::Disk => *install != new.install,
        Setting::Containers => *containers != new.containers,
        Setting::UpgradeGate => *upgrade_gate != new.upgrade_gate,
        Setting::UpgradeTrust => *upgrade_keys != new.upgrade_keys,
        Setting::UserVolumes => *user_volumes != new.user_volumes,
        Setting::Time => *time != new.time,
        Setting::Registries => *registries != new.registries,
        Setting::TrustedRoots => *trusted_roots != new.trusted_roots,
        Setting::ImageVerification => *image_rules != new.image_rules,
        Setting::Bundles => *bundles != new.bundles,
        Setting::ImagePins => *image_pins != new.image_pins,
        Setting::UpgradeFollow => *upgrade_follow != new.upgrade_follow,
        Setting::Kubernetes => *kubernetes != new.kubernetes,
        Setting::OsExtensions => *os_extensions != new.os_extensions,
        Setting::Network => *network != new.network,
        Setting::Sysctls => *sysctls != new.sysctls,
        Setting::Sysfs => *sysfs != new.sysfs,
        Setting::KernelModules => *kernel_modules != new.kernel_modules,
        Setting::Environment => *environment != new.environment,
        Setting::EtcFiles => *etc_files != new.etc_files,
        Setting::LogForwarding => *log_destinations != new.log_destinations,
        Setting::Metrics => *metrics != new.metrics,
    };
    SETTINGS.iter().filter(differs).collect()
}

/// Whether a path of a config is served. Settings of Kubernetes are served where it runs.
pub(super) fn is_served(path: &str, runs_kubernetes: bool) -> bool {
    let within = |of: fn(&Row) -> &'static [&'static str]| {
        let rows = SETTINGS
            .iter()
            .filter(|row| row.is_in_force(runs_kubernetes));
        rows.flat_map(of).any(|row| {
            path.strip_prefix(row)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    };
    within(|row| row.served) && !within(|row| row.except)
}

/// Whether any part of a document of this kind is served.
pub(super) fn is_kind_served(kind: &str, runs_kubernetes: bool) -> bool {
    let rows = SETTINGS
        .iter()
        .filter(|row| row.is_in_force(runs_kubernetes));
    let mut paths = rows.flat_map(|row| row.served);
    paths.any(|path| path.split('.').next() == Some(kind))
}

/// The table of docs/machine-config.md.
#[cfg(test)]
fn as_markdown() -> String {
    let mut table = "| setting | a change is in force | in the large document | in documents of their own |\n| --- | --- | --- | --- |\n".to_owned();
    for row in &SETTINGS {
        let cells = |is_large: bool| cells(row.served, row.except, is_large);
        let (large, own) = (cells(true), cells(false));
        let mut begin = (row.name, row.taken_over.words());
        for line in 0..large.len().max(own.len()) {
            let of = |cells: &[String]| cells.get(line).cloned().unwrap_or_default();
            let (name, when) = std::mem::take(&mut begin);
            table += &format!("| {name} | {when} | {} | {} |\n", of(&large), of(&own));
        }
    }
    table
}

/// Limit on the characters of a cell: three lines of a table. A setting with more paths goes on in the next row.
#[cfg(test)]
const LONGEST_CELL: usize = 300;

#[cfg(test)]
fn is_in_large(path: &str) -> bool {
    path.starts_with("machine.") || path.starts_with("cluster.")
}

/// The cells with the paths of one of the two shapes. Fields of the same map or kind are joined: `LinkConfig` but `multicast`, `routes.mtu`.
#[cfg(test)]
fn cells(served: &[&str], except: &[&str], is_large: bool) -> Vec<String> {
    use std::collections::BTreeMap;
    let parts = |path: &str| -> (String, String) {
        // `machine.network` and the rest, or the kind and the rest.
        let depth = if is_large { 2 } else { 1 };
        let mut parts = path.splitn(depth + 1, '.');
        let root: Vec<&str> = parts.by_ref().take(depth).collect();
        (root.join("."), parts.collect())
    };
    let mut roots: BTreeMap<String, (Vec<String>, Vec<String>)> = BTreeMap::new();
    let mut order = Vec::new();
    for (paths, are_exceptions) in [(served, false), (except, true)] {
        for path in paths.iter().filter(|path| is_in_large(path) == is_large) {
            let (root, rest) = parts(path);
            let (fields, exceptions) = roots.entry(root.clone()).or_default();
            match are_exceptions {
                true => exceptions.push(format!("`{rest}`")),
                false if rest.is_empty() => {}
                false => fields.push(format!("`{rest}`")),
            }
            if !order.contains(&root) {
                order.push(root);
            }
        }
    }
    let parts = order.iter().map(|root| {
        let (fields, exceptions) = &roots[root];
        let mut part = format!("`{root}`");
        if !fields.is_empty() {
            part += &format!(": {}", fields.join(", "));
        }
        if !exceptions.is_empty() {
            part += &format!("; not {}", exceptions.join(", "));
        }
        part
    });
    let mut cells: Vec<String> = Vec::new();
    for part in parts {
        match cells.last_mut() {
            Some(cell) if cell.len() + "<br>".len() + part.len() <= LONGEST_CELL => {
                *cell += &format!("<br>{part}");
            }
            _ => cells.push(part),
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_setting_has_one_row() {
        for (i, row) in SETTINGS.iter().enumerate() {
            assert!(SETTINGS[..i].iter().all(|it| it.setting != row.setting));
            assert!(!row.served.is_empty(), "{}", row.name);
        }
    }

    #[test]
    fn what_only_a_boot_removes_can_be_absent() {
        let text = include_bytes!("../tests/data/served-1.14.yaml");
        let without = crate::parse(text).unwrap().config;
        for row in &SETTINGS {
            let is_of_removal = matches!(row.taken_over, TakenOver::UntilRemoved(_));
            assert_eq!(row.is_absent(&without), is_of_removal, "{}", row.name);
            let needs_boot = is_of_removal || row.taken_over == TakenOver::AtBoot;
            assert_eq!(row.needs_boot(&without), needs_boot, "{}", row.name);
        }
    }

    #[test]
    fn a_path_covers_those_below_it_and_no_others() {
        assert!(is_served("HostnameConfig.hostname", false));
        assert!(is_served("machine.ca.key", false));
        assert!(!is_served("machine.caX", false));
        assert!(!is_served("machine.kubelet.image", false));
        assert!(!is_served("LinkConfig.multicast", false));
        assert!(is_kind_served("ResolverConfig", false));
        assert!(!is_kind_served("KubeletConfig", false));
        assert!(is_kind_served("KubeletConfig", true));
        assert!(!is_served("KubeletConfig.image", true));
    }

    /// `INSTAR_BLESS=1 cargo test -p instar-config the_docs_have_this_table` writes the table to the docs.
    #[test]
    fn the_docs_have_this_table() {
        const BEGIN: &str = "<!-- settings: written from config/src/settings.rs -->\n";
        const END: &str = "<!-- end of settings -->\n";
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/machine-config.md");
        let text = std::fs::read_to_string(path).unwrap();
        let (before, rest) = text.split_once(BEGIN).unwrap();
        let (table, after) = rest.split_once(END).unwrap();
        if std::env::var_os("INSTAR_BLESS").is_some() {
            let new = format!("{before}{BEGIN}{}{END}{after}", as_markdown());
            return std::fs::write(path, new).unwrap();
        }
        assert_eq!(
            table,
            as_markdown(),
            "docs/machine-config.md is older than the table; INSTAR_BLESS=1 renews it"
        );
    }
}
