//! When the cluster has heard from a node: the Lease that the node's kubelet renews every 10 s.
//!
//! The decision: not the condition `Ready` of the node's object. It stays as it is for 40 s and more after the last word of kubelet, and kubelet
//! writes it anew every five minutes alone while nothing changes.

use std::time::Duration;

use instar_client::{Failure, FailureKind};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use tokio::time::timeout;

use crate::failure::code;

/// The namespace in which kubelets have their Leases.
pub(crate) const NAMESPACE: &str = "kube-node-lease";
/// Timeout of the call: it is a part of one look at a node.
const CALL: Duration = Duration::from_secs(4);

/// When a node's kubelet has renewed its Lease last, by its own clock: another text after each renewal.
///
/// # Errors
/// The Lease cannot be read, or was never renewed.
pub(crate) async fn last_word(client: &Client, node: &str) -> Result<String, Failure> {
    let api: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
    match timeout(CALL, api.get(node)).await {
        Ok(Ok(lease)) => renewed(&lease).ok_or_else(|| unread(node, "it was never renewed", None)),
        Ok(Err(error)) => Err(unread(node, &error.to_string(), code(&error))),
        Err(_) => {
            let why = format!("no answer of the API server within {} s", CALL.as_secs());
            Err(unread(node, &why, None))
        }
    }
}

fn renewed(lease: &Lease) -> Option<String> {
    let renewed = lease.spec.as_ref()?.renew_time.as_ref()?;
    Some(renewed.0.to_string())
}

/// A Lease that tells nothing. `code`: that of the API server's refusal.
fn unread(node: &str, why: &str, code: Option<u16>) -> Failure {
    let text = format!("the Lease {node} of the namespace {NAMESPACE} cannot be read: {why}");
    match code {
        // An operator of this version with the rights of an older one.
        Some(403) => Failure::new(
            FailureKind::Refused,
            format!(
                "{text}; apply the manifest or the chart of this operator's version, which grants it"
            ),
        ),
        _ => Failure::new(FailureKind::Unreachable, text),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn each_renewal_is_another_word() {
        let lease = |spec| serde_json::from_value(json!({ "spec": spec })).unwrap();
        let at = |time: &str| renewed(&lease(json!({ "renewTime": time })));
        let first = at("2026-11-28T12:00:00.000000Z");
        assert!(first.is_some());
        assert_eq!(first, at("2026-11-28T12:00:00.000000Z"));
        assert_ne!(first, at("2026-11-28T12:00:00.000001Z"));
        assert_eq!(renewed(&lease(json!({}))), None);
    }

    #[test]
    fn a_missing_right_is_no_failure_that_passes() {
        for (code, kind) in [
            (Some(403), FailureKind::Refused),
            (Some(404), FailureKind::Unreachable),
            (None, FailureKind::Unreachable),
        ] {
            let failure = unread("n1", "no", code);
            assert_eq!(failure.kind(), kind, "{code:?}");
            let names_the_mend = failure.chain().contains("apply the manifest");
            assert_eq!(names_the_mend, code == Some(403), "{code:?}");
        }
    }
}
