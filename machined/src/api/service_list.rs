//! Converts services to messages of the API.

use std::time::{Duration, UNIX_EPOCH};

use instar_api::machine::{ServiceEvent, ServiceEvents, ServiceHealth, ServiceInfo};

use crate::kubernetes::{KubernetesFact, NodeService, ServiceState};
use crate::machine::Machine;
use crate::services::{Phase, Service, timestamp, wire_health};

/// Builds the rows of `ServiceList`: the machine's services, and those in the container of Kubernetes.
pub(super) fn rows(machine: &Machine) -> Vec<ServiceInfo> {
    let services = machine.services.list();
    let nodes = machine.store.list::<KubernetesFact>();
    let of_node = nodes.iter().flat_map(|(_, fact)| &fact.services);
    services
        .iter()
        .map(row)
        .chain(of_node.map(row_of_node))
        .collect()
}

/// Builds the row of a service in the container of Kubernetes, whose history ends with its last change.
fn row_of_node(service: &NodeService) -> ServiceInfo {
    let state = match service.state {
        ServiceState::Waiting | ServiceState::Pausing => Phase::Waiting,
        ServiceState::Starting => Phase::Starting,
        ServiceState::Running => Phase::Running,
        ServiceState::Stopping => Phase::Stopping,
        ServiceState::Ended if service.has_finished => Phase::Finished,
        ServiceState::Ended => Phase::Failed,
    };
    let at = timestamp(UNIX_EPOCH + Duration::from_secs(service.since));
    let is_well = service.is_well();
    let last = service.last.clone().unwrap_or_default();
    ServiceInfo {
        id: service.name.clone(),
        state: state.name().to_owned(),
        events: Some(ServiceEvents {
            events: vec![ServiceEvent {
                msg: match last.is_empty() {
                    true => format!("It is {}", service.state.word()),
                    false => format!("It is {}: {last}", service.state.word()),
                },
                state: state.name().to_owned(),
                ts: Some(at),
            }],
        }),
        health: Some(ServiceHealth {
            unknown: false,
            healthy: is_well,
            last_message: if is_well { String::new() } else { last },
            last_change: Some(at),
        }),
    }
}

/// Builds one row of `ServiceList`. Clients need `events` and `health` even if they are empty.
fn row(service: &Service) -> ServiceInfo {
    let status = service.status();
    let events = status.history.iter().map(|entry| ServiceEvent {
        msg: entry.message.clone(),
        state: entry.phase.name().to_owned(),
        ts: Some(timestamp(entry.at)),
    });
    ServiceInfo {
        id: service.definition().id.clone(),
        state: status.phase.name().to_owned(),
        events: Some(ServiceEvents {
            events: events.collect(),
        }),
        health: Some(wire_health(&status)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_service_that_has_done_its_work_is_finished() {
        let row = |has_finished| {
            row_of_node(&NodeService {
                name: "setup".to_owned(),
                extension: "tools".to_owned(),
                state: ServiceState::Ended,
                since: 0,
                restarts: 0,
                last: Some("exited with code 0".to_owned()),
                has_finished,
            })
        };
        for (has_finished, state) in [(true, Phase::Finished), (false, Phase::Failed)] {
            let row = row(has_finished);
            assert_eq!(row.state, state.name());
            assert_eq!(row.health.unwrap().healthy, has_finished);
        }
    }
}
