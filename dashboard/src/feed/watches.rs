//! Watches resources: the node sends the present ones, and then every change.

use std::collections::BTreeMap;

use instar_api::cosi::resource::state_client::StateClient;
use instar_api::cosi::resource::{EventType, WatchOptions, WatchRequest};
use instar_client::Node;
use prost::Message;
use tokio::task::JoinSet;
use tonic::{Response, Status};

use super::Teller;
use crate::known::{Update, Watched};

/// Starts a watch of each type.
pub(super) fn spawn(tasks: &mut JoinSet<()>, node: &Node, teller: &Teller) {
    /// A type: its namespace, its name, and the update made of all its resources.
    macro_rules! watch {
        ($($namespace:literal $name:literal => $watched:expr;)*) => {
            $(tasks.spawn(keep(
                node.clone(),
                teller.clone(),
                $namespace,
                $name,
                |all| $watched(decoded(all)),
            ));)*
        };
    }
    watch! {
        "runtime" "MachineStatuses.runtime.talos.dev" => Watched::Machine;
        "runtime" "Versions.runtime.talos.dev" => Watched::Version;
        "network" "HostnameStatuses.net.talos.dev" => Watched::Hostname;
        "network" "NodeAddresses.net.talos.dev" => Watched::Addresses;
        "runtime" "BootIDs.runtime.talos.dev" => Watched::BootIds;
        "runtime" "SecurityStates.talos.dev" => Watched::Security;
        "runtime" "Disks.block.talos.dev" => Watched::Disks;
        "runtime" "SystemDisks.block.talos.dev" => Watched::SystemDisk;
        "runtime" "Diagnostics.runtime.talos.dev" => Watched::Diagnostics;
        "runtime" "Conditions.instar.dev" => Watched::Conditions;
        "runtime" "Bundles.instar.dev" => Watched::Bundles;
    }
}

/// All resources of a type by id, each as it was sent. The tasks are the same for all types: one for each would be 6 KB more of machined.
type Sent = BTreeMap<String, Vec<u8>>;

/// Decodes resources. One that this version cannot decode is left out.
fn decoded<T: Message + Default>(sent: &Sent) -> BTreeMap<String, T> {
    let decoded = sent.iter();
    decoded
        .filter_map(|(id, spec)| Some((id.clone(), T::decode(spec.as_slice()).ok()?)))
        .collect()
}

/// Watches a type until the dashboard ends.
async fn keep(
    node: Node,
    teller: Teller,
    namespace: &'static str,
    name: &'static str,
    watched: fn(&Sent) -> Watched,
) {
    loop {
        let ended = watch(&node, &teller, namespace, name, watched).await;
        teller.failed(&ended).await;
    }
}

/// Watches a type once; returns why the watch ended.
async fn watch(
    node: &Node,
    teller: &Teller,
    namespace: &str,
    name: &str,
    watched: fn(&Sent) -> Watched,
) -> Status {
    let request = node.request(WatchRequest {
        namespace: namespace.to_owned(),
        r#type: name.to_owned(),
        id: None,
        options: Some(WatchOptions {
            bootstrap_contents: true,
            ..WatchOptions::default()
        }),
        api_version: 1,
    });
    let reply = StateClient::new(node.channel()).watch(request).await;
    let mut stream = match reply.map(Response::into_inner) {
        Ok(stream) => stream,
        Err(status) => return status,
    };
    let mut all = Sent::new();
    let mut complete = false;
    loop {
        let message = match stream.message().await {
            Ok(Some(message)) => message,
            Ok(None) => return Status::unavailable("the node ended a watch"),
            Err(status) => return status,
        };
        for event in message.event {
            let kind = event.event_type();
            let error = event.error;
            let resource = event.resource.unwrap_or_default();
            let id = resource.metadata.unwrap_or_default().id;
            let spec = resource.spec.unwrap_or_default().proto_spec;
            match kind {
                EventType::Created | EventType::Updated => {
                    all.insert(id, spec);
                }
                EventType::Destroyed => {
                    all.remove(&id);
                }
                EventType::Bootstrapped => complete = true,
                EventType::Errored => return Status::unavailable(error.unwrap_or_default()),
                EventType::Noop => {}
            }
        }
        if complete {
            teller.tell(Update::Reached).await;
            teller.tell(Update::Watched(watched(&all))).await;
        }
    }
}
