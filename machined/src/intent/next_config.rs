//! The machine config for the next generation: the one that a boot would find.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;

use crate::base::blocking_io::{self, ANSWER};
use crate::command_line;
use crate::config;
use crate::config_source::source::FW_CFG_PATH;
use crate::config_source::{persisted, source};
use crate::machine::{Configured, Machine};

/// Returns the source that takes precedence over the config on STATE, if this machine has one.
pub fn source_before_state() -> Option<&'static str> {
    let cmdline = command_line::read().ok()?;
    source::before_state(&cmdline, Path::new(FW_CFG_PATH).exists())
}

/// Returns the config on STATE, if a boot would use it: it may have been staged. Otherwise the one in force, unless that one is on trial.
/// To be called while STATE is mounted.
pub fn of(machine: &Machine) -> Option<Arc<Configured>> {
    let settled = machine.settled_config();
    match staged(machine.disk.state(), settled.as_deref()) {
        Ok(None) => settled,
        Ok(Some(staged)) => {
            tracing::info!("the next generation begins with the machine config that was staged");
            Some(Arc::new(staged))
        }
        Err(error) => {
            tracing::error!(
                "the next generation begins with the machine config in force: {error:#}"
            );
            settled
        }
    }
}

/// Returns the same as [`of`] without a word in the log, for plans. A disk that does not answer keeps nobody else waiting.
pub async fn planned(machine: &Machine) -> Option<Arc<Configured>> {
    let settled = machine.settled_config();
    let (state, here) = (machine.disk.state().map(Path::to_owned), settled.clone());
    let read = move || staged(state.as_deref(), here.as_deref());
    let staged = blocking_io::within(ANSWER, read).await;
    let staged = staged.ok().and_then(Result::ok).flatten();
    staged.map(Arc::new).or(settled)
}

/// Returns the config on STATE, if a boot would use it and it differs from the settled one.
fn staged(
    state: Option<&Path>,
    settled: Option<&Configured>,
) -> anyhow::Result<Option<Configured>> {
    match state {
        Some(state) if source_before_state().is_none() => kept_besides(state, settled),
        _ => Ok(None),
    }
}

/// Returns the config that the machine keeps: the one on STATE, which may have been staged, or else the one in force, unless that one is on
/// trial. None without a config in force: who may not have that one may not have the one on STATE either. Reads the disk.
pub fn kept(machine: &Machine) -> Option<Arc<Configured>> {
    let settled = machine.settled_config()?;
    Some(kept_or(machine.disk.state(), settled))
}

fn kept_or(state: Option<&Path>, settled: Arc<Configured>) -> Arc<Configured> {
    let staged = state.map(|state| kept_besides(state, Some(&settled)));
    match staged {
        Some(Ok(Some(staged))) => Arc::new(staged),
        // One that cannot be used: `of` tells of it, and takes the settled one as well.
        Some(Err(_) | Ok(None)) | None => settled,
    }
}

/// Returns the config on STATE, if it differs from the settled one.
fn kept_besides(state: &Path, settled: Option<&Configured>) -> anyhow::Result<Option<Configured>> {
    let path = persisted::path(state);
    if !path.exists() {
        return Ok(None);
    }
    let text =
        String::from_utf8(source::read(&path)?).context("the config on STATE is not UTF-8")?;
    if settled.is_some_and(|settled| settled.text == text) {
        return Ok(None);
    }
    let parsed = config::parse_taken(text.as_bytes()).context("the config on STATE is unusable")?;
    Ok(Some(Configured::new(text, parsed.config)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: &str = include_str!("../../../config/tests/data/served-1.14.yaml");

    #[test]
    fn only_another_config_that_can_be_used_is_taken() -> anyhow::Result<()> {
        let state = tempfile::tempdir()?;
        let staged = format!("{HERE}# another one\n");
        let in_force = Configured::new(HERE.to_owned(), config::parse(HERE.as_bytes())?.config);
        let taken = || kept_besides(state.path(), Some(&in_force));
        assert!(taken()?.is_none());
        persisted::write(state.path(), HERE)?;
        assert!(taken()?.is_none());
        persisted::write(state.path(), &staged)?;
        assert_eq!(taken()?.map(|taken| taken.text), Some(staged));
        persisted::write(state.path(), "hostname: [")?;
        assert!(taken().is_err());
        Ok(())
    }

    #[test]
    fn a_staged_config_is_the_one_that_is_kept() -> anyhow::Result<()> {
        let state = tempfile::tempdir()?;
        let staged = format!("{HERE}# another one\n");
        let in_force = Configured::new(HERE.to_owned(), config::parse(HERE.as_bytes())?.config);
        let in_force = Arc::new(in_force);
        let kept = |state| kept_or(state, in_force.clone()).text.clone();
        assert_eq!(kept(None), HERE);
        for (written, expected) in [(HERE, HERE), (&staged, &staged), ("hostname: [", HERE)] {
            persisted::write(state.path(), written)?;
            assert_eq!(kept(Some(state.path())), expected);
        }
        Ok(())
    }
}
