//! Installers of the versions under test, in a registry.

use anyhow::Result;

use crate::image_under_test::ImageUnderTest;
use crate::oci_image::OciImage;
use crate::registry::Registry;
use crate::scratch::Scratch;

/// The repository of the installers.
pub const INSTALLER: &str = "instar/installer";

impl Registry {
    /// Starts a registry with the installers of both versions.
    pub fn with_both_installers(scratch: &Scratch) -> Result<Self> {
        let registry = Self::start(scratch)?;
        registry.push_both_installers()?;
        Ok(registry)
    }

    /// The same for upgrades without a reboot alone ([`Registry::push_installer_without_kernel`]).
    pub fn with_both_installers_without_kernel(scratch: &Scratch) -> Result<Self> {
        let registry = Self::start(scratch)?;
        for image in [ImageUnderTest::first()?, ImageUnderTest::second()?] {
            registry.push_installer_without_kernel(&image)?;
        }
        Ok(registry)
    }

    /// Pushes the installers of both versions.
    pub fn push_both_installers(&self) -> Result<()> {
        for image in [ImageUnderTest::first()?, ImageUnderTest::second()?] {
            self.push_installer(&image)?;
        }
        Ok(())
    }

    /// Pushes the installer of a version without its second layer: an upgrade without a reboot needs neither kernel nor initramfs, and pulling
    /// them takes longest.
    pub fn push_installer_without_kernel(&self, image: &ImageUnderTest) -> Result<()> {
        let installer = OciImage::read(&image.installer())?.first_layer_alone();
        installer.push(self, INSTALLER, image.version())?;
        Ok(())
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
