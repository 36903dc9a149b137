//! Kubernetes on the machine.

use instar_extension::Pattern;
use instar_values::quantity;
use std::{collections::BTreeMap, fmt, net::IpAddr, str::FromStr, time::Duration};

use super::{
    AbsolutePath, Cidr, ClientIdentity, Container, ContainerHealth, ContainerName,
    ContainerNetwork, DependsOn, Digest, EndpointUrl, ImageReference, Manifest, Mount, MountOption,
    MountSource, PublicKey, Secret, Security, SecurityProfile, SubnetRule, UpgradeStrategy,
    VolumeName, Window,
};

/// A machine that is a node of a Kubernetes cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct Kubernetes {
    /// The image with the programs and kernel modules that kubelet and containerd need, and with the program that starts them.
    pub image: ImageReference,
    /// The extensions that bring kubelet and containerd, in the order of their names.
    pub extensions: Vec<Extension>,
    /// The time within which the node has to be ready with other extensions; after that, those of before come back.
    pub ready_within: Duration,
    /// The cluster that the node joins.
    pub cluster: Cluster,
    /// The node's own settings.
    pub node: NodeSettings,
    /// The control plane of the cluster, if it runs on this machine.
    pub control_plane: Option<Box<ControlPlane>>,
    /// The port of the machine's loopback at which pods find the cluster's API (KubePrism); `None` if the config asks for none.
    pub prism: Option<u16>,
}

impl Kubernetes {
    /// The name of the container that Kubernetes runs in.
    pub const CONTAINER: &str = "kubernetes";
    /// The directory of all that Kubernetes has on the machine.
    pub const HOME: &str = "/var/lib/instar/kubernetes";
    /// The machine's store of images, where each extension is unpacked.
    pub const IMAGES: &str = "/var/lib/instar/images";

    /// The mounts of the container: source and destination.
    const MOUNTS: [(&str, &str, MountOption); 5] = [
        (
            "/var/lib/instar/kubernetes/var",
            "/var",
            MountOption::ReadWrite,
        ),
        // Behind the one of /var, in which it is. A volume has the same path for pods as for the machine. Always there: a container whose
        // mounts change starts again, with its pods.
        (
            VolumeName::DIRECTORY,
            VolumeName::DIRECTORY,
            MountOption::ReadWrite,
        ),
        (
            "/var/lib/instar/kubernetes/etc",
            "/etc/kubernetes",
            MountOption::ReadWrite,
        ),
        (
            "/var/lib/instar/kubernetes/control",
            "/instar",
            MountOption::ReadWrite,
        ),
        (Self::IMAGES, "/instar/images", MountOption::ReadOnly),
    ];

    /// The container that Kubernetes runs in. Only its image decides whether it has to be made anew: extensions and settings change within.
    ///
    /// # Errors
    /// A constant of this file is wrong.
    pub fn container(&self) -> Option<Container> {
        let path = |text: &str| text.parse::<AbsolutePath>().ok();
        let mut mounts = Vec::new();
        for (source, destination, option) in Self::MOUNTS {
            mounts.push(Mount {
                source: MountSource::HostPath(path(source)?),
                destination: path(destination)?,
                options: vec![option],
            });
        }
        for memory in ["/run", "/tmp"] {
            mounts.push(Mount {
                source: MountSource::Tmpfs { size: None },
                destination: path(memory)?,
                options: Vec::new(),
            });
        }
        Some(Container {
            name: Self::CONTAINER.parse::<ContainerName>().ok()?,
            image: self.image.clone(),
            entrypoint: None,
            args: None,
            working_dir: None,
            uid: None,
            gid: None,
            environment: Vec::new(),
            mounts,
            security: Security {
                profile: SecurityProfile::Node,
                ..Security::default()
            },
            network: ContainerNetwork::Host,
            cpu_limit: None,
            memory_limit: None,
            depends_on: DependsOn::default(),
            health: None::<ContainerHealth>,
            stop_timeout: Container::STOP_TIMEOUT + self.node.shutdown_period(),
            upgrade_strategy: UpgradeStrategy::Keep,
            updates: None,
        })
    }
}

/// A system extension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extension {
    /// Its name, the same as in its release file.
    pub name: String,
    /// Where it comes from.
    pub source: ExtensionSource,
}

/// The source of an extension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExtensionSource {
    /// An image whose files are the extension.
    Image(ImageReference),
    /// A squashfs with the files of the extension, as sysexts are published.
    File(ExtensionFile),
    /// The newest of a publisher's files.
    Published(PublishedExtension),
}

