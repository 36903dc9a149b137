//! Which image an extension is: the one that a pinned name means, a file by its digest, or the newest file of a publisher that may start.

use std::sync::Arc;

use instar_kubernetes_plan::PlannedExtension;

use super::admitted::Admitted;
use super::published::{Lists, brought};
use crate::config::{Extension, ExtensionFile, ExtensionSource, Kubernetes, PublishedExtension};
use crate::kubernetes::trial::Chosen;
use crate::kubernetes::{Followed, Offer};
use crate::machine::{Configured, Machine};
use crate::oci::name_of_file;
use crate::pins::{Meaning, PinFact, State, Terms};
use crate::sequences::extension_files::Fetches;
use crate::sequences::image_pins::permit_now;
use crate::values::{Digest, EndpointUrl, ImageReference};

/// An image that was chosen.
pub(super) struct Choice {
    pub(super) chosen: Chosen,
    /// The file that the image is made from, if it is one of a file.
    file: Option<ExtensionFile>,
}

impl Choice {
    fn of_file(name: &str, file: ExtensionFile) -> anyhow::Result<Self> {
        Ok(Choice {
            chosen: Chosen {
                image: name_of_file(name, file.sha256)?,
                digest: file.sha256,
            },
            file: Some(file),
        })
    }
}

/// The choices of a node, with what comes of files meanwhile.
pub(super) struct Choices {
    machine: Arc<Machine>,
    admitted: Admitted,
    fetches: Fetches,
    lists: Lists,
}

impl Choices {
    pub(super) fn of(machine: Arc<Machine>) -> Self {
        Choices {
            machine,
            admitted: Admitted::default(),
            fetches: Fetches::default(),
            lists: Lists::default(),
        }
    }

    /// Returns the image of an extension, as far as it is known which one it is.
    pub(super) async fn chosen(
        &mut self,
        (configured, node): (&Arc<Configured>, &str),
        extension: &Extension,
        problems: &mut Vec<String>,
    ) -> anyhow::Result<Option<Choice>> {
        let name = &extension.name;
        match &extension.source {
            ExtensionSource::Image(image) => Ok(self.pinned(image)),
            ExtensionSource::File(file) => Choice::of_file(name, file.clone()).map(Some),
            ExtensionSource::Published(published) => {
                self.followed((configured, node), name, published, problems)
                    .await
            }
        }
    }

    /// Forgets the files of publishers that the config follows no more, so that their images can be removed.
    pub(super) async fn forget_publishers(&self, kubernetes: &Kubernetes) -> anyhow::Result<()> {
        let mut record = self.machine.node_record.get();
        let before = record.followed.len();
        record.followed.retain(|name, _| {
            kubernetes.extensions.iter().any(|extension| {
                extension.name == *name && matches!(extension.source, ExtensionSource::Published(_))
            })
        });
        if record.followed.len() == before {
            return Ok(());
        }
        self.machine.node_record.set(record).await
    }

    /// Checks an extension that was chosen; `None` if its image is not here: then its file is fetched, if it is made from one.
    pub(super) async fn planned_or_fetched(
        &mut self,
        configured: &Arc<Configured>,
        node: &str,
        extension: &Extension,
        choice: &Choice,
    ) -> anyhow::Result<Option<PlannedExtension>> {
        let name = &extension.name;
        let planned = self.plan(configured, node, name, &choice.chosen).await?;
        if planned.is_none() {
            self.fetch(configured, choice).await?;
        }
        Ok(planned)
    }

    /// Checks an extension; `None` if its image is not here.
    pub(super) async fn plan(
        &mut self,
        configured: &Arc<Configured>,
        node: &str,
        name: &str,
        chosen: &Chosen,
    ) -> anyhow::Result<Option<PlannedExtension>> {
        let (admitted, machine) = (&mut self.admitted, &self.machine);
        admitted
            .extension(machine, configured, node, name, chosen)
            .await
    }

    /// Has a file fetched that is not here.
    async fn fetch(&mut self, configured: &Configured, choice: &Choice) -> anyhow::Result<()> {
        let Some(file) = &choice.file else {
            return Ok(());
        };
        let (store, config) = (&self.machine.images, &configured.config);
        let image = &choice.chosen.image;
        self.fetches.go_on(store, config, image, file).await
    }

    /// Returns what the name of a pinned image means, if the image is here.
    fn pinned(&self, image: &ImageReference) -> Option<Choice> {
        let pin = self.machine.store.get::<PinFact>(&image.to_string());
        let meaning = self.machine.pins.meaning(image);
        let is_here = |digest| self.machine.images.get(digest).is_some();
        let digest = meant(pin.as_ref().map(|it| &it.state), meaning.as_ref(), is_here)?;
        let image = image.clone();
        Some(Choice {
            chosen: Chosen { image, digest },
            file: None,
        })
    }

