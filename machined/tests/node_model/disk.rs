//! The disk of the model: the files of both partitions, which forget what was not flushed, and the writes that change them.

use std::collections::BTreeMap;
use std::io::{self, Cursor, Read};

use instar_esp::{State as Esp, Volume};
use machined::upgrade::UpgradeRecord;

/// Versions by their number: v0.1.0 is 1.
pub(crate) type Number = u8;

pub(crate) fn version(number: Number) -> String {
    format!("v0.{number}.0")
}

pub(crate) fn number(version: &str) -> Number {
    version.split('.').nth(1).unwrap().parse().unwrap()
}

/// The files of both partitions, as programs see them and as a power cut leaves them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Disk {
    pub(crate) seen: BTreeMap<String, Vec<u8>>,
    /// The files as they were flushed: one whose name alone was flushed has no content.
    pub(crate) stored: BTreeMap<String, Vec<u8>>,
    /// Files whose content was flushed.
    pub(crate) flushed: BTreeMap<String, Vec<u8>>,
}

pub(crate) const RECORD: &str = "state/upgrade.json";
pub(crate) const CONFIG: &str = "state/config.yaml";

pub(crate) fn folder(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

impl Disk {
    pub(crate) fn after_a_cut(&self, is_lost: bool) -> Self {
        let left = if is_lost { &self.stored } else { &self.seen };
        Self {
            seen: left.clone(),
            stored: left.clone(),
            flushed: left.clone(),
        }
    }

    pub(crate) fn rename(&mut self, from: &str, to: &str) {
        for files in [&mut self.seen, &mut self.flushed] {
            if let Some(content) = files.remove(from) {
                files.insert(to.to_owned(), content);
            }
        }
    }

    pub(crate) fn record(&self) -> Option<UpgradeRecord> {
        // A record that cannot be read is told, and nothing else comes of it.
        serde_json::from_slice(self.seen.get(RECORD)?).ok()
    }

    pub(crate) fn esp(&self) -> Esp {
        Esp::read(self).unwrap()
    }
}

impl Volume for Disk {
    fn list(&self, of: &str) -> io::Result<Vec<(String, u64)>> {
        let files = self.seen.iter().filter(|(path, _)| folder(path) == of);
        let name = |path: &str| path.rsplit('/').next().unwrap().to_owned();
        Ok(files
            .map(|(path, bytes)| (name(path), bytes.len() as u64))
            .collect())
    }

    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        let content = self.seen.get(path).cloned();
        content.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn read_back(&self, path: &str) -> io::Result<Box<dyn Read + '_>> {
        Ok(Box::new(Cursor::new(self.read(path)?)))
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(1 << 30)
    }

    fn make_folder(&mut self, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn create(&mut self, path: &str, content: &mut dyn Read) -> io::Result<()> {
        let mut bytes = Vec::new();
        content.read_to_end(&mut bytes)?;
        self.flushed.remove(path);
        self.seen.insert(path.to_owned(), bytes);
        Ok(())
    }

    fn sync_file(&mut self, path: &str) -> io::Result<()> {
        let content = self.read(path)?;
        if let Some(stored) = self.stored.get_mut(path) {
            stored.clone_from(&content);
        }
        self.flushed.insert(path.to_owned(), content);
        Ok(())
    }

    fn sync_folder(&mut self, of: &str) -> io::Result<()> {
        self.stored.retain(|path, _| folder(path) != of);
        for path in self.seen.keys().filter(|path| folder(path) == of) {
            let content = self.flushed.get(path).cloned().unwrap_or_default();
            self.stored.insert(path.clone(), content);
        }
        Ok(())
    }

    fn remove(&mut self, path: &str) -> io::Result<()> {
        self.seen.remove(path);
        self.flushed.remove(path);
        Ok(())
    }

    fn replace(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.rename(from, to);
        Ok(())
    }
}

/// A step of a change: `instar_esp`'s, with the contents that it takes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Write {
    Create(String, Vec<u8>),
    SyncFile(String),
    SyncFolder(String),
    Remove(String),
    Rename(String, String),
}

impl Write {
    pub(crate) fn path(&self) -> &str {
        match self {
            Self::Create(path, _)
            | Self::SyncFile(path)
            | Self::SyncFolder(path)
            | Self::Remove(path)
            | Self::Rename(_, path) => path,
        }
    }

    pub(crate) fn carry_out(&self, disk: &mut Disk) {
        let done = match self {
            Self::Create(path, bytes) => disk.create(path, &mut Cursor::new(bytes)),
            Self::SyncFile(path) => disk.sync_file(path),
            Self::SyncFolder(path) => disk.sync_folder(path),
            Self::Remove(path) => disk.remove(path),
            Self::Rename(from, to) => disk.replace(from, to),
        };
        done.unwrap();
    }
}

/// The writes of a plan. `version`: the one whose UKI it may write.
pub(crate) fn writes(plan: &instar_esp::Plan, version: Number) -> Vec<Write> {
    use instar_esp::{Content, Step};
    let write = |step: &Step| match step {
        Step::MakeFolder(_) | Step::Verify(..) => None,
        Step::Create(path, Content::Bytes(bytes)) => {
            Some(Write::Create(path.clone(), bytes.clone()))
        }
        Step::Create(path, Content::Asset(..)) => Some(Write::Create(path.clone(), uki(version))),
        Step::SyncFile(path) => Some(Write::SyncFile(path.clone())),
        Step::SyncFolder(path) => Some(Write::SyncFolder(path.clone())),
        Step::Remove(path) => Some(Write::Remove(path.clone())),
        Step::Replace { from, to } => Some(Write::Rename(from.clone(), to.clone())),
    };
    plan.steps.iter().filter_map(write).collect()
}

pub(crate) fn uki(number: Number) -> Vec<u8> {
    version(number).into_bytes()
}

/// As `base::whole_file` does it.
pub(crate) fn replace(path: &str, content: Vec<u8>) -> Vec<Write> {
    let temporary = format!("{path}.new");
    vec![
        Write::Create(temporary.clone(), content),
        Write::SyncFile(temporary.clone()),
        Write::Rename(temporary, path.to_owned()),
        Write::SyncFolder(folder(path).to_owned()),
    ]
}
