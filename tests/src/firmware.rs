//! UEFI firmware and its variables: those of a new machine, and changes that tests make beforehand.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use instar_esp::boot_order::{self, Partition};
use instar_qemu::Uefi;
use serde_json::{Value, json};

use crate::python::python_with;
use crate::run_command::run;
use crate::scratch::Scratch;
use crate::workspace::target_directory;

/// The package that edits variables offline, pinned.
const PACKAGES: [&str; 1] = ["virt-firmware==26.10"];
/// The owner of the keys: any GUID is right.
const OWNER: &str = "3a7b2c51-0f6e-4d0b-9a53-8f1d6b6f21c4";

/// The firmware's message when it starts the loader by an entry of ours, and not by its search of every disk.
pub const BY_OUR_BOOT_ENTRY: &str = "\"Instar\" from HD(1,GPT";

/// Returns the firmware that `make image` fetched, without Secure Boot.
pub fn uefi() -> Result<Uefi> {
    Ok(Uefi::in_folder(made("firmware")?))
}

/// Returns the firmware with Secure Boot, in setup mode: without keys.
pub fn secure_uefi() -> Result<Uefi> {
    Ok(Uefi::secure_in_folder(made("firmware")?))
}

/// Returns the folder of the keys for Secure Boot that the image is signed with.
pub fn test_keys() -> Result<PathBuf> {
    made("keys")
}

fn made(name: &str) -> Result<PathBuf> {
    let folder = target_directory().join(name);
    ensure!(
        folder.is_dir(),
        "{} is not there: run `make image`",
        folder.display()
    );
    Ok(folder)
}

/// The variables of a new machine with changes.
#[derive(Debug)]
pub struct UefiVariables {
    changes: Command,
    file: PathBuf,
}

impl UefiVariables {
    /// Begins with the variables of this firmware; [`Self::write`] puts the result into a file in the scratch
    /// directory.
    pub fn of(uefi: &Uefi, scratch: &Scratch) -> Result<Self> {
        let python = python_with("virt-firmware", &PACKAGES)?;
        let file = scratch.join("variables.fd");
        let mut changes = Command::new(python.with_file_name("virt-fw-vars"));
        changes
            .args(["--loglevel", "ERROR", "--input"])
            .arg(&uefi.variables)
            .arg("--output")
            .arg(&file);
        Ok(Self { changes, file })
    }

    /// Boots from this URL, at the next boot only.
    pub fn boot_from_url(mut self, url: &str) -> Self {
        self.changes.args(["--set-boot-uri", url]);
        self
    }

    /// Adds the variables of an installation: the loader of this partition comes first, once per try and once more.
    pub fn boot_order(mut self, partition: &Partition, scratch: &Scratch) -> Result<Self> {
        let variables: Vec<Value> = boot_order::plan(&BTreeMap::new(), partition)
            .into_iter()
            .map(|change| {
                let value = change.value.unwrap_or_default();
                let hex: String = value.iter().map(|byte| format!("{byte:02x}")).collect();
                json!({
                    "name": change.name,
                    "guid": boot_order::VENDOR,
                    "attr": boot_order::ATTRIBUTES,
                    "data": hex,
                })
            })
            .collect();
        let document = json!({ "version": 2, "variables": variables });
        let file = scratch.write("variables.json", document.to_string())?;
        self.changes.arg("--set-json").arg(file);
        Ok(self)
    }

    /// Turns Secure Boot on, with the keys of a folder.
    pub fn enrol(mut self, keys: &Path) -> Self {
        for (option, name) in [("--set-pk", "PK"), ("--add-kek", "KEK"), ("--add-db", "db")] {
            self.changes
                .args([option, OWNER])
                .arg(keys.join(format!("{name}.crt")));
        }
        self.changes.arg("--sb");
        self
    }

    /// Writes the file; returns its path.
    pub fn write(mut self) -> Result<PathBuf> {
        run(&mut self.changes)?;
        Ok(self.file)
    }
}
