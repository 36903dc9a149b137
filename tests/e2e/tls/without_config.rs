//! A node without a config, and the clients that accept it.

use anyhow::{Result, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use instar_tests::{Instarctl, MachineConfig, Node, Outcome, Said, Scratch, chapters};

use crate::PATIENCE;

/// `instarctl`'s exit code.
const NOT_AUTHORIZED: i32 = 4;

/// `instarctl --insecure` shows no certificate, and accepts any of the node's, or only one of a given fingerprint.
pub(super) async fn without_a_config_the_fingerprint_is_what_counts(
    node: &Node,
    scratch: &Scratch,
) -> Outcome {
    until_it_has_an_address_and_a_certificate(node)?;
    let stranger = Stranger {
        instarctl: Instarctl::of(node, scratch)?,
        address: node.endpoint()?,
    };
    let pin = node.fingerprint_on_console()?;
    chapters![
        the_fingerprint_is_a_digest(&pin),
        the_right_pin_or_none_is_answered(&stranger, &pin),
        another_pin_is_an_error(&stranger),
    ]
    .await
}

/// A fingerprint that no certificate has.
fn other_pin() -> String {
    BASE64_STANDARD.encode([0; 32])
}

fn until_it_has_an_address_and_a_certificate(node: &Node) -> Outcome {
    node.wait_for_line("machined: the API answers on port", PATIENCE)?;
    // A client that connects before the node has an address waits until QEMU asks for the address again.
    let lease = node.vm().wait_for_line("machined: DHCP lease", PATIENCE)?;
    let certified = "machined: API certificate for";
    node.vm()
        .wait_for_line_after(lease.end, certified, PATIENCE)?;
    Ok(())
}

/// A client without a certificate.
struct Stranger {
    instarctl: Instarctl,
    address: String,
}

impl Stranger {
    async fn asks(&self, pins: &[&str]) -> Result<Said> {
        let version = ["version", "--insecure", "-n", &self.address];
        let pins = pins.iter().flat_map(|pin| ["--cert-fingerprint", pin]);
        let words: Vec<&str> = version.into_iter().chain(pins).collect();
        self.instarctl.run(&words).await
    }
}

async fn the_fingerprint_is_a_digest(pin: &str) -> Outcome {
    let digest = BASE64_STANDARD.decode(pin);
    let is_digest = digest.is_ok_and(|digest| digest.len() == 32);
    ensure!(is_digest, "{pin} is no digest");
    Ok(())
}

async fn the_right_pin_or_none_is_answered(stranger: &Stranger, pin: &str) -> Outcome {
    for pins in [&[][..], &[pin], &[&other_pin(), pin]] {
        let said = stranger.asks(pins).await?;
        ensure!(said.code == Some(0), "with the pins {pins:?}: {said:?}");
    }
    println!("--insecure: passes, with the pin {pin} too");
    Ok(())
}

async fn another_pin_is_an_error(stranger: &Stranger) -> Outcome {
    let said = stranger.asks(&[&other_pin()]).await?;
    ensure!(said.code == Some(NOT_AUTHORIZED), "{said:?}");
    ensure!(said.complaint.contains("another key"), "{said:?}");
    println!("--insecure, with another pin: {said:?}");
    Ok(())
}

/// Applies a config, which ends maintenance mode.
pub(super) async fn a_config_is_brought(
    node: &Node,
    scratch: &Scratch,
    config: &MachineConfig,
) -> Outcome {
    let file = scratch.write("config.yaml", config.to_yaml())?;
    let (file, address) = (file.display().to_string(), node.endpoint()?);
    let apply = ["apply-config", "--insecure", "-n", &address, "-f", &file];
    let said = Instarctl::of(node, scratch)?.run(&apply).await?;
    ensure!(said.code == Some(0), "{said:?}");
    node.wait_for_api(PATIENCE).await?;
    Ok(())
}
