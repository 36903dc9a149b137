//! The commands that change channels, or show them.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, ensure};
use instar_channel::{ChannelName, Date, List, Offer, Release, change};
use instar_values::{Digest, Version};

use crate::command_line::{Changing, Command, Signing, Source};
use crate::folder::{self, Folder, ListKey};
use crate::lifetime::{self, Lifetime};
use crate::{keep_file, keys, sources};

/// Runs a command.
pub(crate) fn run(path: &Path, command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Create { channel, signing } => create(path, channel, signing),
        Command::Add {
            channel,
            source,
            changing,
            ..
        } => {
            let release = release(channel, source, command)?;
            edit(path, channel, changing, |_, list| {
                Ok(change::add(list, release)?)
            })
        }
        Command::Promote { to, changing, .. } => edit(path, to, changing, |folder, list| {
            promote(folder, list, command)
        }),
        Command::Open {
            channel,
            version,
            changing,
        } => edit(path, channel, changing, |_, list| {
            Ok(change::open_to_all(list, version)?)
        }),
        Command::Withdraw {
            channel,
            version,
            why,
            changing,
        } => edit(path, channel, changing, |_, list| {
            Ok(change::withdraw(list, version, why)?)
        }),
        Command::Renew {
            channel,
            sign_as_it_is,
            changing,
        } => renew(path, channel, *sign_as_it_is, changing),
        Command::Prune {
            channel,
            newest,
            keep,
            // Without a file.
            keep_newest_alone: _,
            dry_run,
            changing,
        } => prune(
            path,
            channel,
            (*newest, keep.as_deref()),
            *dry_run,
            changing,
        ),
        Command::Approve {
            channel,
            version,
            key,
            public_key,
        } => approve(path, channel, version, (key, public_key.as_deref())),
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

fn create(path: &Path, channel: &ChannelName, signing: &Signing) -> anyhow::Result<()> {
    let folder = Folder::open(path)?;
    folder.check_no_list_waits(channel)?;
    ensure!(
        !folder.has(channel),
        "the channel {channel} is there already"
    );
    let mut list = List::first(channel.clone(), now());
    let lifetime = signing.expires_in.unwrap_or(Lifetime::Unlimited);
    list.expires = lifetime.expiry(list.date);
    let key = signing.key.as_deref().map(keys::private).transpose()?;
    folder.write(&list, key.as_ref())
}

/// The key by which the list so far is believed; none if the command names none.
fn list_key(changing: &Changing) -> anyhow::Result<Option<ListKey>> {
    let key = match (&changing.public_key, &changing.signing.key) {
        (Some(public), _) => keys::public(public)?,
        (None, Some(private)) => keys::public_of(&keys::private(private)?)?,
        (None, None) => return Ok(None),
    };
    let option = "--public-key";
    Ok(Some(ListKey { key, option }))
}

/// The same, which has to be named.
fn needed_list_key(changing: &Changing) -> anyhow::Result<ListKey> {
    list_key(changing)?.context(
        "nothing says who has signed the list so far: without --key, name the public key by --public-key",
    )
}

/// Changes a list that is signed by its key, and publishes the next one.
fn edit(
    path: &Path,
    channel: &ChannelName,
    changing: &Changing,
    change: impl FnOnce(&Folder, &mut List) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let folder = Folder::open(path)?;
    folder.check_no_list_waits(channel)?;
    let list = folder.read_signed(channel, &needed_list_key(changing)?)?;
    publish_next(&folder, list, &changing.signing, change)
}

/// Publishes the same list anew. `as_it_is`: also if it is not signed by its key.
fn renew(
    path: &Path,
    channel: &ChannelName,
    as_it_is: bool,
    changing: &Changing,
) -> anyhow::Result<()> {
    if !as_it_is {
        return edit(path, channel, changing, |_, _| Ok(()));
    }
    let folder = Folder::open(path)?;
    folder.check_no_list_waits(channel)?;
    let list = folder.read(channel)?;
    publish_next(&folder, list, &changing.signing, |_, _| Ok(()))
}

/// Changes a list, and publishes the next one, which has the lifetime of the one before unless the command names another.
fn publish_next(
    folder: &Folder,
    mut list: List,
    signing: &Signing,
    change: impl FnOnce(&Folder, &mut List) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let key = signing.key.as_deref().map(keys::private).transpose()?;
    let lifetime = signing.expires_in.unwrap_or_else(|| Lifetime::of(&list));
    change(folder, &mut list)?;
    // The date of a list does not go back with the publisher's clock, and its lifetime counts from that date.
    let date = list.date.max(now());
    change::published(&mut list, date, lifetime.expiry(date));
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
        from_public_key,
        place,
        only_for,
        unofficial,
        changing,
        ..
    } = command
    else {
        anyhow::bail!("only `promote` takes a release over");
    };
    let option = "--from-public-key";
    let key = match from_public_key {
        Some(file) => keys::public(file)?,
        None => needed_list_key(changing)?.key,
    };
    let from = folder.read_signed(from, &ListKey { key, option })?;
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
    changing: &Changing,
) -> anyhow::Result<()> {
    let keep = keep_file::read(keep, newest)?;
    let tell = |gone: &[Release]| {
        for release in gone {
            println!("{} {} goes", release.version, release.pinned_image());
        }
    };
    if dry_run {
        // Nothing is signed: a list is shown to whoever names no key, too.
        let mut list = match list_key(changing)? {
            Some(key) => folder::read_signed(path, channel, &key)?,
            None => folder::read(path, channel)?,
        };
        tell(&change::prune(&mut list, &keep));
        return Ok(());
    }
    edit(path, channel, changing, |_, list| {
        tell(&change::prune(list, &keep));
        Ok(())
    })
}

