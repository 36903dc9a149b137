//! Installers of the versions under test, in a registry.

use anyhow::Result;

use crate::image_under_test::ImageUnderTest;
use crate::registry::Registry;
use crate::scratch::Scratch;

/// The repository of the installers.
pub const INSTALLER: &str = "instar/installer";

impl Registry {
    /// Starts a registry with the installers of both versions.
    pub fn with_both_installers(scratch: &Scratch) -> Result<Self> {
        let registry = Self::start(scratch)?;
        for image in [ImageUnderTest::first()?, ImageUnderTest::second()?] {
            registry.push_installer(&image)?;
        }
        Ok(registry)
    }

    /// Pushes the installer of a version, with the version as its tag, and returns its manifest's digest.
    pub fn push_installer(&self, image: &ImageUnderTest) -> Result<String> {
        self.push_layout(&image.installer(), INSTALLER, image.version())
    }

    /// The name of the installer with this tag in a guest.
    pub fn installer_for_guest(&self, tag: &str) -> String {
        self.image_for_guest(&format!("{INSTALLER}:{tag}"))
    }
}
