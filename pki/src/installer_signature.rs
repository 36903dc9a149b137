//! The signature that binds a whole installer image to a key: its labels, and all files of its layers. The program that writes the boot
//! programs is among them, so nothing that it writes, and a reboot starts, is of another maker.
//!
//! The signature of the root filesystem ([`crate::rootfs_signature`]) is beside it: it is what init's measure, the digest of the root
//! filesystem alone, is compared with.

use std::collections::BTreeMap;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use instar_values::{Digest, PublicKey};

use crate::signature::is_signature;

/// The label of installer images with the signature in base64.
pub const LABEL: &str = "dev.instar.installer.signature";
/// The label with the digest by which firmware knows the UKI: SHA-256 as Secure Boot computes it, in hexadecimal.
pub const UKI_LABEL: &str = "dev.instar.uki.authenticode";
/// The program that the image has to start, without arguments of its own.
pub const PROGRAM: &str = "/usr/bin/installer";

/// Labels whose names begin with this are signed.
const SIGNED: &str = "dev.instar.";

/// Returns the text that is signed: the labels of Instar in the order of their names, and the digests of the unpacked layers, lowest first.
/// None if a label has a line break, with which it could pose as a line of its own.
#[must_use]
pub fn statement(labels: &BTreeMap<String, String>, layers: &[Digest]) -> Option<String> {
    let mut text = "Instar installer image, statement 1\n".to_owned();
    for (name, value) in labels {
        if name == LABEL || !name.starts_with(SIGNED) {
            continue;
        }
        let line = format!("label {name}: {value}");
        if line.contains(['\n', '\r']) {
            return None;
        }
        text.push_str(&line);
        text.push('\n');
    }
    for layer in layers {
        text.push_str(&format!("layer: {layer}\n"));
    }
    Some(text)
}

/// Returns the first of these keys whose owner has signed an image with these labels and layers; none if it has no signature.
pub fn signer<'a>(
    keys: impl IntoIterator<Item = &'a PublicKey>,
    labels: &BTreeMap<String, String>,
    layers: &[Digest],
) -> Option<&'a PublicKey> {
    let signature = BASE64_STANDARD.decode(labels.get(LABEL)?).ok()?;
    let statement = statement(labels, layers)?;
    keys.into_iter()
        .find(|key| is_signature(key, statement.as_bytes(), &signature))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn labels() -> BTreeMap<String, String> {
        let labels = [
            ("dev.instar.version", "v0.2.0"),
            ("dev.instar.floor", "v0.1.0"),
            (LABEL, "c2lnbmF0dXJl"),
            ("org.opencontainers.image.version", "2"),
        ];
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
        labels.into()
    }

    #[test]
    fn the_statement_has_all_labels_of_instar_but_itself_and_all_layers_in_order() {
        let (one, two) = (Digest::of(b"one"), Digest::of(b"two"));
        let expected = format!(
            "Instar installer image, statement 1\nlabel dev.instar.floor: v0.1.0\nlabel dev.instar.version: v0.2.0\n\
             layer: {one}\nlayer: {two}\n"
        );
        assert_eq!(statement(&labels(), &[one, two]), Some(expected));
        assert_ne!(
            statement(&labels(), &[one, two]),
            statement(&labels(), &[two, one])
        );
    }

    #[test]
    fn no_label_poses_as_another_or_as_a_layer() {
        let layer = Digest::of(b"layer");
        for value in [
            "v0.1.0\nlabel dev.instar.version: v0.2.0".to_owned(),
            format!("v0.1.0\nlayer: {layer}"),
            "v0.1.0\r".to_owned(),
        ] {
            let mut labels = labels();
            labels.insert("dev.instar.floor".to_owned(), value);
            assert_eq!(statement(&labels, &[]), None);
        }
        let mut labels = labels();
        labels.insert(format!("dev.instar.x: y\nlayer: {layer}"), String::new());
        assert_eq!(statement(&labels, &[]), None);
    }
}
