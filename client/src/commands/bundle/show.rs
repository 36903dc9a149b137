//! `bundle show` and `bundle verify`: what is in a bundle, and by whom it is signed.

use std::path::{Path, PathBuf};

use instar_bundle::{BundledFile, Image, VerifiedBundle};
use instar_channel::List;
use instar_client::{Failure, FailureKind};
use instar_oci::verification::is_signed_by;
use instar_values::PublicKey;
use serde_json::{Value, json};

use super::verified;
use crate::cli::Global;
use crate::output::{human, table};

/// An image as it is shown.
struct Shown<'a> {
    image: &'a Image,
    created: &'a str,
    bytes: u64,
    /// Number of the manifests with signatures of it or its index.
    signatures: usize,
    /// Fingerprints of those of the given keys that it is signed by.
    signed_by: Vec<String>,
}

pub(super) fn show(global: &Global, path: &Path, keys: &[PathBuf]) -> Result<(), Failure> {
    let keys = read_keys(keys)?;
    let bundle = verified(global, path)?;
    print(global, path, &bundle, &keys)
}

pub(super) fn verify(global: &Global, path: &Path, keys: &[PathBuf]) -> Result<(), Failure> {
    let keys = read_keys(keys)?;
    let bundle = verified(global, path)?;
    let images = images(path, &bundle, &keys)?;
    let unsigned = images.iter().filter(|it| match keys.is_empty() {
        true => it.signatures == 0,
        false => it.signed_by.is_empty(),
    });
    let unsigned: Vec<String> = unsigned.map(|it| it.image.reference.to_string()).collect();
    if !unsigned.is_empty() {
        let by = match keys.is_empty() {
            true => "signed",
            false => "signed by one of these keys",
        };
        let message = format!(
            "every byte of {} is as it was written, but not {by}: {}",
            path.display(),
            unsigned.join(", ")
        );
        return Err(Failure::new(FailureKind::Failed, message)
            .advise("sign the images at their registry, and make the bundle anew"));
    }
    print(global, path, &bundle, &keys)
}

fn read_keys(paths: &[PathBuf]) -> Result<Vec<PublicKey>, Failure> {
    let read = |path: &PathBuf| {
        let name = path.display();
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|error| Failure::io(format!("cannot read {name}"), error))?;
        text.parse::<PublicKey>().map_err(|error| {
            Failure::new(FailureKind::Failed, format!("{name} is no public key")).because(error)
        })
    };
    paths.iter().map(read).collect()
}

fn images<'a>(
    path: &Path,
    bundle: &'a VerifiedBundle,
    keys: &[PublicKey],
) -> Result<Vec<Shown<'a>>, Failure> {
    let mut shown = Vec::new();
    for image in bundle.index().images() {
        let mut signed_by = Vec::new();
        for key in keys {
            let signed = is_signed_by(bundle, image, key);
            let signed = signed.map_err(|error| {
                Failure::io(format!("cannot read {} any more", path.display()), error)
            })?;
            if signed {
                signed_by.push(key.fingerprint().to_string());
            }
        }
        let subjects = [Some(image.manifest.digest), image.index];
        let signatures = bundle.index().signatures().iter();
        let created = bundle
            .description(image)
            .and_then(|it| it.created.as_deref());
        shown.push(Shown {
            image,
            created: created.unwrap_or("-"),
            bytes: bundle.bytes_of(image),
            signatures: signatures
                .filter(|it| subjects.contains(&Some(it.subject)))
                .count(),
            signed_by,
        });
    }
    Ok(shown)
}

fn print(
    global: &Global,
    path: &Path,
    bundle: &VerifiedBundle,
    keys: &[PublicKey],
) -> Result<(), Failure> {
    let images = images(path, bundle, keys)?;
    let summary = bundle.summary();
    let lists = lists(path, bundle)?;
    global.output.show(
        || {
            let rows: Vec<_> = images.iter().map(|it| row(it, keys)).collect();
            let header = [
                "REFERENCE",
                "PLATFORM",
                "DIGEST",
                "CREATED",
                "SIZE",
                "SIGNATURES",
            ];
            let (blobs, size) = (summary.blobs, human(summary.bytes));
            let files: String = bundle.index().files().iter().map(file_line).collect();
            let lists: String = lists.iter().map(|it| format!("list {it}\n")).collect();
            let bundle = format!("bundle {}, {blobs} blobs, {size}", summary.digest);
            format!(
                "{}\n{files}{lists}{bundle}: every byte is as it was written",
                table(&header, &rows)
            )
        },
        || {
            let images: Vec<Value> = images.iter().map(as_json).collect();
            let files: Vec<Value> = bundle.index().files().iter().map(file_as_json).collect();
            json!({
                "bundle": path.display().to_string(),
                "summary": summary,
                "images": images,
                "files": files,
                "channels": lists,
            })
        },
    )
}

/// A line about a file of an extension, with the digest by which a config names it.
pub(super) fn file_line(file: &BundledFile) -> String {
    let (name, digest) = (file.name(), file.digest());
    format!("file {name}, {}, {digest}\n", human(file.size()))
}

pub(super) fn file_as_json(file: &BundledFile) -> Value {
    json!({ "name": file.name(), "digest": file.digest(), "bytes": file.size() })
}

/// The lists of channels by name and serial. Their signatures are not checked here: nodes know the keys of their channels.
fn lists(path: &Path, bundle: &VerifiedBundle) -> Result<Vec<String>, Failure> {
    let mut lists = Vec::new();
    for channel in bundle.channels() {
        let files = bundle.channel(channel).map_err(|error| {
            Failure::io(format!("cannot read {} any more", path.display()), error)
        })?;
        lists.push(match List::parse(files.list()) {
            Ok(list) => format!("{} of the channel {channel}", list.serial),
            Err(error) => format!("of the channel {channel}, which nodes will refuse: {error}"),
        });
    }
    Ok(lists)
}

fn row(shown: &Shown<'_>, keys: &[PublicKey]) -> Vec<String> {
    let signatures = match (keys.is_empty(), shown.signed_by.as_slice()) {
        (true, _) => shown.signatures.to_string(),
        (false, []) => format!("{}, not by these keys", shown.signatures),
        (false, keys) => format!("by {}", keys.join(", ")),
    };
    vec![
        shown.image.reference.to_string(),
        shown.image.platform.to_string(),
        shown.image.named_digest().to_string(),
        shown.created.to_owned(),
        human(shown.bytes),
        signatures,
    ]
}

fn as_json(shown: &Shown<'_>) -> Value {
    json!({
        "reference": shown.image.reference.to_string(),
        "platform": shown.image.platform.to_string(),
        "digest": shown.image.named_digest(),
        "manifest": shown.image.manifest.digest,
        "created": shown.created,
        "bytes": shown.bytes,
        "signatures": shown.signatures,
        "signedBy": shown.signed_by,
    })
}
