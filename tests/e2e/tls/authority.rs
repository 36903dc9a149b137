//! An authority with a key of another kind: ECDSA.

use anyhow::{Result, ensure};
use instar_tests::{Identity, MachineConfig, Node, Outcome, TlsClient};
use x509_parser::oid_registry::{OID_KEY_TYPE_EC_PUBLIC_KEY, OID_SIG_ED25519};
use x509_parser::parse_x509_certificate;

use super::HOSTNAME;
use super::handshake::{refused, works};
use crate::PATIENCE;

/// An authority with an ECDSA key replaces the first one.
pub(super) async fn an_authority_may_have_an_ecdsa_key(node: &Node, usual: &TlsClient) -> Outcome {
    let kind = kind_of_authority(node.identity())?;
    ensure!(kind == OID_SIG_ED25519.to_id_string(), "{kind}");
    let new = administrator_by_ecdsa()?;
    let config = MachineConfig::new(&new).hostname(HOSTNAME);
    node.apply_as(node.identity(), config.to_yaml()).await?;
    let client = TlsClient::of(&new);
    let what = "an authority with an ECDSA key";
    node.wait_until(what, PATIENCE, || works(node, what, &client))
        .await?;
    let stranger = TlsClient {
        authorities: client.authorities.clone(),
        ..usual.clone()
    };
    let end = refused(node, "the previous authority", &stranger).await;
    end.map(drop)
}

fn administrator_by_ecdsa() -> Result<Identity> {
    let new = Identity::administrator_by_p256()?;
    let kind = kind_of_authority(&new)?;
    ensure!(kind == OID_KEY_TYPE_EC_PUBLIC_KEY.to_id_string(), "{kind}");
    let key = new.authority_key();
    ensure!(key.starts_with("-----BEGIN EC PRIVATE KEY-----\n"));
    Ok(new)
}

fn kind_of_authority(identity: &Identity) -> Result<String> {
    let pem = identity.authority_certificate();
    let der = instar_pki::certificate_from_pem(&pem)?;
    let (_, certificate) = parse_x509_certificate(&der)?;
    Ok(certificate.public_key().algorithm.algorithm.to_id_string())
}
