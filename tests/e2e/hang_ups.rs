//! Calls that change the machine, whose callers hang up: the machine is as it was before the call, or as it is after it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use instar_api::FILE_DESCRIPTOR_SET;
use instar_api::cosi::resource::GetRequest;
use instar_api::cosi::resource::state_client::StateClient;
use instar_api::machine as wire;
use instar_api::machine::apply_configuration_request::Mode;
use instar_api::machine::image_service_client::ImageServiceClient;
use instar_api::machine::machine_service_client::MachineServiceClient;
use instar_qemu::{DiskFormat, Drive, VmSpec, create_blank_disk};
use instar_tests::{
    GREETER, HangUp, Identity, ImageUnderTest, ImpatientCaller, Instarctl, MachineConfig, Node,
    OciImage, Outcome, Registry, Scratch, Test, push_greeter, tests, uefi,
};
use prost::Message;
use prost_types::FileDescriptorSet;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::PATIENCE;
use crate::installed::INSTALLER;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        leave_the_machine_as_before_or_as_after,
        every_method_is_walked_or_changes_nothing,
    ]
}

/// Disconnects in the walk.
const HANG_UPS: usize = 100;
/// Until nothing runs any more, whatever was hung up on. An upgrade with a boot is the longest, on a host that runs three others.
const LIMIT: Duration = Duration::from_secs(600);
/// The second container's port, and how many seconds it takes to stop.
const SLOW_PORT: u16 = 8086;
pub(crate) const SLOW: &str = "slow";

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

/// Those that look, and those that this version refuses.
const CHANGE_NOTHING: &[&str] = &[
    "machine.MachineService/Bootstrap",
    "machine.MachineService/Containers",
    "machine.MachineService/Copy",
    "machine.MachineService/CPUFreqStats",
    "machine.MachineService/CPUInfo",
    "machine.MachineService/DiskStats",
    "machine.MachineService/DiskUsage",
    "machine.MachineService/Dmesg",
    "machine.MachineService/EtcdMemberList",
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
    "machine.StorageService/Statfs",
    "storage.StorageService/Disks",
    "time.TimeService/Time",
    "time.TimeService/TimeCheck",
    "cluster.ClusterService/HealthCheck",
    "inspect.InspectService/ControllerRuntimeDependencies",
    "instar.UpgradeService/Plan",
    "cosi.resource.State/Get",
    "cosi.resource.State/List",
    "cosi.resource.State/Watch",
    "cosi.resource.State/Create",
    "cosi.resource.State/Update",
    "cosi.resource.State/Destroy",
    "cosi.resource.State/Teardown",
    "cosi.resource.State/TeardownAndDestroy",
];

async fn every_method_is_walked_or_changes_nothing(_: Scratch) -> Outcome {
    let known: BTreeSet<&str> = WALKED.iter().chain(CHANGE_NOTHING).copied().collect();
    let mut methods = BTreeSet::new();
    for file in FileDescriptorSet::decode(FILE_DESCRIPTOR_SET)?.file {
        for service in &file.service {
            let names = service.method.iter().map(|method| method.name());
            methods
                .extend(names.map(|name| format!("{}.{}/{name}", file.package(), service.name())));
        }
    }
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

/// What a caller sees of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    version: String,
    kernel: String,
    /// The names of the configs: in force, and to outlast a trial.
    config: String,
    settled: String,
    /// Whether each container is up.
    services: BTreeMap<String, bool>,
    meta: Option<String>,
    images: BTreeSet<String>,
}

/// The node that is walked over.
struct Walk {
    node: Node,
    registry: Registry,
    random: fastrand::Rng,
    connection: Option<ImpatientCaller>,
    hung_up: usize,
    seen: Seen,
    /// What a boot may start with, beside what runs: it was staged, or may have been.
    staged_versions: BTreeSet<String>,
    staged_configs: BTreeSet<String>,
    /// Whether an image may come at any moment: a pull goes on beside everything else.
    is_pulling: bool,
}

