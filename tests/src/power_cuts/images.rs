//! The stages of a store of images: pulls, a removal, and an image that is made again from its blobs; an import of a bundle, a pin, and the
//! collection of an image that nothing names any more.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::recorded_node::RecordedNode;
use super::scenario::Setting;
use crate::instarctl::Instarctl;
use crate::node::Node;
use crate::oci_image::OciImage;
use crate::registry::Registry;

/// Size of the layer that both images have.
const BASE: usize = 1 << 20;

/// The images that are pulled, by their names in the registry.
pub const IMAGES: [&str; 2] = ["first:v1", "second:v1"];
/// The image that comes by a bundle.
pub const IMPORTED: &str = "third:v1";
/// The image that is pinned.
pub const PINNED: &str = "fourth:v1";
/// Timeout for a pin, and for a collection, which begins some seconds after a change, under emulation.
const PATIENCE: Duration = Duration::from_secs(180);

/// Pushes all these images, on one base.
pub fn push_images_on_one_base(registry: &Registry) -> Result<()> {
    for image in IMAGES.into_iter().chain([IMPORTED, PINNED]) {
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
            self.enter(stage, with_store(config))?;
            for call in calls {
                run(client, &["image", call, image]).await?;
            }
        }
        Ok(())
    }

    /// Imports a bundle, pins an image, and unpins it until it is collected and pinned again, in three stages: `import`, `pin`, `collect`.
    /// `config` is the node's config.
    pub async fn import_pin_and_collect(
        &mut self,
        client: &Instarctl,
        registry: &Registry,
        bundle: &Path,
        config: &str,
    ) -> Result<()> {
        let image = registry.image_for_guest(PINNED);
        self.enter("import", with_store(config))?;
        import(client, bundle).await?;
        self.enter("pin", with_store(config))?;
        pin(self.node(), client, &image).await?;
        self.enter("collect", with_store(config))?;
        run(client, &["image", "unpin", &image]).await?;
        is_collected(self.node(), client, &image, PATIENCE).await?;
        // A removal alone writes nothing at once.
        pin(self.node(), client, &image).await
    }
}

fn with_store(config: &str) -> Setting {
    Setting {
        judges_store: true,
        ..Setting::with_config(config)
    }
}

async fn run(client: &Instarctl, words: &[&str]) -> Result<()> {
    let said = client.run(words).await?;
    ensure!(said.code == Some(0), "{words:?}: {said:?}");
    Ok(())
}

/// Brings a bundle to a node, which imports its images.
pub async fn import(client: &Instarctl, bundle: &Path) -> Result<()> {
    let bundle = bundle.to_string_lossy();
    run(client, &["bundle", "upload", "--unchecked", &bundle]).await
}

/// Pins an image, and waits until it is here.
pub async fn pin(node: &Node, client: &Instarctl, image: &str) -> Result<()> {
    run(client, &["image", "pin", image]).await?;
    let pinned = async || {
        let said = client.run(&["get", "pins", image, "-o", "json"]).await?;
        let shown: serde_json::Value = serde_json::from_str(&said.output)?;
        ensure!(shown["spec"]["state"] == "pinned", "{shown:#}");
        Ok(())
    };
    let what = format!("{image} is pinned");
    node.wait_until(&what, PATIENCE, pinned).await
}

/// Waits until an image that nothing names is gone.
pub async fn is_collected(
    node: &Node,
    client: &Instarctl,
    image: &str,
    within: Duration,
) -> Result<()> {
    let gone = async || {
        let said = client.run(&["get", "images"]).await?;
        ensure!(
            said.code == Some(0) && !said.output.contains(image),
            "{said:?}"
        );
        Ok(())
    };
    let what = format!("{image} is collected");
    node.wait_until(&what, within, gone).await
}
