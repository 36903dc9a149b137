//! Whose root filesystems a machine starts: those signed by a key of its config, or of its firmware under Secure Boot, and no others, with or
//! without a reboot. Without Secure Boot, whose UKIs as well.

use std::fs;
use std::process::Command;

use anyhow::{Result, ensure};
use instar_qemu::{Drive, VmSpec};
use instar_tests::{
    INSTALLER, ImageUnderTest, Instarctl, Node, OciImage, Outcome, Registry, Scratch, Test,
    UefiVariables, chapters, secure_uefi, test_keys, tests,
};

use crate::PATIENCE;

/// The label with the signature.
pub(crate) const SIGNATURE: &str = "dev.instar.rootfs.signature";
/// The label with the signature of the whole image.
const IMAGE_SIGNATURE: &str = "dev.instar.installer.signature";
/// The last part of the UKI in the image (docs/contracts.md).
const UKI_TAIL: &str = "usr/install/amd64/uki.tail";
/// The tag of v0.2.0 with its own labels and another UKI.
const OTHER_UKI: &str = "another-uki";
/// The tag of v0.2.0 without the signature of the whole image.
const UNSIGNED_IMAGE: &str = "unsigned-image";
/// The tag of v0.2.0 with the signature of v0.1.0.
const BY_ANOTHER: &str = "signature-of-another";
/// `instarctl`'s exit code.
const REFUSED: Option<i32> = Some(5);
/// The ways to ask for an upgrade.
const WAYS: [&[&str]; 5] = [
    &[],
    &["--reboot-mode", "powercycle"],
    &["--no-reboot"],
    &["--dry-run"],
    &["--force"],
];

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_key_in_the_config_signs_every_upgrade,
        under_secure_boot_the_firmwares_keys_sign_every_upgrade,
    ]
}

/// The node of a test, its client and its registry.
struct Subject {
    node: Node,
    client: Instarctl,
    registry: Registry,
}

impl Subject {
    async fn new(node: Node, scratch: &Scratch, registry: Registry) -> Result<Self> {
        node.wait_until_ready(PATIENCE).await?;
        let client = Instarctl::of(&node, scratch)?;
        Ok(Self {
            node,
            client,
            registry,
        })
    }

    /// Checks that an upgrade is refused in every way to ask for it, with these words, and that the running version goes on.
    async fn refuses(&self, tag: &str, words: &str) -> Outcome {
        let image = self.registry.installer_for_guest(tag);
        let boot = self.node.boot_id().await?;
        for way in WAYS {
            let arguments = [&["upgrade", "--image", &image], way].concat();
            let said = self.client.run(&arguments).await?;
            let is_refused = said.code == REFUSED && said.complaint.contains(words);
            ensure!(is_refused, "{tag} {way:?}: {said:?}");
        }
        ensure!(
            self.node.boot_id().await? == boot,
            "{tag} has changed the node"
        );
        Ok(())
    }

    async fn takes(&self, tag: &str, version: &str) -> Outcome {
        let image = self.registry.installer_for_guest(tag);
        let said = self.client.run(&["upgrade", "--image", &image]).await?;
        ensure!(said.code == Some(0), "{said:?}");
        ensure!(self.node.version().await?.tag == version);
        self.node.wait_until_ready(PATIENCE).await
    }
}

/// Pushes v0.2.0 as it is, without its signature, with that of v0.1.0, and a changed root filesystem with the signature of v0.2.0; besides with
/// another UKI, and without the signature of the whole image.
fn registry_with_versions(scratch: &Scratch) -> Result<Registry> {
    let registry = Registry::start(scratch)?;
    let (first, second) = (ImageUnderTest::first()?, ImageUnderTest::second()?);
    let installer = || OciImage::read(&second.installer());
    let older = OciImage::read(&first.installer())?.label_of(SIGNATURE)?;
    let changed = [fs::read(second.rootfs())?, vec![0; 4096]].concat();
    let push = |tag, image: OciImage| image.push(&registry, INSTALLER, tag);
    push("signed", installer()?)?;
    push("unsigned", installer()?.without_label(SIGNATURE))?;
    push(BY_ANOTHER, installer()?.label(SIGNATURE, &older))?;
    push("changed", installer()?.installing("v0.2.0", &changed)?)?;
    push(OTHER_UKI, installer()?.with_file(UKI_TAIL, b"another")?)?;
    push(UNSIGNED_IMAGE, installer()?.without_label(IMAGE_SIGNATURE))?;
    Ok(registry)
}

/// A key that signs the image, and one that signs nothing, as a document.
pub(crate) fn trusting(keys: &[String]) -> String {
    let mut document =
        "apiVersion: instar.dev/v1alpha1\nkind: UpgradeTrustConfig\nkeys:\n".to_owned();
    for key in keys {
        document += "  - |\n";
        document.extend(key.lines().map(|line| format!("    {line}\n")));
    }
    document
}

