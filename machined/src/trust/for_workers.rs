//! Certificates for machines without the authority's key: the rules by which a machine that has it signs.
//!
//! The decision: whoever has the token gets a server's certificate with the address that it calls from. It may have other names and addresses, which
//! nobody here can verify, but none of the control plane, as far as this machine knows it: itself, its config, and the other members of its cluster.
//! Talos signs any name for the token's holder, so that one stolen worker could pose as the control plane.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use instar_pki::{AuthorityError, CertificateAuthority, RequestError, ServerRequest, SubjectName};

use super::own_certificates::LIFETIME;
use crate::values::Secret;

/// Limit on certificates that are signed in a row; then [`RATE`] applies.
const BURST: f64 = 256.0;
/// Certificates per second.
const RATE: f64 = 16.0;

/// The machine's authority and token.
pub struct ForWorkers {
    /// Signs.
    pub authority: Box<CertificateAuthority>,
    /// The accepted authorities, PEM.
    pub accepted: String,
    /// The token that callers must have.
    pub token: Secret,
    /// The machine's own names and addresses, and the host of the cluster's endpoint. No worker gets a certificate for them.
    pub own: BTreeSet<String>,
    /// The names and addresses of the control plane's members, a set for each. Nobody but that member gets a certificate for them.
    pub members: Vec<BTreeSet<String>>,
}

/// A signed certificate.
#[derive(Debug)]
pub struct Signed {
    /// The accepted authorities, PEM.
    pub accepted: String,
    /// The certificate, PEM.
    pub certificate: String,
    /// Its names.
    pub names: Vec<SubjectName>,
    /// Names of the request that were left out.
    pub left_out: Vec<SubjectName>,
}

/// Why no certificate is signed.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The token is missing or another one.
    #[error("the token is wrong: machine.token of both machine configs has to be the same")]
    Token,
    /// The request is broken.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The caller's address is not among those of the request.
    #[error(
        "the request comes from {0}, and is not for that address: a machine behind address translation cannot get a certificate here"
    )]
    Elsewhere(IpAddr),
    /// Too many were signed lately.
    #[error("too many certificates were signed lately; try again")]
    TooMany,
    /// The authority's key does not work.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
}

impl ForWorkers {
    /// Whether the token is the machine's. Takes the same time wherever they differ.
    fn is_token(&self, given: &str) -> bool {
        // The comparison of BLAKE3's hashes takes constant time.
        blake3::hash(given.as_bytes()) == blake3::hash(self.token.expose().as_bytes())
    }

    /// Signs a request in PEM that came from this address with this token.
    ///
    /// # Errors
    /// It is refused.
    pub fn sign(
        &self,
        request: &str,
        token: &str,
        from: IpAddr,
        now: SystemTime,
        lately: &mut Lately,
    ) -> Result<Signed, Refusal> {
        if !self.is_token(token) {
            return Err(Refusal::Token);
        }
        let mut request = ServerRequest::from_pem(request)?;
        let from = from.to_canonical();
        let (left_out, names): (Vec<_>, Vec<_>) = std::mem::take(&mut request.names)
            .into_iter()
            .partition(|name| self.is_of_control_plane(name, from));
        request.names = names;
        if !request.names.contains(&SubjectName::Ip(from)) {
            return Err(Refusal::Elsewhere(from));
        }
        if !lately.take(now) {
            return Err(Refusal::TooMany);
        }
        let certificate = self.authority.sign_server(&request, now, LIFETIME)?;
        Ok(Signed {
            accepted: self.accepted.clone(),
            certificate: instar_pki::certificate_to_pem(&certificate),
            names: request.names,
            left_out,
        })
    }

    /// Whether a name is the control plane's, and not that of the caller. A member of the control plane that has not got the authority's key asks as
    /// workers do.
    fn is_of_control_plane(&self, name: &SubjectName, from: IpAddr) -> bool {
        let from = from.to_string();
        let others = self.members.iter().filter(|of| !of.contains(&from));
        std::iter::once(&self.own)
            .chain(others)
            .any(|names| has(names, name))
    }
}

fn has(names: &BTreeSet<String>, name: &SubjectName) -> bool {
    match name {
        // Each machine has these.
        SubjectName::Ip(address) if address.is_loopback() => false,
        SubjectName::Ip(address) => names.contains(&address.to_canonical().to_string()),
        SubjectName::Dns(name) if name == "localhost" => false,
        SubjectName::Dns(name) => names.iter().any(|it| it.eq_ignore_ascii_case(name)),
    }
}

/// How many certificates may be signed now: a bucket of [`BURST`] that fills at [`RATE`].
#[derive(Debug)]
pub struct Lately {
    left: f64,
    at: SystemTime,
}

impl Default for Lately {
    fn default() -> Self {
        Lately {
            left: BURST,
            at: SystemTime::UNIX_EPOCH,
        }
    }
}