/// One call.
struct Call {
    method: &'static str,
    message: Vec<u8>,
    /// The caller hangs up before that.
    within: Duration,
    /// The machine goes down for it.
    reboots: bool,
    after: Seen,
}

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Names of the two configs: `walk-a` has the greeter alone, `walk-b` the slow one as well.
fn config(identity: &Identity, host: &str, name: &str) -> String {
    let config = MachineConfig::new(identity)
        .hostname(name)
        .install_disk("/dev/vda")
        .registry(host)
        .greeter(host);
    match name {
        "walk-b" => slow(config, host, SLOW, 2).to_yaml(),
        _ => config.to_yaml(),
    }
}

/// A greeter that takes some seconds to stop.
pub(crate) fn slow(config: MachineConfig, host: &str, name: &str, seconds: u8) -> MachineConfig {
    config.container(
        name,
        &format!("{host}/greeter:v1"),
        &format!("args: [\"{SLOW_PORT}\", \"{seconds}\"]\nnetwork: {{mode: host}}\n"),
    )
}

impl Walk {
    async fn begin(scratch: &Scratch) -> anyhow::Result<Self> {
        let seed = match std::env::var("INSTAR_SEED") {
            Ok(seed) => seed.parse()?,
            Err(_) => fastrand::u64(..),
        };
        println!("seed: INSTAR_SEED={seed}");
        let registry = Registry::start(scratch)?;
        push_greeter(&registry)?;
        for image in [ImageUnderTest::first()?, ImageUnderTest::second()?] {
            registry.push_layout(&image.installer(), INSTALLER, image.version())?;
        }
        let pulled = OciImage::starting(&["/nothing"]).files(&[("nothing", &[7; 300_000])])?;
        pulled.push(&registry, "pulled", "v1")?;

        let (disk, spare) = (scratch.join("disk.img"), scratch.join("spare.img"));
        ImageUnderTest::first()?.put_on_disk(&disk, 2 << 30)?;
        create_blank_disk(&spare, DiskFormat::Raw, 64 << 20)?;
        let spec = VmSpec::uefi(uefi()?)
            .drive(Drive::raw(&disk))
            .drive(Drive::raw(&spare))
            .deadline(Duration::from_secs(2400));
        let identity = Identity::administrator()?;
        let host = registry.host_for_guest();
        let first = config(&identity, &host, "walk-a");
        let file = scratch.write("first.yaml", &first)?.display().to_string();
        let node = Node::plan_from(scratch, spec)
            .without_config(identity)
            .start()?;
        node.wait_for_line("no machine config: maintenance mode", LIMIT)?;
        node.wait_for_line("the API answers on port", LIMIT)?;
        let (client, address) = (Instarctl::of(&node, scratch)?, node.endpoint()?);
        let apply = ["apply-config", "--insecure", "-n", &address, "-f", &file];
        node.wait_until("it takes a config", PATIENCE, async || {
            let said = client.run(&apply).await?;
            ensure!(said.code == Some(0), "{said:?}");
            Ok(())
        })
        .await?;
        node.wait_until_ready(LIMIT).await?;
        let seen = look(&node).await?;
        Ok(Self {
            node,
            registry,
            random: fastrand::Rng::with_seed(seed),
            connection: None,
            hung_up: 0,
            seen,
            staged_versions: BTreeSet::new(),
            staged_configs: BTreeSet::new(),
            is_pulling: false,
        })
    }

    fn call(&self, method: &'static str, message: &impl Message, within: Duration) -> Call {
        Call {
            method,
            message: message.encode_to_vec(),
            within,
            reboots: false,
            after: self.seen.clone(),
        }
    }

