//! Whether the node is ready: its plan is carried out, its services run, and the cluster says so.

use serde_json::Value;

use super::trial::Readiness;
use super::{KubernetesFact, NodeService, Refusal};

/// Tells whether the node is ready, from the steps that its container could not carry out, from its services, and from its object in the cluster:
/// `None` if it has not joined.
pub fn readiness(
    errors: &[String],
    services: &[NodeService],
    object: Result<Option<&Value>, &anyhow::Error>,
) -> Readiness {
    if !errors.is_empty() {
        // An extension of before may run on in the place of one that the container refuses: its services prove nothing of the new one.
        let why = format!(
            "its container refuses a part of its plan: {}",
            errors.join("; ")
        );
        return Readiness::NotReady(why);
    }
    if services.is_empty() {
        return Readiness::NotReady("none of its services has started".to_owned());
    }
    let stopped = services.iter().find(|it| !it.is_well());
    if let Some(service) = stopped {
        let last = service.last.as_deref().unwrap_or("it has not run yet");
        let (name, state) = (&service.name, service.state.word());
        return Readiness::NotReady(format!("{name} is {state}: {last}"));
    }
    match object {
        Ok(Some(object)) => of_object(object),
        Ok(None) => Readiness::NotReady("it has not joined the cluster".to_owned()),
        // The API has answered: a node without an object or without rights is none that waits for the cluster.
        Err(error) if Refusal::of(error).is_some() => Readiness::NotReady(format!("{error:#}")),
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

impl KubernetesFact {
    /// All that is wrong with the node, each once.
    pub fn wrong(&self) -> Vec<String> {
        let why = match &self.readiness {
            Readiness::Ready => None,
            Readiness::NotReady(why) | Readiness::Unknown(why) => Some(why.clone()),
        };
        let told = why.clone().unwrap_or_default();
        let problems = self.problems.iter().filter(|it| !told.contains(*it));
        why.into_iter().chain(problems.cloned()).collect()
    }

    /// The trouble that keeps the machine from being ready, in one line. A rollout of the OS goes back from a version with which machines do not get
    /// ready, so nothing counts here that no version changes: a cluster that waits for its begin, an API that does not answer while kubelet
    /// is well, and a part of the config that the cluster refuses.
    pub fn unmet(&self) -> Option<String> {
        let is_not_ready = matches!(self.readiness, Readiness::NotReady(_));
        (self.has_begun && is_not_ready).then(|| self.wrong().join("; "))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;
    use crate::kubernetes::ServiceState;
    use http::StatusCode;
    use serde_json::json;

    fn service(name: &str, state: ServiceState, has_finished: bool) -> NodeService {
        NodeService {
            name: name.to_owned(),
            extension: "kubernetes".to_owned(),
            state,
            since: 0,
            restarts: 0,
            last: Some("exited with code 0".to_owned()),
            has_finished,
        }
    }

    #[test]
    fn services_run_or_have_finished_and_the_plan_is_carried_out() {
        let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        let kubelet = service("kubelet", ServiceState::Running, false);
        let of = |errors: &[String], second: NodeService| {
            let services = [kubelet.clone(), second];
            readiness(errors, &services, Ok(Some(&ready)))
        };
        let ended = |has_finished| service("setup", ServiceState::Ended, has_finished);
        assert_eq!(of(&[], ended(true)), Readiness::Ready);
        let failed = "setup is ended: exited with code 0".to_owned();
        assert_eq!(of(&[], ended(false)), Readiness::NotReady(failed));
        let refused = of(&["the extension x cannot be used".to_owned()], ended(true));
        let why = "its container refuses a part of its plan: the extension x cannot be used";
        assert_eq!(refused, Readiness::NotReady(why.to_owned()));
    }

    #[test]
    fn an_api_that_says_no_is_not_one_that_does_not_answer() {
        let services = [service("kubelet", ServiceState::Running, false)];
        let silent = anyhow::anyhow!("no answer within 10 s");
        let unknown = Readiness::Unknown("no answer within 10 s".to_owned());
        assert_eq!(readiness(&[], &services, Err(&silent)), unknown);
        let uri = "https://a:6443/api/v1/nodes/worker-1".parse().unwrap();
        let no = json!({"kind": "Status", "code": 404, "message": "nodes \"worker-1\" not found"});
        let no = Refusal::read(&uri, StatusCode::NOT_FOUND, no.to_string().as_bytes());
        let no = anyhow::Error::from(no.unwrap());
        let Readiness::NotReady(why) = readiness(&[], &services, Err(&no)) else {
            panic!("{no:#}");
        };
        assert!(why.contains("nodes \"worker-1\" not found; "), "{why}");
        // kubelet's own trouble is told before that.
        let ended = [service("kubelet", ServiceState::Ended, false)];
        let why = "kubelet is ended: exited with code 0".to_owned();
        let found = readiness(&[], &ended, Err(&no));
        assert_eq!(found, Readiness::NotReady(why));
    }

    #[test]
    fn a_machine_waits_for_its_node_and_not_for_a_cluster() {
        let (not_ready, unknown) = (
            Readiness::NotReady("no CNI".to_owned()),
            Readiness::Unknown("no answer".to_owned()),
        );
        let table: [(&Readiness, &[&str], bool, Option<&str>); 6] = [
            (&Readiness::Ready, &[], true, None),
            (&Readiness::Ready, &["a label"], true, None),
            (&not_ready, &["a label"], true, Some("no CNI; a label")),
            (&not_ready, &["CNI"], true, Some("no CNI")),
            (&unknown, &[], true, None),
            (&not_ready, &["the cluster has not begun"], false, None),
        ];
        for (readiness, problems, has_begun, unmet) in table {
            let fact = KubernetesFact {
                problems: problems.iter().map(|it| (*it).to_owned()).collect(),
                services: Vec::new(),
                readiness: readiness.clone(),
                has_begun,
            };
            assert_eq!(fact.unmet().as_deref(), unmet, "{fact:?}");
        }
    }

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
