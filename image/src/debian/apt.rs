//! apt with a state, a cache and sources of its own, and an empty list of installed packages.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};

use super::Mirror;

/// The path of the keys of Debian's archive, on Debian and Ubuntu.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// An apt that knows one suite of Debian and nothing of this machine's packages.
#[derive(Debug)]
pub(super) struct Apt {
    folder: PathBuf,
}

/// A package's record in the signed index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) architecture: String,
    /// The source package, without its version.
    pub(super) source: String,
    pub(super) depends: String,
    pub(super) sha256: String,
}

impl Apt {
    /// Sets the folder up for a suite of the mirror.
    pub(super) fn new(folder: &Path, mirror: &Mirror, suite: &str) -> Result<Self> {
        ensure!(
            Path::new(KEYRING).exists(),
            "the keys of Debian's archive are missing at {KEYRING}: apt-get install debian-archive-keyring"
        );
        let folder = std::path::absolute(folder).context("cannot tell the working directory")?;
        for part in ["state/lists/partial", "cache/archives/partial"] {
            let part = folder.join(part);
            fs::create_dir_all(&part)
                .with_context(|| format!("cannot create {}", part.display()))?;
        }
        // `target` keeps apt from fetching anything but the package lists.
        let options = format!("[arch=amd64 lang=none target=Packages signed-by={KEYRING}]");
        let mut sources = format!("deb {options} {} {suite} main\n", mirror.archive);
        if let Some(security) = &mirror.security {
            sources += &format!("deb {options} {security} {suite}-security main\n");
        }
        fs::write(folder.join("sources.list"), sources).context("cannot write apt's sources")?;
        fs::write(folder.join("status"), "")
            .context("cannot write apt's list of installed packages")?;
        fs::write(folder.join("apt.conf"), configuration(&folder))
            .context("cannot write apt's configuration")?;
        Ok(Self { folder })
    }

    /// Fetches and verifies the package lists.
    pub(super) fn update(&self) -> Result<()> {
        self.run("apt-get", &["-q", "update"], None).map(drop)
    }

    /// Returns the names of these packages and of all that they depend on.
    pub(super) fn closure(&self, names: &[&str]) -> Result<Vec<String>> {
        let mut arguments = vec![
            "-q",
            "-y",
            "--no-install-recommends",
            "--print-uris",
            "install",
        ];
        arguments.extend(names);
        let output = self.run("apt-get", &arguments, None)?;
        let files = output
            .lines()
            .filter(|line| line.starts_with('\''))
            .filter_map(|line| line.split(' ').nth(1));
        let names: Vec<String> = files
            .filter_map(|file| Some(file.split_once('_')?.0.to_owned()))
            .collect();
        ensure!(
            !names.is_empty(),
            "apt resolved no packages; it said: {}",
            output.trim()
        );
        Ok(names)
    }

    /// Returns the index's records of the candidate version of each of these packages.
    pub(super) fn records(&self, names: &[&str]) -> Result<Vec<Record>> {
        let mut arguments = vec!["show", "--no-all-versions"];
        arguments.extend(names);
        let output = self.run("apt-cache", &arguments, None)?;
        let records: Vec<_> = output
            .split("\n\n")
            .filter(|text| !text.trim().is_empty())
            .map(record)
            .collect::<Result<_>>()?;
        for name in names {
            ensure!(
                records.iter().any(|record| record.name == *name),
                "the archive has no package {name}"
            );
        }
        Ok(records)
    }

    /// Returns the index's record of one version of a package; none if the archive does not have it.
    pub(super) fn record(&self, name: &str, version: &str) -> Result<Option<Record>> {
        // One line for each version, NAME | VERSION | ARCHIVE; none for a name that the archive does not know.
        let versions = self.run("apt-cache", &["madison", name], None)?;
        let has = versions
            .lines()
            .any(|line| line.split('|').nth(1).map(str::trim) == Some(version));
        if !has {
            return Ok(None);
        }
        let wanted = format!("{name}={version}");
        let output = self.run("apt-cache", &["show", &wanted], None)?;
        let text = output.split("\n\n").next().unwrap_or_default();
        record(text).map(Some)
    }

    /// Downloads these packages into `folder`, under apt's names for the files.
    pub(super) fn download(&self, records: &[&Record], folder: &Path) -> Result<()> {
        let versions: Vec<String> = records
            .iter()
            .map(|record| format!("{}={}", record.name, record.version))
            .collect();
        let mut arguments = vec!["-q", "download"];
        arguments.extend(versions.iter().map(String::as_str));
        self.run("apt-get", &arguments, Some(folder)).map(drop)
    }

