//! The node's own certificate: issued by the machine config's CA, and issued anew when the CA, the node's addresses or names change or the
//! certificate grows old. Until then it stays, in the next generation too (`own_certificates.rs`).

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use instar_pki::{CertificateAuthority, PrivateKey, Role, SubjectName};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::control_plane::ControlPlane;
use super::granted::Granted;
use super::own_certificates::{LIFETIME, OwnCertificates, due};
use crate::apid::{Identity, Mode, SelfCheck};

/// Time limit for the node's names before the first certificate is issued; they are there within milliseconds.
const NAMES: Duration = Duration::from_secs(1);

/// The authorities that the node trusts, and the key with which it signs.
pub enum Trust {
    /// From a machine config.
    Configured {
        /// Signs the node's certificate; None if the config has no key (a worker's).
        authority: Option<Box<CertificateAuthority>>,
        /// Signs it for a node without the key, if the config names one.
        control_plane: Option<ControlPlane>,
        /// DER of the authorities whose clients are let in; the config's own first.
        accepted: Vec<Vec<u8>>,
        /// Further names for the certificate.
        extra_names: Vec<String>,
    },
    /// No machine config: a throw-away authority, and callers need no certificate.
    Maintenance,
    /// No machine config, and it is unknown who may bring one: as above, and callers may only read.
    Closed,
}

/// The names of the node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Names {
    /// Its addresses, without loopback.
    pub addresses: BTreeSet<IpAddr>,
    /// Its hostname and full name.
    pub hostnames: BTreeSet<String>,
}

/// Keeps apid's identity up to date for as long as it runs.
pub struct KeepIdentity {
    /// The newest trust.
    pub trust: watch::Receiver<Option<Trust>>,
    /// The newest names; None before the network has been examined.
    pub names: watch::Receiver<Option<Names>>,
    /// Receives the identities.
    pub identity: watch::Sender<Option<Identity>>,
    /// Receives the credentials for the node's own calls.
    pub self_check: watch::Sender<Option<SelfCheck>>,
    /// The certificates of the previous generation, and then the newest ones, for the next.
    pub own: watch::Sender<Option<OwnCertificates>>,
    /// The key of the previous generation, if no authority signs for the node; the next one inherits it.
    pub pinned: watch::Sender<PinnedKey>,
    /// The certificate that a control plane or a person has signed, if no authority here signs for the node.
    pub granted: watch::Receiver<Option<Granted>>,
}

/// Certificates that are issued together, by one authority.
struct Issued {
    identity: Identity,
    self_check: SelfCheck,
    /// None if a throw-away authority issued them.
    own: Option<OwnCertificates>,
    /// When the server's certificate has to be renewed.
    due: SystemTime,
}

impl KeepIdentity {
    /// Issues an identity now and after each change.
    pub async fn run(mut self) {
        // A certificate without the node's addresses would be useless, but the API does not wait for a network that cannot be examined.
        let known = self.names.wait_for(Option::is_some);
        // After the time limit the certificate is issued without the names.
        let _ = tokio::time::timeout(NAMES, known).await;
        let mut pinned = self.pinned.borrow().clone();
        let mut due = None;
        loop {
            let next = {
                let trust = self.trust.borrow_and_update();
                let names = self.names.borrow_and_update().clone().unwrap_or_default();
                let own = self.own.borrow().clone();
                let granted = self.granted.borrow_and_update().clone();
                // The request for a certificate may have made the key.
                if pinned == PinnedKey::default() {
                    pinned = self.pinned.borrow().clone();
                }
                let held = Held { own, granted };
                trust
                    .as_ref()
                    .map(|trust| issue(trust, &names, SystemTime::now(), held, &mut pinned))
            };
            match next {
                Some(Ok(issued)) => {
                    due = Some(issued.due);
                    self.own.send_replace(issued.own);
                    self.pinned.send_replace(pinned.clone());
                    self.self_check.send_replace(Some(issued.self_check));
                    self.identity.send_replace(Some(issued.identity));
                }
                Some(Err(error)) => tracing::error!("no new certificate for the API: {error:#}"),
                None => {}
            }
            tokio::select! {
                changed = self.trust.changed() => if changed.is_err() { return },
                changed = self.names.changed() => if changed.is_err() { return },
                // The sender lives in the machine.
                Ok(()) = self.granted.changed() => {}
                () = clock_moved_or_due(due) => {}
            }
        }
    }
}

