//! The record of a rotation: what it began with, written before anything is changed. How far it is, the nodes and the client configuration tell.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use instar_base::whole_file;
use instar_client::{Failure, FailureKind};
use instar_pki::{CertificateAuthority, Role};
use instar_rollout::{MachineName, Seconds};
use serde::{Deserialize, Serialize};

use super::super::members::Way;
use super::super::store::Folder;

const RECORD: &str = "rotation.json";
/// Lifetime of the client's new certificate: one year.
const CLIENT_LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);

/// A certificate and its key, PEM.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pair {
    pub(super) crt: String,
    pub(super) key: String,
}

impl Pair {
    pub(super) fn of(authority: &CertificateAuthority) -> Self {
        Pair {
            crt: authority.certificate_pem(),
            key: authority.key_pem(),
        }
    }
}

/// A rotation as it is stored. It holds keys.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Rotation {
    /// The context of the client configuration.
    pub(super) context: String,
    /// How each node is reached.
    pub(super) ways: BTreeMap<MachineName, Way>,
    /// The nodes that are not waited for.
    pub(super) left: BTreeSet<MachineName>,
    /// The old authority's certificate, PEM.
    pub(super) old: String,
    pub(super) new: Pair,
    /// The client's certificate by the new authority.
    pub(super) client: Pair,
    /// Lifetime of the certificates that this command signs.
    pub(super) valid_for: Seconds,
    pub(super) has_ended: bool,
}

impl Rotation {
    /// The client's certificate by a new authority, with these roles.
    pub(super) fn client_of(
        authority: &CertificateAuthority,
        roles: &[Role],
    ) -> Result<Pair, Failure> {
        let issued = authority.issue_client(roles, SystemTime::now(), CLIENT_LIFETIME);
        let issued = issued.map_err(|error| {
            Failure::new(FailureKind::Failed, "cannot make the client's certificate").because(error)
        })?;
        Ok(Pair {
            crt: issued.pem(),
            key: issued.key_pem(),
        })
    }

    /// The authority that signs from now on.
    pub(super) fn authority(&self) -> Result<CertificateAuthority, Failure> {
        CertificateAuthority::from_pem(&self.new.crt, &self.new.key).map_err(|error| {
            Failure::new(FailureKind::Failed, "the record's authority is broken").because(error)
        })
    }

    /// Reads the record; none if no rotation was begun in the folder.
    pub(super) fn read(folder: &Folder) -> Result<Option<Self>, Failure> {
        let path = folder.file(RECORD);
        whole_file::read_json(&path).map_err(|error| {
            let what = format!("cannot read {}", path.display());
            Failure::new(FailureKind::Failed, what).because(error)
        })
    }

    /// Stores the record, whole or not at all.
    pub(super) fn write(&self, folder: &Folder) -> Result<(), Failure> {
        let path = folder.file(RECORD);
        whole_file::replace_json(&path, 0o600, self).map_err(|error| {
            let what = format!("cannot write {}", path.display());
            Failure::new(FailureKind::Failed, what).because(error)
        })
    }
}
