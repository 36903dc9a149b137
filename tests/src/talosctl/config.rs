//! Commands that bring the machine another config.

use super::screen::{Screen, Step, Stop};
use super::session::Release;
use super::wire::Fields;
use super::{Talosctl, Words};

/// What is always sent, whether the mode tries or not: a minute.
fn try_timeout() -> Fields {
    Fields::none().number(1, 60)
}

impl Talosctl<'_> {
    pub(super) async fn apply_config(
        &self,
        mut words: Words<'_>,
        file: &str,
        screen: &mut Screen,
    ) -> Step {
        let mode = match (words.value("--mode"), self.session.release) {
            (None | Some("auto"), _) => 1,
            (Some("no-reboot"), _) => 2,
            (Some("staged"), _) => 3,
            (Some("try"), _) => 4,
            (Some("reboot"), Release::V1_13) => 0,
            (Some(other), _) => return Err(Stop::Failed(format!("unknown mode {other}"))),
        };
        let dry_run = words.flag("--dry-run");
        self.apply(file, mode, dry_run, screen).await
    }

    async fn apply(&self, text: &str, mode: i64, dry_run: bool, screen: &mut Screen) -> Step {
        let asked = Fields::none()
            .text(1, text)
            .number(4, mode)
            .number(5, dry_run.into())
            .message(6, &try_timeout());
        let element = self
            .session
            .element("/machine.MachineService/ApplyConfiguration", asked)
            .await?;
        for warning in element.texts_of(2) {
            screen.complain(&format!("WARNING: {warning}"));
        }
        screen.complain(&element.text_of(4));
        screen.line(&format!("applied in mode {}", element.number_of(3)))
    }

    /// `patch mc` and `edit mc`: the file is what the config is to be.
    pub(super) async fn edit(
        &self,
        name: &str,
        words: Words<'_>,
        file: &str,
        screen: &mut Screen,
    ) -> Step {
        const KIND: &str = "MachineConfigs.config.talos.dev";
        self.look_at_version(screen).await?;
        let asked_for = words.0.first().copied().unwrap_or_default();
        let definitions = self.definitions().await?;
        let is_config = definitions
            .iter()
            .any(|definition| definition.kind == KIND && definition.is_called(asked_for));
        if !is_config {
            return Err(Stop::Failed(format!("cannot {name} {asked_for:?}")));
        }
        let config = match self.session.release {
            Release::V1_14 => self.get_resource("config", KIND, "v1alpha1").await?,
            Release::V1_13 => {
                let mut all = self.list_resources("config", KIND).await?;
                all.retain(|config| config.id == "v1alpha1");
                all.pop()
                    .ok_or_else(|| Stop::Failed("no config".to_owned()))?
            }
        };
        let is_text = config.annotations.iter().any(|annotation| {
            annotation.text_of(1) == "talos.dev/yaml-spec" && annotation.text_of(2) == "1"
        });
        let Some(text) = config.spec.as_str().filter(|_| is_text) else {
            return Err(Stop::Failed("expected a YAML document".to_owned()));
        };
        if text == file {
            return screen.line("no changes");
        }
        self.apply(file, 1, false, screen).await
    }
}
