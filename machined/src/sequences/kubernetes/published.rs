//! Asks publishers of extensions for their lists of files, and looks into the lists that bundles have brought.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use instar_bundle::BundledFile;
use instar_http_client::Client;
use tokio::task::JoinHandle;

use crate::base::blocking_io;
use crate::config::{MachineConfig, PublishedExtension};
use crate::kubernetes::Offer;
use crate::machine::Machine;
use crate::oci::bundled::kept_files;
use crate::sequences::owners_servers::{client, get};
use crate::sequences::signed_list::{
    LIST, LONGEST_LIST, LONGEST_SIGNATURE, MOST_KEPT, SERVED, SIGNATURE, newest, newest_brought,
};

/// The pause after a failure.
const PAUSE: Duration = Duration::from_secs(60);

/// The lists of publishers, by the names of their extensions.
#[derive(Default)]
pub(super) struct Lists(BTreeMap<String, List>);

/// One publisher's list.
struct List {
    of: PublishedExtension,
    asking: Option<JoinHandle<anyhow::Result<Offer>>>,
    /// The result of the last look, and its time.
    heard: Option<(Result<Offer, String>, Instant)>,
}

impl Lists {
    /// Returns the newest file as far as it is known, and goes on asking.
    ///
    /// # Errors
    /// Why the last look has failed; the next one follows after a pause.
    pub(super) async fn newest(
        &mut self,
        config: &MachineConfig,
        name: &str,
        of: &PublishedExtension,
    ) -> anyhow::Result<Option<Offer>> {
        let begin = || List {
            of: of.clone(),
            asking: None,
            heard: None,
        };
        let list = self.0.entry(name.to_owned()).or_insert_with(begin);
        if list.of != *of {
            *list = begin();
        }
        list.go_on(config).await;
        match &list.heard {
            None => Ok(None),
            Some((Ok(offer), _)) => Ok(Some(offer.clone())),
            Some((Err(why), _)) => Err(anyhow::anyhow!("{why}")),
        }
    }
}

impl List {
    async fn go_on(&mut self, config: &MachineConfig) {
        if let Some(asking) = &mut self.asking {
            if asking.is_finished() {
                let heard = asking.await.map_err(anyhow::Error::from).flatten();
                let heard = heard.map_err(|error| format!("{error:#}"));
                self.heard = Some((heard, Instant::now()));
                self.asking = None;
            }
        } else if self.is_due() {
            let asking = ask(client(config), self.of.clone());
            self.asking = Some(crate::base::task::spawn(asking));
        }
    }

    fn is_due(&self) -> bool {
        self.heard.as_ref().is_none_or(|(heard, at)| {
            let pause = if heard.is_ok() {
                self.of.interval
            } else {
                PAUSE
            };
            at.elapsed() >= pause
        })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        if let Some(asking) = &self.asking {
            asking.abort();
        }
    }
}

/// Reads a publisher's list and its signature.
async fn ask(client: Client, of: PublishedExtension) -> anyhow::Result<Offer> {
    let list = document(&client, &of, LIST, LONGEST_LIST).await?;
    let signature = document(&client, &of, SIGNATURE, LONGEST_SIGNATURE).await;
    let signature = signature.with_context(|| format!("the signature of the list; {SERVED}"))?;
    newest(&of, &list, &signature)
}

async fn document(
    client: &Client,
    of: &PublishedExtension,
    name: &str,
    limit: usize,
) -> anyhow::Result<Vec<u8>> {
    let url = format!("{}/{name}", of.folder);
    let mut answer = get(client, &url).await?;
    Ok(answer.document(limit).await?)
}

/// Returns the newest file of the publisher's lists that bundles have brought. Nobody knows how old they are.
pub(super) async fn brought(machine: &Machine, of: &PublishedExtension) -> Option<Offer> {
    let images = machine.bundles.kept.files();
    let images = images.inspect_err(|error| {
        tracing::warn!("lists of extensions that bundles have brought are not read: {error:#}");
    });
    // Without the record there is none of which anybody knows.
    let images = images.ok().filter(|images| !images.is_empty())?;
    let (store, of) = (machine.images.clone(), of.clone());
    let looking = blocking_io::within(blocking_io::ANSWER, move || {
        let blobs = store.blobs()?;
        let read = |file: &BundledFile| {
            let longest = LONGEST_LIST as u64;
            blobs.document(file.digest(), longest).ok().flatten()
        };
        newest_brought(&of, &kept_files(&store, &images), MOST_KEPT, &read)
    });
    let found = looking.await.inspect_err(|error| {
        tracing::warn!("lists of extensions that bundles have brought are not read: {error}");
    });
    // Without an answer there is none of which anybody knows.
    Some(found.ok()??.offer)
}
