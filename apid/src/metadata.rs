//! The keys of a call's metadata that apid reads or sets: the target of the call, and its caller.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::header::HeaderName;
use http::{HeaderMap, HeaderValue};

use super::caller::Caller;

/// The one node that a call is for.
pub(super) const NODE: &str = instar_api::NODE_KEY;
/// Any number of nodes that a call is for.
pub(super) const NODES: &str = instar_api::NODES_KEY;
/// Set by the node that passed a call on: such a call is not passed on again, or two nodes could send it to and fro.
pub(super) const PROXY_FROM: &str = "proxyfrom";

/// Roles of the caller; only apid may set it.
const ROLES: HeaderName = HeaderName::from_static("instar-roles");
/// Address of the caller; only apid may set it.
const PEER: HeaderName = HeaderName::from_static("instar-peer");

/// The certificates that the caller showed, each DER in base64, its own first, with commas between them; only apid may set it.
const CERTIFICATES: HeaderName = HeaderName::from_static("instar-certificates");

/// Removes the caller's claims about itself.
pub(super) fn drop_claims(headers: &mut HeaderMap) {
    headers.remove(ROLES);
    headers.remove(PEER);
    headers.remove(CERTIFICATES);
}

/// Replaces the caller's claims about itself by the roles of its certificate. Adds the certificates where machined checks them again.
pub(super) fn set_caller(
    headers: &mut HeaderMap,
    caller: &Caller,
    is_judged_again: bool,
) -> anyhow::Result<()> {
    drop_claims(headers);
    // Only known roles: a name with a comma in it must not become two.
    let roles = instar_pki::roles_to_list(&caller.roles);
    headers.insert(ROLES, HeaderValue::from_str(&roles)?);
    headers.insert(PEER, HeaderValue::from_str(&caller.peer.to_string())?);
    if is_judged_again && !caller.certificates.is_empty() {
        let certificates = caller.certificates.iter();
        let encoded: Vec<String> = certificates.map(|der| BASE64.encode(der)).collect();
        headers.insert(CERTIFICATES, HeaderValue::from_str(&encoded.join(","))?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::caller::Peer;
    use super::*;
    use instar_pki::Role;
    use rustls_pki_types::CertificateDer;

    #[test]
    fn machined_is_told_who_calls_and_nothing_that_callers_claim() {
        let caller = Caller {
            roles: vec![Role::Reader],
            peer: Peer::Network("192.0.2.1:7".parse().unwrap()),
            certificates: [[1].to_vec(), [2].to_vec()]
                .map(CertificateDer::from)
                .into(),
        };
        let told = |is_judged_again| {
            let mut headers = HeaderMap::new();
            for name in [ROLES, PEER, CERTIFICATES] {
                headers.append(&name, HeaderValue::from_static("os:admin"));
                headers.append(name, HeaderValue::from_static("os:admin"));
            }
            set_caller(&mut headers, &caller, is_judged_again).unwrap();
            let all = |name| {
                let values = headers.get_all(name).iter();
                values
                    .map(|value| value.to_str().unwrap().to_owned())
                    .collect::<Vec<_>>()
            };
            [all(ROLES), all(PEER), all(CERTIFICATES)].concat()
        };
        assert_eq!(told(false), ["os:reader", "192.0.2.1:7"]);
        assert_eq!(told(true), ["os:reader", "192.0.2.1:7", "AQ==,Ag=="]);
    }
}
