//! Paths in the repository.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Returns the repository's root. Tests run from a checkout, so the path at compile time is right.
pub fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map_or_else(PathBuf::new, Path::to_owned)
}

/// Returns the directory of cargo's output.
pub fn target_directory() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| workspace_root().join("target"), PathBuf::from)
}

/// Returns the bytes of a static program that `make build` compiled.
pub fn guest_program(name: &str) -> Result<Vec<u8>> {
    let path = guest_program_file(name)?;
    std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
}

/// Returns the file of a static program, the newest of all profiles.
pub fn guest_program_file(name: &str) -> Result<PathBuf> {
    let target = target_directory().join("x86_64-unknown-linux-musl");
    let built = ["release", "quick"].map(|profile| target.join(profile).join(name));
    let built_at = |path: &PathBuf| path.metadata().and_then(|file| file.modified()).ok();
    let newest = built
        .into_iter()
        .filter(|path| path.exists())
        .max_by_key(built_at);
    newest.with_context(|| format!("{name} is not below {}: run `make build`", target.display()))
}

/// Runs the image builder.
pub fn image_program(words: &[&str], paths: &[&Path]) -> Result<()> {
    let mut command = std::process::Command::new(host_program("image")?);
    // The builder finds packages in the repository's cache.
    command
        .args(words)
        .args(paths)
        .current_dir(workspace_root());
    crate::run_command::run(&mut command).map(drop)
}

/// Returns a program for this machine that `cargo build` or `cargo test` compiled.
pub(crate) fn host_program(name: &str) -> Result<PathBuf> {
    let path = target_directory().join("debug").join(name);
    anyhow::ensure!(
        path.exists(),
        "{} is not there: run `cargo build -p {name}`",
        path.display()
    );
    Ok(path)
}
