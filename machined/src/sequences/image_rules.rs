//! The rules for images at a change of the config: a running container whose image they no longer allow ends at once.

use std::time::Duration;

use futures_util::future::join_all;

use crate::config::Container;
use crate::intent;
use crate::machine::{Configured, Machine};
use crate::services::Phase;

/// Time limit for a registry to give a signature of an image whose kept signatures are not enough.
const ASK: Duration = Duration::from_secs(10);

/// A running container whose image the rules of a config do not allow.
pub(super) struct NotAllowed {
    container: String,
    reason: String,
}

impl NotAllowed {
    /// Its name.
    pub(super) fn container(&self) -> &str {
        &self.container
    }

    /// Returns the warning for the caller who applies the config.
    pub(super) fn warning(&self) -> String {
        format!("the container {} ends: {}", self.container, self.reason)
    }
}

/// Returns the running containers whose images a config does not allow. Nothing changes.
pub(super) async fn not_allowed(machine: &Machine, configured: &Configured) -> Vec<NotAllowed> {
    let containers = configured.config.containers.iter();
    let judged = containers.map(|container| judge(machine, configured, container));
    join_all(judged).await.into_iter().flatten().collect()
}

async fn judge(
    machine: &Machine,
    configured: &Configured,
    container: &Container,
) -> Option<NotAllowed> {
    let name = container.name.as_str();
    let service = machine.services.get(name)?;
    if !matches!(service.status().phase, Phase::Starting | Phase::Running) {
        // It is judged before it starts.
        return None;
    }
    let digest = machine.images_in_force.get(name, &container.image)?;
    let image = machine.images.get(digest)?;
    let puller = intent::puller(Some(configured));
    let admitted = puller.admit(&container.image, image, &machine.images);
    let refused = match tokio::time::timeout(ASK, admitted).await {
        Ok(Ok(_)) => return None,
        Ok(Err(error)) => format!("{:#}", anyhow::Error::from(error)),
        Err(_) => format!(
            "{} is not allowed: no signature is kept with it, and its registry gave none within {} s",
            container.image,
            ASK.as_secs()
        ),
    };
    Some(NotAllowed {
        container: name.to_owned(),
        reason: refused,
    })
}

/// Ends these containers, and has each try to start again, which fails with the reason until the rules or the signatures change.
pub(super) async fn end(machine: &Machine, containers: &[NotAllowed]) {
    let ends = containers
        .iter()
        .map(|NotAllowed { container, reason }| async move {
            tracing::warn!("container {container} ends: {reason}");
            machine.services.tell(container, reason);
            if let Err(error) = machine.services.restart(container).await {
                let error = anyhow::Error::from(error);
                tracing::error!("container {container}, whose image is not allowed: {error:#}");
            }
        });
    join_all(ends).await;
}