    /// Hangs up on a call, and has the machine be as before, or as after it.
    async fn hang_up(&mut self, call: Call) -> Outcome {
        let how = match self.random.bool() {
            true => HangUp::Call,
            false => HangUp::Connection,
        };
        let moment = call.within.mul_f64(self.random.f64());
        let mut connection = match self.connection.take() {
            Some(connection) if connection.is_connected() => connection,
            _ => {
                let node = &self.node;
                node.wait_until("somebody connects", PATIENCE, async || {
                    ImpatientCaller::connect(node).await
                })
                .await?
            }
        };
        let method = format!("/{}", call.method);
        let answer = connection.call(&method, &call.message, moment, how).await?;
        let what = format!(
            "{} ({how:?} after {} ms): {answer:?}",
            call.method,
            moment.as_millis()
        );
        println!("{what}");
        match &answer {
            None => self.hung_up += 1,
            Some((Code::Internal | Code::Unknown, why)) => bail!("{}: {why}", call.method),
            Some(_) => {}
        }
        if !(answer.is_none() && how == HangUp::Connection) {
            self.connection = Some(connection);
        }
        // On its way to machined it may be as slow as what asks next.
        tokio::time::sleep(millis(300)).await;
        let (before, after) = (self.seen.clone(), call.after);
        let (versions, configs) = (&self.staged_versions, &self.staged_configs);
        let pulled = self.registry.image_for_guest("pulled:v1");
        self.is_pulling |= after.images.contains(&pulled) && !before.images.contains(&pulled);
        let (node, is_pulling) = (&self.node, self.is_pulling);
        let seen = node.wait_until("it is as before or as after", LIMIT, async || {
            is_free(&node.kept_channel().await?).await?;
            let seen = look(node).await?;
            let mut expected = [before.clone(), after.clone()];
            for expected in &mut expected {
                if is_pulling && seen.images.contains(&pulled) {
                    expected.images.insert(pulled.clone());
                }
                let is_other_kernel = call.reboots && seen.kernel != before.kernel;
                if is_other_kernel || seen.version != before.version {
                    expected.kernel.clone_from(&seen.kernel);
                    if versions.contains(&seen.version) {
                        expected.version.clone_from(&seen.version);
                    }
                    if configs.contains(&seen.config) && seen.config != expected.config {
                        *expected = of_config(expected.clone(), &seen.config);
                    }
                    // Whatever was stopped by hand is up after a boot.
                    for (name, up) in &mut expected.services {
                        *up = seen.services.get(name) == Some(&true);
                    }
                }
            }
            ensure!(
                expected.contains(&seen),
                "before: {before:#?}\nafter: {after:#?}\nnow: {seen:#?}"
            );
            Ok(seen)
        });
        self.seen = seen.await.with_context(|| what)?;
        Ok(())
    }

    /// A call that takes a moment or a few seconds, of those that leave the machine up.
    fn small_call(&mut self) -> Call {
        match self.random.u8(0..13) {
            0 | 1 => self.meta_write(),
            2 => self.meta_delete(),
            3 => self.greeter_stop(),
            4 | 5 => self.greeter_start(),
            6 => self.greeter_restart(),
            7 => self.container_restart(),
            8 | 9 => self.config_in_force(),
            10 => {
                let name = self.either_name();
                self.apply(name, Mode::Try, 3000)
            }
            11 => self.image_pull(),
            _ => self.image_remove(),
        }
    }

    fn meta_write(&mut self) -> Call {
        let value = format!("value-{}", self.random.u16(..));
        let request = wire::MetaWriteRequest {
            key: 10,
            value: value.clone().into_bytes(),
        };
        let mut call = self.call("machine.MachineService/MetaWrite", &request, millis(150));
        call.after.meta = Some(value);
        call
    }

    fn meta_delete(&self) -> Call {
        let request = wire::MetaDeleteRequest { key: 10 };
        let mut call = self.call("machine.MachineService/MetaDelete", &request, millis(150));
        call.after.meta = None;
        call
    }

    fn greeter_stop(&self) -> Call {
        let id = GREETER.to_owned();
        let request = wire::ServiceStopRequest { id };
        self.greeter_ends_up(false, "machine.MachineService/ServiceStop", &request, 1000)
    }

    fn greeter_start(&self) -> Call {
        let id = GREETER.to_owned();
        let request = wire::ServiceStartRequest { id };
        self.greeter_ends_up(true, "machine.MachineService/ServiceStart", &request, 100)
    }

