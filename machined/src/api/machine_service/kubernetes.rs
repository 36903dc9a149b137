//! What belongs to Kubernetes.

use tonic::Status;

/// The answer to what belongs to Kubernetes.
pub(super) fn no_kubernetes<T>(what: &str) -> Result<T, Status> {
    Err(Status::unimplemented(format!(
        "{what}: this node runs no Kubernetes"
    )))
}
