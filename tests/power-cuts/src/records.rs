//! The machine's records about images, in a state: which came by bundles, which are pinned, and which blobs an image was made from.
//!
//! A record is replaced as a whole, so half of one is a defect. machined would go on without it, and lose what it says.

use std::collections::BTreeSet;

use instar_values::Digest;
use serde_json::Value;

/// The images that the record of bundles names; `None` if it cannot be read.
pub(crate) fn brought_images(record: &[u8]) -> Option<BTreeSet<Digest>> {
    let record: Value = serde_json::from_slice(record).ok()?;
    let mut images = BTreeSet::new();
    for bundle in record.as_array()? {
        digest(bundle.get("bundle")?)?;
        images.extend(digests(bundle.get("images")?)?);
        // Older versions kept no files.
        if let Some(files) = bundle.get("files") {
            images.extend(digests(files)?);
        }
    }
    Some(images)
}

/// Whether the record of pins can be read.
pub(crate) fn are_pins_readable(record: &[u8]) -> bool {
    let meanings = || {
        let record: Value = serde_json::from_slice(record).ok()?;
        record.as_object()?;
        let Some(meanings) = record.get("meanings") else {
            return Some(());
        };
        let mut meanings = meanings.as_object()?.values();
        meanings.try_for_each(|meaning| digest(meaning.get("digest")?).map(|_| ()))
    };
    meanings().is_some()
}

/// The blobs that an image's record names; none if it names none. `None` if the record cannot be read.
pub(crate) fn blobs_of_image(record: &[u8]) -> Option<BTreeSet<Digest>> {
    let record: Value = serde_json::from_slice(record).ok()?;
    record.get("blobs").map_or(Some(BTreeSet::new()), digests)
}

fn digests(value: &Value) -> Option<BTreeSet<Digest>> {
    value.as_array()?.iter().map(digest).collect()
}

fn digest(value: &Value) -> Option<Digest> {
    value.as_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_record_and_another_form_cannot_be_read() {
        let (one, two) = (Digest::of(b"1"), Digest::of(b"2"));
        let bundles = format!(
            "[{{\"bundle\":\"{one}\",\"images\":[\"{two}\"],\"files\":[],\"approved\":true}}]"
        );
        let read = |text: &str| brought_images(text.as_bytes());
        assert_eq!(read(&bundles), Some(BTreeSet::from([two])));
        assert_eq!(read("[]"), Some(BTreeSet::new()));
        for wrong in [
            "",
            "{}",
            "[1]",
            &bundles[..30],
            &bundles.replace("sha256:", ""),
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }

        let pins =
            format!("{{\"calls\":{{}},\"meanings\":{{\"r.io/a:1\":{{\"digest\":\"{one}\"}}}}}}");
        assert!(are_pins_readable(pins.as_bytes()));
        assert!(are_pins_readable(b"{}"));
        for wrong in ["", "[]", &pins[..30], &pins.replace("sha256:", "")] {
            assert!(!are_pins_readable(wrong.as_bytes()), "{wrong}");
        }

        let image = format!("{{\"digest\":\"{one}\",\"blobs\":[\"{two}\"]}}");
        let blobs = blobs_of_image(image.as_bytes());
        assert_eq!(blobs, Some(BTreeSet::from([two])));
        assert_eq!(blobs_of_image(b"{\"digest\":1}"), Some(BTreeSet::new()));
        assert_eq!(blobs_of_image(&image.as_bytes()[..40]), None);
    }
}