    /// Returns the file in force of a publisher. A newer one is fetched ahead, and takes its place in the window.
    async fn followed(
        &mut self,
        (configured, node): (&Arc<Configured>, &str),
        name: &str,
        published: &PublishedExtension,
        problems: &mut Vec<String>,
    ) -> anyhow::Result<Option<Choice>> {
        let mut record = self.machine.node_record.get();
        let before = record.followed.get(name).cloned();
        let heard = self.lists.newest(&configured.config, name, published);
        let (newest, failure) = match heard.await {
            Ok(newest) => (newest, None),
            Err(error) => {
                let brought = brought(&self.machine, published).await;
                let newer = Followed::if_newer(before.as_ref(), &published.pattern, brought);
                (newer, Some(error))
            }
        };
        let followed = Followed::after(before.clone(), &published.pattern, newest);
        let Some(mut followed) = followed else {
            return failure.map_or(Ok(None), Err);
        };
        let moved = self
            .switch_if_it_may((configured, node), name, published, &mut followed)
            .await;
        for error in failure.into_iter().chain(moved.err()) {
            problems.push(format!("the extension {name}: {error:#}"));
        }
        let file = file_of(published, &followed.in_force);
        if before.as_ref() != Some(&followed) {
            record.followed.insert(name.to_owned(), followed);
            self.machine.node_record.set(record).await?;
        }
        Choice::of_file(name, file).map(Some)
    }

    /// Has the next file fetched, or puts it in force if it is here and usable, and the window is open.
    async fn switch_if_it_may(
        &mut self,
        (configured, node): (&Arc<Configured>, &str),
        name: &str,
        published: &PublishedExtension,
        followed: &mut Followed,
    ) -> anyhow::Result<()> {
        let Some(next) = &followed.next else {
            return Ok(());
        };
        let choice = Choice::of_file(name, file_of(published, next))?;
        let planned = self.plan(configured, node, name, &choice.chosen).await?;
        if planned.is_none() {
            return self.fetch(configured, &choice).await;
        }
        let terms = Terms {
            window: published.window.clone(),
            bandwidth: None,
        };
        if permit_now(&self.machine, &[terms]).is_ok()
            && let Some(taken) = followed.switch()
        {
            tracing::info!(
                "Kubernetes: the extension {name} comes from {} now",
                taken.file
            );
        }
        Ok(())
    }
}

/// Returns the image that a pinned name means, if it is here. Pins are found again after each start of machined, and under a version on trial
/// not before its verdict: up to then the record tells, so that the extension that runs goes on. It is checked before it is used, as any.
fn meant(
    pin: Option<&State>,
    recorded: Option<&Meaning>,
    is_here: impl FnOnce(Digest) -> bool,
) -> Option<Digest> {
    if let Some(State::Pinned { digest }) = pin {
        return Some(*digest);
    }
    let recorded = recorded.filter(|it| it.blobs.is_empty())?;
    is_here(recorded.digest).then_some(recorded.digest)
}

/// The file of an offer, beside the list that names it.
fn file_of(published: &PublishedExtension, offer: &Offer) -> ExtensionFile {
    let folder = published.folder.clone();
    ExtensionFile {
        url: EndpointUrl {
            path: format!("{}/{}", folder.path, offer.file),
            ..folder
        },
        sha256: offer.digest,
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::containers::ImageDigests;
    use crate::pins::Wait;

    /// While a version is on trial no pin is found again: the extension on trial goes on all the same.
    #[test]
    fn an_extension_that_is_here_is_known_before_its_pin_is_found_again() {
        let [digest, blob] = [b"image", b"layer"].map(|of| Digest::of(of));
        let meaning = |blobs| {
            let image = ImageDigests {
                digest,
                index: None,
            };
            Meaning::of(image, blobs)
        };
        let (whole, unfinished) = (meaning(Vec::new()), meaning(vec![blob]));
        let waiting = State::default();
        let at_window = State::Waiting {
            reason: Wait::Window(SystemTime::UNIX_EPOCH),
            failures: 0,
        };
        let pinned = State::Pinned { digest: blob };
        // its pin, its meaning in the record, whether that image is in the store → the image
        let table = [
            (Some(&pinned), Some(&whole), true, Some(blob)),
            (Some(&pinned), None, false, Some(blob)),
            (None, Some(&whole), true, Some(digest)),
            (Some(&waiting), Some(&whole), true, Some(digest)),
            (Some(&at_window), Some(&whole), true, Some(digest)),
            (Some(&waiting), Some(&whole), false, None),
            (Some(&waiting), Some(&unfinished), true, None),
            (Some(&waiting), None, true, None),
        ];
        for (pin, recorded, is_here, expected) in table {
            let found = meant(pin, recorded, |_| is_here);
            assert_eq!(found, expected, "{pin:?} {recorded:?} {is_here}");
        }
    }
}
