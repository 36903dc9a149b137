//! A change of machine configs, as it stands on the command line.

use std::path::Path;

use instar_client::Failure;
use instar_rollout::MachineName;
use instar_rollout_driver::ConfigChange;

use crate::patch;

/// Reads patches: `@FILE`, or the patch itself.
pub(super) fn of_patches(arguments: &[String]) -> Result<ConfigChange, Failure> {
    // A patch that cannot be read is named by its file.
    patch::read_all(arguments)?;
    let texts: Result<Vec<_>, _> = arguments.iter().map(|it| patch::text(it)).collect();
    ConfigChange::of_patches(texts?)
}

/// Reads the file NAME.yaml of each node.
pub(super) fn of_files<'a>(
    folder: &Path,
    nodes: impl Iterator<Item = &'a MachineName>,
) -> Result<ConfigChange, Failure> {
    let read = |name: &MachineName| {
        let file = folder.join(format!("{name}.yaml"));
        let text = std::fs::read_to_string(&file)
            .map_err(|error| Failure::io(format!("cannot read {}", file.display()), error))?;
        Ok((name.clone(), text))
    };
    let files: Result<_, Failure> = nodes.map(read).collect();
    files.map(ConfigChange::Files)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_patch_is_a_text_or_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ntp.yaml");
        let patch = "machine: {sysctls: {a: \"1\"}}";
        std::fs::write(&file, patch).unwrap();
        let of = |argument: &str| of_patches(&[argument.to_owned()]);
        let named = format!("@{}", file.display());
        assert_eq!(of(&named).unwrap(), of(patch).unwrap());
        std::fs::write(&file, "just words").unwrap();
        assert!(of(&named).unwrap_err().to_string().contains("ntp.yaml"));
    }

    #[test]
    fn a_folder_has_a_file_for_each_node() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("lamp-1.yaml"), "version: v1alpha1\n").unwrap();
        let lamp = MachineName::from("lamp-1");
        let change = of_files(folder.path(), [&lamp].into_iter()).unwrap();
        assert!(change.is_in("version: v1alpha1", &lamp, None));
        let missing = of_files(folder.path(), [&MachineName::from("lamp-2")].into_iter());
        assert!(missing.unwrap_err().chain().contains("lamp-2.yaml"));
    }
}
