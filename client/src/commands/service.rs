//! `service`: lists services, shows one, and starts, stops or restarts it.

use instar_api::machine::{
    ServiceHealth, ServiceInfo, ServiceRestartRequest, ServiceStartRequest, ServiceStopRequest,
};
use instar_client::{Failure, FailureKind, Node};
use serde_json::{Value, json};

use crate::cli::{Global, ServiceAction};
use crate::each_node::each_node;
use crate::output::{table, time};

pub(super) async fn run(
    global: &Global,
    id: Option<&str>,
    action: Option<ServiceAction>,
) -> Result<(), Failure> {
    each_node(global, async |node| {
        match (id, action) {
            (None, _) => list(global, node).await?,
            (Some(id), None | Some(ServiceAction::Status)) => show(global, node, id).await?,
            (Some(id), Some(action)) => control(global, node, id, action).await?,
        }
        Ok(())
    })
    .await
}

async fn services(node: &Node) -> Result<Vec<ServiceInfo>, Failure> {
    let reply = node.machine().service_list(node.request(())).await;
    let reply = reply.map_err(|status| node.explain("cannot list services", status))?;
    let mut services = node.only(reply.into_inner().messages)?.services;
    services.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(services)
}

async fn list(global: &Global, node: &Node) -> Result<(), Failure> {
    let services = services(node).await?;
    global.output.show(
        || {
            let row = |service: &ServiceInfo| {
                let last = service.events.as_ref().and_then(|events| events.events.last());
                vec![
                    node.name().to_owned(),
                    service.id.clone(),
                    service.state.clone(),
                    health(service.health.as_ref()).to_owned(),
                    last.map(|event| event.msg.clone()).unwrap_or_default(),
                ]
            };
            let rows: Vec<_> = services.iter().map(row).collect();
            table(&["NODE", "SERVICE", "STATE", "HEALTH", "LAST EVENT"], &rows)
        },
        || json!({ "node": node.name(), "services": services.iter().map(to_json).collect::<Vec<_>>() }),
    )
}

async fn show(global: &Global, node: &Node, id: &str) -> Result<(), Failure> {
    let services = services(node).await?;
    let Some(service) = services.iter().find(|service| service.id == id) else {
        let known: Vec<_> = services.iter().map(|service| service.id.as_str()).collect();
        return Err(Failure::new(
            FailureKind::Failed,
            format!("{}: no service {id:?}", node.name()),
        )
        .advise(format!("it has {}", known.join(", "))));
    };
    global.output.show(
        || {
            let mut text = format!(
                "{} on {}: {}, health {}",
                service.id,
                node.name(),
                service.state,
                health(service.health.as_ref())
            );
            if let Some(last) = service
                .health
                .as_ref()
                .map(|health| &health.last_message)
                .filter(|last| !last.is_empty())
            {
                text.push_str(&format!(" ({last})"));
            }
            for event in service.events.iter().flat_map(|events| &events.events) {
                text.push_str(&format!(
                    "\n  {}  {:<12} {}",
                    time(event.ts.as_ref()),
                    event.state,
                    event.msg
                ));
            }
            text
        },
        || {
            let mut value = to_json(service);
            value["node"] = json!(node.name());
            value
        },
    )
}

async fn control(
    global: &Global,
    node: &Node,
    id: &str,
    action: ServiceAction,
) -> Result<(), Failure> {
    let id = id.to_owned();
    let mut machine = node.machine();
    // Three methods with the same shape but messages of their own.
    macro_rules! ask {
        ($method:ident, $request:ident) => {
            machine
                .$method(node.request($request { id: id.clone() }))
                .await
                .map(|reply| {
                    let answer = reply.into_inner().messages.pop();
                    answer.map(|message| message.resp).unwrap_or_default()
                })
        };
    }
    let reply = match action {
        ServiceAction::Status => return show(global, node, &id).await,
        ServiceAction::Start => ask!(service_start, ServiceStartRequest),
        ServiceAction::Stop => ask!(service_stop, ServiceStopRequest),
        ServiceAction::Restart => ask!(service_restart, ServiceRestartRequest),
    };
    let said = reply
        .map_err(|status| node.explain(&format!("cannot control the service {id:?}"), status))?;
    global.output.show(
        || format!("{}: {said}", node.name()),
        || json!({ "node": node.name(), "service": id, "response": said }),
    )
}

fn health(health: Option<&ServiceHealth>) -> &'static str {
    match health {
        None => "?",
        Some(health) if health.unknown => "?",
        Some(health) if health.healthy => "OK",
        Some(_) => "Fail",
    }
}

fn to_json(service: &ServiceInfo) -> Value {
    let events = service.events.iter().flat_map(|events| &events.events);
    json!({
        "id": service.id,
        "state": service.state,
        "health": health(service.health.as_ref()),
        "health_message": service.health.as_ref().map(|health| &health.last_message),
        "events": events.map(|event| json!({
            "time": time(event.ts.as_ref()),
            "state": event.state,
            "message": event.msg,
        })).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_is_unknown_until_somebody_knows() {
        let of = |unknown, healthy| {
            health(Some(&ServiceHealth {
                unknown,
                healthy,
                ..ServiceHealth::default()
            }))
        };
        assert_eq!(health(None), "?");
        assert_eq!(of(true, true), "?");
        assert_eq!(of(false, true), "OK");
        assert_eq!(of(false, false), "Fail");
    }
}