impl fmt::Display for ExtensionSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Image(image) => image.fmt(f),
            Self::File(file) => file.url.fmt(f),
            Self::Published(published) => {
                write!(f, "{}/{}", published.folder, published.pattern)
            }
        }
    }
}

/// The file of an extension at a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtensionFile {
    /// Its address.
    pub url: EndpointUrl,
    /// Its digest: what the server gives is believed by this alone.
    pub sha256: Digest,
}

/// The files of an extension at a publisher. The newest one that matches is taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedExtension {
    /// The folder of the files and of their list, `SHA256SUMS`.
    pub folder: EndpointUrl,
    /// The names of files that are taken: `kubernetes-v1.36.@v-%a.raw`.
    pub pattern: Pattern,
    /// The key that signs the list, in `SHA256SUMS.sig`.
    pub key: PublicKey,
    /// The interval between two looks at the list.
    pub interval: Duration,
    /// When another file may take the place of one that runs; `None`: at any time.
    pub window: Option<Window>,
}

/// A cluster as a node sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// The API of its control plane, as this node reaches it: on the machine of the control plane at its own loopback.
    pub endpoint: EndpointUrl,
    /// The certificates of its authorities, PEM.
    pub authorities: String,
    /// The token that a node without a certificate joins with.
    pub token: Secret,
    /// The domain of its services.
    pub domain: String,
    /// The servers of that domain.
    pub dns: Vec<IpAddr>,
}

/// The control plane of a cluster of which it is the only one.
#[derive(Debug, Clone, PartialEq)]
pub struct ControlPlane {
    /// The cluster's name in kubeconfigs.
    pub cluster_name: String,
    /// The API, as users and other nodes reach it.
    pub endpoint: EndpointUrl,
    /// The port that the API server listens at.
    pub port: u16,
    /// The keys from which all certificates of the cluster are made.
    pub keys: ClusterKeys,
    /// The address that tokens of service accounts name as their issuer.
    pub token_issuer: String,
    /// The subnets of pods.
    pub pod_subnets: Vec<Cidr>,
    /// The subnets of services.
    pub service_subnets: Vec<Cidr>,
    /// How the API server encrypts what etcd stores (an `EncryptionConfiguration`).
    pub encryption: Option<Secret>,
    /// The API server.
    pub api_server: Component,
    /// More addresses and names for the certificate of the API server.
    pub names: Vec<String>,
    /// Configurations of admission plugins, by the names of the plugins.
    pub admission: BTreeMap<String, serde_json::Value>,
    /// The requests that the API server writes to its audit log (a `Policy`).
    pub audit_policy: Option<serde_json::Value>,
    /// The controller manager.
    pub controller_manager: Component,
    /// The scheduler.
    pub scheduler: Component,
    /// etcd.
    pub etcd: Component,
    /// kube-proxy; `None` if the config turns it off.
    pub proxy: Option<Component>,
    /// The image of CoreDNS; `None` if the config turns it off.
    pub core_dns: Option<ImageReference>,
    /// Whether the config names that image. Only then does CoreDNS take the place of a DNS that the cluster has from somebody else.
    pub core_dns_is_named: bool,
    /// Objects that the cluster has by the config, in its order.
    pub manifests: Vec<Manifest>,
}

/// The keys of a cluster. They are the config's own: a machine that is installed anew is the same cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterKeys {
    /// The authority of the API, its clients and the nodes.
    pub cluster: ClientIdentity,
    /// The authority of etcd and its clients.
    pub etcd: ClientIdentity,
    /// The authority by which extensions of the API recognize the API server.
    pub aggregator: ClientIdentity,
    /// The key that signs tokens of service accounts, PEM.
    pub service_accounts: Secret,
}

/// A program of the control plane.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Component {
    /// The image that the config names.
    pub image: Option<ImageReference>,
    /// Options of its command line, without the dashes, over the machine's own.
    pub arguments: BTreeMap<String, Vec<String>>,
}

