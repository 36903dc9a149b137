//! The commands that change channels, or show them.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, ensure};
use instar_channel::{ChannelName, Date, List, Offer, Release, SIGNATURE, change};
use instar_values::{Digest, Version};

use crate::command_line::{Command, Signing, Source};
use crate::folder::{self, Folder};
use crate::{keep_file, keys, sources};

/// Runs a command.
pub(crate) fn run(path: &Path, command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Create { channel, signing } => create(path, channel, signing),
        Command::Add {
            channel,
            source,
            signing,
            ..
        } => {
            let release = release(channel, source, command)?;
            edit(path, channel, signing, |_, list| {
                Ok(change::add(list, release)?)
            })
        }
        Command::Promote {
            release,
            from,
            to,
            only_for,
            signing,
        } => edit(path, to, signing, |folder, list| {
            let from = folder.read(from)?;
            let digest = find(&from, release)?;
            Ok(change::promote(
                list,
                &from,
                digest,
                only_for.clone(),
                now(),
            )?)
        }),
        Command::Open {
            channel,
            version,
            signing,
        } => edit(path, channel, signing, |_, list| {
            Ok(change::open_to_all(list, version)?)
        }),
        Command::Withdraw {
            channel,
            version,
            why,
            signing,
        } => edit(path, channel, signing, |_, list| {
            Ok(change::withdraw(list, version, why)?)
        }),
        Command::Renew { channel, signing } => edit(path, channel, signing, |_, _| Ok(())),
        Command::Prune {
            channel,
            newest,
            keep,
            dry_run,
            signing,
        } => prune(path, channel, (*newest, keep.as_deref()), *dry_run, signing),
        Command::Approve {
            channel,
            version,
            key,
        } => approve(path, channel, version, key),
        Command::Show {
            channel,
            public_key,
        } => show(path, channel, public_key.as_deref()),
        Command::Key { .. } | Command::Serve(_) => Ok(()),
    }
}

fn now() -> Date {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    Date::from_seconds(since.unwrap_or_default().as_secs())
}

fn expiry(signing: &Signing) -> Option<Date> {
    let time = signing.expires_in?;
    Some(Date::from_seconds(
        now().seconds().saturating_add(time.as_secs()),
    ))
}

fn create(path: &Path, channel: &ChannelName, signing: &Signing) -> anyhow::Result<()> {
    let folder = Folder::open(path)?;
    ensure!(
        !folder.has(channel),
        "the channel {channel} is there already"
    );
    let mut list = List::first(channel.clone(), now());
    list.expires = expiry(signing);
    let key = signing.key.as_deref().map(keys::private).transpose()?;
    folder.write(&list, key.as_ref())
}

/// Changes a list, and publishes the next one.
fn edit(
    path: &Path,
    channel: &ChannelName,
    signing: &Signing,
    change: impl FnOnce(&Folder, &mut List) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let folder = Folder::open(path)?;
    let key = signing.key.as_deref().map(keys::private).transpose()?;
    let mut list = folder.read(channel)?;
    change(&folder, &mut list)?;
    change::published(&mut list, now(), expiry(signing));
    folder.write(&list, key.as_ref())
}

fn release(channel: &ChannelName, source: &Source, command: &Command) -> anyhow::Result<Release> {
    let Command::Add {
        notes,
        only_for,
        unofficial,
        ..
    } = command
    else {
        anyhow::bail!("only `add` makes a release");
    };
    let found = sources::find(source)?;
    let offer = Offer {
        image: source.image.clone(),
        digest: found.digest,
        labels: &found.labels,
        only_for: only_for.clone(),
        notes: notes.clone(),
        unofficial: *unofficial,
    };
    let release = offer.release(channel, now());
    release.with_context(|| format!("{} is no candidate for {channel}", source.image))
}

/// Finds a release by its digest or its version.
fn find(list: &List, named: &str) -> anyhow::Result<Digest> {
    if let Ok(digest) = named.parse() {
        return Ok(digest);
    }
    let version: Version = named.parse()?;
    let mut found = list.releases.iter().filter(|it| it.version == version);
    let first = found.next();
    let first =
        first.with_context(|| format!("{version} is not in the channel {}", list.channel))?;
    ensure!(
        found.next().is_none(),
        "{version} is there for several architectures: name each by its digest"
    );
    Ok(first.digest)
}

fn prune(
    path: &Path,
    channel: &ChannelName,
    (newest, keep): (usize, Option<&Path>),
    dry_run: bool,
    signing: &Signing,
) -> anyhow::Result<()> {
    let keep = keep_file::read(keep, newest)?;
    let tell = |gone: &[Release]| {
        for release in gone {
            println!("{} {} goes", release.version, release.pinned_image());
        }
    };
    if dry_run {
        let mut list = folder::read(path, channel)?;
        tell(&change::prune(&mut list, &keep));
        return Ok(());
    }
    edit(path, channel, signing, |_, list| {
        tell(&change::prune(list, &keep));
        Ok(())
    })
}

fn approve(
    path: &Path,
    channel: &ChannelName,
    version: &Version,
    key: &Path,
) -> anyhow::Result<()> {
    let folder = Folder::open(path)?;
    let (list, key) = (folder.read(channel)?, keys::private(key)?);
    let found: Vec<&Release> = list
        .releases
        .iter()
        .filter(|release| release.version == *version)
        .collect();
    ensure!(
        !found.is_empty(),
        "{version} is not in the channel {channel}"
    );
    for release in found {
        folder.approve(channel, release, &key)?;
    }
    Ok(())
}

fn show(path: &Path, channel: &ChannelName, key: Option<&Path>) -> anyhow::Result<()> {
    let list = folder::read(path, channel)?;
    if let Some(key) = key {
        let (file, key) = (folder::list_file(path, channel), keys::public(key)?);
        let signature = fs::read(file.with_file_name(SIGNATURE))?;
        instar_channel::open(channel, &key, &fs::read(&file)?, &signature)?;
    }
    let expires = list
        .expires
        .map_or_else(String::new, |date| format!(", expires on {date}"));
    println!("{channel}: list {} of {}{expires}", list.serial, list.date);
    for release in &list.releases {
        let only_for: Vec<String> = release.only_for.iter().map(ToString::to_string).collect();
        let only_for = match only_for.is_empty() {
            true => String::new(),
            false => format!(", only for {}", only_for.join(" or ")),
        };
        let withdrawn = release.withdrawn.as_ref();
        let withdrawn = withdrawn.map_or_else(String::new, |why| format!(", withdrawn: {why}"));
        println!(
            "{} {} {} since {}{only_for}{withdrawn}",
            release.version,
            release.architecture,
            release.pinned_image(),
            release.date
        );
    }
    Ok(())
}