/// Makes a public key as `openssl` writes it.
fn a_strangers_key(scratch: &Scratch) -> Result<String> {
    let private = scratch.join("stranger.pem").display().to_string();
    openssl(&["genpkey", "-algorithm", "ed25519", "-out", &private])?;
    openssl(&["pkey", "-pubout", "-in", &private])
}

fn openssl(arguments: &[&str]) -> Result<String> {
    let said = Command::new("openssl").args(arguments).output()?;
    ensure!(said.status.success(), "openssl {arguments:?}: {said:?}");
    Ok(String::from_utf8(said.stdout)?)
}

async fn a_key_in_the_config_signs_every_upgrade(scratch: Scratch) -> Outcome {
    let registry = registry_with_versions(&scratch)?;
    let (host, key) = (registry.host_for_guest(), a_strangers_key(&scratch)?);
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .configure(move |config| config.registry(&host).document(&trusting(&[key])))
        .boot()
        .await?;
    let subject = Subject::new(node, &scratch, registry).await?;
    chapters![
        a_signature_by_no_key_of_the_config_is_refused(&subject),
        the_config_names_the_builders_key(&subject, &scratch),
        no_other_uki_than_the_signed_one_is_taken(&subject),
        only_the_signed_root_and_version_are_taken(&subject),
    ]
    .await
}

async fn a_signature_by_no_key_of_the_config_is_refused(subject: &Subject) -> Outcome {
    let words = "UpgradeTrustConfig demands a signature by one of its keys";
    subject.refuses("signed", words).await
}

/// While the node runs.
async fn the_config_names_the_builders_key(subject: &Subject, scratch: &Scratch) -> Outcome {
    let builder = fs::read_to_string(test_keys()?.join("db.crt"))?;
    let patch = scratch.join("trust.yaml");
    let document = trusting(&[a_strangers_key(scratch)?, builder]);
    fs::write(&patch, document)?;
    let patch = format!("@{}", patch.display());
    let said = subject
        .client
        .run(&["patch", "machineconfig", "--patch", &patch])
        .await?;
    ensure!(said.code == Some(0), "{said:?}");
    Ok(())
}

/// Root filesystem, version and labels are those of the signed image.
async fn no_other_uki_than_the_signed_one_is_taken(subject: &Subject) -> Outcome {
    let other = "the signature of the installer image of v0.2.0 is not one of these labels, layers";
    subject.refuses(OTHER_UKI, other).await?;
    let unsigned = "the installer image of v0.2.0 is not signed as a whole";
    subject.refuses(UNSIGNED_IMAGE, unsigned).await
}

async fn only_the_signed_root_and_version_are_taken(subject: &Subject) -> Outcome {
    subject.refuses("unsigned", "v0.2.0 is not signed").await?;
    let other = "the signature of v0.2.0 is not one of this root filesystem";
    subject.refuses(BY_ANOTHER, other).await?;
    subject.refuses("changed", other).await?;
    let boot = subject.node.kernel_boot_id().await?;
    subject.takes("signed", "v0.2.0").await?;
    ensure!(subject.node.kernel_boot_id().await? == boot, "it rebooted");
    Ok(())
}

async fn under_secure_boot_the_firmwares_keys_sign_every_upgrade(scratch: Scratch) -> Outcome {
    let registry = registry_with_versions(&scratch)?;
    let host = registry.host_for_guest();
    let node = Node::plan_from(&scratch, with_enrolled_keys(&scratch)?)
        .configure(move |config| config.registry(&host).install_disk("/dev/vda"))
        .boot()
        .await?;
    let subject = Subject::new(node, &scratch, registry).await?;
    chapters![only_what_the_firmware_would_start_is_taken(&subject)].await
}

/// Plans a machine with the image on its disk, and the image's keys in its firmware.
fn with_enrolled_keys(scratch: &Scratch) -> Result<VmSpec> {
    let disk = scratch.join("disk.img");
    ImageUnderTest::first()?.put_on_disk(&disk, 1 << 30)?;
    let uefi = secure_uefi()?;
    let variables = UefiVariables::of(&uefi, scratch)?
        .enrol(&test_keys()?)
        .write()?;
    Ok(VmSpec::uefi(uefi.variables(variables)).drive(Drive::raw(disk)))
}

async fn only_what_the_firmware_would_start_is_taken(subject: &Subject) -> Outcome {
    let words = "this machine booted under Secure Boot";
    for tag in ["unsigned", BY_ANOTHER, "changed"] {
        subject.refuses(tag, words).await?;
    }
    subject.takes("signed", "v0.2.0").await
}
