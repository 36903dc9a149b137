//! The identity of a running container, in a record beside its bundle: a later machined takes a container over only if it would
//! make the same one.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::spec::{ContainerSpec, HostView, SpecError, runtime_config};
use crate::oci::PulledImage;
use crate::values::Digest;

/// The image of a container and a hash of its runtime configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Identity {
    /// Digest of the image's manifest.
    image: Digest,
    /// BLAKE3 of the runtime configuration, which comes from the machine config and from this version's own rules.
    definition: String,
}

impl Identity {
    /// Computes the identity of the container that would be made now. The host's name, resolvers and device nodes are left out: they may
    /// change while it runs.
    ///
    /// # Errors
    /// The specification is invalid.
    pub fn of(spec: &ContainerSpec, image: &PulledImage) -> Result<Self, SpecError> {
        let config = runtime_config(
            spec,
            image.config(),
            &image.rootfs(),
            Path::new("/"),
            &HostView::default(),
        )?;
        Ok(Identity {
            image: image.digest(),
            definition: blake3::hash(config.to_string().as_bytes())
                .to_hex()
                .to_string(),
        })
    }

    /// Names the difference to a running container; `None` if there is none.
    pub fn difference(&self, running: &Identity) -> Option<&'static str> {
        if running.image != self.image {
            Some("another image is in force")
        } else if running.definition != self.definition {
            Some("its definition or this version's rules for containers have changed")
        } else {
            None
        }
    }
}
