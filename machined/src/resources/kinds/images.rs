//! Images of containers, unpacked on the machine.

use super::{Item, Kind, Namespace, Record, Sensitivity, Source, Value};
use crate::containers::PulledImage;

/// What is in the store.
pub(super) const IMAGES: Kind = Kind {
    name: "Images.instar.dev",
    singular: "Image",
    namespace: Namespace::Runtime,
    aliases: &["imagecache"],
    columns: &[
        ("Names", "{.names}"),
        ("Downloaded", "{.downloadBytes}"),
        ("Unpacked", "{.unpackedBytes}"),
        ("Pulled", "{.pulledAt}"),
    ],
    sensitivity: Sensitivity::Open,
    sources: &[Source::Unannounced],
    read: |machine| Ok(machine.images.list()?.iter().map(image).collect()),
};

fn image(image: &PulledImage) -> Item {
    let names = image.names().iter().map(ToString::to_string);
    let spec = Record::default()
        .with("names", 1, names.collect::<Value>())
        .with("digest", 2, image.digest().to_string())
        .with("downloadBytes", 3, image.download_bytes())
        .with("unpackedBytes", 4, image.unpacked_bytes())
        .with("pulledAt", 5, Value::Time(image.pulled_at()));
    Item::new(image.digest().to_string(), spec)
}