/// Settings of a node.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct NodeSettings {
    /// Labels that the node has.
    pub labels: BTreeMap<String, String>,
    /// Annotations that the node has.
    pub annotations: BTreeMap<String, String>,
    /// Taints that the node registers with.
    pub taints: BTreeMap<String, Taint>,
    /// Fields of kubelet's configuration that take precedence over the machine's own.
    pub kubelet_config: serde_json::Map<String, serde_json::Value>,
    /// Options of kubelet's command line, without the dashes; an option may be given several times.
    pub kubelet_arguments: BTreeMap<String, Vec<String>>,
    /// Whether containers without a seccomp profile of their own get the runtime's.
    pub default_seccomp: bool,
    /// The rules by which its addresses are chosen; without any, kubelet takes that of the default route.
    pub address_rules: Vec<SubnetRule>,
}

/// kubelet's times for pods at a shutdown of the node: the fields of its configuration.
const SHUTDOWN: (&str, &str, &str) = (
    "shutdownGracePeriod",
    "shutdownGracePeriodCriticalPods",
    "shutdownGracePeriodByPodPriority",
);

/// The option by which the config itself names the node to kubelet.
const OWN_NAME: &str = "hostname-override";

impl NodeSettings {
    /// The name of the node that the config gives kubelet, whatever the machine is called; as kubelet takes it.
    #[must_use]
    pub fn own_name(&self) -> Option<String> {
        let name = self.kubelet_arguments.get(OWN_NAME)?.last()?.to_lowercase();
        (!name.is_empty()).then_some(name)
    }

    /// The longest time that kubelet may have to end pods: the machine's services wait for it.
    pub const LONGEST_SHUTDOWN: Duration = Duration::from_secs(600);

    /// The fields of kubelet's configuration about a shutdown that apply unless the config has one of them: those of Talos.
    #[must_use]
    pub fn usual_shutdown(&self) -> Vec<(&'static str, &'static str)> {
        let (all, critical, by_priority) = SHUTDOWN;
        let is_named = |field| self.kubelet_config.contains_key(field);
        if [all, critical, by_priority].into_iter().any(is_named) {
            return Vec::new();
        }
        vec![(all, "30s"), (critical, "10s")]
    }

    /// The time that kubelet has to end pods at a shutdown. Values that kubelet will refuse count as none.
    #[must_use]
    pub fn shutdown_period(&self) -> Duration {
        let (all, _, by_priority) = SHUTDOWN;
        let usual = self.usual_shutdown();
        let usual = usual.into_iter().find(|(field, _)| *field == all);
        let text = match usual {
            Some((_, text)) => Some(text),
            None => self.kubelet_config.get(all).and_then(|it| it.as_str()),
        };
        let period = text.and_then(quantity::duration).unwrap_or_default();
        let classes = self.kubelet_config.get(by_priority);
        let classes = classes.and_then(|it| it.as_array()).into_iter().flatten();
        let seconds = classes.filter_map(|class| class.get("shutdownGracePeriodSeconds")?.as_u64());
        let by_priority = Duration::from_secs(seconds.fold(0, u64::saturating_add));
        period.max(by_priority).min(Self::LONGEST_SHUTDOWN)
    }
}

/// The value and the effect of a taint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taint {
    /// Its value; may be empty.
    pub value: String,
    /// Its effect on pods that do not tolerate it.
    pub effect: TaintEffect,
}

/// The effect of a taint on pods that do not tolerate it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaintEffect {
    /// New pods do not come.
    NoSchedule,
    /// New pods come if there is no better node.
    PreferNoSchedule,
    /// Pods that are here go.
    NoExecute,
}

impl TaintEffect {
    const WORDS: [(&str, TaintEffect); 3] = [
        ("NoSchedule", Self::NoSchedule),
        ("PreferNoSchedule", Self::PreferNoSchedule),
        ("NoExecute", Self::NoExecute),
    ];
}

impl fmt::Display for TaintEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = Self::WORDS.iter().find(|(_, effect)| effect == self);
        f.write_str(word.map_or("", |(word, _)| word))
    }
}

/// Why a text is not a taint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "write a taint as `VALUE:EFFECT` or `EFFECT`, with the effect `NoSchedule`, `PreferNoSchedule` or `NoExecute`"
)]
pub struct NotATaint;

/// `VALUE:EFFECT` or `EFFECT`, as in the machine config.
impl FromStr for Taint {
    type Err = NotATaint;

    fn from_str(text: &str) -> Result<Self, NotATaint> {
        let (value, effect) = text.rsplit_once(':').unwrap_or(("", text));
        let known = TaintEffect::WORDS.iter().find(|(word, _)| *word == effect);
        Ok(Self {
            value: value.to_owned(),
            effect: known.ok_or(NotATaint)?.1,
        })
    }
}
