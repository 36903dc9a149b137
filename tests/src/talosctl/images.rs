//! Commands about container images.

use tonic::Code;

use super::screen::{Screen, Step, Stop};
use super::wire::Fields;
use super::{Talosctl, Words};

/// `ContainerdInstance{driver, namespace}` for the value of `--namespace`.
pub(super) fn store(namespace: Option<&str>) -> Fields {
    match namespace {
        Some("system") => Fields::none().number(1, 1).number(2, 1),
        Some("inmem") => Fields::none().number(2, 1),
        _ => Fields::none().number(1, 1).number(2, 2),
    }
}

impl Talosctl<'_> {
    pub(super) async fn image(&self, mut words: Words<'_>, screen: &mut Screen) -> Step {
        let store = store(words.value("--namespace"));
        let reference = words.0.get(1).copied().unwrap_or_default();
        match words.0.first().copied().unwrap_or_default() {
            "list" => self.list_images(&store, screen).await,
            "pull" => self.pull_into(&store, reference, screen).await,
            // Clients use these where the newer method is missing.
            "legacy-list" => self.list_images_legacy(screen).await,
            "legacy-pull" => self.pull_legacy(reference, screen).await,
            _ => {
                let asked = Fields::none().message(1, &store).text(2, reference);
                self.session
                    .call("/machine.ImageService/Remove", asked)
                    .await?;
                Ok(())
            }
        }
    }

    async fn list_images(&self, store: &Fields, screen: &mut Screen) -> Step {
        let asked = Fields::none().message(1, store);
        let images = self
            .session
            .stream("/machine.ImageService/List", asked)
            .await;
        let mut images = match images {
            Err(status) if status.code() == Code::Unimplemented => {
                return self.list_images_legacy(screen).await;
            }
            images => images?,
        };
        while let Some(image) = images.next().await? {
            screen.line(&format!(
                "{} {} {}",
                image.text_of(1),
                image.text_of(2),
                image.number_of(3)
            ))?;
        }
        Ok(())
    }

    async fn list_images_legacy(&self, screen: &mut Screen) -> Step {
        let asked = Fields::none().number(1, 2);
        let images = self
            .session
            .stream("/machine.MachineService/ImageList", asked)
            .await?;
        for image in images.all().await? {
            screen.line(&format!(
                "{} {} {}",
                image.text_of(2),
                image.text_of(3),
                image.number_of(4)
            ))?;
        }
        Ok(())
    }

    /// `debug IMAGE` pulls it first.
    pub(super) async fn debug(&self, reference: &str, screen: &mut Screen) -> Step {
        self.pull_into(&store(Some("system")), reference, screen)
            .await?;
        let one = self.session.naming_one();
        let run = one.stream("/machine.DebugService/ContainerRun", Fields::none());
        run.await?.all().await?;
        Ok(())
    }

    async fn pull_into(&self, store: &Fields, reference: &str, screen: &mut Screen) -> Step {
        let asked = Fields::none().message(1, store).text(3, reference);
        let told = self
            .session
            .stream("/machine.ImageService/Pull", asked)
            .await;
        let mut told = match told {
            Err(status) if status.code() == Code::Unimplemented => {
                return self.pull_legacy(reference, screen).await;
            }
            told => told?,
        };
        let mut name = String::new();
        while let Some(part) = told.next().await? {
            match part
                .message_of(2)
                .and_then(|progress| progress.message_of(2))
            {
                Some(progress) if progress.number_of(1) > 4 => {
                    return Err(Stop::Failed(format!("an unknown status: {progress:?}")));
                }
                Some(_) => {}
                None => name = part.text_of(1),
            }
        }
        // Without a name at the end nothing is printed, which is no error.
        match name.is_empty() {
            true => Ok(()),
            false => screen.line(&name),
        }
    }

    async fn pull_legacy(&self, reference: &str, screen: &mut Screen) -> Step {
        let asked = Fields::none().number(1, 2).text(2, reference);
        self.session
            .element("/machine.MachineService/ImagePull", asked)
            .await?;
        screen.line(reference)
    }
}
