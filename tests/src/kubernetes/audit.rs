//! The requests that an API server has had, as its audit log has them.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

/// Requests of service accounts of the operator's namespace are noted, and no others.
pub(super) const OF_THE_OPERATOR: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\n\
    rules:\n- {level: Metadata, userGroups: [\"system:serviceaccounts:instar-system\"]}\n- {level: None}\n";
/// All requests are noted.
pub(super) const OF_ALL: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n- {level: Metadata}\n";

/// A request to the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditedRequest {
    /// Who asked, as in `system:serviceaccount:NAMESPACE:NAME`.
    pub user: String,
    /// The program that asked, as it calls itself.
    pub agent: String,
    /// For example `patch`.
    pub verb: String,
    /// The group, the resource and its part, as in `instar.dev/pools/status`.
    pub resource: String,
}

/// Reads a log. A request that takes long is there several times, and counts once.
pub(super) fn read(log: &Path) -> Result<Vec<AuditedRequest>> {
    let text = std::fs::read_to_string(log).context("cannot read the audit log")?;
    let (mut seen, mut requests) = (BTreeSet::new(), Vec::new());
    // The last line may be one that is just being written.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    for line in whole.lines() {
        let event: Value = serde_json::from_str(line).context("a line of the audit log")?;
        let id = event["auditID"].as_str().context("no id of the request")?;
        if seen.insert(id.to_owned()) {
            requests.push(request(&event));
        }
    }
    Ok(requests)
}

fn request(event: &Value) -> AuditedRequest {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let parts = ["apiGroup", "resource", "subresource"];
    let parts = parts.map(|name| text(&event["objectRef"][name]));
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    AuditedRequest {
        user: text(&event["user"]["username"]),
        agent: text(&event["userAgent"]),
        verb: text(&event["verb"]),
        resource: parts.join("/"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_watch_counts_once_and_half_a_line_does_not() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("audit.log");
        let line = r#"{"auditID":"1","verb":"watch","user":{"username":"u"},"userAgent":"a/1","objectRef":{"resource":"pools","apiGroup":"instar.dev","subresource":"status"}}"#;
        std::fs::write(&log, format!("{line}\n{line}\n{{\"auditID\":\"2")).unwrap();
        let expected = AuditedRequest {
            user: "u".to_owned(),
            agent: "a/1".to_owned(),
            verb: "watch".to_owned(),
            resource: "instar.dev/pools/status".to_owned(),
        };
        assert_eq!(read(&log).unwrap(), [expected]);
    }
}
