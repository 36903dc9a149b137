//! The installer as an OCI image, which upgrades pull (docs/contracts.md).

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use instar_pki::{installer_signature, rootfs_signature};
use instar_values::{Digest, VersionRanges};

use crate::{
    boot::{authenticode, signer::Signer},
    digest::{Blake3, Sha256},
    kernel::bzimage,
    oci::layout::{Compression, Image, Layer},
    tree::Tree,
    version::Version,
};

/// The version of the protocol between init and machined in the root filesystem.
const PROTOCOL: &str = "1";

/// The parts of an installer image.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// The version that it installs.
    pub version: &'a Version,
    /// The program `installer`.
    pub installer: &'a [u8],
    /// The root filesystem.
    pub rootfs: &'a [u8],
    /// The kernel.
    pub kernel: &'a [u8],
    /// The program `init`.
    pub init: &'a [u8],
    /// The UKI, which holds kernel, init and root filesystem.
    pub uki: &'a [u8],
    /// systemd-boot.
    pub loader: &'a [u8],
    /// The rules between releases.
    pub rules: &'a ReleaseRules,
    /// When the release was made.
    pub created: Option<jiff::Timestamp>,
    /// Signs the root filesystem and the whole image, as it signs the UKI.
    pub signer: Option<&'a Signer>,
}

/// The rules by which this release follows others, and others follow it (docs/contracts.md).
#[derive(Clone, Debug, Default)]
pub struct ReleaseRules {
    /// The oldest version that a machine takes once this one was committed there.
    pub floor: Option<Version>,
    /// The versions that this one may follow; None: all.
    pub upgrades_from: Option<VersionRanges>,
    /// Whether channels may take it as a release.
    pub official: bool,
    /// The only channels that may take it; empty: any.
    pub channels: Vec<String>,
}

impl ReleaseRules {
    /// Checks the rules of a version.
    ///
    /// # Errors
    /// The floor is above the version itself, so that nobody could install it again.
    pub fn check(&self, version: &Version) -> Result<()> {
        if let Some(floor) = &self.floor {
            ensure!(
                floor <= version,
                "the floor {floor} is above the version {version} itself"
            );
        }
        Ok(())
    }
}

#[derive(Serialize)]
struct Release<'a> {
    version: &'a Version,
    rootfs: File,
    uki: File,
    loader: File,
}

#[derive(Serialize)]
struct File {
    blake3: Blake3,
    bytes: usize,
}

impl File {
    fn of(bytes: &[u8]) -> Self {
        Self {
            blake3: Blake3::of(bytes),
            bytes: bytes.len(),
        }
    }
}

/// Returns the image, not yet written: a test can still change it.
///
/// # Errors
/// The UKI does not hold the root filesystem, or the floor is above the version.
pub fn compose(parts: &Parts<'_>) -> Result<Image> {
    parts.rules.check(parts.version)?;
    let rootfs = File::of(parts.rootfs);
    let labels = labels(parts, &rootfs)?;
    let mut image = Image {
        // All large files are compressed already; uncompressed layers are unpacked fastest.
        layers: trees(parts, rootfs)?
            .map(|tree| Layer {
                tree,
                compression: Compression::None,
            })
            .into(),
        entrypoint: vec![installer_signature::PROGRAM.into()],
        labels: labels
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
        tag: Some(parts.version.to_string()),
        created: parts.created,
        ..Image::default()
    };
    if let Some(signer) = parts.signer {
        sign(&mut image, signer).context("cannot sign the installer image")?;
    }
    Ok(image)
}