fn approve(
    path: &Path,
    channel: &ChannelName,
    version: &Version,
    (key, public_key): (&Path, Option<&Path>),
) -> anyhow::Result<()> {
    let folder = Folder::open(path)?;
    let key = keys::private(key)?;
    let list_key = ListKey {
        key: public_key.map_or_else(|| keys::public_of(&key), keys::public)?,
        option: "--public-key",
    };
    let list = folder.read_signed(channel, &list_key)?;
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
    let list = match key {
        None => folder::read(path, channel)?,
        Some(file) => {
            let (key, option) = (keys::public(file)?, "--public-key");
            folder::read_signed(path, channel, &ListKey { key, option })?
        }
    };
    let until = lifetime::until(&list);
    println!("{channel}: list {} of {}{until}", list.serial, list.date);
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
    use std::fs;

    use super::*;
    use crate::command_line::Arguments;
    use clap::Parser as _;
    use instar_channel::SIGNATURE;
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
        says_without_key(folder, &format!("{words} --key {}/key", folder.display()))
    }

    fn says_without_key(folder: &Path, words: &str) -> Result<(), String> {
        let line = format!("instar-channel --folder {} {words}", folder.display());
        let arguments = Arguments::try_parse_from(line.split_whitespace()).unwrap();
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

    /// A folder with a key, and the channel `stable` that was made with these words.
    fn stable(words: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        keys::make(&folder.path().join("key")).unwrap();
        says(folder.path(), &format!("create stable{words}")).unwrap();
        folder
    }

    fn list(folder: &Path) -> List {
        folder::read(folder, &"stable".parse().unwrap()).unwrap()
    }

    #[test]
    fn a_list_lives_as_long_as_the_one_before_unless_it_is_told_otherwise() {
        let folder = stable(" --expires-in 90d");
        let days = |list: &List| {
            let expires = list.expires?.seconds();
            Some((expires - list.date.seconds()) / 86_400)
        };
        for (words, expected) in [
            ("renew stable", Some(90)),
            ("prune stable --keep-newest-alone", Some(90)),
            ("renew stable --expires-in 7d", Some(7)),
            ("renew stable", Some(7)),
            ("renew stable --expires-in never", None),
            ("renew stable", None),
        ] {
            says(folder.path(), words).unwrap();
            assert_eq!(days(&list(folder.path())), expected, "{words}");
        }
    }

    /// What another program does with its key, as the command says.
    fn sign_what_waits(folder: &Path) {
        let file = folder::list_file(folder, &"stable".parse().unwrap());
        let unsigned = file.with_extension("json.unsigned");
        let key = keys::private(&folder.join("key")).unwrap();
        let signature = key.sign(&fs::read(&unsigned).unwrap()).unwrap();
        fs::write(file.with_file_name(SIGNATURE), signature).unwrap();
        fs::rename(unsigned, file).unwrap();
    }

    #[test]
    fn a_change_that_waits_for_its_signature_is_not_lost() {
        let folder = stable("");
        let folder = folder.path();
        let public = format!("--public-key {}/key.pub", folder.display());
        let by_another_program =
            |words: &str| says_without_key(folder, &format!("{words} {public}"));
        by_another_program("renew stable --expires-in 7d").unwrap();
        let file = folder::list_file(folder, &"stable".parse().unwrap());
        let unsigned = file.with_extension("json.unsigned");
        let waits = fs::read(&unsigned).unwrap();
        for refused in [
            by_another_program("renew stable"),
            // With a key, two lists would have one serial.
            says(folder, "renew stable"),
            by_another_program("prune stable --keep-newest-alone"),
        ] {
            let refused = refused.unwrap_err();
            let names_the_file = refused.contains(&unsigned.display().to_string());
            assert!(names_the_file && refused.contains("remove it"), "{refused}");
            assert_eq!(fs::read(&unsigned).unwrap(), waits);
            assert_eq!(list(folder).serial, 1);
        }
        sign_what_waits(folder);
        show(
            folder,
            &"stable".parse().unwrap(),
            Some(&folder.join("key.pub")),
        )
        .unwrap();
        // A copy of a list that is signed waits for nothing.
        fs::write(&unsigned, waits).unwrap();
        says(folder, "renew stable").unwrap();
        assert_eq!(list(folder).serial, 3);
        by_another_program("renew stable").unwrap();
        fs::remove_file(&unsigned).unwrap();
        by_another_program("renew stable").unwrap();
    }

    #[test]
    fn a_channel_that_waits_for_its_first_signature_is_not_made_again() {
        let folder = tempfile::tempdir().unwrap();
        says_without_key(folder.path(), "create stable").unwrap();
        let refused = says_without_key(folder.path(), "create stable").unwrap_err();
        assert!(refused.contains("is not signed"), "{refused}");
    }

    /// A release that the list of `stable` has, and another digest for it.
    const RELEASE: &str = "v0.3.0";

    /// The folder, whose list has a release, and was changed by somebody without the key.
    fn changed_by_another(folder: &Path) -> Vec<u8> {
        let labels = json!({"dev.instar.version": RELEASE, "dev.instar.architecture": "amd64", "dev.instar.protocol": "1"});
        let layout = folder.join("layout");
        write_layout(&layout, &labels);
        let add = format!(
            "add stable r.io/os:{RELEASE} --unofficial --layout {}",
            layout.display()
        );
        says(folder, &add).unwrap();
        says(folder, "create beta").unwrap();
        let file = folder::list_file(folder, &"stable".parse().unwrap());
        let mut changed = list(folder);
        changed.releases[0].digest = Digest::of(b"another image");
        let changed = changed.to_bytes().unwrap();
        fs::write(file, &changed).unwrap();
        changed
    }

    #[test]
    fn a_list_that_its_key_has_not_signed_is_not_signed_anew() {
        let folder = stable("");
        let folder = folder.path();
        let changed = changed_by_another(folder);
        keys::make(&folder.join("other")).unwrap();
        let name = folder.display();
        let (key, public) = (
            format!("--key {name}/key"),
            format!("--public-key {name}/key.pub"),
        );
        let promote = format!("promote {RELEASE} --from stable --to beta --layout {name}/layout");
        let approve = format!("approve stable {RELEASE} --key {name}/other");
        for words in [
            format!("renew stable {key}"),
            format!("renew stable {public}"),
            format!("withdraw stable {RELEASE} --why bad {key}"),
            format!("open stable {RELEASE} {key}"),
            format!("prune stable --keep-newest-alone {key}"),
            format!("prune stable --keep-newest-alone --dry-run {key}"),
            format!("{promote} {key}"),
            format!("{approve} {public}"),
            format!("show stable {public}"),
        ] {
            let refused = says_without_key(folder, &words).unwrap_err();
            assert!(
                refused.contains("is not signed by the key"),
                "{words}: {refused}"
            );
            assert!(refused.contains("--sign-as-it-is"), "{words}: {refused}");
        }
        let file = folder::list_file(folder, &"stable".parse().unwrap());
        assert_eq!(fs::read(&file).unwrap(), changed);
        assert!(!file.with_extension("json.unsigned").exists());
        assert!(!file.with_file_name("approvals").exists());
        // As after a power cut, once a person has compared it.
        says(folder, "renew stable --sign-as-it-is").unwrap();
        says(folder, "renew stable").unwrap();
    }

    #[test]
    fn a_list_of_another_key_is_believed_by_that_key() {
        let folder = stable(" --expires-in 0s");
        let folder = folder.path();
        keys::make(&folder.join("other")).unwrap();
        let name = folder.display();
        let (other, public) = (
            format!("--key {name}/other"),
            format!("--public-key {name}/key.pub"),
        );
        let renew = |words: &str| says_without_key(folder, &format!("renew stable {words}"));
        let refused = renew("").unwrap_err();
        assert!(refused.contains("nothing says who has signed"), "{refused}");
        let refused = renew(&other).unwrap_err();
        assert!(refused.contains("--public-key"), "{refused}");
        // It has expired, which is no lack of its signature.
        renew(&format!("{other} {public}")).unwrap();
        let refused = renew(&format!("{other} {public}")).unwrap_err();
        assert!(refused.contains("is not signed by the key"), "{refused}");
        renew(&other).unwrap();
        let file = folder::list_file(folder, &"stable".parse().unwrap());
        fs::remove_file(file.with_file_name(SIGNATURE)).unwrap();
        let refused = renew(&other).unwrap_err();
        assert!(refused.contains("is not signed by the key"), "{refused}");
    }
}
