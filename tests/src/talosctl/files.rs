//! Commands about files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::screen::{Screen, Step, Stop};
use super::wire::Fields;
use super::{Talosctl, Words};

/// Bits of `FileInfo.mode`, which are Go's (<https://pkg.go.dev/io/fs#FileMode>).
const DIRECTORY: u64 = 1 << 31;
const SYMLINK: u64 = 1 << 27;
const DEVICE: u64 = 1 << 26;
const CHARACTER_DEVICE: u64 = 1 << 21;

impl Talosctl<'_> {
    pub(super) async fn list(&self, mut words: Words<'_>, screen: &mut Screen) -> Step {
        let everything = words.flag("-r");
        let depth = words.number("-d");
        let long = words.flag("-l");
        let kinds: Vec<u8> = words
            .value("-t")
            .map(|kinds| kinds.split(',').map(kind_number).collect())
            .unwrap_or_default();
        let asked = Fields::none()
            .text(1, words.0.first().copied().unwrap_or("/"))
            .number(2, (everything || depth.is_some()).into())
            .number(3, if everything { -1 } else { depth.unwrap_or(1) })
            .bytes(4, &kinds)
            .number(5, long.into());
        let mut files = self
            .session
            .stream("/machine.MachineService/List", asked)
            .await?;
        let mut trouble = None;
        while let Some(file) = files.next().await? {
            let name = file.text_of(9);
            match file.text_of(7) {
                error if !error.is_empty() => {
                    screen.complain(&format!("{name}: {error}"));
                    trouble = Some(error);
                }
                _ if long => screen.line(&format!(
                    "{} {} {} {} {name}{}",
                    mode_text(file.number_of(4)),
                    file.number_of(10),
                    file.number_of(11),
                    file.number_of(3),
                    match file.text_of(8) {
                        link if link.is_empty() => link,
                        link => format!(" -> {link}"),
                    }
                ))?,
                _ => screen.line(&name)?,
            }
        }
        trouble.map_or(Ok(()), |why| Err(Stop::Failed(why)))
    }

    pub(super) async fn read(&self, words: Words<'_>, screen: &mut Screen) -> Step {
        let asked = Fields::none().text(1, words.0.first().copied().unwrap_or_default());
        self.print_data("/machine.MachineService/Read", asked, screen)
            .await
    }

    /// `copy PATH`: unpacks as the client does, which makes no directory without an entry of its own before its files.
    pub(super) async fn copy(&self, words: Words<'_>, screen: &mut Screen) -> Step {
        let root = words.0.first().copied().unwrap_or_default();
        for name in self.copied_names(root).await? {
            screen.line(&name)?;
        }
        Ok(())
    }

    /// Returns the names in the archive of a copy.
    pub(super) async fn copied_names(&self, root: &str) -> Step<Vec<String>> {
        let asked = Fields::none().text(1, root);
        let method = "/machine.MachineService/Copy";
        let packed = self.session.bytes(method, asked).await?;
        names_in(&packed).map_err(|why| Stop::Failed(format!("{why:#}")))
    }

    pub(super) async fn usage(&self, mut words: Words<'_>, screen: &mut Screen) -> Step {
        let depth = words.number("-d").unwrap_or_default();
        let all = words.flag("-a");
        let threshold = words.number("-t").unwrap_or_default();
        let mut asked = Fields::none()
            .number(1, depth + 1)
            .number(2, all.into())
            .number(3, threshold);
        for path in &words.0 {
            asked = asked.text(4, path);
        }
        let mut told = self
            .session
            .stream("/machine.MachineService/DiskUsage", asked)
            .await?;
        while let Some(part) = told.next().await? {
            match part.text_of(4) {
                error if error.is_empty() => {
                    screen.line(&format!("{} {}", part.number_of(3), part.text_of(5)))?;
                }
                error => screen.complain(&error),
            }
        }
        Ok(())
    }
}

/// `ListRequest.Type`.
fn kind_number(kind: &str) -> u8 {
    match kind {
        "d" => 1,
        "l" => 2,
        _ => 0,
    }
}

fn mode_text(mode: u64) -> String {
    let kind = match mode {
        mode if mode & DIRECTORY != 0 => 'd',
        mode if mode & SYMLINK != 0 => 'L',
        mode if mode & CHARACTER_DEVICE != 0 => 'c',
        mode if mode & DEVICE != 0 => 'D',
        _ => '-',
    };
    let mut text = String::from(kind);
    for (at, letter) in "rwxrwxrwx".chars().enumerate() {
        let is_set = mode & (0o400 >> at) != 0;
        text.push(if is_set { letter } else { '-' });
    }
    text
}

fn names_in(packed: &[u8]) -> anyhow::Result<Vec<String>> {
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(packed));
    let mut directories = BTreeSet::from([PathBuf::new(), PathBuf::from(".")]);
    let mut names = Vec::new();
    for entry in archive.entries()? {
        let entry = entry?;
        let path = entry.path()?.into_owned();
        let parent = path.parent().unwrap_or(Path::new(""));
        anyhow::ensure!(
            directories.contains(parent),
            "{} comes before its directory",
            path.display()
        );
        if entry.header().entry_type().is_dir() {
            directories.insert(path.clone());
        }
        names.push(path.display().to_string());
    }
    Ok(names)
}
