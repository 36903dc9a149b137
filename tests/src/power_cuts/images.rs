//! The stages of a store of images: pulls, a removal, and an image that is made again from its blobs.

use anyhow::{Result, ensure};

use super::recorded_node::RecordedNode;
use super::scenario::Setting;
use crate::instarctl::Instarctl;
use crate::oci_image::OciImage;
use crate::registry::Registry;

/// Size of the layer that both images have.
const BASE: usize = 1 << 20;

/// The images that are pulled, by their names in the registry.
pub const IMAGES: [&str; 2] = ["first:v1", "second:v1"];

/// Pushes two images on one base.
pub fn push_images_on_one_base(registry: &Registry) -> Result<()> {
    for image in IMAGES {
        let (name, tag) = image.split_once(':').unwrap_or((image, "v1"));
        // Files of several sizes, that are shared and that are not.
        let base: Vec<u8> = (0..BASE).map(|at| (at / 251 + at) as u8).collect();
        let image = OciImage::starting(&["/own"]).files(&[
            ("etc/large", &base),
            ("etc/middle", &base[..100_000]),
            ("etc/small", &base[..1000]),
        ])?;
        let own = name.repeat(20_000);
        let image = image.files(&[("own", own.as_bytes()), ("name", name.as_bytes())])?;
        image.push(registry, name, tag)?;
    }
    Ok(())
}

impl RecordedNode {
    /// Pulls both images, then removes the first and makes it again from its blobs, in three stages: `pull`, `pull on a base`, `again`.
    /// `config` is the node's config.
    pub async fn pull_and_remove(
        &mut self,
        client: &Instarctl,
        registry: &Registry,
        config: &str,
    ) -> Result<()> {
        let [first, second] = IMAGES.map(|image| registry.image_for_guest(image));
        for (stage, calls, image) in [
            ("pull", &["pull"][..], &first),
            ("pull on a base", &["pull"], &second),
            // A removal alone writes nothing at once.
            ("again", &["remove", "pull"], &first),
        ] {
            let setting = Setting {
                judges_store: true,
                ..Setting::with_config(config)
            };
            self.enter(stage, setting)?;
            for call in calls {
                let said = client.run(&["image", call, image]).await?;
                ensure!(said.code == Some(0), "{call} {image}: {said:?}");
            }
        }
        Ok(())
    }
}
