//! `cosi.resource.State`: the machine's state as resources, to read and to watch.

use std::sync::Arc;

use instar_api::cosi::resource as wire;
use instar_api::cosi::resource::state_server::State;
use instar_pki::Role;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use super::caller::{self, Holder};
use super::caller_credentials::CallerCredentials;
use super::shares::{Share, Shares};
use super::{blocking, streamed};
use crate::api::resources::{
    Changes, Difference, Kind, LastSent, Listed, Namespace, Sensitivity, Viewer, kind, list,
};
use crate::base::quota::Rank;
use crate::config_source::Secrets;
use crate::machine::Machine;
use crate::sequences::kubernetes::{look_at_members, look_at_static_pods};
use crate::services::timestamp;

/// Limits on simultaneous watches, each of which keeps the resources that it has sent: of all callers together, of all callers
/// who are no administrators, and on one connection. A dashboard has twenty.
const WATCHES: (usize, usize, usize) = (512, 256, 48);
/// Limit on the messages that wait for one watcher.
const AHEAD: usize = 16;

/// The service.
pub(super) struct StateApi {
    machine: Arc<Machine>,
    watches: Shares,
}

impl StateApi {
    pub(super) fn new(machine: Arc<Machine>) -> Self {
        let (all, others, each) = WATCHES;
        StateApi {
            machine,
            watches: Shares::new(all, others, each),
        }
    }

    /// Lists all resources of a kind; none in a namespace that is not the kind's.
    async fn list_in(
        &self,
        kind: &'static Kind,
        namespace: Namespace,
        looker: &Looker,
    ) -> Result<Vec<Listed>, Status> {
        if namespace != kind.namespace {
            return Ok(Vec::new());
        }
        looker.look(&self.machine, kind).await
    }
}

/// The caller, and what it may see.
struct Looker {
    holder: Holder,
    secrets: Secrets,
    viewer: Viewer,
    credentials: Option<CallerCredentials>,
}

impl Looker {
    fn of<T>(request: &Request<T>) -> Self {
        Looker {
            holder: Holder::of(request),
            secrets: Secrets::of(&caller::roles(request.metadata())),
            viewer: match caller::is_talosctl(request) {
                true => Viewer::Talos,
                false => Viewer::Any,
            },
            credentials: CallerCredentials::of(request),
        }
    }

    async fn look(
        &self,
        machine: &Arc<Machine>,
        kind: &'static Kind,
    ) -> Result<Vec<Listed>, Status> {
        if kind.is_of_cluster() {
            let looked = look_at_members(machine).await;
            looked.map_err(|error| Status::unavailable(format!("{error:#}")))?;
        }
        if kind.is_of_static_pods() {
            look_at_static_pods(machine).await;
        }
        let (secrets, viewer) = (self.secrets, self.viewer);
        let listed = match kind.may_wait() {
            false => list(machine, kind, secrets, viewer)
                .map_err(|error| Status::internal(format!("{error:#}"))),
            true => {
                let machine = machine.clone();
                blocking::once(&self.holder, move || list(&machine, kind, secrets, viewer)).await
            }
        };
        // Check the caller again: a watcher of the machine config would otherwise receive even the config that revokes its
        // authority, with the key of the next one.
        if secrets == Secrets::Shown
            && let Some(credentials) = &self.credentials
        {
            credentials.check()?;
        }
        listed
    }
}

/// Returns the kind and the namespace that a request names, if the caller may see them.
///
/// A kind that does not exist gives the same error as a forbidden one: clients go on after this error, and stop at any other.
fn find(name: &str, namespace: &str, roles: &[Role]) -> Result<(&'static Kind, Namespace), Status> {
    let kind = kind(name).ok_or_else(|| {
        Status::permission_denied(format!(
            "there are no resources of type {name:?} here; the list of ResourceDefinitions.meta.cosi.dev has those that there are"
        ))
    })?;
    if kind.sensitivity == Sensitivity::Secret && !roles.contains(&Role::Admin) {
        return Err(Status::permission_denied(format!(
            "{name} may hold secrets; it takes the role os:admin"
        )));
    }
    let namespace = Namespace::of(namespace).ok_or_else(|| {
        Status::permission_denied(format!("there is no namespace {namespace:?} here"))
    })?;
    Ok((kind, namespace))
}

