//! A stage of a node's life, and the node's fate when the power is cut in it.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use instar_power_cuts::{
    DiskState, Expected, Judge, Judged, Kind, Recording, Tears, Verdict, states,
};

use crate::image_under_test::ImageUnderTest;
use crate::scratch::Scratch;

/// The circumstances of a stage.
#[derive(Debug, Clone, Default)]
pub struct Setting {
    /// The machine configs that may be on the disk.
    pub configs: Vec<String>,
    /// Whether the machine has the medium that it is installed from.
    pub has_medium: bool,
    /// Whether the config is being erased.
    pub is_reset: bool,
    /// Whether the store of images is judged.
    pub judges_store: bool,
}

impl Setting {
    /// Returns the setting of an installed machine with this config.
    pub fn with_config(config: &str) -> Self {
        Self {
            configs: vec![config.to_owned()],
            ..Self::default()
        }
    }
}

/// A stage of a recorded life.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// The node's action in this stage.
    pub name: String,
    /// The recording of the node's whole life.
    pub recording: Arc<Recording>,
    /// The power cuts, as numbers of log entries that have happened.
    pub cuts: RangeInclusive<usize>,
    /// The circumstances.
    pub setting: Setting,
    /// The firmware's variables when the stage began.
    pub variables: PathBuf,
}

/// A stage with all its states.
#[derive(Debug)]
pub struct JudgedScenario {
    /// The stage.
    pub scenario: Scenario,
    /// The verdicts on the states.
    pub judged: Judged,
}

impl Scenario {
    /// Judges every state that a power cut may leave in this stage.
    pub fn judge(self, scratch: &Scratch, tears: Tears) -> Result<JudgedScenario> {
        let mut expected = Expected {
            configs: self
                .setting
                .configs
                .iter()
                .map(|it| it.clone().into_bytes())
                .collect(),
            has_medium: self.setting.has_medium,
            is_reset: self.setting.is_reset,
            judges_store: self.setting.judges_store,
            ..Expected::default()
        };
        for image in [ImageUnderTest::first()?, ImageUnderTest::second()?] {
            let digest = |path: PathBuf| -> Result<blake3::Hash> {
                let bytes = std::fs::read(&path)
                    .with_context(|| format!("cannot read {}", path.display()))?;
                Ok(blake3::hash(&bytes))
            };
            let uki = digest(image.uki())?;
            expected
                .ukis
                .insert(*uki.as_bytes(), image.version().to_owned());
            expected.loaders.push(digest(image.loader())?);
        }
        let states = states(self.recording.log(), self.cuts.clone(), tears);
        let judged = Judge::of(&self.recording, scratch.path())?
            .judge(&states, &expected)
            .with_context(|| format!("cannot judge the states of {}", self.name))?;
        Ok(JudgedScenario {
            scenario: self,
            judged,
        })
    }
}

impl JudgedScenario {
    /// Number of states of a kind.
    pub fn count(&self, kind: Kind) -> usize {
        let states = self.judged.verdicts.iter();
        states.filter(|(state, _)| state.kind() == kind).count()
    }

    /// Number of all states.
    pub fn states(&self) -> usize {
        self.judged.verdicts.len()
    }

    /// The states from which the machine does not come back, and why.
    pub fn failures(&self) -> impl Iterator<Item = (&DiskState, &str)> {
        self.judged
            .verdicts
            .iter()
            .filter_map(|(state, verdict)| match verdict {
                Verdict::Fails(why) => Some((state, why.as_str())),
                _ => None,
            })
    }
}
