//! Whether the files of an image may be used as an extension of the machine itself.

use std::path::Path;

use anyhow::bail;
use instar_extension::{Architecture, Host, OsExtension};

use crate::config::source_of_own_file;

/// Checks the tree of an extension; `usr` is the machine's own, without extensions. Blocks.
///
/// # Errors
/// It does not fit this machine, or has a file that it may not bring; the message names it.
pub fn checked(name: &str, tree: &Path, version: &str, usr: &Path) -> anyhow::Result<OsExtension> {
    let host = Host::instar(version, Architecture::OWN);
    let extension = OsExtension::read(tree, &name.parse()?, host, Some(usr))?;
    if let OsExtension::Etc(texts) = &extension {
        for text in texts {
            if let Some(source) = source_of_own_file(&text.path) {
                bail!(
                    "{name} has /etc/{}, which comes from {source}: take the file out of it",
                    text.path
                );
            }
        }
    }
    Ok(extension)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs;

    fn confext(file: &str) -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = tree.path().join("etc").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("extension-release.d/extension-release.site", "ID=_any\n");
        write(file, "x");
        tree
    }

    #[test]
    fn files_that_the_machine_writes_itself_are_refused() {
        let check = |file: &str| {
            let (tree, usr) = (confext(file), tempfile::tempdir().unwrap());
            checked("site", tree.path(), "v0.1.0", usr.path()).map_err(|error| error.to_string())
        };
        assert!(matches!(check("app/site.conf"), Ok(OsExtension::Etc(texts)) if texts.len() == 1));
        for file in ["resolv.conf", "passwd", "ssl/certs/ca-certificates.crt"] {
            let refused = check(file).unwrap_err();
            let said = format!("site has /etc/{file}, which comes from ");
            assert!(refused.starts_with(&said), "{refused}");
        }
    }
}
