//! Patches of machine configs as they stand on the command line: `@FILE`, or the patch itself.

use std::path::Path;

use instar_client::Failure;

pub(crate) use instar_config_patch::{Patch, apply, documents};

/// The text of a patch from the command line.
pub(crate) fn text(argument: &str) -> Result<String, Failure> {
    match argument.strip_prefix('@') {
        Some(path) => std::fs::read_to_string(Path::new(path))
            .map_err(|error| Failure::io(format!("cannot read the patch {path}"), error)),
        None => Ok(argument.to_owned()),
    }
}

/// Reads all arguments.
pub(crate) fn read_all(arguments: &[String]) -> Result<Vec<Patch>, Failure> {
    arguments.iter().map(|argument| read(argument)).collect()
}

fn read(argument: &str) -> Result<Patch, Failure> {
    let name = match argument.strip_prefix('@') {
        Some(path) => format!("the patch {path}"),
        None => "the patch".to_owned(),
    };
    Patch::read(&name, &text(argument)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_patch_of_a_file_is_named_by_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("patch.yaml");
        let argument = format!("@{}", file.display());
        let refused = || read(&argument).map(|_| ()).unwrap_err().to_string();
        assert!(refused().contains(&format!("cannot read the patch {}", file.display())));
        std::fs::write(&file, "just-words").unwrap();
        let why = refused();
        assert!(
            why.contains("patch.yaml is no patch: it says only"),
            "{why}"
        );
        std::fs::write(&file, "machine: {type: worker}").unwrap();
        let patches = read_all(&[argument]).unwrap();
        assert!(
            apply("version: v1alpha1\n", &patches)
                .unwrap()
                .contains("worker")
        );
    }
}
