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
        Command::Promote { to, signing, .. } => edit(path, to, signing, |folder, list| {
            promote(folder, list, command)
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
            // Without a file.
            keep_newest_alone: _,
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
    let found = sources::find(&source.image, &source.place)?;
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

/// Takes a release over. Its image's labels are read once more: a list has none, and they say whether it is a candidate for the other channel.
fn promote(folder: &Folder, list: &mut List, command: &Command) -> anyhow::Result<()> {
    let Command::Promote {
        release,
        from,
        place,
        only_for,
        unofficial,
        ..
    } = command
    else {
        anyhow::bail!("only `promote` takes a release over");
    };
    let from = folder.read(from)?;
    let release = find(&from, release)?;
    let (version, image) = (&release.version, release.pinned_image());
    let found = sources::find(&image, place)
        .with_context(|| format!("the labels of {version} cannot be read"))?;
    ensure!(
        found.digest == release.digest,
        "the layout has the image {}, and {version} is {image}",
        found.digest
    );
    let offer = Offer {
        image: release.image.clone(),
        digest: release.digest,
        labels: &found.labels,
        only_for: only_for.clone(),
        notes: release.notes.clone(),
        unofficial: *unofficial,
    };
    change::promote(list, &from, offer, now())
        .with_context(|| format!("{version} is not promoted to {}", list.channel))
}

/// Finds a release by its digest or its version.
fn find<'a>(list: &'a List, named: &str) -> anyhow::Result<&'a Release> {
    if let Ok(digest) = named.parse::<Digest>() {
        let mut found = list.releases.iter().filter(|it| it.digest == digest);
        return found
            .next()
            .with_context(|| format!("{digest} is not in the channel {}", list.channel));
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
    Ok(first)
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::command_line::Arguments;
    use clap::Parser as _;
    use serde_json::{Value, json};

    /// Writes an OCI layout with one image of these labels.
    fn write_layout(layout: &Path, labels: &Value) {
        let blobs = layout.join("blobs/sha256");
        fs::create_dir_all(&blobs).unwrap();
        let blob = |document: &Value| {
            let bytes = document.to_string().into_bytes();
            let digest = Digest::of(&bytes);
            fs::write(blobs.join(digest.hex()), bytes).unwrap();
            digest.to_string()
        };
        let config = blob(&json!({"config": {"Labels": labels}}));
        let manifest = blob(&json!({"config": {"digest": config}}));
        let index = json!({"manifests": [{"digest": manifest}]});
        fs::write(layout.join("index.json"), index.to_string()).unwrap();
    }

    /// Runs `instar-channel` in a folder, with its own key.
    fn says(folder: &Path, words: &str) -> Result<(), String> {
        let place = folder.display();
        let line = format!("instar-channel --folder {place} {words} --key {place}/key");
        let arguments = Arguments::try_parse_from(line.split(' ')).unwrap();
        run(folder, &arguments.command).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn a_release_is_promoted_by_the_labels_of_its_image() {
        let folder = tempfile::tempdir().unwrap();
        let (folder, layout) = (folder.path(), folder.path().join("layout"));
        keys::make(&folder.join("key")).unwrap();
        let labels = json!({
            "dev.instar.version": "v0.3.0", "dev.instar.architecture": "amd64", "dev.instar.protocol": "1",
            "dev.instar.channels": "beta,stable",
        });
        write_layout(&layout, &labels);
        let read = format!("--layout {}", layout.display());
        for channel in ["beta", "stable", "edge"] {
            says(folder, &format!("create {channel}")).unwrap();
        }
        says(
            folder,
            &format!("add beta r.io/os:v0.3.0 --unofficial {read}"),
        )
        .unwrap();
        let promote = |to: &str| {
            says(
                folder,
                &format!("promote v0.3.0 --from beta --to {to} {read}"),
            )
        };
        let refused = promote("stable").unwrap_err();
        assert!(refused.contains("not an official release"), "{refused}");
        let refused = promote("edge --unofficial").unwrap_err();
        assert!(refused.contains("does not name this channel"), "{refused}");
        promote("stable --unofficial").unwrap();
        // Another image has other labels.
        write_layout(&layout, &json!({"dev.instar.official": "true"}));
        let refused = promote("edge").unwrap_err();
        assert!(refused.contains("the layout has the image"), "{refused}");
    }
}
