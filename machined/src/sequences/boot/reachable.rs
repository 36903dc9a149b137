//! The first half of a boot: config, API and network, the parts that callers need to reach the machine.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use instar_api::events::EventPayload;
use instar_api::machine::ConfigLoadErrorEvent;
use tokio::time::Instant;

use super::{Boot, apply_network};
use crate::init_link::StartReason;
use crate::intent;
use crate::machine::Machine;
use crate::modules::Class;
use crate::sequences::steps::find_config::{self, Found, find_config};
use crate::sequences::steps::{last_known_time, maintenance};
use crate::sequences::system_services::{self, SystemService};
use crate::sequences::{Phase, Sequence, Task};
use crate::status;
use crate::store::event_log::ActorId;

/// Time limit for the config's server; then the config on STATE is used, or the machine waits in maintenance mode. If init's deadline is
/// near, the limit is half of the remaining time.
const CONFIG_SERVER: Duration = Duration::from_secs(20);

/// Returns the sequence.
pub(super) fn sequence(boot: &Boot, of_system: Vec<SystemService>) -> Sequence {
    let machine = &boot.machine;
    let handed_over = boot.handover.machine_config.clone();
    let left = boot.deadline.saturating_duration_since(Instant::now());
    let server = CONFIG_SERVER.min(left / 2);
    let phases = vec![
        Phase::of(
            "loadConfig",
            load_config(machine.clone(), handed_over, boot.start, server),
        ),
        Phase::new(
            "network",
            vec![
                Task::new(
                    "startApi",
                    system_services::start(machine.clone(), of_system),
                ),
                Task::new("network", bring_up_network(machine.clone())),
            ],
        ),
    ];
    Sequence {
        name: "initialize",
        phases,
    }
}

async fn load_config(
    machine: Arc<Machine>,
    handed_over: Option<String>,
    start: StartReason,
    server: Duration,
) -> anyhow::Result<()> {
    let found = match handed_over {
        Some(text) => {
            find_config::usable(text.into_bytes()).map(|usable| Found::Config(Box::new(usable)))
        }
        None => find_config(&machine, server).await,
    };
    let loaded = match found {
        Ok(Found::Config(configured)) => {
            machine.set_config(Arc::from(configured));
            show_living(&machine);
            Ok(())
        }
        Ok(Found::Nothing) => {
            tracing::warn!("no machine config: maintenance mode");
            maintenance::begin(&machine).await;
            Ok(())
        }
        // The version before understood this config: init goes back to it.
        Err(error) if matches!(start, StartReason::Next) => Err(error),
        Ok(Found::NotYet(error)) | Err(error) => {
            tell_no_config(&machine, format!("{error:#}"));
            maintenance::begin(&machine).await;
            Ok(())
        }
    };
    last_known_time::go_on_from(&machine);
    apply_network(&machine).await;
    loaded
}

/// Lists the containers that an earlier machined left running as running, before a caller can ask. They are adopted when the disk is there.
fn show_living(machine: &Arc<Machine>) {
    let Some(configured) = machine.config() else {
        return;
    };
    for container in &configured.config.containers {
        let shown = intent::living_service(machine, &configured, container)
            .and_then(|living| living.map(|it| machine.services.add_living(it)).transpose());
        if let Err(error) = shown {
            tracing::warn!("container {} is not listed yet: {error:#}", container.name);
        }
    }
}

fn tell_no_config(machine: &Machine, error: String) {
    tracing::error!("maintenance mode: {error}");
    status::note_problem(machine, "config", &error);
    let event = ConfigLoadErrorEvent { error };
    machine
        .events
        .emit(&ActorId::default(), EventPayload::ConfigLoadError(event));
}

async fn bring_up_network(machine: Arc<Machine>) -> anyhow::Result<()> {
    let drivers = machine.drivers()?;
    drivers
        .load_for(Class::Network)
        .await
        .context("load the drivers of the network")?;
    Ok(())
}
