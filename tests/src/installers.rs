//! Installers of the versions under test, at a registry.

use anyhow::Result;

use crate::image_under_test::ImageUnderTest;
use crate::registry::Registry;
use crate::scratch::Scratch;

/// The repository that installers are in.
pub const INSTALLER: &str = "instar/installer";

impl Registry {
    /// A registry that has the installers of both versions.
    pub fn with_both_installers(scratch: &Scratch) -> Result<Self> {
        let registry = Self::start(scratch)?;
        for image in [ImageUnderTest::first()?, ImageUnderTest::second()?] {
            registry.push_installer(&image)?;
        }
        Ok(registry)
    }

    /// Pushes the installer of a version, with the version for a tag, and returns its manifest's digest.
    pub fn push_installer(&self, image: &ImageUnderTest) -> Result<String> {
        self.push_layout(&image.installer(), INSTALLER, image.version())
    }

    /// How a guest names the installer with this tag.
    pub fn installer_for_guest(&self, tag: &str) -> String {
        self.image_for_guest(&format!("{INSTALLER}:{tag}"))
    }
}
