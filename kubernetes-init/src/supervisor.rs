//! The decisions about all services: which of them is to start or to end now. A state machine without side effects, made of those of the
//! services (`service`): the loop in `run` reports events and carries out the actions.
//!
//! ```text
//!   Up:        a service starts when every one that it starts after has started, or has failed to start once
//!    │ Stop, and the service that tells kubelet of it does not run, or pods have no time
//!    ├──────────────────────────────────────────────────────────────────────────────────┐
//!    │ Stop, otherwise                                                                   │
//!    ▼                                                                                   │
//!   Announced: kubelet ends its pods; no service starts                                  │
//!    │ the service that tells it has ended, or the time is over                          │
//!    ├───────────────────────────────────────────────────────────────────────────────────┘
//!    ▼
//!   Stopping:  a service is told to end when every one that starts after it has ended: kubelet before containerd
//!    │ all have ended
//!    ▼
//!   Finished
//! ```

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use instar_kubernetes_plan::State;

use crate::service::{Action, Life, Service, Then};
use crate::shutdown;

/// An event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// These services are to run, and no others.
    Planned(Vec<Service>),
    /// The process that an action started has ended, or could not be started.
    ProcessEnded {
        /// The service.
        name: String,
        /// Whether it succeeded.
        success: bool,
    },
    /// The service said that it is ready.
    Ready(String),
    /// No process of the service is left.
    Empty(String),
    /// Time has passed.
    Tick,
    /// Everything is to end. kubelet has so long to end its pods.
    Stop(Duration),
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Up,
    Announced {
        until: Instant,
    },
    Stopping,
    Finished,
}

/// All services.
#[derive(Debug, Clone, Default)]
pub(crate) struct Supervisor {
    services: BTreeMap<String, Life>,
    phase: Phase,
}

impl Supervisor {
    /// Takes an event, and returns what is to be done, in this order.
    pub(crate) fn decide(&mut self, event: Event, now: Instant) -> Vec<Action> {
        let mut actions: Vec<Action> = match event {
            Event::Planned(services) if self.phase == Phase::Up => self.plan(services, now),
            Event::ProcessEnded { name, success } => {
                self.with(&name, |life| life.process_ended(success, now))
            }
            Event::Ready(name) => self.with(&name, |life| {
                life.ready();
                None
            }),
            Event::Empty(name) => self.with(&name, |life| life.is_empty(now)),
            Event::Stop(longest) if self.phase == Phase::Up => self.announce(longest, now),
            Event::Planned(_) | Event::Stop(_) | Event::Tick => Vec::new(),
        };
        if let Phase::Announced { until } = self.phase
            && (until <= now || !self.can_announce())
        {
            self.phase = Phase::Stopping;
        }
        actions.extend(self.services.values_mut().filter_map(|life| life.late(now)));
        match self.phase {
            Phase::Up => actions.extend(self.start(now)),
            Phase::Stopping => actions.extend(self.stop(now)),
            Phase::Announced { .. } | Phase::Finished => {}
        }
        for action in &actions {
            if let Action::Forget(name) = action {
                self.services.remove(name);
            }
        }
        actions
    }

    /// The time of the next [`Event::Tick`].
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let announced = match self.phase {
            Phase::Announced { until } => Some(until),
            Phase::Up | Phase::Stopping | Phase::Finished => None,
        };
        let services = self.services.values().filter_map(Life::deadline);
        services.chain(announced).min()
    }

    /// All services.
    pub(crate) fn services(&self) -> impl Iterator<Item = &Life> {
        self.services.values()
    }

    /// The service of this name.
    pub(crate) fn service(&self, name: &str) -> Option<&Service> {
        self.services.get(name).map(Life::service)
    }

    /// Whether a command before the start of this service runs.
    pub(crate) fn is_preparing(&self, name: &str) -> bool {
        self.services.get(name).is_some_and(Life::is_preparing)
    }

    /// Has kubelet told that everything ends, if that can be.
    fn announce(&mut self, longest: Duration, now: Instant) -> Vec<Action> {
        if longest.is_zero() || !self.can_announce() {
            self.phase = Phase::Stopping;
            return Vec::new();
        }
        self.phase = Phase::Announced {
            until: now + longest,
        };
        vec![Action::AnnounceShutdown(shutdown::NAME.to_owned())]
    }

    /// Whether the service that tells kubelet of a shutdown runs.
    fn can_announce(&self) -> bool {
        let teller = self.services.get(shutdown::NAME);
        teller.is_some_and(|life| life.shown() == State::Running)
    }

    fn with(
        &mut self,
        name: &str,
        change: impl FnOnce(&mut Life) -> Option<Action>,
    ) -> Vec<Action> {
        let changed = self.services.get_mut(name).and_then(change);
        changed.into_iter().collect()
    }

    fn plan(&mut self, services: Vec<Service>, now: Instant) -> Vec<Action> {
        let is_planned = |name: &String| services.iter().any(|service| service.name == *name);
        let others = self.services.iter_mut();
        let others = others.filter(|(name, _)| !is_planned(name));
        let mut actions: Vec<Action> = others
            .filter_map(|(_, life)| life.end(Then::Forget, now))
            .collect();
        for service in services {
            match self.services.get_mut(&service.name) {
                Some(life) => actions.extend(life.define(service, now)),
                None => {
                    let name = service.name.clone();
                    self.services.insert(name, Life::new(service));
                }
            }
        }
        actions
    }

    /// Starts the services whose turn it is: one that is ready at once makes it the turn of others.
    fn start(&mut self, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        loop {
            let untried = self.services.values().filter(|life| !life.was_tried());
            let untried: Vec<String> = untried
                .map(|life| life.service().unit.name.clone())
                .collect();
            let started: Vec<Action> = self
                .services
                .values_mut()
                .filter_map(|life| {
                    let mut after = life.service().unit.after.iter();
                    let is_its_turn = !after.any(|unit| untried.contains(unit));
                    life.begin(is_its_turn, now)
                })
                .collect();
            if started.is_empty() {
                return actions;
            }
            actions.extend(started);
        }
    }

    /// Ends the services whose turn it is: one that has no process makes it the turn of others.
    fn stop(&mut self, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        loop {
            let lives = self.services.values().filter(|life| !life.is_over());
            let left = lives.clone().count();
            let needed: Vec<String> = lives
                .flat_map(|life| life.service().unit.after.clone())
                .collect();
            if left == 0 {
                self.phase = Phase::Finished;
                actions.push(Action::Finish);
                return actions;
            }
            for life in self.services.values_mut() {
                if !needed.contains(&life.service().unit.name) {
                    actions.extend(life.end(Then::Rest, now));
                }
            }
            if self
                .services
                .values()
                .filter(|life| !life.is_over())
                .count()
                == left
            {
                return actions;
            }
        }
    }
}

#[cfg(test)]
mod tests;
