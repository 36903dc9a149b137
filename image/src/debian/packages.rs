//! The cache: which versions were resolved, their files by digest, and their contents unpacked.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::{
    Mirror,
    apt::{Apt, Record},
};
use crate::digest::Sha256;

/// What to fetch.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The suite of Debian, such as `trixie`.
    pub suite: &'a str,
    /// Packages to take with all that they depend on.
    pub with_dependencies: &'a [&'a str],
    /// Packages to take alone.
    pub alone: &'a [&'a str],
    /// An empty package whose first dependency is the one that is meant, taken alone (`linux-image-amd64`).
    pub through: Option<&'a str>,
    /// Names the list of what was resolved.
    pub name: &'a str,
}

/// One resolved package.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Package {
    /// Binary package.
    pub name: String,
    /// Version, with epoch.
    pub version: String,
    /// `amd64` or `all`.
    pub architecture: String,
    /// Source package.
    pub source: String,
    /// SHA-256 of the .deb, from the signed index.
    pub sha256: String,
}

impl Request<'_> {
    fn names(&self) -> Vec<String> {
        self.with_dependencies
            .iter()
            .chain(self.alone)
            .chain(&self.through)
            .map(|name| (*name).to_owned())
            .collect()
    }
}

impl Package {
    /// The name of its files in the cache: a digest alone would be enough, the rest is for people.
    fn file_stem(&self) -> String {
        let version = self.version.replace(':', "%3a");
        format!("{}_{version}_{}", self.name, &self.sha256[..16])
    }
}

/// What an earlier build resolved.
#[derive(Debug, Serialize, Deserialize)]
struct Lock {
    /// What it was asked for; another question needs another answer.
    requested: Vec<String>,
    packages: Vec<Package>,
}

/// A package and where its contents lie.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// Which it is.
    pub package: Package,
    /// Its files, unpacked.
    pub root: PathBuf,
}