    fn run(&self, program: &str, arguments: &[&str], folder: Option<&Path>) -> Result<String> {
        let mut command = Command::new(program);
        command.arg("-c").arg(self.folder.join("apt.conf"));
        command.args(arguments).env("LC_ALL", "C.UTF-8");
        if let Some(folder) = folder {
            command.current_dir(folder);
        }
        let output = command
            .output()
            .with_context(|| format!("cannot start {program}"))?;
        if !output.status.success() {
            let words = arguments
                .first()
                .filter(|word| !word.starts_with('-'))
                .or(arguments.last());
            bail!(
                "{program} {} failed ({}): {}",
                words.copied().unwrap_or_default(),
                output.status,
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// Returns apt's configuration. It is read after the machine's own, whose proxies and credentials stay in force.
fn configuration(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        r#"Dir::Etc::SourceList "{folder}/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
Dir::State "{folder}/state";
Dir::State::status "{folder}/status";
Dir::Cache "{folder}/cache";
// Container images switch these off, and then every call reads all lists anew.
Dir::Cache::pkgcache "pkgcache.bin";
Dir::Cache::srcpkgcache "srcpkgcache.bin";
#clear APT::Architectures;
APT::Architecture "amd64";
APT::Architectures {{ "amd64"; }};
// Root's apt would change to a user that cannot write here.
APT::Sandbox::User "root";
// Hooks work on the machine's own packages.
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Post-Invoke;
// Else apt takes an old list for good when a mirror fails.
APT::Update::Error-Mode "any";
Acquire::Retries "3";
// Whatever this machine allows its own apt: here nothing is taken that the archive's keys have not signed, or signed long ago.
Acquire::AllowInsecureRepositories "false";
Acquire::AllowWeakRepositories "false";
Acquire::AllowDowngradeToInsecureRepositories "false";
APT::Get::AllowUnauthenticated "false";
Acquire::Check-Valid-Until "true";
Acquire::Check-Date "true";
"#
    )
}

fn record(stanza: &str) -> Result<Record> {
    let field = |name: &str| {
        let value = stanza
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.map(|value| value.trim().to_owned())
    };
    let required = |name: &str| {
        field(name).with_context(|| format!("a record of the package index has no {name}"))
    };
    let name = required("Package")?;
    let source = field("Source").and_then(|source| source.split(' ').next().map(str::to_owned));
    Ok(Record {
        version: required("Version")?,
        architecture: required("Architecture")?,
        source: source.unwrap_or_else(|| name.clone()),
        depends: field("Depends").unwrap_or_default(),
        sha256: required("SHA256")?,
        name,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn reads_a_record_of_the_index() {
        let text = "Package: linux-image-cloud-amd64\nSource: linux-signed-amd64 (6.12.107+1)\nVersion: 6.12.107-1\n\
            Architecture: amd64\nDepends: linux-image-6.12.107 (= 6.12.107-1)\nDescription: Linux\n Version: trap\nSHA256: 7984";
        let record = record(text).unwrap();
        assert_eq!(record.source, "linux-signed-amd64");
        assert_eq!(record.version, "6.12.107-1");
        assert_eq!(record.depends, "linux-image-6.12.107 (= 6.12.107-1)");
    }

    #[test]
    fn an_unsigned_archive_is_refused_even_where_the_machine_takes_them() {
        let folder = tempfile::tempdir().unwrap();
        let suite = folder.path().join("archive/dists/trixie");
        fs::create_dir_all(suite.join("main/binary-amd64")).unwrap();
        fs::write(suite.join("main/binary-amd64/Packages"), "").unwrap();
        let empty = crate::digest::Sha256::of(b"");
        fs::write(
            suite.join("Release"),
            format!(
                "Suite: trixie\nCodename: trixie\nArchitectures: amd64\nComponents: main\n\
                 Date: Sat, 01 Aug 2026 00:00:00 UTC\nSHA256:\n {empty} 0 main/binary-amd64/Packages\n"
            ),
        )
        .unwrap();
        let mirror = Mirror {
            archive: format!("file://{}", folder.path().join("archive").display()),
            security: None,
        };
        let apt = Apt::new(&folder.path().join("apt"), &mirror, "trixie").unwrap();
        let allow = "Acquire::AllowInsecureRepositories \"true\";\nAcquire::AllowWeakRepositories \"true\";\n\
            APT::Get::AllowUnauthenticated \"true\";\n";
        let conf = apt.folder.join("apt.conf");
        let ours = fs::read_to_string(&conf).unwrap();
        // In the order in which apt reads them: first the machine's configuration, then ours.
        fs::write(&conf, format!("{allow}{ours}")).unwrap();
        let error = apt.update().unwrap_err();
        assert!(error.to_string().contains("is not signed"), "{error:#}");
        // Without our configuration apt would accept it.
        let taken: String = ours
            .lines()
            .filter(|line| !line.contains("Allow"))
            .map(|line| format!("{line}\n"))
            .collect();
        fs::write(&conf, format!("{allow}{taken}")).unwrap();
        apt.update().unwrap();
    }

    #[test]
    fn a_record_without_a_digest_is_refused() {
        let error = record("Package: a\nVersion: 1\nArchitecture: all").unwrap_err();
        assert!(error.to_string().contains("SHA256"));
    }
}
