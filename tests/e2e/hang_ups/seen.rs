//! The machine as its API shows it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, bail};
use instar_api::cosi::resource::GetRequest;
use instar_api::cosi::resource::state_client::StateClient;
use instar_api::machine as wire;
use instar_api::machine::image_service_client::ImageServiceClient;
use instar_api::machine::machine_service_client::MachineServiceClient;
use instar_tests::{Machine, Node, Outcome};
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::SLOW;

/// The machine as its API shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) version: String,
    pub(super) kernel: String,
    /// The names of the configs: the one in force, and the one for the next boot.
    pub(super) config: String,
    pub(super) settled: String,
    /// Whether each container is up.
    pub(super) services: BTreeMap<String, bool>,
    pub(super) meta: Option<String>,
    pub(super) images: BTreeSet<String>,
}

impl Seen {
    /// Asks the API for all of it.
    pub(super) async fn of(node: &Node) -> anyhow::Result<Self> {
        let channel = &node.kept_channel().await?;
        let mut machine = MachineServiceClient::new(channel.clone());
        Ok(Self {
            services: services(&mut machine).await?,
            images: images(&mut machine).await?,
            version: node.version().await?.tag,
            kernel: node.kernel_boot_id().await?,
            config: config_name(channel, "v1alpha1").await?,
            settled: config_name(channel, "persistent").await?,
            meta: meta(channel).await?,
        })
    }

    /// Returns the state with another config in force, and on STATE.
    pub(super) fn with_config(mut self, name: &str) -> Self {
        if self.config != name {
            match name {
                "walk-b" => self.services.insert(SLOW.to_owned(), true),
                _ => self.services.remove(SLOW),
            };
        }
        self.config = name.to_owned();
        self.settled = name.to_owned();
        self
    }
}

/// Whether each container is up; an error while one of them is neither up nor down.
async fn services(machine: &mut Machine) -> anyhow::Result<BTreeMap<String, bool>> {
    let listed = machine.service_list(()).await?.into_inner();
    let mut services = BTreeMap::new();
    for service in listed.messages.into_iter().flat_map(|list| list.services) {
        if !["apid", "dashboard", "machined"].contains(&service.id.as_str()) {
            let up = is_up(&service)?;
            services.insert(service.id, up);
        }
    }
    Ok(services)
}

fn is_up(container: &wire::ServiceInfo) -> anyhow::Result<bool> {
    let health = container.health.clone().unwrap_or_default();
    match container.state.as_str() {
        "Running" if health.healthy || container.id == SLOW => Ok(true),
        "Finished" => Ok(false),
        state => bail!("{} is {state}: {health:?}", container.id),
    }
}

/// The images but those of installers, which come and go: one whose caller leaves while it is looked at stays for a day, or until its room is needed.
async fn images(machine: &mut Machine) -> anyhow::Result<BTreeSet<String>> {
    let request = wire::ImageListRequest::default();
    let mut stream = machine.image_list(request).await?.into_inner();
    let mut images = BTreeSet::new();
    while let Some(image) = stream.message().await? {
        if !image.name.contains("/instar/installer:") {
            images.insert(image.name);
        }
    }
    Ok(images)
}

/// Checks that no operation runs: only then a missing image can be removed.
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
    // The document may be in the answer as a text of one line, with escapes.
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
