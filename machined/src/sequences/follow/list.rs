//! Looks for the list of a channel, at all its addresses and among what a person has brought: the newest one counts, so one mirror that
//! stands still holds nobody back.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use instar_channel::{LARGEST, LARGEST_SIGNATURE, LIST, List, Position, Release, SIGNATURE};
use instar_http_client::Client;
use tokio::time::timeout;

use crate::config::UpgradeFollow;
use crate::machine::Machine;
use crate::sequences::owners_servers::{client, get};
use crate::values::{EndpointUrl, PublicKey};

/// Timeout for one address.
const LOOK: Duration = Duration::from_secs(60);

/// A list, and the machine's position after it.
pub(super) struct Found {
    pub(super) list: List,
    pub(super) position: Position,
}

/// Returns the newest list.
///
/// # Errors
/// No address gave one that can be believed: what was wrong at each.
pub(super) async fn look(
    machine: &Machine,
    follow: &UpgradeFollow,
    known: Option<&Position>,
) -> anyhow::Result<Found> {
    let client = client_of(machine)?;
    let brought = machine.follow.brought();
    let brought = brought.map(|it| opened(follow, known, it.list(), it.signature()));
    // One that is not good any more matters to machines without an address of the channel alone.
    let (mut newest, mut errors) = match brought {
        Some(Ok(found)) => (Some(found), Vec::new()),
        Some(Err(error)) if follow.urls.is_empty() => {
            (None, vec![format!("the list that was brought: {error:#}")])
        }
        Some(Err(_)) | None => (None, Vec::new()),
    };
    for url in &follow.urls {
        match timeout(LOOK, at(&client, url, follow, known)).await {
            Ok(Ok(found)) => {
                let is_newer = |it: &Found| it.list.serial < found.list.serial;
                if newest.as_ref().is_none_or(is_newer) {
                    newest = Some(found);
                }
            }
            Ok(Err(error)) => errors.push(format!("{url}: {error:#}")),
            Err(_) => errors.push(format!("{url}: no answer within {} s", LOOK.as_secs())),
        }
    }
    match newest {
        Some(found) => {
            for error in errors {
                tracing::warn!("{}: {error}", follow.channel);
            }
            Ok(found)
        }
        None if errors.is_empty() => bail!(
            "the config names no address of it, and nobody has brought a list, by `follow bring` or in a bundle"
        ),
        None => bail!("{}", errors.join("; ")),
    }
}

fn client_of(machine: &Machine) -> anyhow::Result<Client> {
    let configured = machine.config().context("there is no config")?;
    Ok(client(&configured.config))
}

async fn at(
    client: &Client,
    url: &EndpointUrl,
    follow: &UpgradeFollow,
    known: Option<&Position>,
) -> anyhow::Result<Found> {
    let channel = &follow.channel;
    let bytes = document(client, &format!("{url}/{channel}/{LIST}"), LARGEST).await?;
    let signature = format!("{url}/{channel}/{SIGNATURE}");
    let signature = document(client, &signature, LARGEST_SIGNATURE).await?;
    opened(follow, known, &bytes, &signature)
}

/// Reads a list.
///
/// # Errors
/// It is not by the channel's key, or an old one.
pub(super) fn opened(
    follow: &UpgradeFollow,
    known: Option<&Position>,
    bytes: &[u8],
    signature: &[u8],
) -> anyhow::Result<Found> {
    let list = instar_channel::open(&follow.channel, &follow.key, bytes, signature)?;
    let position = Position::after(known, &list, bytes)?;
    Ok(Found { list, position })
}

async fn document(client: &Client, url: &str, limit: usize) -> anyhow::Result<Vec<u8>> {
    let mut answer = get(client, url).await?;
    Ok(answer.document(limit).await?)
}

/// Looks for the signature that approves a release.
///
/// # Errors
/// There is none at any address, and none was brought.
pub(super) async fn approval(
    machine: &Machine,
    follow: &UpgradeFollow,
    key: &PublicKey,
    release: &Release,
) -> anyhow::Result<()> {
    let signed = instar_channel::approval(&follow.channel, release);
    let is_approved = |signature: &[u8]| instar_channel::is_signed(key, &signed, signature);
    let brought = machine.follow.brought();
    let brought = brought.as_ref().and_then(|it| it.approval(release.digest));
    if brought.is_some_and(is_approved) {
        return Ok(());
    }
    let client = client_of(machine)?;
    let mut last = None;
    for url in &follow.urls {
        let (channel, hex) = (&follow.channel, release.digest.hex());
        let url = format!("{url}/{channel}/approvals/{hex}.sig");
        let looking = async {
            let signature = document(&client, &url, LARGEST_SIGNATURE).await?;
            ensure!(
                is_approved(&signature),
                "{url} is no signature by the key {}",
                key.fingerprint()
            );
            Ok(())
        };
        match timeout(LOOK, looking).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => last = Some(error),
            Err(_) => last = Some(anyhow::anyhow!("{url}: no answer")),
        }
    }
    Err(last.unwrap_or_else(|| {
        anyhow::anyhow!(
            "no approval of it was brought, and the config names no address of approvals"
        )
    }))
}
