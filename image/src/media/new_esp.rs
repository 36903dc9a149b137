//! The files of a new EFI system partition: the same plan that installs a machine, carried out in memory.

use std::{
    collections::BTreeMap,
    io::{self, Cursor, ErrorKind, Read},
};

use anyhow::{Context, Result};
use instar_esp::{Asset, NewSystem, State, Volume, describe, install, perform};

/// Folders and files, each folder before its content.
#[derive(Debug, Default)]
pub(super) struct Files {
    pub(super) folders: Vec<String>,
    pub(super) files: BTreeMap<String, Vec<u8>>,
}

/// Returns the files of a partition with this system alone, and what its installer image says of itself.
pub(super) fn files(
    system: &NewSystem,
    uki: &[u8],
    loader: &[u8],
    description: &[u8],
) -> Result<Files> {
    let mut files = Files::default();
    let mut plan = install(&State::read(&files)?, system)?;
    plan.steps.extend(describe(description.to_vec()).steps);
    perform(&plan, &mut files, |asset| {
        let bytes = match asset {
            Asset::Uki => uki,
            Asset::Loader => loader,
        };
        Ok(Box::new(Cursor::new(bytes.to_vec())))
    })
    .context("cannot lay the EFI system partition out")?;
    Ok(files)
}

impl Files {
    fn file(&self, path: &str) -> io::Result<&Vec<u8>> {
        Ok(self.files.get(path).ok_or(ErrorKind::NotFound)?)
    }
}

impl Volume for Files {
    fn list(&self, folder: &str) -> io::Result<Vec<(String, u64)>> {
        let below = self.files.iter().filter_map(|(path, content)| {
            let (parent, name) = path.rsplit_once('/')?;
            (parent == folder).then(|| (name.to_owned(), content.len() as u64))
        });
        Ok(below.collect())
    }

    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        self.file(path).cloned()
    }

    fn read_back(&self, path: &str) -> io::Result<Box<dyn Read + '_>> {
        Ok(Box::new(Cursor::new(self.file(path)?)))
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    fn make_folder(&mut self, path: &str) -> io::Result<()> {
        self.folders.push(path.to_owned());
        Ok(())
    }

    fn create(&mut self, path: &str, content: &mut dyn Read) -> io::Result<()> {
        let mut bytes = Vec::new();
        content.read_to_end(&mut bytes)?;
        self.files.insert(path.to_owned(), bytes);
        Ok(())
    }

    fn sync_file(&mut self, _path: &str) -> io::Result<()> {
        Ok(())
    }

    fn sync_folder(&mut self, _path: &str) -> io::Result<()> {
        Ok(())
    }

    fn remove(&mut self, path: &str) -> io::Result<()> {
        self.files.remove(path);
        Ok(())
    }

    fn replace(&mut self, from: &str, to: &str) -> io::Result<()> {
        let content = self.files.remove(from).ok_or(ErrorKind::NotFound)?;
        self.files.insert(to.to_owned(), content);
        Ok(())
    }
}
