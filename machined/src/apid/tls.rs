//! What a verified client certificate says.

use anyhow::Context as _;
use instar_pki::Role;
use rustls::ServerConnection;

/// The roles of the connection's client. rustls has verified the chain by now; that the certificate is a client's
/// and nothing else is checked here, as other implementations of this API do.
pub(super) fn roles_of(connection: &ServerConnection) -> anyhow::Result<Vec<Role>> {
    let leaf = connection
        .peer_certificates()
        .and_then(|chain| chain.first())
        .context("the client sent no certificate")?;
    Ok(instar_pki::client_roles(leaf)?)
}
