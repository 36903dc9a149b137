//! The certificate that a control plane or a person has signed for a machine without the authority's key, and when the machine asks a control
//! plane for the next one.
//!
//! ```text
//!   no certificate ──ask──► granted ──its last third, other names, another authority──► ask again, the old one stays in use
//!        ▲                     │
//!        └───────expired───────┘   until the next one comes, the machine signs for itself, and clients pin its fingerprint
//! ```

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use instar_pki::SubjectName;
use serde::{Deserialize, Serialize};

use super::own_certificates::base64_text;
use crate::base::whole_file;
use crate::state_partition::GRANTED_CERTIFICATE;

/// Time between two looks at the clock while a certificate is good: the clock may be set.
const LOOK: Duration = Duration::from_secs(600);

/// A granted certificate with its key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    /// The authority that signed it, DER.
    #[serde(with = "base64_text")]
    pub(super) authority: Vec<u8>,
    /// The certificate, DER.
    #[serde(with = "base64_text")]
    pub(super) certificate: Vec<u8>,
    /// The key, PEM.
    pub(super) key: String,
    /// The names that the machine asked for. The certificate may have fewer: a control plane leaves out those of its own.
    pub(super) asked: BTreeSet<String>,
    /// Whether a person has given it: then nobody gives the next one unasked.
    #[serde(default)]
    pub(super) by_hand: bool,
}

/// Does not show the key.
impl fmt::Debug for Granted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Granted")
            .field("asked", &self.asked)
            .finish_non_exhaustive()
    }
}

/// The machine's next step towards its certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Asks a control plane.
    Ask,
    /// Waits.
    Wait(Duration),
}

impl Granted {
    /// Whether a person has given it.
    pub fn is_by_hand(&self) -> bool {
        self.by_hand
    }

    /// The certificate, DER.
    pub fn certificate(&self) -> &[u8] {
        &self.certificate
    }

    /// Whether clients can verify it now: by an accepted authority (DER), within its dates.
    pub fn is_good(&self, accepted: &[Vec<u8>], now: SystemTime) -> bool {
        let dates = instar_pki::validity(&self.certificate);
        accepted.contains(&self.authority)
            && dates.is_ok_and(|(begin, end)| begin <= now && now < end)
    }

    /// When it ends.
    pub fn end(&self) -> SystemTime {
        let dates = instar_pki::validity(&self.certificate);
        dates.map_or(SystemTime::UNIX_EPOCH, |(_, end)| end)
    }

    /// Reads the record from this folder; None if there is none.
    ///
    /// # Errors
    /// The record exists and cannot be read.
    pub fn read(folder: &Path) -> anyhow::Result<Option<Self>> {
        whole_file::read_json(&folder.join(GRANTED_CERTIFICATE.name))
    }

    /// Writes the record into this folder, whole or not at all; does nothing if the same record is there already.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn write(&self, folder: &Path) -> anyhow::Result<()> {
        let path = folder.join(GRANTED_CERTIFICATE.name);
        let json = serde_json::to_vec(self)?;
        if std::fs::read(&path).is_ok_and(|there| there == json) {
            return Ok(());
        }
        Ok(whole_file::replace(&path, GRANTED_CERTIFICATE.mode, &json)?)
    }
}

/// Decides whether to ask now. `authority`: that of the config, by which a certificate has to be.
pub(super) fn next(
    granted: Option<&Granted>,
    authority: &[u8],
    names: &BTreeSet<String>,
    now: SystemTime,
) -> Next {
    let Some(granted) = granted else {
        return Next::Ask;
    };
    let Ok((begin, end)) = instar_pki::validity(&granted.certificate) else {
        return Next::Ask;
    };
    // It begins long before it is made, for clocks that are behind: its end counts.
    let life = end.duration_since(begin).unwrap_or_default();
    let due = end.checked_sub(life / 3).unwrap_or(begin);
    if granted.authority != authority || granted.asked != *names || now < begin {
        return Next::Ask;
    }
    match due.duration_since(now) {
        Ok(left) if !left.is_zero() => Next::Wait(left.min(LOOK)),
        _ => Next::Ask,
    }
}

