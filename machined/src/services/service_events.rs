//! Tells of services: to the store, by events, and in the words of the API.

use std::time::SystemTime;

use instar_api::events::EventPayload;
use instar_api::machine::{ServiceHealth, ServiceStateEvent, service_state_event::Action};

use super::log_disk::LogDisk;
use super::phase::Phase;
use super::service::Service;
use super::state::{Health, ServiceStatus};
use crate::store::event_log::{ActorId, EventLog};
use crate::store::{ServiceFact, Store};

/// Where services send their events and their logs; clones share it.
#[derive(Clone)]
pub(super) struct Surroundings {
    pub(super) events: EventLog,
    pub(super) store: Store,
    pub(super) logs: LogDisk,
}

impl Surroundings {
    /// Adds an announcement to the history of a service that runs, or that has not begun; a message equal to the last one is not repeated.
    pub(super) fn tell(&self, service: &Service, message: &str) {
        let told = service.status.send_if_modified(|status| {
            // Of a service that nobody looks after there is one thing to announce: that the machine ends it.
            status.ended_by_machine |= status.left;
            let is_new = status
                .history
                .back()
                .is_none_or(|last| last.message != message);
            let phase = status.phase;
            let is_told = is_new && matches!(phase, Phase::Running | Phase::Initialized);
            if is_told {
                status.enter(phase, message.to_owned());
            }
            is_told
        });
        if told {
            tracing::info!("service {} {message}", service.definition.id);
            self.publish(service);
        }
    }

    /// Tells how a service is now.
    pub(super) fn publish(&self, service: &Service) {
        let status = service.status();
        let fact = ServiceFact {
            running: status.phase == Phase::Running,
            healthy: status.is_up(),
            unknown: status.is_undecided(),
        };
        self.store.put(&service.definition.id, fact);
        let event = ServiceStateEvent {
            service: service.definition.id.clone(),
            action: action(status.phase).into(),
            message: status
                .history
                .back()
                .map(|last| last.message.clone())
                .unwrap_or_default(),
            health: Some(wire_health(&status)),
        };
        let payload = EventPayload::ServiceState(event);
        self.events.emit(&ActorId::default(), payload);
    }
}

fn action(phase: Phase) -> Action {
    match phase {
        Phase::Initialized => Action::Initialized,
        Phase::Waiting => Action::Waiting,
        Phase::Preparing => Action::Preparing,
        Phase::Starting => Action::Starting,
        Phase::Running => Action::Running,
        Phase::Stopping => Action::Stopping,
        Phase::Finished => Action::Finished,
        Phase::Failed => Action::Failed,
    }
}

/// Converts a service's health for `ServiceList` and the events.
pub fn wire_health(status: &ServiceStatus) -> ServiceHealth {
    ServiceHealth {
        unknown: status.health == Health::Unknown,
        healthy: status.health == Health::Healthy,
        last_message: match &status.health {
            Health::Unhealthy(why) => why.clone(),
            _ => String::new(),
        },
        last_change: Some(timestamp(status.health_changed)),
    }
}

/// Converts a time for the wire.
pub fn timestamp(time: SystemTime) -> prost_types::Timestamp {
    time.into()
}
