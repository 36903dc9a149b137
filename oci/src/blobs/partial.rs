//! The file of a blob of which a part is there.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use super::is_name_of;
use instar_values::Digest;

/// The file of a blob that has no name yet.
#[derive(Debug, Clone)]
pub(crate) struct PartialBlob {
    digest: Digest,
    file: Arc<File>,
}

impl PartialBlob {
    pub(super) fn new(digest: Digest, file: File) -> Self {
        PartialBlob {
            digest,
            file: Arc::new(file),
        }
    }

    pub(super) fn digest(&self) -> Digest {
        self.digest
    }

    pub(super) fn file(&self) -> Arc<File> {
        self.file.clone()
    }

    /// Whether this path is its name. Another caller may have removed the file, or have given it its final name.
    pub(super) fn has_the_name(&self, path: &Path) -> bool {
        is_name_of(path, &self.file)
    }
}
