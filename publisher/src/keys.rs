//! Keys that sign lists and approvals.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use instar_base::whole_file;
use instar_pki::PrivateKey;
use instar_values::PublicKey;

/// Makes a key: ECDSA on P-256, as cosign's.
pub(crate) fn make(to: &Path) -> anyhow::Result<()> {
    let public = public_file(to);
    for file in [to, &public] {
        ensure!(!file.exists(), "{} is there already", file.display());
    }
    let key = PrivateKey::generate_p256()?;
    write(to, 0o600, &key.to_pem())?;
    write(&public, 0o644, &key.public_key_pem())?;
    println!(
        "{}: the key; {}: for machines",
        to.display(),
        public.display()
    );
    Ok(())
}

fn write(to: &Path, mode: u32, pem: &str) -> anyhow::Result<()> {
    whole_file::replace(to, mode, pem.as_bytes()).with_context(|| format!("write {}", to.display()))
}

fn public_file(private: &Path) -> PathBuf {
    let mut name = private.as_os_str().to_owned();
    name.push(".pub");
    name.into()
}

/// Reads a private key.
pub(crate) fn private(file: &Path) -> anyhow::Result<PrivateKey> {
    let name = file.display();
    let text = fs::read_to_string(file).with_context(|| format!("read the key {name}"))?;
    PrivateKey::from_pem(&text).with_context(|| format!("read the key {name}"))
}

/// The public half of a private key.
pub(crate) fn public_of(key: &PrivateKey) -> anyhow::Result<PublicKey> {
    let public = key.public_key_pem().parse();
    public.context("read the public half of the key")
}

/// Reads a public key.
pub(crate) fn public(file: &Path) -> anyhow::Result<PublicKey> {
    let name = file.display();
    let text = fs::read_to_string(file).with_context(|| format!("read the key {name}"))?;
    text.parse().with_context(|| format!("read the key {name}"))
}
