//! What a running container is made of, in a record beside its bundle: a machined that comes later takes a container over only if it would
//! make the same one.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::spec::{ContainerSpec, HostView, SpecError, runtime_config};
use crate::oci::PulledImage;
use crate::values::Digest;

/// The image of a container, and everything that the runtime was told about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Identity {
    /// Of the image's manifest.
    image: Digest,
    /// BLAKE3 of the runtime configuration: what the machine config says, and this version's own rules.
    definition: String,
}

impl Identity {
    /// Of the container that would be made now. The host's name and resolvers are left out: they may change while it runs.
    ///
    /// # Errors
    /// There is no such container.
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

    /// How a container that runs differs from this one; `None` if it does not.
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
