//! Whether the node is ready: its services run, and the cluster says so.

use serde_json::Value;

use super::trial::Readiness;
use super::{NodeService, ServiceState};

/// Tells whether the node is ready, from its services and from its object in the cluster: `None` if it has not joined.
pub fn readiness(
    services: &[NodeService],
    object: Result<Option<&Value>, &anyhow::Error>,
) -> Readiness {
    if services.is_empty() {
        return Readiness::NotReady("none of its services has started".to_owned());
    }
    let stopped = services.iter().find(|it| it.state != ServiceState::Running);
    if let Some(service) = stopped {
        let last = service.last.as_deref().unwrap_or("it has not run yet");
        let (name, state) = (&service.name, service.state.word());
        return Readiness::NotReady(format!("{name} is {state}: {last}"));
    }
    match object {
        Ok(Some(object)) => of_object(object),
        Ok(None) => Readiness::NotReady("it has not joined the cluster".to_owned()),
        Err(error) => Readiness::Unknown(format!("{error:#}")),
    }
}

/// Reads the condition `Ready` of a node's object.
fn of_object(object: &Value) -> Readiness {
    let conditions = object["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    let Some(ready) = conditions.find(|it| it["type"] == "Ready") else {
        return Readiness::NotReady("the cluster says nothing of it yet".to_owned());
    };
    if ready["status"] == "True" {
        return Readiness::Ready;
    }
    let word = |field: &str| ready[field].as_str().unwrap_or_default().to_owned();
    Readiness::NotReady(format!("{}: {}", word("reason"), word("message")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_condition_ready_decides() {
        let node = |status: &str| {
            json!({"status": {"conditions": [
                {"type": "MemoryPressure", "status": "False"},
                {"type": "Ready", "status": status, "reason": "KubeletNotReady", "message": "no CNI"},
            ]}})
        };
        assert_eq!(of_object(&node("True")), Readiness::Ready);
        for other in ["False", "Unknown"] {
            let why = "KubeletNotReady: no CNI".to_owned();
            assert_eq!(of_object(&node(other)), Readiness::NotReady(why));
        }
        assert!(matches!(of_object(&json!({})), Readiness::NotReady(_)));
    }
}
