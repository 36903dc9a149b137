//! The kind that shows the conditions of the machine.

use super::{Item, Kind, Namespace, Record, Sensitivity, Source, Value};
use crate::conditions::Known;
use crate::sequences::conditions::conditions;
use crate::store::{Problem, Resource as _, ServiceFact};
use crate::upgrade::UpgradeFact;

/// The conditions, one of each type: true if something is wrong.
pub(super) const CONDITIONS: Kind = Kind {
    name: "Conditions.instar.dev",
    singular: "Condition",
    namespace: Namespace::Runtime,
    aliases: &[],
    columns: &[
        ("Status", "{.status}"),
        ("Reason", "{.reason}"),
        ("Since", "{.since}"),
        ("Message", "{.message}"),
    ],
    sensitivity: Sensitivity::Open,
    sources: &[
        Source::Store(UpgradeFact::TYPE),
        Source::Store(ServiceFact::TYPE),
        Source::Store(Problem::TYPE),
        Source::Unannounced,
    ],
    read: |machine| Ok(conditions(machine).into_iter().map(condition).collect()),
};

fn condition(known: Known) -> Item {
    let spec = Record::default().with("type", 1, known.kind.name()).with(
        "status",
        2,
        known.trouble.is_some(),
    );
    let spec = match known.trouble {
        Some((trouble, since)) => spec
            .with("reason", 3, trouble.reason)
            .with("message", 4, trouble.message)
            .with("since", 5, Value::Time(since)),
        None => spec,
    };
    Item::new(known.kind.name(), spec)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::{Duration, UNIX_EPOCH};

    use instar_api::definitions::instar::ConditionSpec;
    use prost::Message as _;

    use super::*;
    use crate::conditions::{Trouble, Type};

    #[test]
    fn both_encodings_are_those_of_the_contract() {
        let trouble = Trouble {
            reason: "ReadOnly",
            message: "STATE is read-only".to_owned(),
            since: None,
        };
        let since = UNIX_EPOCH + Duration::from_secs(1_795_262_400);
        let item = condition(Known {
            kind: Type::StateNotWritable,
            trouble: Some((trouble, since)),
        });
        assert_eq!(item.id, "StateNotWritable");
        let decoded = ConditionSpec::decode(item.spec.protobuf().as_slice()).unwrap();
        assert!(decoded.status);
        assert_eq!(decoded.r#type, "StateNotWritable");
        assert_eq!(decoded.reason, "ReadOnly");
        assert_eq!(decoded.message, "STATE is read-only");
        assert_eq!(decoded.since.unwrap().seconds, 1_795_262_400);
        let yaml: serde_json::Value = serde_saphyr::from_str(&item.spec.yaml()).unwrap();
        assert_eq!(yaml["since"], "2026-11-21T12:00:00Z");

        let fine = condition(Known {
            kind: Type::CrashLoop,
            trouble: None,
        });
        let decoded = ConditionSpec::decode(fine.spec.protobuf().as_slice()).unwrap();
        assert!(!decoded.status && decoded.since.is_none());
    }
}
