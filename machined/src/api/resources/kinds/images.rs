//! The kinds for the images that are unpacked on the machine, and for bundles of images on their way in.

use super::{Item, Kind, Namespace, Record, Sensitivity, Source, Value};
use crate::bundles::{BundleFact, sentences};
use crate::config::Container;
use crate::containers::InForce;
use crate::containers::update::{Reason, Release, Standing};
use crate::machine::Machine;
use crate::oci::PulledImage;
use crate::pins::{PinFact, State, Wait};
use crate::sequences::image_updates;
use crate::store::{Metadata, Resource as _};
use crate::temporary_registry::TemporaryRegistryFact;

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
        ("Version", "{.version}"),
        ("Created", "{.created}"),
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
    let release = image_updates::release_of(image);
    let spec = Record::default()
        .with("names", 1, names.collect::<Value>())
        .with("digest", 2, image.digest().to_string())
        .with("downloadBytes", 3, image.download_bytes())
        .with("unpackedBytes", 4, image.unpacked_bytes())
        .with("pulledAt", 5, Value::Time(image.pulled_at()))
        .with("containers", 6, containers.collect::<Value>())
        .with("signedBy", 7, signed_by.collect::<Value>())
        .with("namedDigest", 8, image.named_digest().to_string())
        .with("version", 9, release.version.unwrap_or_default())
        .with("created", 10, release.created.unwrap_or_default());
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
    let said = sentences(&fact).into_iter().map(|sentence| sentence.text);
    let spec = Record::default()
        .with("origin", 1, fact.origin)
        .with("digest", 2, fact.digest.unwrap_or_default())
        .with("phase", 3, fact.phase.word())
        .with("detail", 4, fact.phase.detail())
        .with("sentences", 5, Value::from_iter(said));
    Item::stored(metadata, spec)
}

/// The containers that follow their images' names.
pub(super) const IMAGE_UPDATES: Kind = Kind {
    name: "ImageUpdates.instar.dev",
    singular: "ImageUpdate",
    namespace: Namespace::Runtime,
    aliases: &["updates"],
    columns: &[
        ("Image", "{.reference}"),
        ("Version", "{.version}"),
        ("State", "{.state}"),
        ("Found", "{.found}"),
        ("Found version", "{.foundVersion}"),
        ("Reason", "{.reason}"),
        ("Looked", "{.lookedAt}"),
    ],
    sensitivity: Sensitivity::Open,
    sources: &[Source::Unannounced],
    read: |machine| {
        let Some(configured) = machine.config() else {
            return Ok(Vec::new());
        };
        let containers = configured.config.containers.iter();
        let followed = containers.filter(|container| container.updates.is_some());
        Ok(followed
            .map(|container| update(machine, container))
            .collect())
    },
};

fn update(machine: &Machine, container: &Container) -> Item {
    let (name, reference) = (container.name.as_str(), &container.image);
    let in_force = machine.images_in_force.get(name, reference);
    let running = in_force.and_then(|digest| machine.images.get(digest));
    let running = running.as_ref().map(image_updates::release_of);
    let standing = machine.image_updates.standing(name, reference);
    let (state, found, reason) = match &standing {
        Standing::Current => ("current", None, None),
        Standing::Waiting { found, reason } => match reason {
            Reason::Window => ("window", Some(found), None),
            Reason::Approval(why) => ("approval", Some(found), Some(why)),
            Reason::Held(why) => ("held", Some(found), Some(why)),
        },
        Standing::OnTrial { found, .. } => ("trial", Some(found), None),
        Standing::Returned { failed, why } => ("returned", Some(failed), Some(why)),
    };
    let text = |text: Option<&String>| text.cloned().unwrap_or_default();
    let version = |release: Option<&Release>| text(release.and_then(|it| it.version.as_ref()));
    let created = |release: Option<&Release>| text(release.and_then(|it| it.created.as_ref()));
    let digest = |digest: Option<String>| digest.unwrap_or_default();
    let look = machine.image_updates.last_look(name);
    let mut spec = Record::default()
        .with("reference", 1, reference.to_string())
        .with("inForce", 2, digest(in_force.map(|it| it.to_string())))
        .with("version", 3, version(running.as_ref()))
        .with("created", 4, created(running.as_ref()))
        .with("state", 5, state.to_owned())
        .with("found", 6, digest(found.map(|it| it.digest.to_string())))
        .with("foundVersion", 7, version(found))
        .with("foundCreated", 8, created(found))
        .with("reason", 9, text(reason));
    if let Some(look) = look {
        spec = spec.with("lookedAt", 10, Value::Time(look.at)).with(
            "lookError",
            11,
            look.error.unwrap_or_default(),
        );
    }
    Item::new(name.to_owned(), spec)
}

