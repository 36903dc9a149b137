//! Whether an image that a bundle brings takes a name from another image. A signature says nothing of names: whoever has an old image with its
//! signature can write any name of its repository into a bundle, and a container would go back to it.

use std::cmp::Ordering;

use instar_values::{Digest, ImageReference};

use super::ImageStore;
use super::image::PulledImage;
use super::record::write;
use crate::store_error::StoreError;

/// The length of a time without its fraction: `2026-11-28T12:00:00`.
const SECONDS: usize = 19;

impl ImageStore {
    /// Gives an image of the store a name, unless another image has it that is not older. `by_digest`: a name that the image got before, and
    /// does not need beside this one.
    pub(crate) fn add_name_if_newer(
        &self,
        image: PulledImage,
        name: &ImageReference,
        named: Digest,
        by_digest: Option<&ImageReference>,
    ) -> Result<PulledImage, StoreError> {
        let _naming = self.naming();
        let others = self.list()?.into_iter();
        let mut others = others.filter(|it| it.digest() != image.digest());
        let has_it = |other: &PulledImage| other.names().contains(name);
        if others.any(|other| has_it(&other) && !is_newer(&image, &other)) {
            return Ok(image);
        }
        let mut image = self.give_name(image, name, named)?;
        if by_digest.is_some_and(|it| image.record.names.remove(it)) {
            write(&image.directory, &image.record)?;
        }
        Ok(image)
    }
}

fn is_newer(image: &PulledImage, other: &PulledImage) -> bool {
    let created = |image: &PulledImage| image.config().created.clone();
    is_later(created(image).as_deref(), created(other).as_deref())
}

/// Whether a time is later than another one. One that is not known, or not in UTC, as tools write it, is not.
fn is_later(time: Option<&str>, other: Option<&str>) -> bool {
    let (Some(time), Some(other)) = (time.and_then(in_utc), other.and_then(in_utc)) else {
        return false;
    };
    time.cmp(other) == Ordering::Greater
}

/// A time (RFC 3339) in UTC without its fraction. Such times are in the order of their texts.
fn in_utc(time: &str) -> Option<&str> {
    const FORM: &[u8; SECONDS] = b"0000-00-00T00:00:00";
    let (seconds, rest) = time.split_at_checked(SECONDS)?;
    let fits = |(byte, form): (u8, &u8)| match form {
        b'0' => byte.is_ascii_digit(),
        other => byte == *other,
    };
    let is_time = seconds.bytes().zip(FORM).all(fits);
    let fraction = rest.strip_suffix('Z')?;
    let is_fraction = fraction.strip_prefix('.').is_none_or(|digits| {
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    });
    let has_no_rest = fraction.is_empty() || fraction.starts_with('.');
    (is_time && is_fraction && has_no_rest).then_some(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_time_that_is_known_to_be_later_is() {
        let at = "2026-11-28T12:00:00Z";
        for (time, other, expected) in [
            (Some("2026-11-28T12:00:01Z"), Some(at), true),
            (Some("2027-01-01T00:00:00.123456789Z"), Some(at), true),
            (Some(at), Some(at), false),
            (Some("2026-11-28T12:00:00.5Z"), Some(at), false),
            (Some("2026-11-28T11:59:59Z"), Some(at), false),
            (Some("1970-01-01T00:00:00Z"), Some(at), false),
            (Some("2027-11-28T12:00:00+01:00"), Some(at), false),
            (Some("2027-11-28T12:00:00"), Some(at), false),
            (Some("2027-11-28T12:00:00xZ"), Some(at), false),
            (Some("2027-11-28T12:00:00.Z"), Some(at), false),
            (Some("9999"), Some(at), false),
            (Some("9999-99-99 99:99:99Z"), Some(at), false),
            (Some(at), None, false),
            (None, Some(at), false),
            (None, None, false),
        ] {
            assert_eq!(is_later(time, other), expected, "{time:?} {other:?}");
        }
    }
}
