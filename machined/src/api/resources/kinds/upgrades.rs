//! The kind that shows the history of upgrades.

use std::time::{Duration, UNIX_EPOCH};

use super::{Item, Kind, Namespace, Record, Sensitivity, Source, Value};
use crate::follow::FollowFact;
use crate::pins::{PreparationFact, Progress};
use crate::store::{Metadata, Resource as _};
use crate::upgrade::{Outcome, UpgradeFact};

/// The upgrades, oldest first.
pub(super) const UPGRADES: Kind = Kind {
    name: UpgradeFact::TYPE,
    singular: "UpgradeRecord",
    namespace: Namespace::Runtime,
    aliases: &["upgrades", "history"],
    columns: &[
        ("At", "{.at}"),
        ("From", "{.from}"),
        ("Runs", "{.version}"),
        ("Outcome", "{.outcome}"),
        ("Digest", "{.digest}"),
        ("Created", "{.created}"),
        ("Reason", "{.reason}"),
    ],
    sensitivity: Sensitivity::Open,
    sources: &[
        Source::Store(UpgradeFact::TYPE),
        Source::Store(PreparationFact::TYPE),
    ],
    read: |machine| {
        let ended = machine.store.list::<UpgradeFact>().into_iter();
        let ended = ended.map(|(about, fact)| Item::stored(about, record(fact)));
        let next = machine.store.list::<PreparationFact>().into_iter();
        let next = next.map(|(about, fact)| Item::stored(about.clone(), prepared(&about, fact)));
        Ok(ended.chain(next).collect())
    },
};

/// The channel that the machine follows.
pub(super) const FOLLOWS: Kind = Kind {
    name: FollowFact::TYPE,
    singular: "UpgradeFollow",
    namespace: Namespace::Runtime,
    aliases: &["follows"],
    columns: &[
        ("List", "{.serial}"),
        ("State", "{.state}"),
        ("Release", "{.release}"),
        ("Digest", "{.digest}"),
        ("Until", "{.until}"),
        ("Reason", "{.reason}"),
        ("Next look", "{.nextLook}"),
        ("Error", "{.lookError}"),
    ],
    sensitivity: Sensitivity::Open,
    sources: &[Source::Store(FollowFact::TYPE)],
    read: |machine| {
        let follows = machine.store.list::<FollowFact>().into_iter();
        Ok(follows.map(follow).collect())
    },
};

fn follow((about, fact): (Metadata, FollowFact)) -> Item {
    let releases = fact.releases.iter();
    let releases = releases.map(|it| format!("{} {}: {}", it.version, it.digest, it.why));
    let mut spec = Record::default()
        .with("serial", 1, fact.serial.unwrap_or(0))
        .with("state", 2, fact.state.to_owned())
        .with("release", 3, fact.release)
        .with("digest", 4, fact.digest)
        .with("reason", 5, fact.reason)
        .with("releases", 6, releases.collect::<Value>());
    if let Some(until) = fact.until {
        spec = spec.with("until", 7, Value::Time(until));
    }
    if let Some(heard) = fact.heard {
        spec = spec
            .with("lookedAt", 8, Value::Time(heard.at))
            .with("nextLook", 9, Value::Time(heard.next))
            .with("lookError", 10, heard.error);
    }
    Item::stored(about, spec)
}

/// The upgrade that is prepared ahead.
fn prepared(about: &Metadata, fact: PreparationFact) -> Record {
    let PreparationFact {
        preparation,
        progress,
    } = fact;
    let (outcome, reason) = match progress {
        Progress::Fetching => (
            Value::Word(3, "preparing"),
            "its images come; \"get pins\" shows each".to_owned(),
        ),
        Progress::Writing => (Value::Word(3, "preparing"), "it is written".to_owned()),
        Progress::Prepared => (Value::Word(4, "prepared"), "a reboot starts it".to_owned()),
        Progress::Failed { reason, .. } => (Value::Word(3, "preparing"), reason),
    };
    Record::default()
        .with("at", 1, Value::Time(about.updated))
        .with("from", 2, preparation.during)
        .with("version", 3, preparation.version)
        .with("outcome", 4, outcome)
        .with("reason", 5, reason)
        .with("image", 6, preparation.image.to_string())
        .with("digest", 7, preparation.digest.to_string())
}

fn record(fact: UpgradeFact) -> Record {
    let outcome = match fact.outcome {
        Outcome::Running => Value::Word(1, "running"),
        Outcome::Failed => Value::Word(2, "failed"),
    };
    Record::default()
        .with(
            "at",
            1,
            Value::Time(UNIX_EPOCH + Duration::from_secs(fact.at)),
        )
        .with("from", 2, fact.from)
        .with("version", 3, fact.version)
        .with("outcome", 4, outcome)
        .with("reason", 5, fact.reason)
        .with("image", 6, fact.image)
        .with("digest", 7, fact.digest)
        .with("created", 8, fact.created)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use instar_api::definitions::instar as wire;
    use prost::Message as _;

    use super::*;
    use crate::api::resources::Spec;

    #[test]
    fn both_encodings_are_those_of_the_contract() {
        let spec = Spec::from(record(UpgradeFact {
            number: 2,
            at: 1_795_262_400,
            from: "v0.1.0".to_owned(),
            version: "v0.1.0".to_owned(),
            outcome: Outcome::Failed,
            reason: "no room".to_owned(),
            image: "r.io/installer:v0.1.0".to_owned(),
            digest: "sha256:1".to_owned(),
            created: "2026-11-21T12:00:00Z".to_owned(),
        }));
        let decoded = wire::UpgradeRecordSpec::decode(spec.protobuf().as_slice()).unwrap();
        assert_eq!(decoded.outcome(), wire::Outcome::Failed);
        assert_eq!(decoded.digest, "sha256:1");
        assert_eq!(decoded.created, "2026-11-21T12:00:00Z");
        assert_eq!(decoded.at.unwrap().seconds, 1_795_262_400);
        let yaml: serde_json::Value = serde_saphyr::from_str(&spec.yaml()).unwrap();
        assert_eq!(yaml["at"], "2026-11-21T12:00:00Z");
        assert_eq!(
            (&yaml["outcome"], &yaml["reason"]),
            (&"failed".into(), &"no room".into())
        );
    }
}