    fn greeter_restart(&self) -> Call {
        let id = GREETER.to_owned();
        let request = wire::ServiceRestartRequest { id };
        self.greeter_ends_up(
            true,
            "machine.MachineService/ServiceRestart",
            &request,
            1500,
        )
    }

    fn container_restart(&self) -> Call {
        let request = wire::RestartRequest {
            namespace: "system".to_owned(),
            id: GREETER.to_owned(),
            ..Default::default()
        };
        self.greeter_ends_up(true, "machine.MachineService/Restart", &request, 1500)
    }

    fn greeter_ends_up(
        &self,
        up: bool,
        method: &'static str,
        request: &impl Message,
        within: u64,
    ) -> Call {
        let mut call = self.call(method, request, millis(within));
        call.after.services.insert(GREETER.to_owned(), up);
        call
    }

    fn config_in_force(&mut self) -> Call {
        let name = self.either_name();
        let mut call = self.apply(name, Mode::NoReboot, 3000);
        call.after = of_config(call.after, name);
        call
    }

    fn either_name(&mut self) -> &'static str {
        ["walk-a", "walk-b"][usize::from(self.random.bool())]
    }

    /// By the one or the other service.
    fn image_pull(&mut self) -> Call {
        let image = self.registry.image_for_guest("pulled:v1");
        let mut call = if self.random.bool() {
            let request = wire::ImagePullRequest {
                reference: image.clone(),
                ..Default::default()
            };
            self.call("machine.MachineService/ImagePull", &request, millis(600))
        } else {
            let request = wire::ImageServicePullRequest {
                image_ref: image.clone(),
                ..Default::default()
            };
            self.call("machine.ImageService/Pull", &request, millis(600))
        };
        call.after.images.insert(image);
        call
    }

    fn image_remove(&self) -> Call {
        let image = self.registry.image_for_guest("pulled:v1");
        let request = wire::ImageServiceRemoveRequest {
            image_ref: image.clone(),
            ..Default::default()
        };
        let mut call = self.call("machine.ImageService/Remove", &request, millis(150));
        call.after.images.remove(&image);
        call
    }

    fn apply(&self, name: &str, mode: Mode, within: u64) -> Call {
        let host = self.registry.host_for_guest();
        let request = wire::ApplyConfigurationRequest {
            data: config(self.node.identity(), &host, name).into_bytes(),
            mode: mode.into(),
            try_mode_timeout: Some(prost_types::Duration {
                seconds: 2,
                nanos: 0,
            }),
            ..Default::default()
        };
        let method = "machine.MachineService/ApplyConfiguration";
        self.call(method, &request, millis(within))
    }

    /// The installer's image of the version that does not run.
    fn other(&self) -> (String, String) {
        let other = match self.seen.version.as_str() {
            "v0.1.0" => "v0.2.0",
            _ => "v0.1.0",
        };
        let image = self
            .registry
            .image_for_guest(&format!("{INSTALLER}:{other}"));
        (other.to_owned(), image)
    }

    fn upgrade(&self, stage: bool, within: u64) -> Call {
        let (version, image) = self.other();
        let request = wire::UpgradeRequest {
            image,
            stage,
            preserve: true,
            ..Default::default()
        };
        let mut call = self.call("machine.MachineService/Upgrade", &request, millis(within));
        if !stage {
            call.after.version = version;
        }
        call
    }

    /// The config in force is the one on STATE, and every container is up.
    async fn settle(&mut self) -> Outcome {
        let name = self.seen.config.clone();
        let call = self.apply(&name, Mode::NoReboot, 0);
        let request = wire::ApplyConfigurationRequest::decode(call.message.as_slice())?;
        let mut machine = self.node.machine().await?;
        machine.apply_configuration(request).await?;
        let id = GREETER.to_owned();
        machine
            .service_start(wire::ServiceStartRequest { id })
            .await?;
        self.staged_configs.clear();
        self.is_pulling = false;
        self.node.wait_until_ready(PATIENCE).await?;
        let node = &self.node;
        self.seen = node
            .wait_until("all is up", PATIENCE, async || {
                let seen = look(node).await?;
                ensure!(seen.services.values().all(|up| *up), "{seen:?}");
                Ok(seen)
            })
            .await?;
        Ok(())
    }
}

