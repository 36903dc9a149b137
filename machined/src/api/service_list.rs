//! Converts services to messages of the API.

use instar_api::machine::{ServiceEvent, ServiceEvents, ServiceInfo};

use crate::services::{Service, timestamp, wire_health};

/// Builds one row of `ServiceList`. Clients need `events` and `health` even if they are empty.
pub(super) fn row(service: &Service) -> ServiceInfo {
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
