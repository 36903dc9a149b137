//! `get`: the node's state as resources, read once or watched.

mod kind;
mod path;
mod row;
mod seen;

use instar_api::MAX_MESSAGE_BYTES;
use instar_api::cosi::resource::state_client::StateClient;
use instar_api::cosi::resource::{
    EventType, GetRequest, ListRequest, Resource, WatchOptions, WatchRequest,
};
use instar_client::{Failure, FailureKind, Node};
use serde_json::Value;
use tonic::transport::Channel;
use tonic::{Request, Status};

use self::kind::Kind;
use self::row::{Happened, Rows};
use self::seen::Seen;
use crate::ask_again::ask_again;
use crate::cli::{Get, Global};
use crate::each_node::each_node;
use crate::output::{Output, print_line};
use crate::target;

pub(super) async fn run(global: &Global, wanted: &Get) -> Result<(), Failure> {
    if wanted.watch {
        let node = target::one(global).await?;
        let kind = kind::find(&node, &wanted.kind).await?;
        return watch(global.output, &node, &kind, wanted).await;
    }
    // The type is that of the first node that answers: the table has one head.
    let mut kind = None;
    let mut found = Vec::new();
    let asked = each_node(global, async |node| {
        let known = match kind.take() {
            Some(known) => known,
            None => kind::find(node, &wanted.kind).await?,
        };
        let resources = read(node, kind.insert(known), wanted).await?;
        found.extend(resources.into_iter().map(|it| (node.name().to_owned(), it)));
        Ok(())
    })
    .await;
    match kind {
        Some(kind) if asked.is_ok() || !found.is_empty() => show(global.output, &kind, &found)?,
        _ => {}
    }
    asked
}

/// Shows resources with the names of their nodes.
fn show(output: Output, kind: &Kind, found: &[(String, Resource)]) -> Result<(), Failure> {
    match output {
        Output::Table => {
            let rows = found.iter();
            let rows = rows.map(|(node, resource)| row::cells(kind, node, None, resource));
            print_line(&Rows::new(kind, false).table(&rows.collect::<Vec<_>>()))
        }
        output => found.iter().try_for_each(|(node, resource)| {
            output.show(String::new, || row::json(node, None, resource))
        }),
    }
}

/// The resource service of a node.
pub(super) fn state(node: &Node) -> StateClient<Channel> {
    StateClient::new(node.channel()).max_decoding_message_size(MAX_MESSAGE_BYTES)
}

/// Reads the resource with an id, or all of the kind.
async fn read(node: &Node, kind: &Kind, wanted: &Get) -> Result<Vec<Resource>, Failure> {
    let namespace = wanted
        .namespace
        .clone()
        .unwrap_or_else(|| kind.namespace().to_owned());
    let doing = format!("cannot get {}", wanted.kind);
    let failed = |status: Status| node.explain(&doing, status);
    if let Some(id) = &wanted.id {
        let request = node.request(GetRequest {
            namespace,
            r#type: kind.name().to_owned(),
            id: id.clone(),
            options: None,
        });
        let reply = state(node).get(request).await.map_err(failed)?;
        return Ok(reply.into_inner().resource.into_iter().collect());
    }
    all(node, &namespace, kind.name(), &doing).await
}

/// All resources of a type, by its full name.
pub(super) async fn all(
    node: &Node,
    namespace: &str,
    name: &str,
    doing: &str,
) -> Result<Vec<Resource>, Failure> {
    list(node, namespace, name)
        .await
        .map_err(|status| node.explain(doing, status))
}

/// Every type without secrets: its name and its resources, as far as the caller may read them.
pub(super) async fn everything(
    node: &Node,
) -> Result<Vec<(String, Result<Vec<Value>, Failure>)>, Failure> {
    let mut found = Vec::new();
    for kind in kind::all(node).await? {
        if kind.is_sensitive() {
            continue;
        }
        let doing = format!("cannot get {}", kind.name());
        let resources = all(node, kind.namespace(), kind.name(), &doing).await;
        let shown = resources.map(|resources| {
            let shown = resources.iter();
            shown
                .map(|resource| row::json(node.name(), None, resource))
                .collect()
        });
        found.push((kind.name().to_owned(), shown));
    }
    Ok(found)
}

/// All resources of a type.
async fn list(node: &Node, namespace: &str, name: &str) -> Result<Vec<Resource>, Status> {
    let request = node.request(ListRequest {
        namespace: namespace.to_owned(),
        r#type: name.to_owned(),
        options: None,
    });
    let mut stream = state(node).list(request).await?.into_inner();
    let mut resources = Vec::new();
    while let Some(reply) = stream.message().await? {
        resources.extend(reply.resource);
    }
    Ok(resources)
}

/// Shows the present resources and then each change, until the node or the caller ends it. Continues after a change of versions without a
/// reboot, and after a broken connection.
async fn watch(output: Output, node: &Node, kind: &Kind, wanted: &Get) -> Result<(), Failure> {
    let doing = format!("cannot watch {}", wanted.kind);
    let explain = |status| node.explain(&doing, status);
    let ask = async || {
        let reply = state(node).watch(watch_request(node, kind, wanted)).await?;
        Ok::<_, Status>(reply.into_inner())
    };
    let mut stream = ask().await.map_err(explain)?;
    let mut rows = Rows::new(kind, true);
    if output == Output::Table {
        print_line(&rows.header())?;
    }
    let mut show = |happened, resource: &Resource| match output {
        Output::Table => {
            let cells = row::cells(kind, node.name(), Some(happened), resource);
            print_line(&rows.line(&cells))
        }
        output => output.show(String::new, || {
            row::json(node.name(), Some(happened), resource)
        }),
    };
    let mut seen = Seen::default();
    loop {
        let message = match stream.message().await {
            Ok(Some(message)) => message,
            Ok(None) => return Ok(()),
            Err(ended) => {
                stream = ask_again(node, ended, ask).await.map_err(explain)?;
                seen.again();
                continue;
            }
        };
        for event in message.event {
            let happened = match event.event_type() {
                EventType::Created => Happened::Created,
                EventType::Updated => Happened::Updated,
                EventType::Destroyed => Happened::Destroyed,
                EventType::Bootstrapped => {
                    for resource in seen.gone() {
                        show(Happened::Destroyed, &resource)?;
                    }
                    continue;
                }
                EventType::Noop => continue,
                EventType::Errored => {
                    let reason = event.error.unwrap_or_default();
                    return Err(Failure::new(
                        FailureKind::Failed,
                        format!("{}: {doing}: {reason}", node.name()),
                    ));
                }
            };
            if let Some(resource) = &event.resource
                && let Some(happened) = seen.news(happened, resource)
            {
                show(happened, resource)?;
            }
        }
    }
}

fn watch_request(node: &Node, kind: &Kind, wanted: &Get) -> Request<WatchRequest> {
    let namespace = wanted.namespace.clone();
    node.request(WatchRequest {
        namespace: namespace.unwrap_or_else(|| kind.namespace().to_owned()),
        r#type: kind.name().to_owned(),
        id: wanted.id.clone(),
        options: Some(WatchOptions {
            bootstrap_contents: wanted.id.is_none(),
            ..WatchOptions::default()
        }),
        api_version: 1,
    })
}

/// The content of a resource.
pub(super) fn content(resource: &Resource) -> Value {
    let yaml = resource.spec.as_ref().map_or("", |spec| &spec.yaml_spec);
    serde_saphyr::from_str(yaml).unwrap_or_default()
}
