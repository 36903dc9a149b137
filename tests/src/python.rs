//! Other projects' Python programs, each in an environment of its own below `.cache`.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;

use anyhow::{Context, Result};
use instar_base::lock::Lock as _;

use crate::run_command::run;
use crate::workspace::workspace_root;

/// Held while an environment is made, as tests run at once.
static MAKING: Mutex<()> = Mutex::new(());

/// Returns the interpreter of the environment with these packages. Makes the environment when it is missing or has
/// other packages: that takes the network and up to a minute, once.
pub(crate) fn python_with(environment: &str, packages: &[&str]) -> Result<PathBuf> {
    let _making = MAKING.locked();
    let environment = workspace_root().join(".cache").join(environment);
    let python = environment.join("bin/python");
    let marker = environment.join("instar-packages");
    let wanted = packages.join("\n");
    if std::fs::read_to_string(&marker).is_ok_and(|installed| installed == wanted) {
        return Ok(python);
    }
    run(Command::new("python3")
        .args(["-m", "venv", "--clear"])
        .arg(&environment))
    .context("cannot make a Python environment: install the package python3-venv")?;
    run(Command::new(&python)
        .args(["-m", "pip", "install", "--quiet"])
        .args(packages))?;
    std::fs::write(&marker, wanted)
        .with_context(|| format!("cannot write {}", marker.display()))?;
    Ok(python)
}