/// The images that are fetched ahead and kept.
pub(super) const IMAGE_PINS: Kind = Kind {
    name: "ImagePins.instar.dev",
    singular: "ImagePin",
    namespace: Namespace::Runtime,
    aliases: &["pins"],
    columns: &[
        ("State", "{.state}"),
        ("Digest", "{.digest}"),
        ("Bytes", "{.bytes}"),
        ("Of", "{.total}"),
        ("Named by", "{.namedBy}"),
        ("Until", "{.until}"),
        ("Reason", "{.reason}"),
    ],
    sensitivity: Sensitivity::Open,
    sources: &[Source::Store(PinFact::TYPE)],
    read: |machine| {
        let pins = machine.store.list::<PinFact>().into_iter();
        Ok(pins.map(pin).collect())
    },
};

fn pin((metadata, fact): (Metadata, PinFact)) -> Item {
    let PinFact { named_by, state } = fact;
    let digest = state.digest().map(|digest| digest.to_string());
    let (bytes, total) = match &state {
        State::Fetching { bytes, total, .. } => (*bytes, *total),
        _ => (0, 0),
    };
    let (reason, until) = match &state {
        State::Waiting { reason, .. } => match reason {
            Wait::Turn => ("other images come first".to_owned(), None),
            Wait::Window(opens) => ("its window is closed".to_owned(), Some(*opens)),
            Wait::Clock => (
                "it has a window, and the clock was never set".to_owned(),
                None,
            ),
        },
        State::Failed { reason, next, .. } => (reason.clone(), Some(*next)),
        _ => (String::new(), None),
    };
    let named_by = named_by.into_iter().map(str::to_owned);
    let mut spec = Record::default()
        .with("reference", 1, metadata.id.clone())
        .with("digest", 2, digest.unwrap_or_default())
        .with("state", 3, state.word().to_owned())
        .with("bytes", 4, bytes)
        .with("total", 5, total)
        .with("namedBy", 6, named_by.collect::<Value>())
        .with("reason", 7, reason);
    if let Some(until) = until {
        spec = spec.with("until", 8, Value::Time(until));
    }
    Item::stored(metadata, spec)
}

/// The registry that serves images for a while.
pub(super) const TEMPORARY_REGISTRIES: Kind = Kind {
    name: "TemporaryRegistries.instar.dev",
    singular: "TemporaryRegistry",
    namespace: Namespace::Runtime,
    aliases: &["registries"],
    columns: &[
        ("Until", "{.until}"),
        ("Requests", "{.requests}"),
        ("Bytes", "{.bytes}"),
        ("Images", "{.images}"),
    ],
    sensitivity: Sensitivity::Open,
    sources: &[Source::Store(TemporaryRegistryFact::TYPE)],
    read: |machine| {
        let registries = machine.store.list::<TemporaryRegistryFact>().into_iter();
        Ok(registries.map(registry).collect())
    },
};

fn registry((metadata, fact): (Metadata, TemporaryRegistryFact)) -> Item {
    let spec = Record::default()
        .with("listen", 1, metadata.id.clone())
        .with("until", 2, Value::Time(fact.until))
        .with("images", 3, fact.images.into_iter().collect::<Value>())
        .with("requests", 4, fact.requests)
        .with("bytes", 5, fact.bytes)
        .with("tls", 6, fact.tls);
    Item::stored(metadata, spec)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::containers::registry_for_tests::SignedRegistry;
    use crate::oci::{ImageStore, Keeps, Limits};

    #[tokio::test]
    async fn an_image_says_its_date_its_version_and_what_is_signed() {
        let (registry, directory) = (SignedRegistry::start(), tempfile::tempdir().unwrap());
        let web = registry.push("web:v1", "web");
        let store = ImageStore::new(directory.path().to_owned(), Keeps::Blobs);
        let puller = registry.puller();
        let resolved = puller.resolve(&web.name).await.unwrap();
        let verified = puller.verify(resolved).await.unwrap();
        let limits = Limits::default();
        puller.pull(&verified, &store, &limits).await.unwrap();
        let shown = image(&store.get(web.manifest).unwrap(), &InForce::default());
        let yaml = shown.spec.yaml();
        let shown: serde_json::Value = serde_saphyr::from_str(&yaml).unwrap();
        assert_eq!(shown["digest"], web.manifest.to_string());
        assert_eq!(shown["namedDigest"], web.index.to_string());
        assert_eq!(shown["version"], "2.6.2");
        assert_eq!(shown["created"], "2026-01-02T03:04:05Z");
    }
}
