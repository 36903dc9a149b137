//! A publisher of extensions: files, each with its digest.

use anyhow::Context as _;
use instar_tests::{ExtensionSource, HttpServer, extension_file, sha256_digest};

use crate::cluster::Extension;

/// A web server with the file of each extension.
pub(crate) struct Publisher {
    server: HttpServer,
}

impl Publisher {
    /// Starts the server, without a file.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let server = HttpServer::start()?;
        Ok(Self { server })
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
        let sha256 = digest.strip_prefix("sha256:").context("no SHA-256")?;
        let sha256 = sha256.to_owned();
        Ok((name, ExtensionSource::File { url, sha256 }))
    }
}

fn path(name: &str) -> String {
    format!("/{name}.raw")
}
