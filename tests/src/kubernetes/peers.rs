//! Programs of other projects that work on a cluster's nodes, as images.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::oci_image::OciImage;
use crate::registry::Registry;

/// The variable that names the file of kured.
const KURED: &str = "INSTAR_KURED";

/// Pushes kured as an image of its one program; returns the image's name in a guest.
pub fn push_kured(registry: &Registry) -> Result<String> {
    let program = std::env::var_os(KURED).map(PathBuf::from);
    // No package registry has it, and its module does not build under another one.
    let program = program.with_context(|| {
        format!(
            "{KURED} names no program: clone https://github.com/kubereboot/kured, run `CGO_ENABLED=0 go build -trimpath ./cmd/kured` in it, \
             and set {KURED} to the path of the program"
        )
    })?;
    let program = std::fs::read(&program)
        .with_context(|| format!("cannot read {}, of {KURED}", program.display()))?;
    let image = OciImage::starting(&["/usr/bin/kured"]).files(&[("usr/bin/kured", &program)])?;
    image.push(registry, "kured", "v1")?;
    Ok(registry.image_for_guest("kured:v1"))
}
