//! Services of the system itself, as opposed to those of the config: apid, which lets callers in, and the dashboard on the screen.
//!
//! The boot says when each starts. What they are is handed in with the boot: they serve and show the API, which is a room above.

use std::sync::Arc;
use std::time::Duration;

use crate::machine::Machine;
use crate::services::Definition;

/// How long the boot waits for apid.
const APID: Duration = Duration::from_secs(60);
/// How long a change of generations waits for apid's last answers: a little longer than apid itself.
const DRAIN: Duration = Duration::from_millis(1500);

/// Defines a service of the machine when it is about to start.
pub type Define<T> = Box<dyn FnOnce(&Arc<Machine>) -> anyhow::Result<T> + Send>;

/// The list of them.
pub struct SystemServices {
    /// Lets callers in.
    pub apid: Define<Definition>,
    /// Shows the node on its screen; none where there is no screen.
    pub dashboard: Define<Option<Definition>>,
}

/// Starts apid and waits until it answers, for a while. The boot goes on without it: the disk and the services are worth having on a
/// machine so slow, its service goes on trying, and a version on trial has to answer before it is kept.
pub(super) async fn start_apid(
    machine: Arc<Machine>,
    define: Define<Definition>,
) -> anyhow::Result<()> {
    let apid = machine.services.add(define(&machine)?)?;
    apid.start();
    match tokio::time::timeout(APID, apid.up()).await {
        Ok(()) => tracing::info!("the API answers on port {}", instar_api::PORT),
        Err(_) => tracing::error!(
            "the API does not answer after {} s, and the boot goes on: {}",
            APID.as_secs(),
            apid.summary()
        ),
    }
    Ok(())
}

/// Has apid answer what it was asked and end, in time: who asks now waits in the listening socket, for the next apid. Should there be none,
/// what starts the workloads again starts this one.
pub(super) async fn drain_apid(machine: &Machine) {
    if !machine.services.hold("apid", DRAIN).await {
        tracing::warn!("apid has not ended within {} ms", DRAIN.as_millis());
    }
}

/// Starts the dashboard where there is a screen for it. A machine without its dashboard works, so no failure here is an error.
pub(super) fn start_dashboard(machine: &Arc<Machine>, define: Define<Option<Definition>>) {
    let started = define(machine).and_then(|definition| match definition {
        Some(definition) => {
            machine.services.add(definition)?.start();
            Ok(true)
        }
        None => Ok(false),
    });
    match started {
        Ok(true) => tracing::info!("the dashboard is on the screen; Alt+F1 shows these messages"),
        Ok(false) => {}
        Err(error) => tracing::warn!("no dashboard on the screen: {error:#}"),
    }
}