/// Ends when the certificate is due, or when the clock was set: timers do not notice that, so look at intervals.
async fn clock_moved_or_due(due: Option<SystemTime>) {
    let (began, clock) = (std::time::Instant::now(), SystemTime::now());
    loop {
        tokio::time::sleep(Duration::from_secs(10)).await;
        let expected = clock + began.elapsed();
        let now = SystemTime::now();
        let moved = now
            .duration_since(expected)
            .or_else(|_| expected.duration_since(now))
            .unwrap_or_default();
        if moved > Duration::from_secs(60) || due.is_some_and(|due| now >= due) {
            return;
        }
    }
}

/// The node's key when no authority signs for it: operators compare its fingerprint, so it stays until the kernel ends.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PinnedKey(Option<String>);

/// Does not show the key.
impl fmt::Debug for PinnedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = if self.0.is_some() { "a key" } else { "no key" };
        f.debug_tuple("PinnedKey").field(&known).finish()
    }
}

impl PinnedKey {
    /// Returns the same key each time.
    pub(super) fn get(&mut self) -> anyhow::Result<PrivateKey> {
        if let Some(pem) = &self.0 {
            return Ok(PrivateKey::from_pem(pem)?);
        }
        let key = PrivateKey::generate_p256()?;
        self.0 = Some(key.to_pem());
        Ok(key)
    }
}

/// The certificates that the node has already.
#[derive(Default)]
struct Held {
    own: Option<OwnCertificates>,
    granted: Option<Granted>,
}

/// Returns the identity for this trust: with the previous certificates if they fit, else with new ones.
fn issue(
    trust: &Trust,
    names: &Names,
    now: SystemTime,
    held: Held,
    pinned: &mut PinnedKey,
) -> anyhow::Result<Issued> {
    match trust {
        Trust::Configured {
            authority: Some(authority),
            accepted,
            extra_names,
            ..
        } => {
            let names = subjects(names, extra_names);
            signed(authority, accepted.clone(), names, now, held.own)
        }
        // The config has no key to sign with; without a certificate from a control plane or a person, operators pin the fingerprint.
        Trust::Configured {
            authority: None,
            accepted,
            extra_names,
            ..
        } => {
            let names = subjects(names, extra_names);
            // The key stays when its certificate is of no use any more: whoever signs the next one compares the fingerprint.
            if let Some(granted) = &held.granted {
                *pinned = PinnedKey(Some(granted.key.clone()));
            }
            let good = held.granted.filter(|it| it.is_good(accepted, now));
            if let Some(granted) = good {
                return by_others(&granted, accepted.clone(), names.0, now);
            }
            self_signed(Mode::Normal, accepted.clone(), names, now, pinned)
        }
        Trust::Maintenance | Trust::Closed => {
            let mode = match trust {
                Trust::Closed => Mode::Closed,
                _ => Mode::Maintenance,
            };
            self_signed(mode, Vec::new(), subjects(names, &[]), now, pinned)
        }
    }
}

