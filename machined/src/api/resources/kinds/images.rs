//! The kinds for the images that are unpacked on the machine, and for bundles of images on their way in.

use super::{Item, Kind, Namespace, Record, Sensitivity, Source, Value};
use crate::bundles::BundleFact;
use crate::containers::InForce;
use crate::oci::PulledImage;
use crate::store::{Metadata, Resource as _};

/// The images in the store.
pub(super) const IMAGES: Kind = Kind {
    name: "Images.instar.dev",
    singular: "Image",
    namespace: Namespace::Runtime,
    aliases: &["imagecache"],
    columns: &[
        ("Names", "{.names}"),
        ("Containers", "{.containers}"),
        ("Signed by", "{.signedBy}"),
        ("Downloaded", "{.downloadBytes}"),
        ("Unpacked", "{.unpackedBytes}"),
        ("Pulled", "{.pulledAt}"),
    ],
    sensitivity: Sensitivity::Open,
    sources: &[Source::Unannounced],
    read: |machine| {
        let (images, in_force) = (machine.images.list()?, machine.images_in_force.all());
        Ok(images.iter().map(|it| image(it, &in_force)).collect())
    },
};

fn image(image: &PulledImage, in_force: &InForce) -> Item {
    let names = image.names().iter().map(ToString::to_string);
    let of_it = in_force
        .iter()
        .filter(|(_, it)| it.digest == image.digest());
    let containers = of_it.map(|(container, it)| format!("{container}={}", it.reference));
    let signed_by = image.signed_by().into_iter();
    let signed_by = signed_by.map(|key| key.to_string());
    let spec = Record::default()
        .with("names", 1, names.collect::<Value>())
        .with("digest", 2, image.digest().to_string())
        .with("downloadBytes", 3, image.download_bytes())
        .with("unpackedBytes", 4, image.unpacked_bytes())
        .with("pulledAt", 5, Value::Time(image.pulled_at()))
        .with("containers", 6, containers.collect::<Value>())
        .with("signedBy", 7, signed_by.collect::<Value>());
    Item::new(image.digest().to_string(), spec)
}

/// Bundles that were uploaded or found on sticks.
pub(super) const BUNDLES: Kind = Kind {
    name: "Bundles.instar.dev",
    singular: "Bundle",
    namespace: Namespace::Runtime,
    aliases: &[],
    columns: &[
        ("Phase", "{.phase}"),
        ("Detail", "{.detail}"),
        ("Digest", "{.digest}"),
    ],
    sensitivity: Sensitivity::Open,
    sources: &[Source::Store(BundleFact::TYPE)],
    read: |machine| {
        let bundles = machine.store.list::<BundleFact>().into_iter();
        Ok(bundles.map(bundle).collect())
    },
};

fn bundle((metadata, fact): (Metadata, BundleFact)) -> Item {
    let spec = Record::default()
        .with("origin", 1, fact.origin)
        .with("digest", 2, fact.digest.unwrap_or_default())
        .with("phase", 3, fact.phase.word())
        .with("detail", 4, fact.phase.detail());
    Item::stored(metadata, spec)
}
