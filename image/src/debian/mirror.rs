//! The address of Debian's archive, from the sources of this machine's own apt, so that no build depends on a host
//! named here.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail};

/// Names of Debian's own suites. Other repositories use some of them too, the last four above all.
const CODE_NAMES: [&str; 5] = ["bullseye", "bookworm", "trixie", "forky", "sid"];
const ROLES: [&str; 4] = ["oldstable", "stable", "testing", "unstable"];

/// The addresses of the archive and, where the machine has one, of the archive of security updates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// Base address of the archive.
    pub archive: String,
    /// Base address of the security archive.
    pub security: Option<String>,
}

impl Mirror {
    /// Returns the chosen mirror, else that of this machine.
    ///
    /// # Errors
    /// See [`Self::of_this_machine`].
    pub fn chosen(chosen: Option<&Self>) -> Result<Self> {
        chosen.cloned().map_or_else(Self::of_this_machine, Ok)
    }

    /// Returns the mirror in the machine's apt sources.
    ///
    /// # Errors
    /// The apt sources name no Debian archive (as on Ubuntu), or cannot be read.
    pub fn of_this_machine() -> Result<Self> {
        let mut entries = Vec::new();
        let apt = Path::new("/etc/apt");
        let mut files = vec![apt.join("sources.list")];
        if let Ok(parts) = fs::read_dir(apt.join("sources.list.d")) {
            files.extend(parts.filter_map(|part| Some(part.ok()?.path())));
        }
        files.sort();
        for file in files.iter().filter(|file| file.exists()) {
            let text = fs::read_to_string(file)
                .with_context(|| format!("cannot read {}", file.display()))?;
            match file.extension().and_then(|extension| extension.to_str()) {
                Some("list") => entries.extend(one_line_entries(&text)),
                Some("sources") => entries.extend(deb822_entries(&text)),
                _ => {}
            }
        }
        let Some(mirror) = choose(&entries) else {
            bail!(
                "this machine's apt sources name no Debian archive, where the image's packages come from: \
                 name one, as in `image build --mirror http://MIRROR/debian` or `make MIRROR=http://MIRROR/debian image`"
            );
        };
        Ok(mirror)
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    address: String,
    suite: String,
    components: Vec<String>,
}

impl Entry {
    /// Whether this can be a suite of Debian with this name: all have `main`, and mirrors mostly end in `/debian`.
    fn is_debian(&self, suite: &str) -> bool {
        let likely =
            CODE_NAMES.contains(&suite) || ROLES.contains(&suite) && self.has_usual_address();
        likely && self.components.iter().any(|component| component == "main")
    }

    fn has_usual_address(&self) -> bool {
        let address = self.address.trim_end_matches('/');
        address.ends_with("/debian") || address.ends_with("/debian-security")
    }
}

fn choose(entries: &[Entry]) -> Option<Mirror> {
    let archives: Vec<_> = entries
        .iter()
        .filter(|entry| entry.is_debian(&entry.suite))
        .collect();
    let archive = archives
        .iter()
        .find(|entry| entry.has_usual_address())
        .or(archives.first())?;
    let is_security = |entry: &&Entry| {
        entry
            .suite
            .strip_suffix("-security")
            .is_some_and(|suite| entry.is_debian(suite))
    };
    let security = entries.iter().find(is_security);
    Some(Mirror {
        archive: archive.address.clone(),
        security: security.map(|entry| entry.address.clone()),
    })
}

/// Parses lines like `deb [signed-by=…] http://mirror/debian trixie main` (sources.list(5)).
fn one_line_entries(text: &str) -> Vec<Entry> {
    let entry = |line: &str| {
        let rest = line.trim().strip_prefix("deb")?;
        let rest = rest.strip_prefix(char::is_whitespace)?.trim_start();
        let rest = match rest.strip_prefix('[') {
            Some(options) => options.split_once(']')?.1,
            None => rest,
        };
        let mut words = rest.split_whitespace();
        Some(Entry {
            address: words.next()?.to_owned(),
            suite: words.next()?.to_owned(),
            components: words.map(str::to_owned).collect(),
        })
    };
    text.lines().filter_map(entry).collect()
}

/// Parses stanzas with the fields `Types`, `URIs` and `Suites`, each with one or more words.
fn deb822_entries(text: &str) -> Vec<Entry> {
    let mut entries = Vec::new();
    let without_comments: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    for stanza in without_comments.split(|line| line.trim().is_empty()) {
        if words(stanza, "enabled")
            .iter()
            .any(|word| matches!(*word, "no" | "false"))
            || !words(stanza, "types").contains(&"deb")
        {
            continue;
        }
        for address in words(stanza, "uris") {
            for suite in words(stanza, "suites") {
                let components = words(stanza, "components")
                    .into_iter()
                    .map(str::to_owned)
                    .collect();
                entries.push(Entry {
                    address: address.to_owned(),
                    suite: suite.to_owned(),
                    components,
                });
            }
        }
    }
    entries
}

/// Returns the words of a field of a stanza; lines that begin with a blank continue it.
fn words<'a>(stanza: &[&'a str], field: &str) -> Vec<&'a str> {
    let mut found = Vec::new();
    let mut inside = false;
    for line in stanza {
        if line.starts_with([' ', '\t']) {
            if inside {
                found.extend(line.split_whitespace());
            }
        } else if let Some((name, value)) = line.split_once(':') {
            inside = name.eq_ignore_ascii_case(field);
            if inside {
                found.extend(value.split_whitespace());
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn one_line_style() {
        let text = "# deb http://old.example/debian trixie main\n\
            deb-src http://mirror.example/debian trixie main\n\
            deb http://tools.example/apt cloud-sdk-trixie main\n\
            deb http://tools.example/linux/debian bookworm stable\n\
            deb http://browser.example/deb stable main\n\
            deb http://company.example/packages bookworm main\n\
            deb [arch=amd64 signed-by=/k.gpg] http://mirror.example/debian bookworm main contrib\n\
            deb http://mirror.example/debian-security bookworm-security main\n";
        let mirror = choose(&one_line_entries(text)).unwrap();
        assert_eq!(mirror.archive, "http://mirror.example/debian");
        assert_eq!(
            mirror.security.as_deref(),
            Some("http://mirror.example/debian-security")
        );
    }

    #[test]
    fn stanza_style() {
        let text = "Types: deb\n# http://dead.example/snapshot\nURIs: mirror+file:///etc/apt/mirrors/debian.list\nSuites: trixie\n trixie-updates\nComponents: main\n\n\
            Enabled: no\nTypes: deb\nURIs: http://off.example/debian\nSuites: trixie-security\n";
        let mirror = choose(&deb822_entries(text)).unwrap();
        assert_eq!(mirror.archive, "mirror+file:///etc/apt/mirrors/debian.list");
        assert_eq!(mirror.security, None);
    }

    #[test]
    fn another_distribution_has_no_debian_mirror() {
        let text = "Types: deb\nURIs: http://archive.example/ubuntu\nSuites: noble noble-updates noble-security\nComponents: main\n";
        assert_eq!(choose(&deb822_entries(text)), None);
    }
}