/// The names as text, for [`next`] and the record.
pub(super) fn as_text(names: &[SubjectName]) -> BTreeSet<String> {
    let text = |name: &SubjectName| match name {
        SubjectName::Ip(address) => address.to_string(),
        SubjectName::Dns(name) => name.clone(),
    };
    names.iter().map(text).collect()
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use instar_pki::CertificateAuthority;

    const HOUR: Duration = Duration::from_secs(3600);

    pub(in crate::trust) fn granted(
        authority: &CertificateAuthority,
        names: &[&str],
        now: SystemTime,
    ) -> Granted {
        let subjects: Vec<SubjectName> = names.iter().map(|name| (*name).into()).collect();
        let issued = authority.issue_server(&subjects, now, 24 * HOUR).unwrap();
        Granted {
            authority: authority.certificate().to_vec(),
            certificate: issued.der().to_vec(),
            key: issued.key_pem(),
            asked: as_text(&subjects),
            by_hand: false,
        }
    }

    #[test]
    fn a_certificate_is_asked_for_early_and_whenever_it_would_differ() {
        let now = SystemTime::now();
        let [ours, other] = [(); 2].map(|()| CertificateAuthority::generate(now).unwrap());
        let held = granted(&ours, &["192.0.2.7", "worker-1"], now);
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let same: BTreeSet<String> = names(&["worker-1", "192.0.2.7"]);
        let by = |authority: &CertificateAuthority, names: &BTreeSet<String>, at| {
            next(Some(&held), authority.certificate(), names, at)
        };
        assert_eq!(next(None, ours.certificate(), &same, now), Next::Ask);
        assert_eq!(by(&ours, &same, now), Next::Wait(LOOK));
        // A third of 24 h and the twelve hours before it was made are left.
        let due = now + 12 * HOUR;
        let soon = by(&ours, &same, due - Duration::from_secs(7));
        assert!(matches!(soon, Next::Wait(left) if left <= Duration::from_secs(8)));
        for at in [due + HOUR, now + 30 * HOUR, now - 13 * HOUR] {
            assert_eq!(by(&ours, &same, at), Next::Ask);
        }
        assert_eq!(by(&other, &same, now), Next::Ask);
        assert_eq!(by(&ours, &names(&["192.0.2.8"]), now), Next::Ask);
    }

    #[test]
    fn it_is_shown_while_clients_can_verify_it() {
        let now = SystemTime::now();
        let [ours, other] = [(); 2].map(|()| CertificateAuthority::generate(now).unwrap());
        let held = granted(&ours, &["worker-1"], now);
        let accepted = |authority: &CertificateAuthority| vec![authority.certificate().to_vec()];
        assert!(held.is_good(&accepted(&ours), now + 23 * HOUR));
        assert!(!held.is_good(&accepted(&ours), now + 24 * HOUR));
        assert!(held.is_good(&accepted(&ours), now - 11 * HOUR));
        assert!(!held.is_good(&accepted(&ours), now - 13 * HOUR));
        assert!(!held.is_good(&accepted(&other), now));
        assert!(held.end() > now + 23 * HOUR);
    }

    #[test]
    fn the_record_comes_back_and_shows_no_key() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Granted::read(folder.path()).unwrap(), None);
        let authority = CertificateAuthority::generate(SystemTime::now()).unwrap();
        let held = granted(&authority, &["worker-1"], SystemTime::now());
        held.write(folder.path()).unwrap();
        assert_eq!(Granted::read(folder.path()).unwrap(), Some(held.clone()));
        assert!(!format!("{held:?}").contains("KEY"));
        let path = folder.path().join(GRANTED_CERTIFICATE.name);
        use std::os::unix::fs::PermissionsExt as _;
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        std::fs::write(&path, "{").unwrap();
        assert!(Granted::read(folder.path()).is_err());
    }
}
