//! A key exchange that new clients offer first.

use rustls::crypto::ring::kx_group;
use rustls::crypto::{ActiveKeyExchange, SharedSecret, SupportedKxGroup};
use rustls::{NamedGroup, ProtocolVersion};

/// X25519MLKEM768 as clients offer it before all others, with its share and that of X25519. No node accepts it, so the
/// bytes that only an accepting server would use are random.
#[derive(Debug)]
pub(super) struct Hybrid;

impl SupportedKxGroup for Hybrid {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, rustls::Error> {
        let classical = kx_group::X25519.start()?;
        let noise = [0x5a; 1184];
        Ok(Box::new(HybridShare {
            share: [&noise[..], classical.pub_key()].concat(),
            classical,
        }))
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::X25519MLKEM768
    }

    fn usable_for_version(&self, version: ProtocolVersion) -> bool {
        version == ProtocolVersion::TLSv1_3
    }
}

struct HybridShare {
    share: Vec<u8>,
    classical: Box<dyn ActiveKeyExchange>,
}

impl ActiveKeyExchange for HybridShare {
    fn complete(self: Box<Self>, _peer: &[u8]) -> Result<SharedSecret, rustls::Error> {
        let why = "the node takes X25519MLKEM768, which this client only offers";
        Err(rustls::Error::General(why.to_owned()))
    }

    fn hybrid_component(&self) -> Option<(NamedGroup, &[u8])> {
        Some((self.classical.group(), self.classical.pub_key()))
    }

    fn complete_hybrid_component(
        self: Box<Self>,
        peer: &[u8],
    ) -> Result<SharedSecret, rustls::Error> {
        self.classical.complete(peer)
    }

    fn pub_key(&self) -> &[u8] {
        &self.share
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::X25519MLKEM768
    }
}