/// Returns an identity by the config's authority.
fn signed(
    authority: &CertificateAuthority,
    mut accepted: Vec<Vec<u8>>,
    (known, subjects): (BTreeSet<String>, Vec<SubjectName>),
    now: SystemTime,
    own: Option<OwnCertificates>,
) -> anyhow::Result<Issued> {
    let own = match own.map(|own| own.fit(authority, &subjects, now).map(|()| own)) {
        Some(Ok(own)) => {
            let fingerprint = instar_pki::public_key_fingerprint(&own.server.certificate)?;
            tracing::info!("API certificate stays, fingerprint {fingerprint}");
            own
        }
        unfit => {
            let why = unfit.and_then(Result::err);
            let why = why.map(|why| format!("; the one before is not used again: {why}"));
            let own = OwnCertificates::issue(authority, &subjects, now)?;
            log_new(&subjects, &own.server.certificate, &why.unwrap_or_default())?;
            own
        }
    };
    let own_authority = authority.certificate().to_vec();
    if !accepted.contains(&own_authority) {
        accepted.push(own_authority.clone());
    }
    let (server, reader, forwarder) = (&own.server, &own.reader, &own.forwarder);
    let names = known.into_iter().collect();
    let identity = Identity::new(
        Mode::Normal,
        &server.certificate,
        &server.key,
        &accepted,
        names,
    );
    Ok(Issued {
        due: due(&server.certificate)?,
        identity: identity.passing_on(&forwarder.certificate, &forwarder.key),
        self_check: SelfCheck::new(&own_authority, Some((&reader.certificate, &reader.key)))
            .context("make the API's check")?,
        own: Some(own),
    })
}

/// Returns an identity by a throw-away authority: its key never leaves this process, and it admits only the API's own check.
fn self_signed(
    mode: Mode,
    mut accepted: Vec<Vec<u8>>,
    (known, subjects): (BTreeSet<String>, Vec<SubjectName>),
    now: SystemTime,
    pinned: &mut PinnedKey,
) -> anyhow::Result<Issued> {
    let key = pinned.get().context("make the API's key")?;
    let authority = CertificateAuthority::generate(now).context("make a throw-away authority")?;
    let certificate = authority
        .issue_server_for(key, &subjects, now, LIFETIME)
        .context("issue the API's certificate")?;
    log_new(&subjects, certificate.der(), "")?;
    let own_authority = authority.certificate().to_vec();
    let reader = match mode {
        Mode::Maintenance | Mode::Closed => None,
        Mode::Normal => {
            accepted.push(own_authority.clone());
            let reader = authority.issue_client(&[Role::Reader], now, LIFETIME);
            Some(reader.context("issue the certificate of the API's check")?)
        }
    };
    let shown = reader
        .as_ref()
        .map(|reader| (reader.der().as_ref(), reader.key_der()));
    Ok(Issued {
        due: due(certificate.der())?,
        identity: Identity::new(
            mode,
            certificate.der(),
            certificate.key_der(),
            &accepted,
            known.into_iter().collect(),
        ),
        self_check: SelfCheck::new(&own_authority, shown).context("make the API's check")?,
        own: None,
    })
}

/// Returns an identity with the certificate that a control plane or a person has signed. A throw-away authority admits the API's own check.
fn by_others(
    granted: &Granted,
    mut accepted: Vec<Vec<u8>>,
    known: BTreeSet<String>,
    now: SystemTime,
) -> anyhow::Result<Issued> {
    let key = PrivateKey::from_pem(&granted.key).context("read the key of the certificate")?;
    let authority = CertificateAuthority::generate(now).context("make a throw-away authority")?;
    accepted.push(authority.certificate().to_vec());
    let reader = authority.issue_client(&[Role::Reader], now, LIFETIME);
    let reader = reader.context("issue the certificate of the API's check")?;
    let shown = Some((reader.der().as_ref(), reader.key_der()));
    let key = key.to_der();
    Ok(Issued {
        // Another certificate comes earlier, if a control plane lives.
        due: granted.end().min(due(reader.der())?),
        identity: Identity::new(
            Mode::Normal,
            &granted.certificate,
            key.secret_der(),
            &accepted,
            known.into_iter().collect(),
        ),
        self_check: SelfCheck::new(&granted.authority, shown).context("make the API's check")?,
        own: None,
    })
}

/// Logs a new certificate in one line, with the reason for it: each line of the log differs by the fingerprint.
fn log_new(names: &[SubjectName], certificate: &[u8], why: &str) -> anyhow::Result<()> {
    let fingerprint = instar_pki::public_key_fingerprint(certificate)?;
    tracing::info!(
        "API certificate for {} names, fingerprint {fingerprint}{why}",
        names.len()
    );
    Ok(())
}

