//! A folder of channels.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, ensure};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use instar_base::whole_file;
use instar_channel::{ChannelName, LIST, List, Refused, Release, SIGNATURE};
use instar_pki::PrivateKey;
use instar_values::PublicKey;

use crate::lifetime;

/// A folder, held against other writers until this value is dropped.
pub(crate) struct Folder {
    path: PathBuf,
    _lock: File,
}

/// The files of one channel.
pub(crate) fn list_file(folder: &Path, channel: &ChannelName) -> PathBuf {
    folder.join(channel.as_str()).join(LIST)
}

/// The file of a list that waits for the signature of another program, beside the list that is signed.
fn unsigned_file(list_file: &Path) -> PathBuf {
    list_file.with_extension("json.unsigned")
}

impl Folder {
    /// Opens a folder, and makes it if it is not there.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let name = path.display();
        fs::create_dir_all(path).with_context(|| format!("make the folder {name}"))?;
        let lock = File::create(path.join(".lock")).with_context(|| format!("lock {name}"))?;
        lock.try_lock()
            .with_context(|| format!("another instar-channel writes to {name}"))?;
        Ok(Folder {
            path: path.to_owned(),
            _lock: lock,
        })
    }

    /// Reads a channel whose list is signed by this key.
    pub(crate) fn read_signed(&self, channel: &ChannelName, key: &ListKey) -> anyhow::Result<List> {
        read_signed(&self.path, channel, key)
    }

    /// Reads a channel, whoever has signed its list.
    pub(crate) fn read(&self, channel: &ChannelName) -> anyhow::Result<List> {
        read(&self.path, channel)
    }

    /// Whether the folder has a channel.
    pub(crate) fn has(&self, channel: &ChannelName) -> bool {
        list_file(&self.path, channel).exists()
    }

    /// Checks that no list of the channel waits for its signature. A change begins with the signed list: it would lose the changes of the one
    /// that waits, or have the same serial.
    ///
    /// To go on from the list that waits was the other choice. A change that somebody has given up would then be signed with the next one.
    pub(crate) fn check_no_list_waits(&self, channel: &ChannelName) -> anyhow::Result<()> {
        let file = list_file(&self.path, channel);
        let unsigned = unsigned_file(&file);
        let name = unsigned.display();
        let bytes = match fs::read(&unsigned) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            read => read.with_context(|| format!("read {name}"))?,
        };
        let waits = List::parse(&bytes).with_context(|| {
            format!("{name} is no list: remove it, and change the channel again")
        })?;
        let signed = match self.has(channel) {
            true => self.read(channel)?.serial,
            false => 0,
        };
        // A copy that was left when its list was signed waits for nothing.
        ensure!(
            waits.serial <= signed,
            "{name} is not signed, and has changes that would be lost: sign it into {} and rename it to {}, or remove it to give its changes up",
            file.with_file_name(SIGNATURE).display(),
            file.display()
        );
        Ok(())
    }

    /// Writes a list and its signature. A reader between the two finds them unequal, and asks again.
    pub(crate) fn write(&self, list: &List, key: Option<&PrivateKey>) -> anyhow::Result<()> {
        let bytes = list.to_bytes()?;
        let file = list_file(&self.path, &list.channel);
        let Some(key) = key else {
            let unsigned = unsigned_file(&file);
            whole_file::replace(&unsigned, 0o644, &bytes)?;
            println!(
                "{0} is not signed: sign it into {1}, for example by `cosign sign-blob --key KEY {0}`, and rename it to {2}",
                unsigned.display(),
                file.with_file_name(SIGNATURE).display(),
                file.display()
            );
            return Ok(());
        };
        let signature = BASE64_STANDARD.encode(key.sign(&bytes)?) + "\n";
        whole_file::replace(&file, 0o644, &bytes)?;
        let place = file.with_file_name(SIGNATURE);
        whole_file::replace(&place, 0o644, signature.as_bytes())?;
        println!(
            "{}: list {} with {} releases{}",
            list.channel,
            list.serial,
            list.releases.len(),
            lifetime::until(list)
        );
        Ok(())
    }

    /// Writes the signature that approves a release.
    pub(crate) fn approve(
        &self,
        channel: &ChannelName,
        release: &Release,
        key: &PrivateKey,
    ) -> anyhow::Result<()> {
        let signed = instar_channel::approval(channel, release);
        let signature = BASE64_STANDARD.encode(key.sign(&signed)?) + "\n";
        let approvals = self.path.join(channel.as_str()).join("approvals");
        let file = approvals.join(format!("{}.sig", release.digest.hex()));
        whole_file::replace(&file, 0o644, signature.as_bytes())?;
        println!(
            "{channel}: {} is approved: {}",
            release.version,
            file.display()
        );
        Ok(())
    }
}

/// The public key by which a list of the folder is believed.
pub(crate) struct ListKey {
    pub(crate) key: PublicKey,
    /// The option of the command that names another one.
    pub(crate) option: &'static str,
}

/// Reads the list of a channel if it is signed by this key. Whoever can write to the folder, without the key, has a say in no list that is signed
/// anew: only machines would see what was changed, and the next signature would make it good. One that has expired is read: it has to be published again.
pub(crate) fn read_signed(
    folder: &Path,
    channel: &ChannelName,
    by: &ListKey,
) -> anyhow::Result<List> {
    let file = list_file(folder, channel);
    let bytes = fs::read(&file)
        .with_context(|| format!("there is no channel {channel}: read {}", file.display()))?;
    let place = file.with_file_name(SIGNATURE);
    let signature = match fs::read(&place) {
        // A list without a signature is signed by nobody.
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        read => read.with_context(|| format!("read {}", place.display()))?,
    };
    let opened = instar_channel::open(channel, &by.key, &bytes, &signature);
    opened.map_err(|refused| match refused {
        Refused::Signature(key) => anyhow!(
            "{} is not signed by the key {key}: name the public key that has signed it with {}, or compare the list with a copy, and then `renew {channel} --sign-as-it-is`",
            file.display(),
            by.option
        ),
        refused => anyhow!(refused).context(format!("read {}", file.display())),
    })
}

/// Reads the list of a channel, whoever has signed it.
pub(crate) fn read(folder: &Path, channel: &ChannelName) -> anyhow::Result<List> {
    let file = list_file(folder, channel);
    let bytes = fs::read(&file)
        .with_context(|| format!("there is no channel {channel}: read {}", file.display()))?;
    let list = List::parse(&bytes).with_context(|| format!("read {}", file.display()))?;
    ensure!(
        list.channel == *channel,
        "{} is the list of the channel {}",
        file.display(),
        list.channel
    );
    Ok(list)
}
