//! The signed list of a publisher's files: believed by its signature alone, whether a server or a bundle has brought it.

use anyhow::{Context as _, ensure};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use instar_bundle::BundledFile;
use instar_extension::{Architecture, Sums};

use crate::config::PublishedExtension;
use crate::kubernetes::Offer;
use crate::values::Digest;

/// The list, and its signature by `cosign sign-blob` or `openssl dgst -sign`: in base64 or as it is.
pub(super) const LIST: &str = "SHA256SUMS";
pub(super) const SIGNATURE: &str = "SHA256SUMS.sig";
/// The files that a publisher has to offer, for errors.
pub(super) const SERVED: &str = "a list is believed by SHA256SUMS.sig, which `cosign sign-blob` or `openssl dgst -sign` makes; signatures of OpenPGP \
                      (SHA256SUMS.asc, SHA256SUMS.gpg) are not read";
/// Limits on their sizes, in bytes: a line has some 100.
pub(super) const LONGEST_LIST: usize = 1 << 20;
pub(super) const LONGEST_SIGNATURE: usize = 16 << 10;
/// Limit on the lists, and on the signatures, of one bundle that are tried: it may bring those of several publishers. Each list is compared with
/// each signature, so that a hostile bundle costs no more than 16 comparisons for each publisher.
pub(super) const MOST_OF_BUNDLE: usize = 4;
/// The same for all bundles that are kept.
pub(super) const MOST_KEPT: usize = 16;

/// Returns the newest file of a signed list.
pub(super) fn newest(
    of: &PublishedExtension,
    list: &[u8],
    signature: &[u8],
) -> anyhow::Result<Offer> {
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

/// The newest file of a list that a bundle has brought, and the documents that say so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Brought {
    pub(super) offer: Offer,
    /// The list and its signature.
    pub(super) documents: [Digest; 2],
}

/// Returns the newest file that a publisher's lists among these files name. Nothing says which signature is of which list, so all are tried,
/// up to `most` of each.
pub(super) fn newest_brought(
    of: &PublishedExtension,
    files: &[BundledFile],
    most: usize,
    read: &dyn Fn(&BundledFile) -> Option<Vec<u8>>,
) -> Option<Brought> {
    let named = |name: &str, longest: usize| {
        let fits = |file: &&BundledFile| file.name() == name && file.size() <= longest as u64;
        let files = files.iter().filter(fits).take(most);
        let read = files.filter_map(|file| Some((file.digest(), read(file)?)));
        read.collect::<Vec<(Digest, Vec<u8>)>>()
    };
    let signatures = named(SIGNATURE, LONGEST_SIGNATURE);
    let mut found: Vec<Brought> = Vec::new();
    for (list, lines) in named(LIST, LONGEST_LIST) {
        for (signature, bytes) in &signatures {
            // Most pairs are of different publishers.
            if let Ok(offer) = newest(of, &lines, bytes) {
                let documents = [list, *signature];
                found.push(Brought { offer, documents });
            }
        }
    }
    let version = |it: &Brought| of.pattern.version_of(&it.offer.file, Architecture::OWN);
    found
        .into_iter()
        .max_by(|one, other| version(one).cmp(&version(other)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::time::Duration;

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

    /// Files by their names, with their contents.
    fn files(contents: &[(&str, Vec<u8>)]) -> (Vec<BundledFile>, Vec<Vec<u8>>) {
        let file = |(name, content): &(&str, Vec<u8>)| {
            BundledFile::new(name, Digest::of(content), content.len() as u64).unwrap()
        };
        let files = contents.iter().map(file).collect();
        let contents = contents.iter().map(|(_, content)| content.clone());
        (files, contents.collect())
    }

    #[test]
    fn the_newest_file_of_the_lists_that_bundles_brought_is_found() {
        let (key, other) = (key(), key());
        let line = |version: &str| {
            let file = format!("k-v{version}-{}.raw", Architecture::OWN);
            format!("{}  {file}\n", Digest::of(version.as_bytes()).hex())
        };
        let (old, new, foreign) = (line("1.9"), line("1.10"), line("2"));
        let contents = [
            (LIST, old.clone().into_bytes()),
            (LIST, new.clone().into_bytes()),
            (LIST, foreign.clone().into_bytes()),
            (SIGNATURE, sign(&other, &foreign)),
            (SIGNATURE, sign(&key, &new)),
            (SIGNATURE, sign(&key, &old)),
            ("other", sign(&key, &foreign)),
        ];
        let (files, contents) = files(&contents);
        let read = |file: &BundledFile| {
            let mut all = contents.iter();
            all.find(|it| Digest::of(it) == file.digest()).cloned()
        };
        let of = published(&key);
        let found = newest_brought(&of, &files, MOST_KEPT, &read).unwrap();
        assert_eq!(found.offer.digest, Digest::of(b"1.10"));
        assert_eq!(found.documents, [files[1].digest(), files[4].digest()]);
        assert_eq!(newest_brought(&of, &files[..4], MOST_KEPT, &read), None);
        assert_eq!(newest_brought(&of, &files, MOST_KEPT, &|_| None), None);
        // The signature of the newest list is the second one.
        assert_eq!(newest_brought(&of, &files, 1, &read), None);
        assert!(newest_brought(&of, &files, 2, &read).is_some());
    }
}