/// Returns the names that the machine itself knows, and for the certificate also those that the config adds.
pub(super) fn subjects(names: &Names, extra: &[String]) -> (BTreeSet<String>, Vec<SubjectName>) {
    let mut known: BTreeSet<String> = names.addresses.iter().map(ToString::to_string).collect();
    known.extend(names.hostnames.iter().cloned());
    known.extend(["127.0.0.1", "::1", "localhost"].map(str::to_owned));
    let others = extra.iter().filter(|name| !known.contains(*name));
    let all = known.iter().chain(others);
    let subjects = all.map(|name| SubjectName::from(name.as_str())).collect();
    (known, subjects)
}

/// Makes a request for a certificate: for the machine's key, and for its names and those of the config. Returns it in PEM, with the key.
///
/// # Errors
/// The key fails.
pub fn request(
    pinned: &watch::Sender<PinnedKey>,
    names: &Names,
    extra: &[String],
) -> anyhow::Result<(String, PrivateKey)> {
    let mut held = pinned.borrow().clone();
    let key = held.get().context("make the API's key")?;
    // The API shows its key before anybody can call, so it is hardly ever made here.
    pinned.send_replace(held);
    let (_, subjects) = subjects(names, extra);
    let request = instar_pki::request_for_server(&key, &subjects)?;
    Ok((request, key))
}

