//! The rules for images at a change of the config: a running container whose image they no longer allow ends at once.

use std::time::Duration;

use futures_util::future::join_all;

use crate::config::Container;
use crate::containers::ImageDigests;
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
    let reason = refusal(machine, configured, container).await?;
    Some(NotAllowed {
        container: name.to_owned(),
        reason,
    })
}

/// Returns why the rules of a config do not allow the image that is in force for a container. It is judged as at a start: also by a signature
/// of the index that its name has come to since the pull.
async fn refusal(
    machine: &Machine,
    configured: &Configured,
    container: &Container,
) -> Option<String> {
    let (name, reference) = (container.name.as_str(), &container.image);
    let in_force = machine.images_in_force.image(name, reference)?;
    let image = machine.images.get(in_force.digest)?;
    let digests = ImageDigests::of_pulled(&image, Some(in_force));
    let puller = intent::puller(Some(configured));
    let admitted = digests.admit(&puller, reference, image, &machine.images);
    match tokio::time::timeout(ASK, admitted).await {
        Ok(Ok(_)) => None,
        Ok(Err(error)) => Some(format!("{:#}", anyhow::Error::from(error))),
        Err(_) => Some(format!(
            "{reference} is not allowed: no signature is kept with it, and its registry gave none within {} s",
            ASK.as_secs()
        )),
    }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::containers::registry_for_tests::SignedRegistry;
    use crate::oci::Limits;
    use crate::sequences::image_pins::machine_for_tests::{configured, unbooted};

    const CONTAINER: &str =
        "apiVersion: v1alpha1\nkind: ContainerConfig\nname: web\nimage: r.io/web:v1\n";

    /// The store does not know the index: the name has come to it after the pull.
    #[tokio::test]
    async fn a_container_is_judged_by_the_index_that_its_record_knows() {
        let (registry, directory) = (SignedRegistry::start(), tempfile::tempdir().unwrap());
        let web = registry.push("web:v1", "web");
        let machine = unbooted(directory.path()).await;
        let (free, limits) = (registry.puller_without_rules(), Limits::default());
        let by_manifest = free.look_up(&web.name.at(web.manifest)).await.unwrap();
        let pulled = free.pull(&by_manifest, &machine.images, &limits).await;
        pulled.unwrap();
        let config = configured(&[&registry.config(), CONTAINER]);
        let [container] = &config.config.containers[..] else {
            unreachable!("the config has one container")
        };
        for (index, is_allowed) in [(None, false), (Some(web.index), true)] {
            let image = ImageDigests {
                digest: web.manifest,
                index,
            };
            machine.images_in_force.set("web", &web.name, image).await;
            let refused = refusal(&machine, &config, container).await;
            assert_eq!(refused.is_none(), is_allowed, "{refused:?}");
        }
    }
}
