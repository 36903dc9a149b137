//! Asks publishers of extensions for their lists of files, and believes a list by its signature alone.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use instar_extension::Sums;
use instar_http_client::Client;
use tokio::task::JoinHandle;

use crate::config::{MachineConfig, PublishedExtension};
use crate::kubernetes::Offer;
use crate::sequences::owners_servers::{client, get};

/// The list, and its signature by `cosign sign-blob` or `openssl dgst -sign`: in base64 or as it is.
const LIST: &str = "SHA256SUMS";
const SIGNATURE: &str = "SHA256SUMS.sig";
/// What publishers have to offer.
const SERVED: &str = "a list is believed by SHA256SUMS.sig, which `cosign sign-blob` or `openssl dgst -sign` makes; signatures of OpenPGP \
                      (SHA256SUMS.asc, SHA256SUMS.gpg) are not read";
/// Limits on their sizes, in bytes: a line has some 100.
const LONGEST_LIST: usize = 1 << 20;
const LONGEST_SIGNATURE: usize = 16 << 10;
/// The pause after a failure.
const PAUSE: Duration = Duration::from_secs(60);

/// The lists of publishers, by the names of their extensions.
#[derive(Default)]
pub(super) struct Lists(BTreeMap<String, List>);

/// One publisher's list.
struct List {
    of: PublishedExtension,
    asking: Option<JoinHandle<anyhow::Result<Offer>>>,
    /// What was found at the last look, and when.
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

/// Returns the newest file of a signed list.
fn newest(of: &PublishedExtension, list: &[u8], signature: &[u8]) -> anyhow::Result<Offer> {
    let decoded = BASE64_STANDARD.decode(signature.trim_ascii());
    let signature = decoded.as_deref().unwrap_or(signature);
    let is_right = instar_pki::is_signature(&of.key, list, signature);
    ensure!(
        is_right || !is_open_pgp(signature),
        "{}/{SIGNATURE} is a signature of OpenPGP; {SERVED}",
        of.folder
    );
    ensure!(
        is_right,
        "{}/{LIST} is not signed by the key {}, or its signature in {SIGNATURE} is of another list",
        of.folder,
        of.key.fingerprint()
    );
    let list = std::str::from_utf8(list).context("the list of sums is no text")?;
    Offer::newest(&Sums::parse(list)?, &of.pattern).with_context(|| {
        let (folder, pattern) = (&of.folder, &of.pattern);
        format!("{folder}/{LIST} names no file {pattern} of this machine's architecture")
    })
}

/// Whether a signature that no key of ours has made is one of OpenPGP: in its armour, or as a packet of a signature (RFC 9580, 4.2).
fn is_open_pgp(signature: &[u8]) -> bool {
    signature.starts_with(b"-----BEGIN PGP ")
        || matches!(signature.first(), Some(0x88 | 0x89 | 0x8a | 0xc2))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use instar_extension::Architecture;
    use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, SigningKey as _};

    fn key() -> KeyPair {
        KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap()
    }

    fn published(key: &KeyPair) -> PublishedExtension {
        PublishedExtension {
            folder: "https://example.com/extensions".parse().unwrap(),
            pattern: "k-@v-%a.raw".parse().unwrap(),
            key: key.public_key_pem().parse().unwrap(),
            interval: Duration::from_secs(60),
            window: None,
        }
    }

    fn sign(key: &KeyPair, list: &str) -> Vec<u8> {
        key.sign(list.as_bytes()).unwrap()
    }

    #[test]
    fn a_list_is_believed_by_the_signature_of_its_key_alone() {
        let (key, other) = (key(), key());
        let file = format!("k-v1-{}.raw", Architecture::OWN);
        let list = format!("{}  {file}\n", "a".repeat(64));
        let of = published(&key);
        let found = |list: &str, signature: &[u8]| newest(&of, list.as_bytes(), signature);
        let right = sign(&key, &list);
        assert_eq!(found(&list, &right).unwrap().file, file);
        let base64 = format!("{}\n", BASE64_STANDARD.encode(&right));
        assert_eq!(found(&list, base64.as_bytes()).unwrap().file, file);
        let changed = list.replace('a', "b");
        for (list, signature) in [(&changed, &right), (&list, &sign(&other, &list))] {
            let error = found(list, signature).unwrap_err().to_string();
            assert!(error.contains("is not signed by the key"), "{error}");
        }
        let armoured = b"-----BEGIN PGP SIGNATURE-----\n";
        for signature in [
            armoured.as_slice(),
            &[0x88, 0x75, 4, 0],
            &[0xc2, 0x75, 4, 0],
        ] {
            let error = found(&list, signature).unwrap_err().to_string();
            assert!(error.contains("is a signature of OpenPGP"), "{error}");
            assert!(error.contains("cosign sign-blob"), "{error}");
        }
        let error = found("", &sign(&key, "")).unwrap_err().to_string();
        assert!(error.contains("names no file k-@v-%a.raw"), "{error}");
    }
}
