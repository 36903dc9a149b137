//! Calls that only a node of Kubernetes can answer.

use tonic::Status;

/// Refuses a call that needs Kubernetes.
pub(super) fn no_kubernetes<T>(what: &str) -> Result<T, Status> {
    Err(Status::unimplemented(format!(
        "{what}: this node runs no Kubernetes"
    )))
}
