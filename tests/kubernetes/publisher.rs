//! A publisher of extensions: files, each with its digest, and a signed list of them.

use anyhow::Context as _;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use instar_tests::{ExtensionSource, HttpServer, extension_file, sha256_digest};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, SigningKey as _};

use crate::cluster::Extension;

/// A web server with the file of each extension.
pub(crate) struct Publisher {
    server: HttpServer,
    key: KeyPair,
}

impl Publisher {
    /// Starts the server, without a file.
    pub(crate) fn start() -> anyhow::Result<Self> {
        Ok(Self {
            server: HttpServer::start()?,
            key: KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?,
        })
    }

    /// Publishes the file of an extension, with its digest.
    pub(crate) fn publish(&self, name: &'static str) -> anyhow::Result<Extension> {
        let content = extension_file(name)?;
        let digest = sha256_digest(&content);
        self.server.serve(&path(name), content);
        self.with_digest(name, &digest)
    }

    /// An extension as somebody may have written it down: its file, with a digest.
    pub(crate) fn with_digest(
        &self,
        name: &'static str,
        digest: &str,
    ) -> anyhow::Result<Extension> {
        let url = self.server.url_for_guest(&path(name));
        let sha256 = hexadecimal(digest)?.to_owned();
        Ok((name, ExtensionSource::File { url, sha256 }))
    }

    /// Publishes files in a folder, and signs their list as `cosign sign-blob` does.
    pub(crate) fn publish_list(&self, files: &[(&str, &[u8])]) -> anyhow::Result<()> {
        let mut list = String::new();
        for (name, content) in files {
            let digest = sha256_digest(content);
            list += &format!("{}  {name}\n", hexadecimal(&digest)?);
            self.server.serve(&in_folder(name), *content);
        }
        let signature = self.key.sign(list.as_bytes())?;
        self.offer(&list, &signature);
        Ok(())
    }

    /// Offers a list with a signature, which may be of another key.
    pub(crate) fn offer(&self, list: &str, signature: &[u8]) {
        self.server.serve(&in_folder("SHA256SUMS"), list);
        let signature = BASE64_STANDARD.encode(signature);
        self.server.serve(&in_folder("SHA256SUMS.sig"), signature);
    }

    /// An extension that follows the list.
    pub(crate) fn followed(&self, name: &'static str, pattern: &str) -> Extension {
        let source = ExtensionSource::Published {
            url: self.server.url_for_guest("/extensions/"),
            pattern: pattern.to_owned(),
            key: self.key.public_key_pem(),
        };
        (name, source)
    }
}

fn hexadecimal(digest: &str) -> anyhow::Result<&str> {
    digest.strip_prefix("sha256:").context("no SHA-256")
}

fn path(name: &str) -> String {
    format!("/{name}.raw")
}

fn in_folder(name: &str) -> String {
    format!("/extensions/{name}")
}
