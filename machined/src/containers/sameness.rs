//! Whether a running container is the one that would be made now: compares the record beside it with the image in force and a spec.

use anyhow::Context as _;

use super::identity::Identity;
use super::in_force::ImagesInForce;
use super::runtime::Runtime;
use super::spec::ContainerSpec;
use crate::oci::{ImageStore, PulledImage};
use crate::values::ImageReference;

/// A container as a config describes it.
pub struct Described<'a> {
    /// The config's part, the cgroup of the running container included.
    pub spec: &'a ContainerSpec,
    /// The name of its image.
    pub image: &'a ImageReference,
}

impl Described<'_> {
    /// Returns the image of the running container of this name, if the container would be made the same way now.
    ///
    /// # Errors
    /// The difference.
    pub fn same_image(
        &self,
        runtime: &Runtime,
        images: &ImageStore,
        in_force: &ImagesInForce,
    ) -> anyhow::Result<PulledImage> {
        let name = &self.spec.name;
        let running = runtime.identity(name);
        let running = running.context("there is no record of what it is made of")?;
        let digest = in_force.get(name.as_str(), self.image);
        let digest = digest.with_context(|| format!("its image {} is not in force", self.image))?;
        let image = images.get(digest);
        let image = image.with_context(|| format!("its image {} is not here whole", self.image))?;
        match Identity::of(self.spec, &image)?.difference(&running) {
            Some(difference) => anyhow::bail!("{difference}"),
            None => Ok(image),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::containers::ImageDigests;
    use crate::oci::manifest::ImageConfig;
    use crate::oci::{Keeps, NewImage};
    use crate::values::{ContainerName, Digest};

    #[tokio::test]
    async fn a_container_is_the_same_only_with_its_image_and_its_definition() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let images = ImageStore::new(at("images"), Keeps::ImagesAlone);
        let here: ImageReference = "r.io/a:v1".parse().unwrap();
        let digest = Digest::of(b"image");
        let image = images.incoming(digest).unwrap().commit(NewImage {
            name: here.clone(),
            named_digest: digest,
            config: ImageConfig {
                entrypoint: vec!["/app".into()],
                ..ImageConfig::default()
            },
            download_bytes: 0,
            unpacked_bytes: 0,
            blobs: Default::default(),
        });
        let image = image.unwrap();
        let in_force = ImagesInForce::default();
        let digests = ImageDigests::of_pulled(&image, None);
        in_force.set("web", &here, digests).await;

        let runtime = Runtime::new("/nonexistent".into(), at("state"), at("run"));
        let name: ContainerName = "web".parse().unwrap();
        let spec = ContainerSpec::new(name.clone(), "/workloads/web".into());
        let difference = |spec: &ContainerSpec, image: &ImageReference| {
            let same = Described { spec, image }.same_image(&runtime, &images, &in_force);
            same.err().map(|why| why.to_string())
        };
        let unknown = "there is no record of what it is made of";
        assert_eq!(difference(&spec, &here).as_deref(), Some(unknown));
        std::fs::create_dir_all(at("run").join("web")).unwrap();
        let identity = Identity::of(&spec, &image).unwrap();
        runtime.note_identity(&name, &identity).unwrap();
        assert_eq!(difference(&spec, &here), None);

        let mut other = spec.clone();
        other.environment.push("A=1".into());
        let changed = "its definition or this version's rules for containers have changed";
        assert_eq!(difference(&other, &here).as_deref(), Some(changed));
        let other = "r.io/a:v2".parse().unwrap();
        let not_in_force = "its image r.io/a:v2 is not in force";
        assert_eq!(difference(&spec, &other).as_deref(), Some(not_in_force));
    }
}