/// Makes sure that the requested packages are in the cache, unpacked. Asks the archive only when nothing was resolved yet, when a
/// file is missing, or when `refresh` wants the newest versions; `mirror` is called only then.
///
/// # Errors
/// No mirror, no network, a signature or digest that is wrong, or a full disk.
pub fn fetch(
    cache: &Path,
    request: &Request<'_>,
    refresh: bool,
    mirror: impl FnOnce() -> Result<Mirror>,
) -> Result<Vec<Fetched>> {
    let files = cache.join("packages");
    let unpacked = cache.join("unpacked");
    for folder in [&files, &unpacked] {
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let lock = cache.join(format!("{}-{}.json", request.suite, request.name));
    let known = if refresh {
        None
    } else {
        read_lock(&lock, request)?
    };
    let complete =
        |packages: &Vec<Package>| packages.iter().all(|package| deb_is_good(&files, package));
    let packages = match known.filter(complete) {
        Some(packages) => packages,
        None => resolve_and_download(cache, &files, request, &mirror()?, &lock)?,
    };
    packages
        .into_iter()
        .map(|package| unpack(&files, &unpacked, package))
        .collect()
}

fn read_lock(lock: &Path, request: &Request<'_>) -> Result<Option<Vec<Package>>> {
    match fs::read(lock) {
        Ok(text) => {
            let known: Lock = serde_json::from_slice(&text).with_context(|| {
                format!(
                    "cannot read {}: remove it to resolve the packages anew",
                    lock.display()
                )
            })?;
            for package in &known.packages {
                check_digest_text(package)?;
            }
            Ok(Some(known.packages).filter(|_| known.requested == request.names()))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", lock.display())),
    }
}

fn resolve_and_download(
    cache: &Path,
    files: &Path,
    request: &Request<'_>,
    mirror: &Mirror,
    lock: &Path,
) -> Result<Vec<Package>> {
    eprintln!("resolving packages of Debian {} through apt", request.suite);
    let apt = Apt::new(&cache.join("apt"), mirror, request.suite)?;
    apt.update()?;
    let mut names = match request.with_dependencies {
        [] => Vec::new(),
        some => apt.closure(some)?,
    };
    names.extend(request.alone.iter().map(|name| (*name).to_owned()));
    if let Some(through) = request.through {
        names.push(first_dependency(&apt, through)?);
    }
    names.sort();
    names.dedup();
    let records = apt.records(&names.iter().map(String::as_str).collect::<Vec<_>>())?;
    let mut resolved: Vec<(Package, Record)> = records
        .into_iter()
        .map(|record| (package(&record), record))
        .collect();
    resolved.sort_by(|(one, _), (other, _)| one.name.cmp(&other.name));
    for (package, _) in &resolved {
        check_digest_text(package)?;
    }

    let missing: Vec<&Record> = resolved
        .iter()
        .filter(|(package, _)| !deb_is_good(files, package))
        .map(|(_, record)| record)
        .collect();
    if !missing.is_empty() {
        eprintln!("downloading {} packages", missing.len());
        let arrivals =
            tempfile::tempdir_in(cache).context("cannot create a folder for downloads")?;
        apt.download(&missing, arrivals.path())?;
        take_in(arrivals.path(), files, &resolved)?;
    }
    for (package, _) in &resolved {
        ensure!(
            deb_is_good(files, package),
            "apt did not deliver {} {} with the digest of the index",
            package.name,
            package.version
        );
    }
    let known = Lock {
        requested: request.names(),
        packages: resolved.into_iter().map(|(package, _)| package).collect(),
    };
    let part = lock.with_extension("part");
    fs::write(&part, serde_json::to_vec_pretty(&known)?)
        .with_context(|| format!("cannot write {}", part.display()))?;
    fs::rename(&part, lock).with_context(|| format!("cannot write {}", lock.display()))?;
    Ok(known.packages)
}

fn first_dependency(apt: &Apt, package: &str) -> Result<String> {
    let meta = apt.records(&[package])?;
    let depends = meta
        .first()
        .map(|record| record.depends.as_str())
        .unwrap_or_default();
    let first = depends
        .split([' ', ','])
        .next()
        .filter(|name| !name.is_empty());
    let first = first.with_context(|| format!("the package {package} depends on nothing"))?;
    Ok(first.to_owned())
}

/// Files that apt has downloaded are named by apt; here they are told by their digest.
fn take_in(arrivals: &Path, files: &Path, resolved: &[(Package, Record)]) -> Result<()> {
    for entry in fs::read_dir(arrivals).context("cannot list the downloads")? {
        let path = entry.context("cannot list the downloads")?.path();
        let digest = Sha256::of(
            &fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?,
        )
        .to_string();
        let Some((package, _)) = resolved
            .iter()
            .find(|(package, _)| package.sha256 == digest)
        else {
            bail!(
                "apt delivered {} with a digest that the index does not have",
                path.display()
            );
        };
        fs::rename(&path, deb(files, package))
            .with_context(|| format!("cannot keep {}", path.display()))?;
    }
    Ok(())
}

fn package(record: &Record) -> Package {
    Package {
        name: record.name.clone(),
        version: record.version.clone(),
        architecture: record.architecture.clone(),
        source: record.source.clone(),
        sha256: record.sha256.clone(),
    }
}

/// The digest names files, so it must be one.
fn check_digest_text(package: &Package) -> Result<()> {
    let good = package.sha256.len() == 64
        && package
            .sha256
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let plain_name = !package.name.contains('/') && !package.version.contains('/');
    ensure!(
        good && plain_name,
        "the record of package {:?} is malformed",
        package.name
    );
    Ok(())
}

fn deb(files: &Path, package: &Package) -> PathBuf {
    files.join(format!("{}.deb", package.file_stem()))
}

fn deb_is_good(files: &Path, package: &Package) -> bool {
    fs::read(deb(files, package))
        .is_ok_and(|bytes| Sha256::of(&bytes).to_string() == package.sha256)
}

fn unpack(files: &Path, unpacked: &Path, package: Package) -> Result<Fetched> {
    let root = unpacked.join(package.file_stem());
    if !root.exists() {
        let part =
            tempfile::tempdir_in(unpacked).context("cannot create a folder to unpack into")?;
        let inside = part.path().join("root");
        let output = Command::new("dpkg-deb")
            .arg("-x")
            .arg(deb(files, &package))
            .arg(&inside)
            .output()
            .context("cannot start dpkg-deb (Debian: dpkg)")?;
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "dpkg-deb cannot unpack {}: {}",
            package.name,
            complaint.trim()
        );
        // Only a complete tree gets the name by which the next build finds it.
        fs::rename(&inside, &root)
            .with_context(|| format!("cannot keep the unpacked {}", package.name))?;
    }
    Ok(Fetched { package, root })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const REQUEST: Request<'_> = Request {
        suite: "trixie",
        with_dependencies: &["crun"],
        alone: &[],
        through: Some("linux-image"),
        name: "linux-image",
    };

    fn some_package(content: &[u8]) -> Package {
        Package {
            name: "hello".into(),
            version: "1:2.0-1".into(),
            architecture: "amd64".into(),
            source: "hello".into(),
            sha256: Sha256::of(content).to_string(),
        }
    }

    fn cache_with(package: &Package, deb_content: &[u8]) -> tempfile::TempDir {
        let cache = tempfile::tempdir().unwrap();
        let files = cache.path().join("packages");
        fs::create_dir_all(&files).unwrap();
        fs::write(deb(&files, package), deb_content).unwrap();
        write_lock(cache.path(), package);
        cache
    }

    fn write_lock(cache: &Path, package: &Package) {
        let lock = Lock {
            requested: REQUEST.names(),
            packages: vec![package.clone()],
        };
        fs::write(
            cache.join("trixie-linux-image.json"),
            serde_json::to_vec(&lock).unwrap(),
        )
        .unwrap();
    }

    fn no_network() -> Result<Mirror> {
        bail!("asked for the network")
    }

    #[test]
    fn a_complete_cache_needs_no_network() {
        let package = some_package(b"deb");
        let cache = cache_with(&package, b"deb");
        fs::create_dir_all(cache.path().join("unpacked").join(package.file_stem())).unwrap();
        let fetched = fetch(cache.path(), &REQUEST, false, no_network).unwrap();
        assert_eq!(fetched.len(), 1);
        assert_eq!(fetched[0].package, package);
    }

    #[test]
    fn a_damaged_file_is_fetched_again() {
        let cache = cache_with(&some_package(b"deb"), b"damaged");
        let error = fetch(cache.path(), &REQUEST, false, no_network).unwrap_err();
        assert_eq!(error.to_string(), "asked for the network");
    }

    #[test]
    fn another_request_is_resolved_anew() {
        let cache = cache_with(&some_package(b"deb"), b"deb");
        let request = Request {
            alone: &["ca-certificates"],
            ..REQUEST
        };
        fetch(cache.path(), &request, false, no_network).unwrap_err();
    }

    #[test]
    fn refresh_asks_the_archive() {
        let cache = cache_with(&some_package(b"deb"), b"deb");
        fetch(cache.path(), &REQUEST, true, no_network).unwrap_err();
    }

    #[test]
    fn a_digest_cannot_name_a_path() {
        let mut package = some_package(b"deb");
        package.sha256 = format!("../../{}", &package.sha256[6..]);
        let cache = tempfile::tempdir().unwrap();
        write_lock(cache.path(), &package);
        let error = fetch(cache.path(), &REQUEST, false, no_network).unwrap_err();
        assert!(error.to_string().contains("malformed"), "{error}");
    }

    #[test]
    fn something_that_is_no_package_is_not_unpacked() {
        let package = some_package(b"deb");
        let cache = cache_with(&package, b"deb");
        let error = fetch(cache.path(), &REQUEST, false, no_network).unwrap_err();
        assert!(
            error.to_string().contains("dpkg-deb cannot unpack hello"),
            "{error}"
        );
        assert!(
            !cache
                .path()
                .join("unpacked")
                .join(package.file_stem())
                .exists()
        );
    }
}
