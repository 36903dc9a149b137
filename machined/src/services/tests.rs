//! Tests of services with workloads that take their time to end, on a clock that jumps from one wait to the next.

#![allow(clippy::unwrap_used)]

mod fates;
mod hurry;
mod lasting;
mod logs;
mod steady;
mod stops;
mod taking_over;

use super::*;

/// The config of the next generation keeps all of them.
const KEPT: fn(&str) -> anyhow::Result<()> = |_| Ok(());

const EIGHT: Option<Duration> = Some(Duration::from_secs(8));

fn services() -> Services {
    Services::new(EventLog::default(), Store::default(), LogDisk::default())
}

fn messages(service: &Service) -> Vec<String> {
    let history = service.status().history.into_iter();
    history.map(|entry| entry.message).collect()
}
