//! The TLS of the API, one property per test, as clients of this interface need it.

mod authority;
mod certificates;
mod handshake;
mod hybrid;
mod offers;
mod old_hello;
mod without_config;

use instar_tests::{
    Identity, ImageUnderTest, MachineConfig, Node, Outcome, Scratch, Test, TlsClient, chapters,
    tests,
};

use self::authority::an_authority_may_have_an_ecdsa_key;
use self::certificates::certificates_are_as_clients_want_them;
use self::offers::what_clients_offer_is_agreed_on;
use self::without_config::{a_config_is_brought, without_a_config_the_fingerprint_is_what_counts};

const HOSTNAME: &str = "lamp";

pub(crate) fn tests() -> Vec<Test> {
    tests![tls_is_what_clients_of_every_kind_need]
}

async fn tls_is_what_clients_of_every_kind_need(scratch: Scratch) -> Outcome {
    let identity = Identity::administrator()?;
    let config = MachineConfig::new(&identity).hostname(HOSTNAME);
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .without_config(identity)
        .start()?;
    let usual = TlsClient::of(node.identity());
    chapters![
        without_a_config_the_fingerprint_is_what_counts(&node, &scratch),
        a_config_is_brought(&node, &scratch, &config),
        what_clients_offer_is_agreed_on(&node, &usual),
        certificates_are_as_clients_want_them(&node, &usual),
        an_authority_may_have_an_ecdsa_key(&node, &usual),
    ]
    .await
}