/// Refuses queries that no node serves, so that an unfiltered list is not taken for the result.
fn refuse_queries(labels: &[wire::Query], ids: Option<&wire::Query>) -> Result<(), Status> {
    if labels.is_empty() && ids.is_none() {
        Ok(())
    } else {
        Err(Status::invalid_argument(
            "this node chooses by type and id only; list the type without label_query and id_query",
        ))
    }
}

fn check_options(options: &wire::WatchOptions) -> Result<(), Status> {
    refuse_queries(&options.label_query, options.id_query.as_ref())?;
    if options.tail_events != 0
        || options.start_from_bookmark.is_some()
        || options.bootstrap_bookmark
    {
        return Err(Status::invalid_argument(
            "this node keeps no history of resources; watch with bootstrap_contents instead of tail_events or bookmarks",
        ));
    }
    Ok(())
}

fn refuse_write() -> Status {
    Status::permission_denied(
        "resources are what the machine is, and cannot be written; change the machine config",
    )
}

fn resource(kind: &Kind, listed: &Listed) -> wire::Resource {
    let remarks = listed.annotations.iter();
    wire::Resource {
        metadata: Some(wire::Metadata {
            namespace: kind.namespace.name().to_owned(),
            r#type: kind.name.to_owned(),
            id: listed.metadata.id.clone(),
            version: listed.metadata.version.to_string(),
            owner: "machined".to_owned(),
            phase: "running".to_owned(),
            created: Some(timestamp(listed.metadata.created)),
            updated: Some(timestamp(listed.metadata.updated)),
            annotations: remarks
                .map(|&(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
            ..Default::default()
        }),
        spec: Some(wire::Spec {
            proto_spec: listed.protobuf.clone(),
            yaml_spec: listed.yaml.clone(),
        }),
    }
}

/// Builds the message for a missing resource. Clients want metadata and a document even then.
fn absent(kind: &Kind, id: &str) -> wire::Resource {
    wire::Resource {
        metadata: Some(wire::Metadata {
            namespace: kind.namespace.name().to_owned(),
            r#type: kind.name.to_owned(),
            id: id.to_owned(),
            version: "undefined".to_owned(),
            phase: "running".to_owned(),
            ..Default::default()
        }),
        spec: Some(wire::Spec {
            yaml_spec: "{}".to_owned(),
            ..Default::default()
        }),
    }
}

fn event(kind: &Kind, difference: &Difference) -> wire::Event {
    let (event_type, now, old) = match difference {
        Difference::Created(now) => (wire::EventType::Created, now, None),
        Difference::Updated(now, old) => (wire::EventType::Updated, now, Some(old)),
        Difference::Destroyed(last) => (wire::EventType::Destroyed, last, None),
    };
    wire::Event {
        resource: Some(resource(kind, now)),
        event_type: event_type.into(),
        old: old.map(|old| resource(kind, old)),
        ..Default::default()
    }
}

/// A running watch.
struct Watch {
    machine: Arc<Machine>,
    kind: &'static Kind,
    namespace: Namespace,
    id: Option<String>,
    /// Whether to send the existing resources first.
    bootstrap: bool,
    /// Whether a message may hold several events.
    aggregated: bool,
    looker: Looker,
    _place: Share,
}

type Sender = mpsc::Sender<Result<wire::WatchResponse, Status>>;

/// The watcher has disconnected.
struct Gone;

impl Watch {
    async fn look(&self) -> Result<Vec<Listed>, Status> {
        if self.namespace != self.kind.namespace {
            return Ok(Vec::new());
        }
        let mut listed = self.looker.look(&self.machine, self.kind).await?;
        if let Some(id) = &self.id {
            listed.retain(|listed| listed.metadata.id == *id);
        }
        Ok(listed)
    }

    async fn run(self, sender: Sender) {
        // Subscribe before the first look, so that no change between the two is missed.
        let mut changes = Changes::of(&self.machine, self.kind.sources);
        let mut last_sent = LastSent::default();
        // Clients take any first message as the sign that the watch is set up.
        if sender
            .send(Ok(wire::WatchResponse::default()))
            .await
            .is_err()
        {
            return;
        }
        let mut first = true;
        loop {
            let differences = match self.look().await {
                Ok(listed) => last_sent.differences(listed),
                Err(status) => {
                    // An error means that the caller has disconnected.
                    let _ = sender.send(Err(status)).await;
                    return;
                }
            };
            let mut events: Vec<_> = differences
                .iter()
                .map(|difference| event(self.kind, difference))
                .collect();
            if first {
                events = self.beginning(events);
                first = false;
            }
            if self.send(&sender, events).await.is_err() {
                return;
            }
            tokio::select! {
                () = sender.closed() => return,
                () = changes.next() => {}
            }
        }
    }

    /// Selects the first events: those of the resources that existed before the watch.
    fn beginning(&self, events: Vec<wire::Event>) -> Vec<wire::Event> {
        let of_type = |event_type: wire::EventType, resource| wire::Event {
            resource,
            event_type: event_type.into(),
            ..Default::default()
        };
        match &self.id {
            // A watch of one resource begins with the resource, or with the news that it does not exist.
            Some(id) if events.is_empty() => {
                let absent = Some(absent(self.kind, id));
                vec![of_type(wire::EventType::Destroyed, absent)]
            }
            Some(_) => events,
            None if self.bootstrap => {
                let end = of_type(wire::EventType::Bootstrapped, None);
                events.into_iter().chain([end]).collect()
            }
            None => Vec::new(),
        }
    }

    async fn send(&self, sender: &Sender, events: Vec<wire::Event>) -> Result<(), Gone> {
        let size = if self.aggregated {
            events.len().max(1)
        } else {
            1
        };
        let mut events = events.into_iter().peekable();
        while events.peek().is_some() {
            let event = events.by_ref().take(size).collect();
            let message = wire::WatchResponse { event };
            sender.send(Ok(message)).await.map_err(|_| Gone)?;
        }
        Ok(())
    }
}

#[tonic::async_trait]
impl State for StateApi {
    async fn get(
        &self,
        request: Request<wire::GetRequest>,
    ) -> Result<Response<wire::GetResponse>, Status> {
        let roles = caller::roles(request.metadata());
        let looker = Looker::of(&request);
        let request = request.into_inner();
        let (kind, namespace) = find(&request.r#type, &request.namespace, &roles)?;
        let listed = self.list_in(kind, namespace, &looker).await?;
        let found = listed
            .iter()
            .find(|listed| listed.metadata.id == request.id);
        let found = found.ok_or_else(|| {
            Status::not_found(format!(
                "there is no {} {:?} in the namespace {}",
                kind.singular,
                request.id,
                namespace.name()
            ))
        })?;
        Ok(Response::new(wire::GetResponse {
            resource: Some(resource(kind, found)),
        }))
    }

    async fn list(
        &self,
        request: Request<wire::ListRequest>,
    ) -> Result<Response<BoxStream<wire::ListResponse>>, Status> {
        let roles = caller::roles(request.metadata());
        let looker = Looker::of(&request);
        let request = request.into_inner();
        let (kind, namespace) = find(&request.r#type, &request.namespace, &roles)?;
        let options = request.options.unwrap_or_default();
        refuse_queries(&options.label_query, options.id_query.as_ref())?;
        let listed = self.list_in(kind, namespace, &looker).await?.into_iter();
        let answers = listed.map(|listed| {
            Ok(wire::ListResponse {
                resource: Some(resource(kind, &listed)),
            })
        });
        Ok(Response::new(Box::pin(tokio_stream::iter(answers))))
    }

    async fn watch(
        &self,
        request: Request<wire::WatchRequest>,
    ) -> Result<Response<BoxStream<wire::WatchResponse>>, Status> {
        let roles = caller::roles(request.metadata());
        let looker = Looker::of(&request);
        let request = request.into_inner();
        let (kind, namespace) = find(&request.r#type, &request.namespace, &roles)?;
        let options = request.options.unwrap_or_default();
        check_options(&options)?;
        let place = self.watches.take(&looker.holder).ok_or_else(|| {
            let (all, others, each) = WATCHES;
            let on_node = match looker.holder.rank {
                Rank::Administrator => all,
                Rank::Other => others,
            };
            Status::resource_exhausted(format!(
                "there are {each} watches of resources on this connection already, or {on_node} on this node; end one of them"
            ))
        })?;
        let watch = Watch {
            machine: self.machine.clone(),
            kind,
            namespace,
            id: request.id,
            bootstrap: options.bootstrap_contents,
            aggregated: options.aggregated,
            looker,
            _place: place,
        };
        let (sender, receiver) = mpsc::channel(AHEAD);
        crate::base::task::spawn(watch.run(sender));
        Ok(streamed(ReceiverStream::new(receiver)))
    }

    async fn create(
        &self,
        _request: Request<wire::WriteRequest>,
    ) -> Result<Response<wire::WriteResponse>, Status> {
        Err(refuse_write())
    }

    async fn update(
        &self,
        _request: Request<wire::WriteRequest>,
    ) -> Result<Response<wire::WriteResponse>, Status> {
        Err(refuse_write())
    }

    async fn teardown(
        &self,
        _request: Request<wire::WriteRequest>,
    ) -> Result<Response<wire::WriteResponse>, Status> {
        Err(refuse_write())
    }

    async fn teardown_and_destroy(
        &self,
        _request: Request<wire::WriteRequest>,
    ) -> Result<Response<wire::WriteResponse>, Status> {
        Err(refuse_write())
    }

    async fn destroy(
        &self,
        _request: Request<wire::WriteRequest>,
    ) -> Result<Response<wire::WriteResponse>, Status> {
        Err(refuse_write())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use instar_api::cosi::resource::meta::ResourceDefinitionSpec;
    use prost::Message as _;
    use tonic::Code;

    use super::*;
    use crate::api::resources::KINDS;
    use crate::store::Metadata;

    fn refusal(name: &str, namespace: &str, role: Role) -> Option<Code> {
        find(name, namespace, &[role])
            .err()
            .map(|status| status.code())
    }

    #[test]
    fn what_may_not_be_seen_and_what_is_not_there_are_refused_alike() {
        let services = "Services.v1alpha1.talos.dev";
        let config = "MachineConfigs.config.talos.dev";
        let denied = Some(Code::PermissionDenied);
        assert_eq!(refusal(services, "runtime", Role::Reader), None);
        assert_eq!(refusal(services, "nowhere", Role::Admin), denied);
        assert_eq!(refusal(services, "", Role::Admin), denied);
        assert_eq!(
            refusal("Kubelets.k8s.talos.dev", "k8s", Role::Admin),
            denied
        );
        assert_eq!(refusal("services", "runtime", Role::Admin), denied);
        assert_eq!(refusal(config, "config", Role::Admin), None);
        for role in [Role::Reader, Role::Operator, Role::MetaWriter] {
            assert_eq!(refusal(config, "config", role), denied);
        }
    }

    #[test]
    fn secrets_are_for_administrators() {
        let secret = KINDS
            .iter()
            .filter(|kind| kind.sensitivity == Sensitivity::Secret)
            .map(|kind| kind.name);
        assert_eq!(
            secret.collect::<Vec<_>>(),
            [
                "MetaKeys.runtime.talos.dev",
                "MachineConfigs.config.talos.dev",
                "OSRootSecrets.secrets.talos.dev",
            ]
        );
    }

    /// As in a client: every short name means one kind, and every name of the contract finds its kind.
    #[test]
    fn every_name_means_one_kind() {
        let definitions = crate::api::resources::definitions(&KINDS);
        let mut names: BTreeMap<String, String> = BTreeMap::new();
        for item in &definitions {
            let bytes = item.spec.protobuf();
            let spec = ResourceDefinitionSpec::decode(bytes.as_slice()).unwrap();
            assert!(Namespace::of(&spec.default_namespace).is_some());
            for name in spec.all_aliases.iter().chain([&item.id]) {
                let before = names.insert(name.clone(), spec.resource_type.clone());
                assert_eq!(before, None, "{name} means {} too", spec.resource_type);
            }
        }
        for (name, kind) in [
            ("rd", "ResourceDefinitions.meta.cosi.dev"),
            ("rds", "ResourceDefinitions.meta.cosi.dev"),
            ("ns", "Namespaces.meta.cosi.dev"),
            ("members", "Members.cluster.talos.dev"),
            ("hostname", "HostnameStatuses.net.talos.dev"),
            ("addresses", "AddressStatuses.net.talos.dev"),
            ("routes", "RouteStatuses.net.talos.dev"),
            ("links", "LinkStatuses.net.talos.dev"),
            ("services", "Services.v1alpha1.talos.dev"),
            ("svc", "Services.v1alpha1.talos.dev"),
            ("machinestatus", "MachineStatuses.runtime.talos.dev"),
            ("ms", "MachineStatuses.runtime.talos.dev"),
            ("disks", "Disks.block.talos.dev"),
            ("systemdisk", "SystemDisks.block.talos.dev"),
            ("mounts", "MountStatuses.block.talos.dev"),
            ("mc", "MachineConfigs.config.talos.dev"),
            ("meta", "MetaKeys.runtime.talos.dev"),
            ("images", "Images.instar.dev"),
            ("upgrades", "UpgradeRecords.instar.dev"),
            (
                "kernelcmdlines.runtime.talos.dev",
                "KernelCmdlines.runtime.talos.dev",
            ),
        ] {
            assert_eq!(names.get(name).map(String::as_str), Some(kind), "{name}");
        }
    }

    #[test]
    fn a_resource_has_all_that_clients_insist_on() {
        let kind = kind("Versions.runtime.talos.dev").unwrap();
        let at = std::time::UNIX_EPOCH + std::time::Duration::from_secs(5);
        let listed = Listed {
            metadata: Metadata {
                id: "version".to_owned(),
                version: 3,
                created: at,
                updated: at,
            },
            yaml: "version: v0.1.0\n".to_owned(),
            protobuf: vec![1],
            annotations: &[("a", "b")],
        };
        let shown = resource(kind, &listed);
        let metadata = shown.metadata.unwrap();
        assert_eq!(
            (metadata.version.as_str(), metadata.phase.as_str()),
            ("3", "running")
        );
        assert_eq!(metadata.annotations["a"], "b");
        assert_eq!(metadata.created.unwrap().seconds, 5);
        assert_eq!(shown.spec.unwrap().proto_spec, [1]);
        // A deleted resource is sent with its last content; one that never existed, with a document without content.
        let gone = event(kind, &Difference::Destroyed(listed));
        assert_eq!(gone.event_type(), wire::EventType::Destroyed);
        assert!(
            gone.resource
                .unwrap()
                .spec
                .unwrap()
                .yaml_spec
                .contains("v0.1.0")
        );
        let never = absent(kind, "x");
        assert_eq!(never.metadata.unwrap().phase, "running");
        assert_eq!(never.spec.unwrap().yaml_spec, "{}");
    }

    #[test]
    fn what_is_not_served_is_refused() {
        let options = |change: fn(&mut wire::WatchOptions)| {
            let mut options = wire::WatchOptions {
                bootstrap_contents: true,
                aggregated: true,
                ..Default::default()
            };
            change(&mut options);
            check_options(&options).is_ok()
        };
        assert!(options(|_| {}));
        assert!(!options(|it| it.tail_events = 1));
        assert!(!options(|it| it.start_from_bookmark = Some(Vec::new())));
        assert!(!options(|it| it.bootstrap_bookmark = true));
        assert!(!options(|it| it.label_query.push(wire::Query {})));
        assert!(!options(|it| it.id_query = Some(wire::Query {})));
    }
}
