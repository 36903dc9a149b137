//! A certificate that a person has signed for a machine without the authority's key: when the machine takes it, and what there is to say about
//! it later.
//!
//! ```text
//!   Show ──request for the machine's key──► a person with the authority's key ──certificate──► Grant
//!                                                                                                │ every check of `grant` passes?
//!                                    no: the refusal says which, nothing has changed ◄───────────┤
//!                                                                                                └ yes: kept, then shown
//! ```

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use instar_pki::{PrivateKey, SubjectName};

use super::granted::{Granted, as_text};
use super::issuer::issuer_of;

/// Remaining life at which the machine begins to warn.
const WARNED: Duration = Duration::from_secs(30 * DAY);
const DAY: u64 = 24 * 3600;

/// The machine's side of a grant.
pub struct Own<'a> {
    /// Its key.
    pub key: PrivateKey,
    /// Its names, without the config's; with the config's if there is one.
    pub names: BTreeSet<String>,
    /// The authorities by which the certificate may be, DER.
    pub accepted: &'a [Vec<u8>],
    /// Whether there is a config: then `names` are all names, otherwise the config may bring more.
    pub is_configured: bool,
}

/// Why a certificate is not taken.
#[derive(Debug, thiserror::Error)]
pub enum NotGranted {
    /// It cannot be read.
    #[error("the certificate cannot be read: {0}")]
    Unreadable(String),
    /// It is for another key.
    #[error(
        "the certificate is for a key with the fingerprint {given}, and this machine's is {own}: it was signed for another machine, or before this one started anew; sign its request of now"
    )]
    OtherKey {
        /// The certificate's.
        given: String,
        /// The machine's.
        own: String,
    },
    /// It is for another machine.
    #[error(
        "the certificate is for {0}, which is not a name of this machine; put it into machine.certSANs first, or sign the machine's own request"
    )]
    OtherName(String),
    /// It has none of the machine's names.
    #[error("the certificate has no name or address of this machine")]
    NoName,
    /// It has ended, or not begun.
    #[error(
        "the certificate is not valid by this machine's clock; compare the clocks, or sign for longer"
    )]
    Dates,
    /// It is by another authority.
    #[error(
        "no authority of this machine (machine.ca, machine.acceptedCAs) has signed the certificate"
    )]
    Foreign,
}

/// Checks a certificate in PEM, and returns what the machine keeps of it.
///
/// # Errors
/// It is not for this machine, or clients could not verify it.
pub fn grant(own: &Own<'_>, certificate: &str, now: SystemTime) -> Result<Granted, NotGranted> {
    let unreadable = |error: &dyn std::fmt::Display| NotGranted::Unreadable(error.to_string());
    let certificate =
        instar_pki::certificate_from_pem(certificate).map_err(|error| unreadable(&error))?;
    let given = instar_pki::public_key_fingerprint(&certificate);
    let given = given.map_err(|error| unreadable(&error))?;
    let shown = fingerprint(&own.key);
    if given != shown {
        return Err(NotGranted::OtherKey { given, own: shown });
    }
    let names = instar_pki::server_names(&certificate).map_err(|error| unreadable(&error))?;
    let names = as_text(&names.into_iter().collect::<Vec<SubjectName>>());
    check_names(own, &names)?;
    let (begin, end) = instar_pki::validity(&certificate).map_err(|error| unreadable(&error))?;
    if now < begin || end <= now {
        return Err(NotGranted::Dates);
    }
    let issuer = issuer_of(&certificate, own.accepted);
    let issuer = issuer.map_err(|error| NotGranted::Unreadable(format!("{error:#}")))?;
    Ok(Granted {
        authority: issuer.ok_or(NotGranted::Foreign)?,
        certificate,
        key: own.key.to_pem(),
        asked: own.names.clone(),
        by_hand: true,
    })
}

fn fingerprint(key: &PrivateKey) -> String {
    instar_pki::fingerprint_of(&key.public_key_info())
}

/// Each name has to be the machine's, and one has to be its alone. Before there is a config, the certificate may have names that the config
/// brings.
fn check_names(own: &Own<'_>, names: &BTreeSet<String>) -> Result<(), NotGranted> {
    let other = names.iter().find(|name| !own.names.contains(*name));
    match other {
        Some(other) if own.is_configured => Err(NotGranted::OtherName(other.clone())),
        _ if has_own(names, &own.names) => Ok(()),
        _ => Err(NotGranted::NoName),
    }
}

/// Whether one of the names is one that other machines do not have, too.
fn has_own(names: &BTreeSet<String>, own: &BTreeSet<String>) -> bool {
    let everybodys = |name: &str| {
        let address = name.parse::<IpAddr>();
        name == "localhost" || address.is_ok_and(|address| address.is_loopback())
    };
    let mut common = names.intersection(own);
    common.any(|name| !everybodys(name))
}