impl Lately {
    fn take(&mut self, now: SystemTime) -> bool {
        // A clock that was set back fills nothing.
        let passed = now.duration_since(self.at).unwrap_or(Duration::ZERO);
        self.at = now;
        self.left = (self.left + passed.as_secs_f64() * RATE).min(BURST);
        let is_left = self.left >= 1.0;
        if is_left {
            self.left -= 1.0;
        }
        is_left
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use instar_pki::PrivateKey;

    fn for_workers() -> ForWorkers {
        let authority = CertificateAuthority::generate(SystemTime::now()).unwrap();
        ForWorkers {
            accepted: authority.certificate_pem(),
            authority: Box::new(authority),
            token: Secret::new("abcdef.0123456789abcdef"),
            own: ["10.0.0.1", "127.0.0.1", "localhost", "plane", "api.example"]
                .map(str::to_owned)
                .into(),
            members: [["10.0.0.1", "plane"], ["10.0.0.2", "plane-2"]]
                .map(|of| of.map(str::to_owned).into())
                .into(),
        }
    }

    /// The names of a certificate that is signed, and the number of those that are left out.
    fn names_of(asked: &[&str], from: &str) -> (BTreeSet<SubjectName>, usize) {
        let signed = sign(asked, TOKEN, from).unwrap();
        let certificate = instar_pki::certificate_from_pem(&signed.certificate).unwrap();
        let names = instar_pki::server_names(&certificate).unwrap();
        (names, signed.left_out.len())
    }

    fn request(names: &[&str]) -> String {
        let names: Vec<SubjectName> = names.iter().map(|name| (*name).into()).collect();
        let key = PrivateKey::generate().unwrap();
        instar_pki::request_for_server(&key, &names).unwrap()
    }

    const TOKEN: &str = "abcdef.0123456789abcdef";
    const FROM: &str = "::ffff:10.0.0.7";

    fn sign(names: &[&str], token: &str, from: &str) -> Result<Signed, Refusal> {
        let (now, mut lately) = (SystemTime::now(), Lately::default());
        for_workers().sign(
            &request(names),
            token,
            from.parse().unwrap(),
            now,
            &mut lately,
        )
    }

    #[test]
    fn a_worker_gets_a_certificate_for_its_own_names_alone() {
        let asked = [
            "10.0.0.7",
            "127.0.0.1",
            "localhost",
            "worker",
            "10.0.0.1",
            "Plane",
            "api.example",
        ];
        let signed = sign(&asked, TOKEN, FROM).unwrap();
        let certificate = instar_pki::certificate_from_pem(&signed.certificate).unwrap();
        let expected = ["10.0.0.7", "127.0.0.1", "localhost", "worker"];
        let expected: BTreeSet<SubjectName> = expected.map(Into::into).into();
        assert_eq!(instar_pki::server_names(&certificate).unwrap(), expected);
        assert_eq!(signed.left_out.len(), 3);
        assert!(instar_pki::client_roles(&certificate).is_err());
    }

    #[test]
    fn nobody_but_a_member_of_the_control_plane_gets_a_certificate_for_its_names() {
        let asked = ["10.0.0.7", "10.0.0.2", "Plane-2", "worker", "10.0.0.8"];
        // Nobody can verify the rest.
        let expected = ["10.0.0.7", "worker", "10.0.0.8"].map(Into::into).into();
        assert_eq!(names_of(&asked, FROM), (expected, 2));
        // One without the authority's key.
        let asked = ["10.0.0.2", "plane-2", "10.0.0.1", "plane"];
        let expected = ["10.0.0.2", "plane-2"].map(Into::into).into();
        assert_eq!(names_of(&asked, "10.0.0.2"), (expected, 2));
    }

    #[test]
    fn who_has_not_the_token_or_calls_from_elsewhere_gets_none() {
        for token in ["", "abcdef.0123456789abcdeg", "abcdef.0123456789abcdef "] {
            assert!(matches!(
                sign(&["10.0.0.7"], token, FROM),
                Err(Refusal::Token)
            ));
        }
        for (names, from) in [
            (&["10.0.0.7"][..], "10.0.0.8"),
            (&["worker"], "10.0.0.7"),
            // A caller on this machine asks in the machine's name.
            (&["10.0.0.1"], "10.0.0.1"),
        ] {
            let refused = sign(names, TOKEN, from);
            assert!(matches!(refused, Err(Refusal::Elsewhere(_))), "{names:?}");
        }
        let (now, from) = (SystemTime::now(), FROM.parse().unwrap());
        let broken = for_workers().sign("none", TOKEN, from, now, &mut Lately::default());
        assert!(matches!(broken, Err(Refusal::Request(_))));
    }

    #[test]
    fn a_flood_of_requests_is_slowed_down() {
        let (now, mut lately) = (SystemTime::now(), Lately::default());
        let count = |lately: &mut Lately, now| (0..1000).filter(|_| lately.take(now)).count();
        assert_eq!(count(&mut lately, now), 256);
        assert_eq!(count(&mut lately, now + Duration::from_secs(1)), 16);
        assert_eq!(count(&mut lately, now), 0);
        assert_eq!(count(&mut lately, now + Duration::from_secs(3600)), 256);
    }
}
