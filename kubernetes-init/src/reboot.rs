//! A reboot that waits, as pods know it: a file says so. kured and other agents look for it.

use std::fs;
use std::io;
use std::path::PathBuf;

/// The file that says that a reboot waits; pods see it below the host path /var/run.
const REQUIRED: &str = "/run/reboot-required";

/// The file that says why a reboot waits, if one does.
#[derive(Debug)]
pub(crate) struct Required {
    file: PathBuf,
    why: Option<String>,
    is_shown: bool,
}

impl Required {
    pub(crate) fn new() -> Self {
        Required {
            file: REQUIRED.into(),
            why: None,
            // No plan has come that says anything.
            is_shown: true,
        }
    }

    /// A reboot waits for this reason from now on, or none does.
    pub(crate) fn is(&mut self, why: Option<String>) {
        self.why = why;
        self.is_shown = false;
    }

    /// Writes the file or removes it, unless that is done. A pod may have filled /run, and no plan comes when it has room again: so this is to be
    /// called time and again.
    pub(crate) fn show(&mut self) -> io::Result<()> {
        if self.is_shown {
            return Ok(());
        }
        match &self.why {
            Some(why) => fs::write(&self.file, format!("{why}\n"))?,
            None => match fs::remove_file(&self.file) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                result => result?,
            },
        }
        self.is_shown = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_reboot_that_waits_is_shown_until_the_file_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let mut required = Required {
            file: folder.path().join("run/reboot-required"),
            ..Required::new()
        };
        let file = required.file.clone();
        required.show().unwrap();
        required.is(Some("v2 is prepared".to_owned()));
        for _ in 0..2 {
            required.show().unwrap_err();
        }
        fs::create_dir(folder.path().join("run")).unwrap();
        required.show().unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "v2 is prepared\n");
        // What agents do with it is theirs.
        fs::remove_file(&file).unwrap();
        required.show().unwrap();
        assert!(!file.exists());
        required.is(None);
        required.show().unwrap();
    }
}