/// The warning about a certificate that a person gave: that it ends soon, or that the machine has other names by now.
pub fn concern(granted: &Granted, own: &BTreeSet<String>, now: SystemTime) -> Option<String> {
    let act = "sign another one with `instarctl fleet sign`";
    if !granted.by_hand {
        return None;
    }
    match granted.end().duration_since(now) {
        Err(_) => {
            return Some(format!(
                "the API's certificate has ended, and clients cannot verify this machine: {act}"
            ));
        }
        Ok(left) if left < WARNED => {
            let days = left.as_secs() / DAY;
            return Some(format!("the API's certificate ends in {days} days: {act}"));
        }
        Ok(_) => {}
    }
    let names = instar_pki::server_names(&granted.certificate).unwrap_or_default();
    let names = as_text(&names.into_iter().collect::<Vec<SubjectName>>());
    (!has_own(&names, own)).then(|| {
        format!("the API's certificate is for none of the names and addresses that the machine has now: {act}")
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use instar_pki::{CertificateAuthority, ServerRequest, request_for_server};

    use super::*;

    const LIFE: Duration = Duration::from_secs(365 * DAY);

    struct Bench {
        ours: CertificateAuthority,
        accepted: Vec<Vec<u8>>,
        key: PrivateKey,
        now: SystemTime,
    }

    impl Bench {
        fn new() -> Self {
            // Certificates have whole seconds.
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let now = SystemTime::UNIX_EPOCH + Duration::from_secs(since.unwrap().as_secs());
            let ours = CertificateAuthority::generate(now).unwrap();
            Bench {
                accepted: vec![ours.certificate().to_vec()],
                ours,
                key: PrivateKey::generate_p256().unwrap(),
                now,
            }
        }

        fn own(&self, is_configured: bool) -> Own<'_> {
            Own {
                key: PrivateKey::from_pem(&self.key.to_pem()).unwrap(),
                names: set(&["10.0.0.7", "lamp-1", "127.0.0.1", "localhost"]),
                accepted: &self.accepted,
                is_configured,
            }
        }

        fn signed(&self, by: &CertificateAuthority, key: &PrivateKey, names: &[&str]) -> String {
            let names: Vec<SubjectName> = names.iter().map(|name| (*name).into()).collect();
            let request = request_for_server(key, &names).unwrap();
            let request = ServerRequest::from_pem(&request).unwrap();
            let certificate = by.sign_server(&request, self.now, LIFE).unwrap();
            instar_pki::certificate_to_pem(&certificate)
        }

        fn granted(&self) -> Granted {
            let good = self.signed(&self.ours, &self.key, &["10.0.0.7", "localhost"]);
            grant(&self.own(true), &good, self.now).unwrap()
        }
    }

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_certificate_for_this_machine_by_its_authority_is_taken() {
        let bench = Bench::new();
        let granted = bench.granted();
        assert!(granted.is_by_hand() && granted.is_good(&bench.accepted, bench.now));
        // Before there is a config, names of that config are taken as well.
        let early = bench.signed(&bench.ours, &bench.key, &["10.0.0.7", "lamp.example"]);
        grant(&bench.own(false), &early, bench.now).unwrap();
        // The machine's clock is hours behind that of the person's computer.
        let behind = bench.now - Duration::from_secs(5 * 3600);
        grant(&bench.own(false), &early, behind).unwrap();
    }

    #[test]
    fn any_other_is_refused_for_its_reason() {
        let bench = Bench::new();
        let (ours, key) = (&bench.ours, &bench.key);
        let other = CertificateAuthority::generate(bench.now).unwrap();
        let other_key = PrivateKey::generate_p256().unwrap();
        let good = ["10.0.0.7"];
        type Row = (bool, String, Duration, fn(&NotGranted) -> bool);
        let none = Duration::ZERO;
        let table: [Row; 8] = [
            (true, "none".to_owned(), none, |it| {
                matches!(it, NotGranted::Unreadable(_))
            }),
            (true, bench.signed(ours, &other_key, &good), none, |it| {
                matches!(it, NotGranted::OtherKey { .. })
            }),
            (
                true,
                bench.signed(ours, key, &["10.0.0.7", "lamp-2"]),
                none,
                |it| matches!(it, NotGranted::OtherName(name) if name == "lamp-2"),
            ),
            (
                true,
                bench.signed(ours, key, &["127.0.0.1", "localhost"]),
                none,
                |it| matches!(it, NotGranted::NoName),
            ),
            (false, bench.signed(ours, key, &["10.0.0.8"]), none, |it| {
                matches!(it, NotGranted::NoName)
            }),
            (true, bench.signed(&other, key, &good), none, |it| {
                matches!(it, NotGranted::Foreign)
            }),
            (false, bench.signed(&other, key, &good), none, |it| {
                matches!(it, NotGranted::Foreign)
            }),
            (true, bench.signed(ours, key, &good), LIFE, |it| {
                matches!(it, NotGranted::Dates)
            }),
        ];
        for (number, (is_configured, pem, later, expected)) in table.into_iter().enumerate() {
            let own = bench.own(is_configured);
            let refused = grant(&own, &pem, bench.now + later).unwrap_err();
            assert!(expected(&refused), "row {number}: {refused}");
        }
    }

    #[test]
    fn it_is_worth_a_warning_in_its_last_thirty_days_and_for_other_names() {
        let (bench, day) = (Bench::new(), Duration::from_secs(DAY));
        let mut granted = bench.granted();
        let said = |granted: &Granted, own: &[&str], days: u32| {
            concern(granted, &set(own), bench.now + day * days)
        };
        let own = ["10.0.0.7", "localhost"];
        assert_eq!(said(&granted, &own, 0), None);
        assert_eq!(said(&granted, &own, 335), None);
        let soon = said(&granted, &own, 340).unwrap();
        assert!(soon.contains("ends in 25 days"), "{soon}");
        assert!(said(&granted, &own, 400).unwrap().contains("has ended"));
        let moved = said(&granted, &["10.0.0.8", "localhost"], 0).unwrap();
        assert!(moved.contains("none of the names"), "{moved}");
        // A control plane gives the next one in time.
        granted.by_hand = false;
        assert_eq!(said(&granted, &own, 400), None);
    }
}
