//! A node whose disk is recorded, and the stages of its life.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use instar_power_cuts::Recording;
use instar_qemu::Drive;

use super::scenario::{Scenario, Setting};
use crate::disk_files::copy_with_holes;
use crate::node::{Node, NodePlan};
use crate::scratch::Scratch;

/// A running node whose first disk is recorded.
#[derive(Debug)]
pub struct RecordedNode {
    node: Node,
    files: Files,
    stages: Vec<Stage>,
}

#[derive(Debug)]
struct Files {
    /// The disk before the node's start.
    base: PathBuf,
    disk: PathBuf,
    log: PathBuf,
}

/// The beginning of a stage.
#[derive(Debug)]
struct Stage {
    name: String,
    setting: Setting,
    /// Length of the log, bytes.
    position: u64,
    /// The firmware's variables.
    variables: PathBuf,
}

impl RecordedNode {
    /// Starts a node with a copy of this disk as `/dev/vda`. `plan` gets the disk and plans the rest.
    pub fn start(
        scratch: &Scratch,
        name: &str,
        base: &Path,
        plan: impl FnOnce(Drive) -> Result<NodePlan>,
    ) -> Result<Self> {
        let files = Files {
            base: base.to_owned(),
            disk: scratch.join(&format!("{name}.img")),
            log: scratch.join(&format!("{name}.writes")),
        };
        copy_with_holes(base, &files.disk)?;
        let drive = Drive::raw(&files.disk).recorded(&files.log);
        Ok(Self {
            node: plan(drive)?.name(name).start()?,
            files,
            stages: Vec::new(),
        })
    }

    /// The node.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Begins a new stage of the node's life.
    pub fn enter(&mut self, name: &str, setting: Setting) -> Result<()> {
        let log = &self.files.log;
        let position = std::fs::metadata(log)
            .with_context(|| format!("cannot look at {}", log.display()))?
            .len();
        let variables = self
            .files
            .disk
            .with_extension(format!("{}.fd", self.stages.len()));
        let own = self.node.vm().directory().join("uefi-variables.fd");
        std::fs::copy(&own, &variables)
            .with_context(|| format!("cannot copy {}", own.display()))?;
        self.stages.push(Stage {
            name: name.to_owned(),
            setting,
            position,
            variables,
        });
        Ok(())
    }

    /// Ends the node and returns its disk and its firmware's variables. A stage ends where the next one begins.
    pub fn end(self) -> Result<Recorded> {
        let Self {
            node,
            files,
            stages,
            ..
        } = self;
        let ended = node.vm().quit()?;
        ensure!(ended.is_clean(), "QEMU did not end in order: {ended}");
        let variables = node.vm().directory().join("uefi-variables.fd");
        let recording = Recording::read(&files.base, &files.log)?;
        recording.check_end(&files.disk)?;
        let recording = Arc::new(recording);
        let log = recording.log();
        let begins: Vec<usize> = stages
            .iter()
            .map(|stage| log.entries_at(stage.position))
            .collect();
        let ends = begins.iter().skip(1).copied().chain([log.entries.len()]);
        let mut scenarios = Vec::new();
        for ((stage, begin), end) in stages.into_iter().zip(begins.iter().copied()).zip(ends) {
            if begin == end {
                bail!("nothing was written in the stage {}", stage.name);
            }
            scenarios.push(Scenario {
                name: stage.name,
                recording: recording.clone(),
                cuts: begin..=end,
                setting: stage.setting,
                variables: stage.variables,
            });
        }
        Ok(Recorded {
            scenarios,
            disk: files.disk,
            variables,
            identity: node.end(),
        })
    }
}

/// The remains of a recorded node.
#[derive(Debug)]
pub struct Recorded {
    /// Its stages.
    pub scenarios: Vec<Scenario>,
    /// The disk at the end.
    pub disk: PathBuf,
    /// The firmware's variables.
    pub variables: PathBuf,
    /// The test's identity towards the node.
    pub identity: crate::identity::Identity,
}