/// With another config in force, and on STATE.
fn of_config(mut seen: Seen, name: &str) -> Seen {
    if seen.config != name {
        match name {
            "walk-b" => seen.services.insert(SLOW.to_owned(), true),
            _ => seen.services.remove(SLOW),
        };
    }
    seen.config = name.to_owned();
    seen.settled = name.to_owned();
    seen
}

/// Nothing changes the machine: what is not there can be removed only then.
pub(crate) async fn is_free(channel: &Channel) -> Outcome {
    let mut images = ImageServiceClient::new(channel.clone());
    let request = wire::ImageServiceRemoveRequest {
        image_ref: "nowhere.example/nothing:v1".to_owned(),
        ..Default::default()
    };
    match images.remove(request).await {
        Err(status) if status.code() == Code::NotFound => Ok(()),
        Err(status) => bail!("{status}"),
        Ok(_) => bail!("removed what is not there"),
    }
}

async fn look(node: &Node) -> anyhow::Result<Seen> {
    let channel = &node.kept_channel().await?;
    let mut machine = MachineServiceClient::new(channel.clone());
    let listed = machine.service_list(()).await?.into_inner();
    let mut services = BTreeMap::new();
    for service in listed.messages.into_iter().flat_map(|list| list.services) {
        if ["apid", "dashboard", "machined"].contains(&service.id.as_str()) {
            continue;
        }
        let health = service.health.unwrap_or_default();
        let up = match service.state.as_str() {
            "Running" if health.healthy || service.id == SLOW => true,
            "Finished" => false,
            state => bail!("{} is {state}: {health:?}", service.id),
        };
        services.insert(service.id, up);
    }
    let mut images = BTreeSet::new();
    let mut stream = machine
        .image_list(wire::ImageListRequest::default())
        .await?
        .into_inner();
    while let Some(image) = stream.message().await? {
        images.insert(image.name);
    }
    Ok(Seen {
        version: node.version().await?.tag,
        kernel: node.kernel_boot_id().await?,
        config: config_name(channel, "v1alpha1").await?,
        settled: config_name(channel, "persistent").await?,
        services,
        meta: meta(channel).await?,
        images,
    })
}

async fn resource(
    channel: &Channel,
    namespace: &str,
    kind: &str,
    id: &str,
) -> Result<String, Status> {
    let request = GetRequest {
        namespace: namespace.to_owned(),
        r#type: kind.to_owned(),
        id: id.to_owned(),
        ..GetRequest::default()
    };
    let answer = StateClient::new(channel.clone()).get(request).await?;
    let resource = answer.into_inner().resource.unwrap_or_default();
    Ok(resource.spec.unwrap_or_default().yaml_spec)
}

pub(crate) async fn config_name(channel: &Channel, id: &str) -> anyhow::Result<String> {
    let text = resource(channel, "config", "MachineConfigs.config.talos.dev", id).await?;
    let (_, name) = text.split_once("hostname: ").context("no host name")?;
    // The document may stand in the answer as a text of one line, with escapes.
    let end = name.find(|sign: char| !sign.is_ascii_alphanumeric() && sign != '-');
    Ok(name[..end.unwrap_or(name.len())].to_owned())
}

async fn meta(channel: &Channel) -> anyhow::Result<Option<String>> {
    match resource(channel, "runtime", "MetaKeys.runtime.talos.dev", "0x0a").await {
        Ok(text) => {
            let (_, value) = text.split_once("value: ").context("no value")?;
            Ok(Some(value.trim().trim_matches('"').to_owned()))
        }
        Err(status) if status.code() == Code::NotFound => Ok(None),
        Err(status) => Err(status.into()),
    }
}

