//! From the labels of an installer image to a release of a channel. What the labels do not allow is never a candidate.
//!
//! `dev.instar.official` and `dev.instar.channels` are for channels alone (docs/channels.md); the others are those of every installer image
//! (docs/contracts.md).

use std::collections::BTreeMap;
use std::str::FromStr;

use instar_values::{Digest, ImageReference, Version};

use crate::{ChannelName, Date, Label, Release};

/// The versions of init's protocol that machines speak.
const PROTOCOLS: [&str; 1] = ["1"];
const VERSION: &str = "dev.instar.version";
const ARCHITECTURE: &str = "dev.instar.architecture";
const PROTOCOL: &str = "dev.instar.protocol";
const FLOOR: &str = "dev.instar.floor";
const UPGRADES_FROM: &str = "dev.instar.upgrades-from";
const OFFICIAL: &str = "dev.instar.official";
const CHANNELS: &str = "dev.instar.channels";

/// Why an image is no candidate for a channel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotACandidate {
    /// It has not this label.
    #[error("it has no label {0}, so it is no installer image of Instar")]
    NoLabel(&'static str),
    /// The value of a label is wrong.
    #[error("its label {label} has the value {value:?}: {why}")]
    BadLabel {
        /// The label.
        label: &'static str,
        /// Its value.
        value: String,
        /// The defect.
        why: String,
    },
    /// It is not an official release.
    #[error(
        "it is not an official release: it has no label {OFFICIAL} with the value true, as `image build --official` sets it; --unofficial takes it \
         all the same"
    )]
    Unofficial,
    /// It is for other channels.
    #[error("its label {CHANNELS} says {0:?}, which does not name this channel")]
    OtherChannels(String),
    /// No machine's init speaks its protocol.
    #[error(
        "it needs version {0} of init's protocol, which no machine speaks that follows this format of channels"
    )]
    Protocol(String),
    /// It is a pre-release, and the channel has none.
    #[error("{0} is a pre-release, and the channel stable has none")]
    PreRelease(Version),
}

/// An image, and what its publisher says about it.
#[derive(Debug, Clone)]
pub struct Offer<'a> {
    /// The image by its name.
    pub image: ImageReference,
    /// The digest of its manifest.
    pub digest: Digest,
    /// Its labels.
    pub labels: &'a BTreeMap<String, String>,
    /// The machines that it is for; empty: all.
    pub only_for: Vec<Label>,
    /// Notes for people.
    pub notes: String,
    /// Whether an image without the label of official releases is taken.
    pub unofficial: bool,
}

impl Offer<'_> {
    /// Makes a release of a channel.
    ///
    /// # Errors
    /// The image is no candidate by its labels.
    pub fn release(self, channel: &ChannelName, date: Date) -> Result<Release, NotACandidate> {
        let labels = self.labels;
        let version: Version = required(labels, VERSION)?;
        if !self.unofficial && labels.get(OFFICIAL).map(String::as_str) != Some("true") {
            return Err(NotACandidate::Unofficial);
        }
        if let Some(named) = labels.get(CHANNELS)
            && !named.split(',').any(|name| name.trim() == channel.as_str())
        {
            return Err(NotACandidate::OtherChannels(shown(named)));
        }
        if channel.as_str() == "stable" && version.is_pre_release() {
            return Err(NotACandidate::PreRelease(version));
        }
        let protocol: String = required(labels, PROTOCOL)?;
        if !PROTOCOLS.contains(&protocol.as_str()) {
            return Err(NotACandidate::Protocol(shown(&protocol)));
        }
        Ok(Release {
            version,
            architecture: required(labels, ARCHITECTURE)?,
            image: self.image,
            digest: self.digest,
            date,
            floor: optional(labels, FLOOR)?,
            upgrades_from: optional(labels, UPGRADES_FROM)?,
            only_for: self.only_for,
            notes: self.notes,
            withdrawn: None,
        })
    }
}

fn required<T: FromStr<Err: ToString>>(
    labels: &BTreeMap<String, String>,
    label: &'static str,
) -> Result<T, NotACandidate> {
    optional(labels, label)?.ok_or(NotACandidate::NoLabel(label))
}

fn optional<T: FromStr<Err: ToString>>(
    labels: &BTreeMap<String, String>,
    label: &'static str,
) -> Result<Option<T>, NotACandidate> {
    let parse = |value: &String| {
        value
            .parse()
            .map_err(|error: T::Err| NotACandidate::BadLabel {
                label,
                value: shown(value),
                why: error.to_string(),
            })
    };
    labels.get(label).map(parse).transpose()
}

fn shown(value: &str) -> String {
    value.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::change::tests::date;

    /// Makes a release of an official image with these labels changed; an empty value removes one.
    fn with(channel: &str, changes: &[(&str, &str)]) -> Result<Release, NotACandidate> {
        let all = [
            (VERSION, "v0.2.0"),
            (ARCHITECTURE, "amd64"),
            (PROTOCOL, "1"),
            (OFFICIAL, "true"),
        ];
        let mut labels = BTreeMap::from(all.map(|(label, value)| (label.into(), value.into())));
        for (label, value) in changes {
            match value.is_empty() {
                true => labels.remove(*label),
                false => labels.insert((*label).to_owned(), (*value).to_owned()),
            };
        }
        let offer = Offer {
            image: "r.io/os:v0.2.0".parse().unwrap(),
            digest: Digest::of(b"image"),
            labels: &labels,
            only_for: Vec::new(),
            notes: String::new(),
            unofficial: false,
        };
        offer.release(&channel.parse().unwrap(), date(5))
    }

    #[test]
    fn labels_decide_what_is_a_candidate() {
        let good = with("stable", &[(FLOOR, "v0.1.0"), (UPGRADES_FROM, ">=v0.1.0")]).unwrap();
        assert_eq!(good.floor, "v0.1.0".parse().ok());
        assert_eq!(good.upgrades_from, ">=v0.1.0".parse().ok());
        with("beta", &[(CHANNELS, "alpha, beta")]).unwrap();
        with("beta", &[(VERSION, "v0.3.0-rc.1")]).unwrap();
        type Is = fn(&NotACandidate) -> bool;
        let cases: [(&[(&str, &str)], Is); 8] = [
            (&[(VERSION, "")], |it| {
                matches!(it, NotACandidate::NoLabel(VERSION))
            }),
            (&[(ARCHITECTURE, "")], |it| {
                matches!(it, NotACandidate::NoLabel(_))
            }),
            (&[(OFFICIAL, "")], |it| {
                matches!(it, NotACandidate::Unofficial)
            }),
            (&[(OFFICIAL, "yes")], |it| {
                matches!(it, NotACandidate::Unofficial)
            }),
            (&[(CHANNELS, "alpha,beta")], |it| {
                matches!(it, NotACandidate::OtherChannels(_))
            }),
            (&[(PROTOCOL, "2")], |it| {
                matches!(it, NotACandidate::Protocol(_))
            }),
            (&[(VERSION, "v0.3.0-rc.1")], |it| {
                matches!(it, NotACandidate::PreRelease(_))
            }),
            (&[(UPGRADES_FROM, "some")], |it| {
                matches!(it, NotACandidate::BadLabel { .. })
            }),
        ];
        for (changes, is) in cases {
            let error = with("stable", changes).unwrap_err();
            assert!(is(&error), "{changes:?}: {error}");
        }
    }
}
