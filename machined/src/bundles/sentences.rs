//! Says about a bundle in sentences all that a person at the machine wants to know, who did not write this program: what was found, who
//! allows it, what will happen, how far it is, what went wrong, and whether the stick can be pulled out.
//!
//! Console, events, `get bundles -o yaml` and the dashboard show the same sentences.

use super::contents::{Approval, FoundImage, FoundList, Support, UseOfList};
use super::file_use::{FoundFile, UseOfFile};
use super::phase::Phase;
use super::upgrade::Upgrade;
use super::{BundleFact, Place};
use crate::base::byte_size::{human, human_short};
use crate::base::printable::printable;

/// Number of images that are named; the others are only counted.
const NAMED: usize = 4;

/// A sentence about a bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sentence {
    /// The text.
    pub text: String,
    /// The kind of the sentence.
    pub kind: Kind,
}

/// The kind of a sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A fact that stays.
    Fact,
    /// It has a figure that changes all the time.
    Progress,
    /// It says that something went wrong.
    Problem,
}

fn fact(text: impl Into<String>) -> Sentence {
    Sentence {
        text: text.into(),
        kind: Kind::Fact,
    }
}

fn progress(text: String) -> Sentence {
    Sentence {
        text,
        kind: Kind::Progress,
    }
}

fn problem(text: String) -> Sentence {
    Sentence {
        text,
        kind: Kind::Problem,
    }
}

/// All sentences about a bundle, in the order in which they are read.
pub fn sentences(bundle: &BundleFact) -> Vec<Sentence> {
    let mut said = Vec::new();
    said.extend(found(bundle));
    said.extend(holds(&bundle.images));
    said.extend(who_allows(bundle));
    said.extend(how_far(bundle));
    said.extend(bundle.files.iter().map(file));
    said.extend(bundle.lists.iter().map(list));
    said.extend(upgrade(bundle));
    said.extend(bundle.support.as_ref().map(support));
    said.extend(may_be_pulled_out(bundle));
    for sentence in &mut said {
        // Names and labels are those of whoever made the bundle, and the terminal that asks a person shows them as they are.
        sentence.text = printable(&sentence.text);
    }
    said
}

fn found(bundle: &BundleFact) -> Option<Sentence> {
    let sign = match &bundle.place {
        Place::Upload => return None,
        Place::Stick { label } => format!("label {label}"),
        Place::Folder { directory } => format!("directory {directory}"),
    };
    let origin = &bundle.origin;
    Some(fact(format!(
        "A stick with the {sign} is plugged in ({origin})."
    )))
}

