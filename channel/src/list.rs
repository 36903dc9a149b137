//! The list of a channel: its releases, in one form of bytes.

use instar_values::{Digest, ImageReference, Version, VersionRanges};
use serde::{Deserialize, Serialize};

use crate::{ChannelName, Date, Label};

/// The name of the format. Another format has another file name too: a machine reads what it knows, and a publisher may offer both.
pub const FORMAT: &str = "instar.dev/channel/v1";
/// Limit on the size of a list, in bytes: a release has some 500.
pub const LARGEST: usize = 1 << 20;
/// Limit on the number of releases.
pub const MOST_RELEASES: usize = 1000;
/// Limit on the length of notes and reasons, in bytes.
const LONGEST_TEXT: usize = 2048;

/// A release of a channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Release {
    /// Its version; a channel has each version once for each architecture.
    pub version: Version,
    /// The architecture that it is for, such as `amd64`.
    pub architecture: String,
    /// The installer image by its name.
    pub image: ImageReference,
    /// The digest of the image's manifest, which alone says which image it is.
    pub digest: Digest,
    /// The date at which it came into this channel.
    pub date: Date,
    /// The oldest version that a machine takes once this one was committed there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<Version>,
    /// The versions that this one may follow; none: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upgrades_from: Option<VersionRanges>,
    /// The labels of the machines that it is for: those that have one of them; empty: all machines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub only_for: Vec<Label>,
    /// A note for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub notes: String,
    /// Why no machine goes to it any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withdrawn: Option<String>,
}

impl Release {
    /// The image by its digest.
    #[must_use]
    pub fn pinned_image(&self) -> ImageReference {
        self.image.at(self.digest)
    }

    /// Whether it is for a machine with these labels.
    #[must_use]
    pub fn is_for(&self, labels: &[Label]) -> bool {
        let mut only_for = self.only_for.iter();
        self.only_for.is_empty() || only_for.any(|label| labels.contains(label))
    }
}

/// The list of a channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct List {
    format: String,
    /// The channel.
    pub channel: ChannelName,
    /// Counts up with each list of the channel.
    pub serial: u64,
    /// The date at which the list was made.
    pub date: Date,
    /// The date after which the list starts no upgrade. So a mirror that shows an old list for ever, with a release that was withdrawn
    /// meanwhile, does so for a limited time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Date>,
    /// The releases, the newest version first.
    pub releases: Vec<Release>,
}

/// Why bytes are no list of a channel.
#[derive(Debug, thiserror::Error)]
pub enum NotAList {
    /// There are too many.
    #[error("the list has {0} bytes; at most {LARGEST} are read")]
    TooLarge(usize),
    /// They are not JSON, or not of this shape.
    #[error("the list of releases cannot be read")]
    Json(#[from] serde_json::Error),
    /// The list is of another format.
    #[error("the list has the format {0:?}, and this program reads {FORMAT}")]
    Format(String),
    /// There are too many releases.
    #[error("the list has {0} releases; at most {MOST_RELEASES} are read")]
    TooMany(usize),
    /// A version is there twice, or the order is another one.
    #[error(
        "{0} is not in its place: a list has each version once for each architecture, the newest first"
    )]
    Order(Version),
    /// The serial is 0.
    #[error("the list has the serial 0; the first list of a channel has 1")]
    Serial,
    /// A text is too long.
    #[error("the notes or the reason of {0} have more than {LONGEST_TEXT} bytes")]
    LongText(Version),
    /// An image is named with a digest.
    #[error("the image of {0} is named with a digest: the digest has a field of its own")]
    Digest(Version),
    /// The same content in other bytes: spaces, another order of fields.
    #[error(
        "the list is not in the one form of bytes that a list has; write it with instar-channel"
    )]
    Form,
}

impl List {
    /// The first list of a channel, without a release.
    #[must_use]
    pub fn first(channel: ChannelName, date: Date) -> Self {
        List {
            format: FORMAT.to_owned(),
            channel,
            serial: 1,
            date,
            expires: None,
            releases: Vec::new(),
        }
    }

    /// Reads a list. Anybody may have written it: [`crate::open`] also checks who has.
    ///
    /// # Errors
    /// The bytes are not those that [`List::to_bytes`] writes.
    pub fn parse(bytes: &[u8]) -> Result<Self, NotAList> {
        if bytes.len() > LARGEST {
            return Err(NotAList::TooLarge(bytes.len()));
        }
        let list: List = serde_json::from_slice(bytes)?;
        list.check()?;
        match list.to_bytes()? == bytes {
            true => Ok(list),
            false => Err(NotAList::Form),
        }
    }

