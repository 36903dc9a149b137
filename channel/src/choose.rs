//! Which release of a channel a machine goes to, and why to none of the others.
//!
//! A machine goes to the newest release that it may go to. One that it may reach only over another one is so reached in two steps, without
//! anybody having to draw the path: the first step is the newest release that may follow the running version.
//!
//! A machine never goes to an older version: withdrawing the running version starts nothing.

use instar_values::{Digest, Version};

use crate::{Date, Label, List, Release};

/// A machine that follows a channel.
pub struct Follower<'a> {
    /// The running version; none if it has no place in the order of versions.
    pub version: Option<&'a Version>,
    /// The digest of the image that it came from, if that is known.
    pub digest: Option<Digest>,
    /// The date of that image, if that is known.
    pub created: Option<Date>,
    /// The machine's architecture.
    pub architecture: &'a str,
    /// The machine's labels.
    pub labels: &'a [Label],
    /// The oldest version that it takes.
    pub floor: Option<&'a Version>,
    /// Says why the image with this digest is not tried here: it has failed, or a person holds it.
    pub held: &'a dyn Fn(Digest) -> Option<String>,
}

/// Why a machine goes to a release, or why not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// It is the one that the machine goes to.
    Chosen,
    /// It runs.
    Runs,
    /// It is for another architecture.
    Architecture,
    /// The running version has no place in the order of versions.
    NoOrder,
    /// It is not newer than the running version.
    NotNewer,
    /// It was withdrawn, for this reason.
    Withdrawn(String),
    /// It is below the machine's floor.
    BelowFloor(Version),
    /// It came into the channel before the machine's own image was made, and that is none of the channel: the machine's owner has passed it
    /// over.
    BeforeInstalled(Date),
    /// It is for machines with one of its labels alone.
    OtherMachines,
    /// It may not follow the running version.
    MayNotFollow,
    /// It is not tried here.
    Held(String),
    /// A newer one is chosen.
    Passed(Version),
}

impl std::fmt::Display for Why {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Why::Chosen => f.write_str("this machine goes to it"),
            Why::Runs => f.write_str("it runs"),
            Why::Architecture => f.write_str("it is for another architecture"),
            Why::NoOrder => {
                f.write_str("the running version has no place in the order of versions")
            }
            Why::NotNewer => f.write_str("it is not newer than the running version"),
            Why::Withdrawn(why) => write!(f, "it was withdrawn: {why}"),
            Why::BelowFloor(floor) => write!(f, "it is below this machine's floor {floor}"),
            Why::BeforeInstalled(date) => write!(
                f,
                "it came into the channel before the running image was made, on {date}"
            ),
            Why::OtherMachines => f.write_str("it is for machines with other labels"),
            Why::MayNotFollow => f.write_str("it may not follow the running version"),
            Why::Held(why) => write!(f, "it is not tried here: {why}"),
            Why::Passed(newer) => write!(f, "{newer} is newer"),
        }
    }
}

/// The outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice<'a> {
    /// The release that the machine goes to, if there is one.
    pub release: Option<&'a Release>,
    /// All releases, in the order of the list, each with its reason.
    pub reasons: Vec<(&'a Release, Why)>,
}

/// Chooses the release that a machine goes to.
#[must_use]
pub fn choose<'a>(list: &'a List, machine: &Follower<'_>) -> Choice<'a> {
    let mut chosen: Option<&Release> = None;
    // Releases of the channel have an order of their own: one in between may be built after the newest one came.
    let is_own = list
        .releases
        .iter()
        .any(|it| machine.digest == Some(it.digest));
    let created = machine.created.filter(|_| !is_own);
    let mut reasons = Vec::with_capacity(list.releases.len());
    // The newest version comes first.
    for release in &list.releases {
        let why = match (objection(release, machine, created), chosen) {
            (Some(why), _) => why,
            (None, Some(newer)) => Why::Passed(newer.version.clone()),
            (None, None) => {
                chosen = Some(release);
                Why::Chosen
            }
        };
        reasons.push((release, why));
    }
    Choice {
        release: chosen,
        reasons,
    }
}

/// Returns why the machine may not go to a release. `created`: the date of an image from elsewhere.
fn objection(release: &Release, machine: &Follower<'_>, created: Option<Date>) -> Option<Why> {
    if release.architecture != machine.architecture {
        return Some(Why::Architecture);
    }
    let Some(running) = machine.version else {
        return Some(Why::NoOrder);
    };
    if release.version == *running && machine.digest.is_none_or(|it| it == release.digest) {
        return Some(Why::Runs);
    }
    if let Some(why) = &release.withdrawn {
        return Some(Why::Withdrawn(why.clone()));
    }
    if release.version <= *running {
        return Some(Why::NotNewer);
    }
    if let Some(floor) = machine.floor.filter(|floor| release.version < **floor) {
        return Some(Why::BelowFloor(floor.clone()));
    }
    if let Some(created) = created.filter(|created| release.date < *created) {
        return Some(Why::BeforeInstalled(created));
    }
    if !release.is_for(machine.labels) {
        return Some(Why::OtherMachines);
    }
    if let Some(ranges) = &release.upgrades_from
        && !ranges.contains(running)
    {
        return Some(Why::MayNotFollow);
    }
    (machine.held)(release.digest).map(Why::Held)
}

#[cfg(test)]
mod tests;
