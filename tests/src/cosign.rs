//! The real cosign, with a key pair of the test's own.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::registry::Registry;
use crate::run_command::run;
use crate::scratch::Scratch;
use crate::workspace::target_directory;

/// The type of the statement that cosign's own signing makes. `cosign sign` makes it from 3.0 on; older versions make it by `attest`.
const SIGNING: &str = "https://sigstore.dev/cosign/sign/v1";

/// The program with a key pair.
#[derive(Debug)]
pub struct Cosign {
    folder: PathBuf,
}

impl Cosign {
    /// Makes a key pair, in a directory of this name.
    pub fn new(scratch: &Scratch, name: &str) -> Result<Self> {
        let folder = scratch.below(name)?.path().to_owned();
        let cosign = Self { folder };
        cosign.run(&["generate-key-pair"])?;
        Ok(cosign)
    }

    /// The public key, PEM.
    pub fn public_key(&self) -> Result<String> {
        std::fs::read_to_string(self.folder.join("cosign.pub")).context("cosign made no public key")
    }

    /// Signs an image of the registry in cosign's older form, which is kept behind the tag `sha256-X.sig`.
    pub fn sign(&self, registry: &Registry, image: &str) -> Result<()> {
        self.run(&["sign", &self.at(registry, image)])
    }

    /// Signs an image of the registry by a bundle, which is kept behind the tag `sha256-X`.
    pub fn sign_by_bundle(&self, registry: &Registry, image: &str) -> Result<()> {
        self.attest(registry, image, SIGNING)
    }

    /// Makes any other statement about an image, by a bundle.
    pub fn attest(&self, registry: &Registry, image: &str, kind: &str) -> Result<()> {
        let predicate = self.folder.join("predicate.json");
        std::fs::write(&predicate, "{}").context("write the predicate")?;
        let predicate = predicate.to_str().context("the path is not UTF-8")?;
        let image = self.at(registry, image);
        let words = [
            "attest",
            "--new-bundle-format",
            "--type",
            kind,
            "--predicate",
            predicate,
        ];
        self.run(&[&words[..], &[&image]].concat())
    }

    fn at(&self, registry: &Registry, image: &str) -> String {
        format!("{}/{image}", registry.address())
    }

    fn run(&self, words: &[&str]) -> Result<()> {
        let mut command = Command::new(target_directory().join("cosign/usr/bin/cosign"));
        command.current_dir(&self.folder).args(words);
        if words != ["generate-key-pair"] {
            command.args(["--yes", "--tlog-upload=false", "--key", "cosign.key"]);
            command.arg("--allow-http-registry");
        }
        // Its settings are the test's own, and its key needs no password.
        command.env("HOME", &self.folder).env("COSIGN_PASSWORD", "");
        run(&mut command).context("cosign failed (build/fetch-cosign fetches it)")?;
        Ok(())
    }
}
