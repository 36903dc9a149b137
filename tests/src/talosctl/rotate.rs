//! `rotate-ca`: another authority for the API, step by step as the client takes them.

use anyhow::{Context as _, Result, anyhow, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::Talosctl;
use super::screen::{Step, Stop};
use super::session::Release;
use super::wire::Fields;
use crate::identity::Identity;
use crate::node::Node;

/// Pause between two tries to reach a node that has just got another certificate, and the number of tries.
const AGAIN: std::time::Duration = std::time::Duration::from_millis(500);
const TRIES: u32 = 60;

impl Talosctl<'_> {
    /// Returns the certificate of the authority that signs now.
    pub(super) async fn current_authority(&self) -> Step<Vec<u8>> {
        let kind = "OSRootSecrets.secrets.talos.dev";
        let root = self.get_resource("secrets", kind, "os").await?;
        let issuing = root.decoded()?.message_of(1).unwrap_or_default();
        let certificate = issuing.bytes_of(1).to_vec();
        let shown = root.spec["issuingCA"]["crt"].as_str().unwrap_or_default();
        match certificate.is_empty() || shown != BASE64_STANDARD.encode(&certificate) {
            true => Err(Stop::Failed("no issuing CA".to_owned())),
            false => Ok(certificate),
        }
    }

    /// Checks that the node answers, with and without its name in the call.
    async fn is_reached(&self) -> Step {
        for session in [self.session.clone(), self.session.naming_nobody()] {
            let version = "/machine.MachineService/Version";
            session.element(version, Fields::none()).await?;
        }
        Ok(())
    }
}

/// Rotates from one administrator's authority to the other's.
pub async fn rotate_ca(
    node: &Node,
    old: &Identity,
    new: &Identity,
    release: Release,
) -> Result<()> {
    let stopped = |stop: Stop| anyhow!("{stop}");
    let encoded = |certificate: &[u8]| json!({ "crt": BASE64_STANDARD.encode(certificate) });
    let client = Talosctl::by(node, old, release).await?;
    let current = client.current_authority().await.map_err(stopped)?;
    ensure!(current == old.authority_certificate().as_bytes());
    client.is_reached().await.map_err(stopped)?;
    let (current, next) = (
        encoded(&current),
        encoded(new.authority_certificate().as_bytes()),
    );

    let accept =
        |machine: &mut Value, authority: &Value| match machine["acceptedCAs"].as_array_mut() {
            Some(accepted) => accepted.push(authority.clone()),
            None => machine["acceptedCAs"] = json!([authority]),
        };
    let forget = |machine: &mut Value, authority: &Value| {
        if let Some(accepted) = machine["acceptedCAs"].as_array_mut() {
            accepted.retain(|it| it != authority);
        }
    };
    let added = client.change_machine(|machine| accept(machine, &next));
    added.await.map_err(stopped).context("add the new CA")?;

    // The new client's certificate, and trust in the node's old one.
    let between = new.twin()?.trusting_only(old);
    let client = reach(node, &between, release).await?;
    let swapped = client.change_machine(|machine| {
        accept(machine, &current);
        forget(machine, &next);
        machine["ca"] = json!({
            "crt": next["crt"],
            "key": BASE64_STANDARD.encode(new.authority_key()),
        });
    });
    swapped.await.map_err(stopped).context("swap the CAs")?;

    let after = new.twin()?.trusting_only(new);
    let client = reach(node, &after, release).await?;
    let dropped = client.change_machine(|machine| forget(machine, &current));
    dropped.await.map_err(stopped).context("drop the old CA")?;
    reach(node, &after, release).await?;
    Ok(())
}

/// Connects, with retries as long as the node's certificate is another one.
async fn reach<'a>(node: &'a Node, who: &'a Identity, release: Release) -> Result<Talosctl<'a>> {
    let mut tries = 0;
    loop {
        tries += 1;
        let reached = async {
            let client = Talosctl::by(node, who, release).await?;
            client
                .is_reached()
                .await
                .map_err(|stop| anyhow!("{stop}"))?;
            anyhow::Ok(client)
        };
        match reached.await {
            Ok(client) => return Ok(client),
            Err(error) if tries == TRIES => return Err(error),
            Err(_) => tokio::time::sleep(AGAIN).await,
        }
    }
}