    /// Checks what its types do not say.
    fn check(&self) -> Result<(), NotAList> {
        if self.format != FORMAT {
            return Err(NotAList::Format(self.format.chars().take(80).collect()));
        }
        if self.serial == 0 {
            return Err(NotAList::Serial);
        }
        if self.releases.len() > MOST_RELEASES {
            return Err(NotAList::TooMany(self.releases.len()));
        }
        for release in &self.releases {
            let texts = [Some(&release.notes), release.withdrawn.as_ref()];
            if texts
                .into_iter()
                .flatten()
                .any(|text| text.len() > LONGEST_TEXT)
            {
                return Err(NotAList::LongText(release.version.clone()));
            }
            if release.image.digest().is_some() {
                return Err(NotAList::Digest(release.version.clone()));
            }
        }
        let pairs = self.releases.windows(2);
        let out_of_order = pairs
            .filter_map(|pair| match pair {
                [one, other] if place(one) <= place(other) => Some(other),
                _ => None,
            })
            .next();
        match out_of_order {
            Some(release) => Err(NotAList::Order(release.version.clone())),
            None => Ok(()),
        }
    }

    /// Writes the list: JSON with two spaces per level, fields in the order of the format, absent fields left out, and one newline at the end.
    ///
    /// # Errors
    /// A machine would refuse it: see [`List::parse`].
    pub fn to_bytes(&self) -> Result<Vec<u8>, NotAList> {
        self.check()?;
        let mut bytes = serde_json::to_vec_pretty(self)?;
        bytes.push(b'\n');
        match bytes.len() > LARGEST {
            true => Err(NotAList::TooLarge(bytes.len())),
            false => Ok(bytes),
        }
    }

    /// The release with this version for this architecture.
    #[must_use]
    pub fn find(&self, version: &Version, architecture: &str) -> Option<&Release> {
        let mut releases = self.releases.iter();
        releases.find(|it| it.version == *version && it.architecture == architecture)
    }
}

/// The place of a release in a list: greater ones come first.
pub(crate) fn place(release: &Release) -> (&Version, &str) {
    (&release.version, &release.architecture)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::change::tests::{date, list_of};

    #[test]
    fn a_list_has_one_form_of_bytes() {
        let list = list_of(&["v0.3.0", "v0.2.0"]);
        let bytes = list.to_bytes().unwrap();
        assert_eq!(List::parse(&bytes).unwrap(), list);
        let text = String::from_utf8(bytes).unwrap();
        let twice = text.replacen("\"serial\"", "\"serial\": 1,\n  \"serial\"", 1);
        for changed in [
            text.trim_end().to_owned(),
            format!("{text}\n"),
            format!(" {text}"),
            text.replace("  ", "\t"),
            text.replace("v0.3.0\"", "v0\\u002e3.0\""),
        ] {
            let error = List::parse(changed.as_bytes()).unwrap_err();
            assert!(matches!(error, NotAList::Form), "{error}: {changed}");
        }
        for changed in [
            twice,
            text.replace("\"serial\"", "\"later\""),
            text.replace("sha256:", "sha512:"),
            text[..text.len() / 2].to_owned(),
        ] {
            let error = List::parse(changed.as_bytes()).unwrap_err();
            assert!(matches!(error, NotAList::Json(_)), "{error}: {changed}");
        }
    }

    #[test]
    fn what_no_machine_may_get_is_not_written_either() {
        let good = list_of(&["v0.3.0", "v0.2.0"]);
        let refused = |change: fn(&mut List)| {
            let mut list = good.clone();
            change(&mut list);
            list.to_bytes().unwrap_err()
        };
        let error = refused(|list| list.releases.swap(0, 1));
        assert!(matches!(error, NotAList::Order(_)), "{error}");
        let error = refused(|list| list.releases[1] = list.releases[0].clone());
        assert!(matches!(error, NotAList::Order(_)), "{error}");
        let error = refused(|list| list.releases[0].notes = "x".repeat(LONGEST_TEXT + 1));
        assert!(matches!(error, NotAList::LongText(_)), "{error}");
        let error = refused(|list| list.serial = 0);
        assert!(matches!(error, NotAList::Serial), "{error}");
        let error = refused(|list| list.format = "v2".into());
        assert!(matches!(error, NotAList::Format(_)), "{error}");
        let error = refused(|list| list.releases[0].image = list.releases[0].pinned_image());
        assert!(matches!(error, NotAList::Digest(_)), "{error}");
        let error = refused(|list| {
            list.releases = vec![list.releases[0].clone(); MOST_RELEASES + 1];
        });
        assert!(matches!(error, NotAList::TooMany(_)), "{error}");
    }

    #[test]
    fn the_first_list_has_no_release() {
        let list = List::first("stable".parse().unwrap(), date(1));
        let text = String::from_utf8(list.to_bytes().unwrap()).unwrap();
        let expected = "{\n  \"format\": \"instar.dev/channel/v1\",\n  \"channel\": \"stable\",\n  \"serial\": 1,\n  \
                        \"date\": \"1970-01-01T00:00:01Z\",\n  \"releases\": []\n}\n";
        assert_eq!(text, expected);
    }
}
