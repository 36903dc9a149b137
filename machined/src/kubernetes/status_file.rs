//! The status that kubernetes-init writes, as it is in its file.

use std::path::Path;

use instar_kubernetes_plan::Status;

use crate::base::whole_file;

/// The number of looks at a file. On a full disk kubernetes-init writes it in place, so that a look may find a part of each of two texts.
const LOOKS: usize = 3;

/// Reads the status; `None` if there is none. Blocks.
///
/// # Errors
/// The file cannot be read, or holds no status.
pub fn read_status(file: &Path) -> anyhow::Result<Option<Status>> {
    looked_for(|| whole_file::read_json(file))
}

/// Looks again at a text that cannot be read, for a few times.
fn looked_for<T>(mut look: impl FnMut() -> anyhow::Result<T>) -> anyhow::Result<T> {
    for _ in 1..LOOKS {
        if let Ok(found) = look() {
            return Ok(found);
        }
    }
    look()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_text_that_is_being_written_is_looked_at_again() {
        for (fails, is_found) in [(0, true), (2, true), (3, false)] {
            let mut looks = 0;
            let found = looked_for(|| {
                looks += 1;
                anyhow::ensure!(looks > fails, "half a text");
                Ok(())
            });
            assert_eq!(found.is_ok(), is_found, "{fails}");
        }
    }

    #[test]
    fn blanks_behind_the_text_are_no_part_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("status.json");
        assert_eq!(read_status(&file).unwrap(), None);
        let text = r#"{"services": {}, "reboot_asked": true}"#;
        std::fs::write(&file, format!("{text:<8192}")).unwrap();
        assert!(read_status(&file).unwrap().unwrap().reboot_asked);
        std::fs::write(&file, "{").unwrap();
        read_status(&file).unwrap_err();
    }
}