async fn leave_the_machine_as_before_or_as_after(scratch: Scratch) -> Outcome {
    let mut walk = Walk::begin(&scratch).await?;
    // What is left of the hundred for calls that take long.
    while walk.hung_up < HANG_UPS - 22 {
        let call = walk.small_call();
        walk.hang_up(call).await?;
    }
    walk.settle().await?;

    // Configs and versions that wait for a boot.
    for name in ["walk-a", "walk-b", "walk-a"] {
        let call = walk.apply(name, Mode::Staged, 300);
        walk.staged_configs.insert(name.to_owned());
        walk.hang_up(call).await?;
    }
    for _ in 0..3 {
        let call = walk.upgrade(true, 4000);
        walk.hang_up(call).await?;
        let source = wire::InstallArtifactsSource {
            image_name: walk.other().1,
        };
        let request = wire::LifecycleServiceUpgradeRequest {
            source: Some(source),
            ..Default::default()
        };
        let method = "machine.LifecycleService/Upgrade";
        let call = walk.call(method, &request, millis(4000));
        walk.hang_up(call).await?;
        let request = wire::LifecycleServiceInstallRequest::default();
        let call = walk.call("machine.LifecycleService/Install", &request, millis(100));
        walk.hang_up(call).await?;
    }
    walk.staged_versions.insert(walk.other().0);
    let wiped = instar_api::storage::BlockDeviceWipeRequest {
        devices: vec![instar_api::storage::BlockDeviceWipeDescriptor {
            device: "vdb".to_owned(),
            ..Default::default()
        }],
    };
    for _ in 0..3 {
        let method = "storage.StorageService/BlockDeviceWipe";
        let call = walk.call(method, &wiped, millis(200));
        walk.hang_up(call).await?;
    }
    reboots(&mut walk).await?;
    while walk.hung_up < HANG_UPS {
        let call = walk.small_call();
        walk.hang_up(call).await?;
    }
    println!("{} callers hung up", walk.hung_up);

    // The last: it is off, or goes on.
    let request = wire::ShutdownRequest::default();
    let call = walk.call("machine.MachineService/Shutdown", &request, millis(100));
    let moment = call.within.mul_f64(walk.random.f64());
    let mut connection = ImpatientCaller::connect(&walk.node).await?;
    let method = format!("/{}", call.method);
    connection
        .call(&method, &call.message, moment, HangUp::Connection)
        .await?;
    tokio::time::sleep(millis(2000)).await;
    let free = async { is_free(&walk.node.kept_channel().await?).await };
    match tokio::time::timeout(millis(5000), free).await {
        Ok(Ok(())) => ensure!(look(&walk.node).await? == walk.seen),
        Ok(Err(_)) | Err(_) => ensure!(walk.node.vm().wait_for_end(LIMIT)?.is_clean()),
    }
    Ok(())
}

/// What ends in a boot, or in another generation.
async fn reboots(walk: &mut Walk) -> Outcome {
    let reboot = |walk: &Walk, mode: wire::reboot_request::Mode| {
        let request = wire::RebootRequest { mode: mode.into() };
        let call = walk.call("machine.MachineService/Reboot", &request, millis(100));
        Call {
            reboots: true,
            ..call
        }
    };
    let call = reboot(walk, wire::reboot_request::Mode::Default);
    walk.hang_up(call).await?;
    walk.settle().await?;
    for within in [2000, 5000] {
        let call = walk.upgrade(false, within);
        walk.hang_up(call).await?;
        walk.staged_versions.clear();
        walk.settle().await?;
    }
    let mut call = walk.call(
        "machine.MachineService/Rollback",
        &wire::RollbackRequest::default(),
        millis(500),
    );
    call.reboots = true;
    call.after.version = walk.other().0;
    walk.hang_up(call).await?;
    walk.settle().await?;

    // Everything on EPHEMERAL goes: the images that no container needs.
    let request = wire::ResetRequest {
        reboot: true,
        system_partitions_to_wipe: vec![wire::ResetPartitionSpec {
            label: "EPHEMERAL".to_owned(),
            wipe: true,
        }],
        ..Default::default()
    };
    let mut call = walk.call("machine.MachineService/Reset", &request, millis(100));
    call.reboots = true;
    let greeter = walk.registry.image_for_guest("greeter:v1");
    call.after.images.retain(|image| *image == greeter);
    walk.hang_up(call).await?;
    walk.settle().await
}
