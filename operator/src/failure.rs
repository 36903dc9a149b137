//! Errors of the operator.

use instar_client::{Failure, FailureKind};

/// An error of the operator.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A call of the cluster's API.
    #[error("{doing}: {cause}")]
    Cluster {
        /// The failure in words, as in `the lease cannot be read`.
        doing: String,
        /// The error of the call.
        #[source]
        cause: Box<kube::Error>,
    },
    /// Anything else, as a sentence.
    #[error("{0}")]
    Other(String),
}

impl Error {
    /// The failure of a call of the cluster's API.
    pub(crate) fn calling(doing: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let doing = doing.into();
        |cause| Self::Cluster {
            doing,
            cause: Box::new(cause),
        }
    }

    /// The code of the API server's refusal.
    pub(crate) fn code(&self) -> Option<u16> {
        match self {
            Self::Cluster { cause, .. } => code(cause),
            Self::Other(_) => None,
        }
    }
}

/// The code of the API server's refusal.
pub(crate) fn code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

/// As the driver takes it: what failed is the cluster's API, and never a node.
impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::new(FailureKind::Unreachable, error.to_string())
    }
}
