//! Images that are fetched ahead and kept.

use super::{super::model::ImagePins, Documents, window};

/// Limit on images: each has a resource, and its name is asked for at a registry.
const MOST: usize = 64;

pub(super) fn pins(documents: &Documents<'_>) -> ImagePins {
    let Some(document) = documents.one("ImagePinConfig") else {
        return ImagePins::default();
    };
    let mut pins = ImagePins {
        images: Vec::new(),
        window: window::of(&document).flatten(),
        bandwidth: document.parsed("bandwidth"),
    };
    for image in document.parsed_list("images") {
        match pins.images.contains(&image) {
            true => document.wrong_field("images", format_args!("{image} is named twice")),
            false => pins.images.push(image),
        }
    }
    if pins.images.len() > MOST {
        document.wrong_field(
            "images",
            format_args!("at most {MOST} images can be pinned"),
        );
    }
    pins
}