/// The labels, by which nodes judge the image before they pull it.
fn labels(parts: &Parts<'_>, rootfs: &File) -> Result<BTreeMap<&'static str, String>> {
    let mut labels = BTreeMap::from([
        ("dev.instar.version", parts.version.to_string()),
        ("dev.instar.architecture", "amd64".to_owned()),
        (
            "dev.instar.kernel.blake3",
            Blake3::of(parts.kernel).to_string(),
        ),
        ("dev.instar.init.blake3", Blake3::of(parts.init).to_string()),
        ("dev.instar.rootfs.blake3", rootfs.blake3.to_string()),
        ("dev.instar.rootfs.bytes", rootfs.bytes.to_string()),
        ("dev.instar.protocol", PROTOCOL.to_owned()),
    ]);
    // Nodes of Kubernetes have the modules of pods' networks by the kernel's release, in another image.
    if let Ok(banner) = bzimage::banner(parts.kernel) {
        labels.insert("dev.instar.kernel.release", banner.release);
    }
    // Firmware may have revoked a UKI by this digest.
    if let Ok(digest) = authenticode::digest_of(parts.uki) {
        labels.insert(installer_signature::UKI_LABEL, digest.to_string());
    }
    if let Some(floor) = &parts.rules.floor {
        labels.insert("dev.instar.floor", floor.to_string());
    }
    if let Some(ranges) = &parts.rules.upgrades_from {
        labels.insert("dev.instar.upgrades-from", ranges.to_string());
    }
    if parts.rules.official {
        labels.insert("dev.instar.official", "true".to_owned());
    }
    if !parts.rules.channels.is_empty() {
        labels.insert("dev.instar.channels", parts.rules.channels.join(","));
    }
    if let Some(signer) = parts.signer {
        let version = parts.version.to_string();
        let statement = rootfs_signature::statement(&version, &blake3::hash(parts.rootfs));
        let signature = signer.sign(statement.as_bytes());
        let signature = signature.context("cannot sign the root filesystem")?;
        labels.insert(
            rootfs_signature::LABEL,
            rootfs_signature::to_label(&signature),
        );
    }
    Ok(labels)
}

/// The files: those for an upgrade without a reboot, and those that only a reboot needs.
fn trees(parts: &Parts<'_>, rootfs: File) -> Result<[Tree; 2]> {
    let mut soft = Tree::new();
    soft.file("usr/bin/installer", 0o755, parts.installer)?;
    soft.file("usr/install/amd64/rootfs.squashfs", 0o644, parts.rootfs)?;
    let release = serde_json::to_vec(&Release {
        version: parts.version,
        rootfs,
        uki: File::of(parts.uki),
        loader: File::of(parts.loader),
    })?;
    soft.file("usr/install/amd64/release.json", 0o644, release)?;
    // The root filesystem is the larger half of the UKI, and is in the image already.
    let (head, tail) = around(parts.uki, parts.rootfs)
        .context("the UKI does not hold the root filesystem: it is of another build")?;
    let mut boot = Tree::new();
    boot.file("usr/install/amd64/uki.head", 0o644, head)?;
    boot.file("usr/install/amd64/uki.tail", 0o644, tail)?;
    boot.file("usr/install/amd64/systemd-bootx64.efi", 0o644, parts.loader)?;
    Ok([soft, boot])
}

/// Signs all labels and layers of the image: none may change afterwards.
fn sign(image: &mut Image, signer: &Signer) -> Result<()> {
    let layers = image.layers.iter().map(|layer| {
        let digest = Sha256::of(&layer.archive()?);
        Ok(Digest::from_bytes(*digest.bytes()))
    });
    let layers = layers.collect::<Result<Vec<Digest>>>()?;
    let statement = installer_signature::statement(&image.labels, &layers);
    let statement = statement.context("a label has a line break")?;
    let signature = rootfs_signature::to_label(&signer.sign(statement.as_bytes())?);
    let label = installer_signature::LABEL.to_owned();
    image.labels.insert(label, signature);
    Ok(())
}

/// Returns the parts of `whole` before and after `part`.
fn around<'a>(whole: &'a [u8], part: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    // A full comparison only where the first bytes agree: a squashfs begins with its magic and its figures.
    let first = part
        .get(..part.len().min(64))
        .filter(|first| !first.is_empty())?;
    let at = whole
        .windows(first.len())
        .enumerate()
        .find(|(at, window)| *window == first && whole[*at..].starts_with(part))?
        .0;
    Some((&whole[..at], &whole[at + part.len()..]))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use instar_values::PublicKey;

    use super::*;
    use crate::{boot::keys, oci::layout, tree::Content};

    #[test]
    fn labels_say_what_is_inside() {
        let version = "v0.2.0".parse().unwrap();
        let parts = Parts {
            version: &version,
            installer: b"i",
            rootfs: b"root",
            kernel: b"k",
            init: b"init",
            uki: b"kernel, init, root, signature",
            loader: b"l",
            rules: &ReleaseRules::default(),
            created: None,
            signer: None,
        };
        let image = compose(&parts).unwrap();
        assert_eq!(image.labels["dev.instar.version"], "v0.2.0");
        assert_eq!(image.labels["dev.instar.rootfs.bytes"], "4");
        assert_eq!(
            image.labels["dev.instar.rootfs.blake3"],
            Blake3::of(b"root").to_string()
        );
        assert_eq!(
            image.labels["dev.instar.init.blake3"],
            Blake3::of(b"init").to_string()
        );
        assert_eq!(image.labels.len(), 7);
        assert!(
            image.layers[0]
                .tree
                .get("usr/install/amd64/rootfs.squashfs")
                .is_some()
        );
        let piece = |layer: usize, name: &str| {
            let path = format!("usr/install/amd64/{name}");
            match &image.layers[layer].tree.get(&path).unwrap().content {
                Content::File(bytes) => bytes.to_vec(),
                _ => unreachable!(),
            }
        };
        let whole = [
            piece(1, "uki.head"),
            piece(0, "rootfs.squashfs"),
            piece(1, "uki.tail"),
        ];
        assert_eq!(whole.concat(), parts.uki);
        let other = Parts {
            uki: b"of another build",
            ..parts
        };
        compose(&other).unwrap_err();
    }

    #[test]
    fn the_rules_between_releases_are_labels() {
        let version = "v0.3.0".parse().unwrap();
        let composed = |rules: &ReleaseRules| {
            compose(&Parts {
                version: &version,
                installer: b"i",
                rootfs: b"root",
                kernel: b"k",
                init: b"init",
                uki: b"root",
                loader: b"l",
                rules,
                created: None,
                signer: None,
            })
        };
        let rules = ReleaseRules {
            floor: "v0.2.0".parse().ok(),
            upgrades_from: ">=v0.1.0 <v0.3.0||v0.3.0-rc.1".parse().ok(),
            official: true,
            channels: vec!["beta".to_owned(), "stable".to_owned()],
        };
        let image = composed(&rules).unwrap();
        assert_eq!(image.labels["dev.instar.floor"], "v0.2.0");
        assert_eq!(image.labels["dev.instar.official"], "true");
        assert_eq!(image.labels["dev.instar.channels"], "beta,stable");
        assert_eq!(
            image.labels["dev.instar.upgrades-from"],
            ">=v0.1.0 <v0.3.0 || v0.3.0-rc.1"
        );
        let too_high = ReleaseRules {
            floor: "v0.3.1".parse().ok(),
            ..rules
        };
        let error = composed(&too_high).unwrap_err().to_string();
        assert!(error.contains("above the version v0.3.0"), "{error}");
    }

    #[test]
    fn a_signer_signs_what_a_machine_reads_of_the_written_image() {
        let keys = tempfile::tempdir().unwrap();
        let folder = keys.path().join("keys");
        keys::make(&folder).unwrap();
        let signer = Signer::read(&folder.join("db.key"), &folder.join("db.crt")).unwrap();
        let version = "v0.2.0".parse().unwrap();
        let image = compose(&Parts {
            version: &version,
            installer: b"i",
            rootfs: b"root",
            kernel: b"k",
            init: b"init",
            uki: b"kernel, init, root",
            loader: b"l",
            rules: &ReleaseRules::default(),
            created: None,
            signer: Some(&signer),
        })
        .unwrap();
        let layout = keys.path().join("layout");
        let manifest = layout::write(&image, &layout).unwrap();
        let blob = |digest: &str| -> serde_json::Value {
            let hex = digest.strip_prefix("sha256:").unwrap();
            let bytes = std::fs::read(layout.join("blobs/sha256").join(hex)).unwrap();
            serde_json::from_slice(&bytes).unwrap()
        };
        let manifest = blob(&manifest.digest);
        let config = blob(manifest["config"]["digest"].as_str().unwrap());
        let layers: Vec<Digest> =
            serde_json::from_value(config["rootfs"]["diff_ids"].clone()).unwrap();
        let labels = serde_json::from_value(config["config"]["Labels"].clone()).unwrap();
        let key = PublicKey::from_certificate(signer.certificate()).unwrap();
        let is_signed = |labels, layers: &[Digest]| {
            installer_signature::signer([&key], labels, layers).is_some()
        };
        assert!(is_signed(&labels, &layers));
        assert!(!is_signed(&labels, &layers[..1]));
        let mut other = labels.clone();
        other.insert("dev.instar.kernel.blake3".to_owned(), "00".repeat(32));
        assert!(!is_signed(&other, &layers));
    }

    #[test]
    fn a_part_is_found_where_it_is_whole() {
        let (part, lookalike) = ([[1; 64], [2; 64]].concat(), [[1; 64], [3; 64]].concat());
        let whole = [&lookalike[..], &part, b"after"].concat();
        assert_eq!(around(&whole, &part), Some((&lookalike[..], &b"after"[..])));
        assert_eq!(around(&lookalike, &part), None);
        assert_eq!(around(&part, b""), None);
    }
}