/// Returns the names of the machine itself, and of the certificates that nobody else gets.
pub fn own_names(names: &Names, extra: &[String]) -> BTreeSet<String> {
    let (mut known, _) = subjects(names, extra);
    known.extend(extra.iter().cloned());
    known
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The inputs and the output of a keeper.
    struct Channels {
        _trust: watch::Sender<Option<Trust>>,
        _granted: watch::Sender<Option<Granted>>,
        names: watch::Sender<Option<Names>>,
        identity: watch::Receiver<Option<Identity>>,
    }

    fn keeper(names: Option<Names>) -> Channels {
        let (trust_sender, trust) = watch::channel(Some(Trust::Maintenance));
        let (names_sender, names) = watch::channel(names);
        let (identity_sender, identity) = watch::channel(None);
        let granted = watch::channel(None);
        let keeper = KeepIdentity {
            trust,
            names,
            identity: identity_sender,
            self_check: watch::channel(None).0,
            own: watch::channel(None).0,
            pinned: watch::channel(PinnedKey::default()).0,
            granted: granted.1,
        };
        tokio::spawn(keeper.run());
        Channels {
            _trust: trust_sender,
            _granted: granted.0,
            names: names_sender,
            identity,
        }
    }

    async fn next(channels: &mut Channels) -> Vec<String> {
        channels.identity.changed().await.unwrap();
        let identity = channels.identity.borrow_and_update();
        identity.as_ref().unwrap().names.clone()
    }

    #[tokio::test]
    async fn no_certificate_is_made_before_the_names_are_known() {
        let mut told = keeper(None);
        let early = tokio::time::timeout(NAMES / 4, told.identity.changed()).await;
        assert!(early.is_err(), "made without names");
        let names = Names {
            addresses: ["192.0.2.7".parse().unwrap()].into(),
            hostnames: ["node-1".to_owned()].into(),
        };
        told.names.send_replace(Some(names));
        let first = next(&mut told).await;
        assert!(first.contains(&"192.0.2.7".to_owned()) && first.contains(&"node-1".to_owned()));
        told.names.send_replace(Some(Names::default()));
        assert!(!next(&mut told).await.contains(&"node-1".to_owned()));
    }

    #[test]
    fn without_an_authority_the_fingerprint_stays_as_addresses_come() {
        let mut pinned = PinnedKey::default();
        let mut key = |trust: &Trust, address: &str| {
            let names = Names {
                addresses: [address.parse().unwrap()].into(),
                ..Names::default()
            };
            let issued = issue(
                trust,
                &names,
                SystemTime::now(),
                Held::default(),
                &mut pinned,
            )
            .unwrap();
            issued.identity.public_key_fingerprint().unwrap()
        };
        let first = key(&Trust::Maintenance, "192.0.2.7");
        assert_eq!(key(&Trust::Maintenance, "192.0.2.8"), first);
        let authority = CertificateAuthority::generate(SystemTime::now()).unwrap();
        let configured = Trust::Configured {
            authority: Some(Box::new(authority)),
            control_plane: None,
            accepted: Vec::new(),
            extra_names: Vec::new(),
        };
        let signed = key(&configured, "192.0.2.7");
        assert_ne!(signed, first);
        assert_ne!(key(&configured, "192.0.2.7"), signed);
    }

    #[test]
    fn certificates_by_the_config_s_authority_are_used_again_until_the_names_change() {
        let authority = CertificateAuthority::generate(SystemTime::now()).unwrap();
        let trust = |extra: &[&str]| Trust::Configured {
            authority: Some(Box::new(
                CertificateAuthority::from_pem(&authority.certificate_pem(), &authority.key_pem())
                    .unwrap(),
            )),
            control_plane: None,
            accepted: Vec::new(),
            extra_names: extra.iter().map(|name| (*name).to_owned()).collect(),
        };
        let after = |own, trust: &Trust| {
            let mut pinned = PinnedKey::default();
            let (names, now) = (Names::default(), SystemTime::now());
            let held = Held {
                own,
                ..Held::default()
            };
            issue(trust, &names, now, held, &mut pinned).unwrap().own
        };
        let first = after(None, &trust(&[]));
        assert!(first.is_some());
        assert_eq!(after(first.clone(), &trust(&[])), first);
        assert_ne!(after(first.clone(), &trust(&["lamp.example"])), first);
        // Maintenance mode shows a certificate of its own, and has nothing to hand over.
        assert_eq!(after(first, &Trust::Maintenance), None);
    }

    #[test]
    fn a_worker_shows_what_its_control_plane_signed_while_that_is_good() {
        let (now, hour) = (SystemTime::now(), Duration::from_secs(3600));
        let [ours, other] = [(); 2].map(|()| CertificateAuthority::generate(now).unwrap());
        let granted = super::super::granted::tests::granted(&ours, &["worker-1"], now);
        let trust = |authority: &CertificateAuthority| Trust::Configured {
            authority: None,
            control_plane: None,
            accepted: vec![authority.certificate().to_vec()],
            extra_names: Vec::new(),
        };
        let shown = |authority, at| {
            let held = Held {
                granted: Some(granted.clone()),
                ..Held::default()
            };
            let mut pinned = PinnedKey::default();
            let issued = issue(&trust(authority), &Names::default(), at, held, &mut pinned);
            let issued = issued.unwrap();
            assert!(issued.due > at);
            issued.identity.public_key_fingerprint().unwrap()
        };
        let fingerprint = instar_pki::public_key_fingerprint(&granted.certificate).unwrap();
        assert_eq!(shown(&ours, now), fingerprint);
        assert_eq!(shown(&ours, now + 23 * hour), fingerprint);
        // The key stays with a certificate of no use: whoever signs the next one compares the fingerprint.
        assert_eq!(shown(&ours, now + 25 * hour), fingerprint);
        assert_eq!(shown(&other, now), fingerprint);
    }

    #[tokio::test]
    async fn a_network_that_says_nothing_does_not_keep_the_api_away() {
        let mut told = keeper(None);
        let names = tokio::time::timeout(NAMES * 10, next(&mut told)).await;
        assert!(names.unwrap().contains(&"127.0.0.1".to_owned()));
    }

    #[test]
    fn a_key_without_an_authority_is_inherited_and_not_printed() {
        let mut pinned = PinnedKey::default();
        let key = pinned.get().unwrap().to_pem();
        let left = serde_json::to_string(&pinned).unwrap();
        let mut inherited: PinnedKey = serde_json::from_str(&left).unwrap();
        assert_eq!(inherited.get().unwrap().to_pem(), key);
        assert_eq!(format!("{pinned:?}"), "PinnedKey(\"a key\")");
    }
}
