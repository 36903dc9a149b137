//! The conditions that the nodes of a rollout report, for `fleet status`: asked side by side, for a short time.

use std::collections::BTreeMap;
use std::time::Duration;

use instar_api::definitions::instar::ConditionSpec;
use instar_client::resources;
use instar_rollout::MachineName;
use serde_json::{Value, json};
use tokio::task::LocalSet;

use super::look::{self, connect};
use super::members::Way;
use crate::cli::Global;
use crate::output::time;

/// The type's full name.
const CONDITIONS: &str = "Conditions.instar.dev";
/// Timeout for one node, its connection included: the status of the rollout itself is in the folder, and must not wait long.
const BRIEF: Duration = Duration::from_secs(3);

/// The conditions of a node that are true; None if it did not tell.
pub(super) type Told = Option<Vec<ConditionSpec>>;

/// Asks all nodes.
pub(super) async fn ask(
    global: &Global,
    ways: &BTreeMap<MachineName, Way>,
) -> BTreeMap<MachineName, Told> {
    let asked = look::ask_all(global, ways, BRIEF, |_, target, way| async move {
        let node = connect(&target, &way).await?;
        let found = resources::<ConditionSpec>(&node, CONDITIONS).await;
        found.map_err(|status| node.explain("cannot list conditions", status))
    });
    let told = LocalSet::new().run_until(asked).await;
    told.into_iter()
        .map(|(name, told)| (name, told.ok().map(true_ones)))
        .collect()
}

fn true_ones<Id>(found: Vec<(Id, ConditionSpec)>) -> Vec<ConditionSpec> {
    let found = found.into_iter().map(|(_, condition)| condition);
    found.filter(|condition| condition.status).collect()
}

/// A node's conditions in one cell of a table.
pub(super) fn cell(told: Option<&Told>) -> String {
    match told {
        Some(Some(conditions)) if conditions.is_empty() => "-".to_owned(),
        Some(Some(conditions)) => {
            let types = conditions.iter().map(|it| it.r#type.as_str());
            types.collect::<Vec<_>>().join(", ")
        }
        Some(None) | None => "unknown".to_owned(),
    }
}

/// A node's conditions with reasons and messages; null if it did not tell.
pub(super) fn in_full(told: Option<&Told>) -> Value {
    let Some(Some(conditions)) = told else {
        return Value::Null;
    };
    let all = conditions.iter().map(|condition| {
        json!({
            "type": condition.r#type,
            "reason": condition.reason,
            "message": condition.message,
            "since": time(condition.since.as_ref()),
        })
    });
    all.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(kind: &str) -> ConditionSpec {
        ConditionSpec {
            r#type: kind.to_owned(),
            status: true,
            reason: "Why".to_owned(),
            message: "do".to_owned(),
            since: None,
        }
    }

    #[test]
    fn silence_is_not_health() {
        let both = vec![condition("CrashLoop"), condition("DiskPressure")];
        for (told, shown, full) in [
            (None, "unknown", Value::Null),
            (Some(Vec::new()), "-", json!([])),
            (
                Some(both),
                "CrashLoop, DiskPressure",
                json!([
                    {"type": "CrashLoop", "reason": "Why", "message": "do", "since": "-"},
                    {"type": "DiskPressure", "reason": "Why", "message": "do", "since": "-"},
                ]),
            ),
        ] {
            assert_eq!(cell(Some(&told)), shown);
            assert_eq!(in_full(Some(&told)), full);
        }
        assert_eq!(cell(None), "unknown");
    }
}