fn holds(images: &[FoundImage]) -> Option<Sentence> {
    let (first, more) = images.split_at_checked(NAMED).unwrap_or((images, &[]));
    if first.is_empty() {
        return None;
    }
    let named: Vec<String> = first.iter().map(with_version).collect();
    let more = match more.len() {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    let named = named.join(", ");
    let count = counted(images.len(), "image");
    Some(fact(format!("The bundle holds {count}: {named}{more}.")))
}

fn with_version(image: &FoundImage) -> String {
    match &image.version {
        Some(version) => format!("{} (version {version})", image.reference),
        None => image.reference.clone(),
    }
}

fn counted(count: usize, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// One sentence for each way of approval.
fn who_allows(bundle: &BundleFact) -> Vec<Sentence> {
    let mut said: Vec<Sentence> = Vec::new();
    let total = bundle.images.len();
    for (index, image) in bundle.images.iter().enumerate() {
        let earlier = bundle.images.get(..index).unwrap_or_default();
        if earlier.iter().any(|it| it.approval == image.approval) {
            continue;
        }
        let same = bundle.images.iter();
        let same = same.filter(|it| it.approval == image.approval).count();
        let who = if same == total && bundle.files.is_empty() {
            "All of it is".to_owned()
        } else if same == total {
            "All of its images are".to_owned()
        } else {
            format!("{same} of {total} are")
        };
        said.extend(approval(bundle, &image.approval, &who));
    }
    said
}

fn approval(bundle: &BundleFact, approval: &Approval, who: &str) -> Option<Sentence> {
    let digest = bundle.digest.as_deref().unwrap_or("not known yet");
    Some(match approval {
        Approval::NotJudged | Approval::Caller => return None,
        Approval::Nobody => problem(format!(
            "{who} neither signed by a key that this machine trusts nor approved. The bundle's digest is {digest}."
        )),
        Approval::Signature { rule, .. } => fact(format!(
            "{who} signed by the key of the rule for {rule}, which this machine trusts."
        )),
        Approval::Config => fact(format!(
            "{who} approved by this machine's config, which names the digest {digest}."
        )),
        Approval::Person => fact(format!(
            "{who} approved by a person at this machine. The bundle's digest is {digest}."
        )),
    })
}

fn how_far(bundle: &BundleFact) -> Vec<Sentence> {
    let of = |bytes: u64, total: u64| format!("{} of {}", human(bytes), human_short(total));
    match &bundle.phase {
        Phase::Searching if bundle.place == Place::Upload => Vec::new(),
        Phase::Searching => vec![progress("The stick is being looked through.".to_owned())],
        Phase::Waiting { origin } => vec![fact(format!(
            "Another bundle is taken first, which came by {origin}. This one is next then."
        ))],
        Phase::Empty => Vec::new(),
        Phase::Receiving { bytes, total } => {
            let of = of(*bytes, *total);
            vec![progress(format!("A bundle is being uploaded: {of}."))]
        }
        Phase::Verifying { bytes, total } => {
            let of = of(*bytes, *total);
            vec![progress(format!(
                "Every byte of the bundle is being checked: {of}."
            ))]
        }
        Phase::Asking { seconds } => vec![fact(format!(
            "A person at this machine is asked to approve it, and has {seconds} s to answer."
        ))],
        Phase::Importing {
            image,
            number,
            count,
            bytes,
            total,
        } => vec![progress(format!(
            "The bundle is good and allowed. Image {number} of {count} is being copied: {image}, {}.",
            of(*bytes, *total)
        ))],
        Phase::Keeping {
            file,
            number,
            count,
            ..
        } => vec![progress(format!(
            "The bundle is good and allowed. File {number} of {count} is being copied: {file}."
        ))],
        Phase::Taken { images } if images.is_empty() => {
            vec![fact("The bundle was taken.")]
        }
        Phase::Taken { images } => {
            let count = counted(images.len(), "image");
            vec![fact(format!(
                "The bundle was taken: {count} on this machine now."
            ))]
        }
        Phase::Refused {
            imported,
            reason,
            advice,
        } => {
            let used = match imported {
                0 => "Nothing of the bundle is used".to_owned(),
                1 => "Only the first image of the bundle is on this machine".to_owned(),
                more => format!("Only the first {more} images of the bundle are on this machine"),
            };
            vec![problem(format!("{used}: {reason}.")), fact(advice.clone())]
        }
    }
}

fn file(file: &FoundFile) -> Sentence {
    match file.use_of_it {
        UseOfFile::NoDisk => problem(file.to_string()),
        UseOfFile::NotDecided
        | UseOfFile::Kept
        | UseOfFile::OtherArchitecture
        | UseOfFile::NotNamed
        | UseOfFile::OtherName => fact(file.to_string()),
    }
}

fn list(list: &FoundList) -> Sentence {
    match list.use_of_it {
        UseOfList::Refused(_) => problem(list.to_string()),
        UseOfList::NotFollowed | UseOfList::Taken { .. } => fact(list.to_string()),
    }
}

fn upgrade(bundle: &BundleFact) -> Option<Sentence> {
    if matches!(bundle.phase, Phase::Refused { .. }) {
        return None;
    }
    Some(match bundle.upgrade.as_ref()? {
        Upgrade::NoInstaller => return None,
        Upgrade::NotNewer { version, running } => fact(format!(
            "No upgrade: the bundle's version is {version}, and {running} runs here."
        )),
        Upgrade::NotAllowed { version } => fact(format!(
            "No upgrade to {version}: this machine's config does not let a stick upgrade it."
        )),
        Upgrade::TriedBefore { version, reason } => problem(format!(
            "No upgrade to {version}: {}. `instarctl upgrade` can still do it.",
            reason.as_ref().map_or_else(
                || "this bundle has begun it often enough, and it does not run; the machine's log says why".to_owned(),
                |reason| format!("it was tried here before, and failed: {reason}")
            )
        )),
        Upgrade::Planned { version } => fact(format!(
            "After that, this machine is upgraded to {version}. It may restart."
        )),
        Upgrade::Begun { version } => fact(format!(
            "The upgrade to {version} has begun. Do not switch the machine off. It may restart; if {version} does not work, the \
             version before comes back."
        )),
        Upgrade::Refused { version, reason } => {
            problem(format!("No upgrade to {version}: {reason}."))
        }
    })
}

fn support(support: &Support) -> Sentence {
    match support {
        Support::Writing => progress("Support data are being written onto the stick.".to_owned()),
        Support::Written { file, bytes } => fact(format!(
            "Support data are on the stick: {file}, {}.",
            human_short(*bytes)
        )),
        Support::Failed(reason) => problem(format!("Support data are not on the stick: {reason}.")),
    }
}

fn may_be_pulled_out(bundle: &BundleFact) -> Option<Sentence> {
    match &bundle.place {
        Place::Upload => None,
        Place::Stick { .. } | Place::Folder { .. } => Some(match bundle.is_over() {
            true => fact("The stick can be pulled out."),
            false => fact("Leave the stick in."),
        }),
    }
}

/// The sentences that are new: for the console and for events. Those with figures that change all the time are among them if wanted.
pub fn news(before: &[Sentence], after: &[Sentence], with_progress: bool) -> Vec<Sentence> {
    let is_news = |sentence: &&Sentence| {
        !before.contains(sentence) && (with_progress || sentence.kind != Kind::Progress)
    };
    after.iter().filter(is_news).cloned().collect()
}

#[cfg(test)]
mod tests;
