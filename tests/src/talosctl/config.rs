//! Commands that apply another config. All of it is decoded first: a kind that the release does not know ends the
//! command.

use super::screen::{Screen, Step, Stop};
use super::session::Release;
use super::wire::Fields;
use super::{Talosctl, Words};

use serde_json::Value;

const KIND: &str = "MachineConfigs.config.talos.dev";

/// Kinds that the older release knows, one per line.
const KINDS_OF_1_13: &str = include_str!("../../../config/tests/data/1.13/kinds");

/// The timeout of a trial, a minute, which is sent in every mode.
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

    /// `patch mc` and `edit mc`: the file is the new config.
    pub(super) async fn edit(
        &self,
        name: &str,
        words: Words<'_>,
        file: &str,
        screen: &mut Screen,
    ) -> Step {
        self.look_at_version(screen).await?;
        let asked_for = words.0.first().copied().unwrap_or_default();
        let definitions = self.definitions().await?;
        let is_config = definitions
            .iter()
            .any(|definition| definition.kind == KIND && definition.is_called(asked_for));
        if !is_config {
            return Err(Stop::Failed(format!("cannot {name} {asked_for:?}")));
        }
        let (text, _) = self.machine_config().await?;
        if text == file {
            return screen.line("no changes");
        }
        self.apply(file, 1, false, screen).await
    }

    /// Returns the machine config as the node shows it, and its documents.
    pub(super) async fn machine_config(&self) -> Step<(String, Vec<Value>)> {
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
        // The protobuf field and the YAML must be the same text.
        if config.decoded()?.text_of(1) != text {
            return Err(Stop::Failed("two encodings of two configs".to_owned()));
        }
        let documents = self.documents(text)?;
        Ok((text.to_owned(), documents))
    }

    /// Decodes all documents, or fails.
    fn documents(&self, text: &str) -> Step<Vec<Value>> {
        let mut texts = vec![String::new()];
        for line in text.lines() {
            match texts.last_mut() {
                Some(last) if line != "---" => last.extend([line, "\n"]),
                _ => texts.push(String::new()),
            }
        }
        let mut documents = Vec::new();
        for text in texts.iter().filter(|text| !text.trim().is_empty()) {
            let document: Value = serde_saphyr::from_str(text)
                .map_err(|error| Stop::Failed(format!("{error}: {text}")))?;
            let word = |key: &str| document[key].as_str().unwrap_or_default();
            let (kind, version) = (word("kind"), word("apiVersion"));
            let knows = match self.session.release {
                Release::V1_13 => KINDS_OF_1_13.lines().any(|known| known == kind),
                Release::V1_14 => true,
            };
            if !kind.is_empty() && (version != "v1alpha1" || !knows) {
                let why = format!("{kind:?} {version:?}: not registered");
                return Err(Stop::Failed(why));
            }
            documents.push(document);
        }
        Ok(documents)
    }

    /// Changes `machine:` as `rotate-ca` does: decodes, changes and encodes the whole config.
    pub(super) async fn change_machine(&self, change: impl FnOnce(&mut Value)) -> Step {
        let (_, mut documents) = self.machine_config().await?;
        let main = documents
            .iter_mut()
            .find(|document| document["kind"].is_null());
        let main = main.ok_or_else(|| Stop::Failed("no machine document".to_owned()))?;
        change(&mut main["machine"]);
        let encoded: Result<Vec<String>, _> =
            documents.iter().map(serde_saphyr::to_string).collect();
        let encoded = encoded.map_err(|error| Stop::Failed(error.to_string()))?;
        let asked = Fields::none().text(1, &encoded.join("---\n")).number(4, 2);
        self.session
            .element("/machine.MachineService/ApplyConfiguration", asked)
            .await?;
        Ok(())
    }
}
