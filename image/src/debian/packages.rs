//! The packages of a list: their files by digest, and their unpacked contents, in the cache.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::{
    Mirror,
    apt::{Apt, Record},
    source::{Missing, Source},
};
use crate::digest::Sha256;

/// A request for packages.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The suite of Debian, e.g. `trixie`.
    pub suite: &'a str,
    /// Packages to take with all that they depend on.
    pub with_dependencies: &'a [&'a str],
    /// Packages to take alone.
    pub alone: &'a [&'a str],
    /// An empty package (e.g. `linux-image-amd64`), whose first dependency is the wanted package, taken alone.
    pub through: Option<&'a str>,
    /// The name of the list of resolved versions.
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
    /// The name of the package's files in the cache: the digest alone would be enough, the rest is for people.
    fn file_stem(&self) -> String {
        let version = self.version.replace(':', "%3a");
        format!("{}_{version}_{}", self.name, &self.sha256[..16])
    }
}

/// The exact versions that answer a request.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct List {
    /// The request; a list for another request is not valid.
    requested: Vec<String>,
    /// The digest of the list that this one replaces, as the archive no longer has all of that list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    instead_of: Option<String>,
    packages: Vec<Package>,
}

/// A package, and the place of its contents.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// The package.
    pub package: Package,
    /// Its files, unpacked.
    pub root: PathBuf,
}

/// The folders of the cache.
struct Cache<'a> {
    root: &'a Path,
    files: PathBuf,
    unpacked: PathBuf,
}

impl<'a> Cache<'a> {
    fn make(root: &'a Path) -> Result<Self> {
        let cache = Self {
            root,
            files: root.join("packages"),
            unpacked: root.join("unpacked"),
        };
        for folder in [&cache.files, &cache.unpacked] {
            fs::create_dir_all(folder)
                .with_context(|| format!("cannot create {}", folder.display()))?;
        }
        Ok(cache)
    }

    fn has_all(&self, packages: &[Package]) -> bool {
        packages
            .iter()
            .all(|package| deb_is_good(&self.files, package))
    }

    fn unpack(&self, packages: Vec<Package>) -> Result<Vec<Fetched>> {
        packages
            .into_iter()
            .map(|package| unpack(&self.files, &self.unpacked, package))
            .collect()
    }
}

/// Makes sure that the packages of the request's list are in the cache, unpacked. Asks the archive only for files that are not.
///
/// # Errors
/// No list, no mirror, no network, a signature or digest that is wrong, a version that the archive no longer has, or a full disk.
pub fn fetch(source: &Source, request: &Request<'_>) -> Result<Vec<Fetched>> {
    let cache = Cache::make(&source.cache)?;
    let path = list_path(&source.lists, request);
    let list = read_list(&path)?
        .filter(|list| list.requested == request.names())
        .with_context(|| {
            format!(
                "{} does not list the packages {}: write it with `make packages`",
                path.display(),
                request.names().join(", ")
            )
        })?;
    if cache.has_all(&list.packages) {
        return cache.unpack(list.packages);
    }
    let digest = Sha256::of(&serde_json::to_vec(&list)?).to_string();
    let substitute_path = list_path(cache.root, request);
    let substitute = read_list(&substitute_path)?
        .filter(|substitute| substitute.instead_of.as_ref() == Some(&digest))
        .filter(|substitute| cache.has_all(&substitute.packages));
    let substitute = match substitute {
        Some(known) if source.missing == Missing::Substitute => known,
        _ => {
            let apt = archive(&cache, &source.mirror()?, request)?;
            let gone = download_listed(&apt, &cache, &list.packages)?;
            if gone.is_empty() {
                return cache.unpack(list.packages);
            }
            let gone = gone.join(", ");
            ensure!(
                source.missing == Missing::Substitute,
                "the archive no longer has {gone}, which {} names: renew the lists with `make packages`",
                path.display()
            );
            let packages = resolve_and_download(&apt, &cache, request)?;
            let substitute = List {
                instead_of: Some(digest),
                ..List::of(request, packages)
            };
            write_list(&substitute_path, &substitute)?;
            substitute
        }
    };
    eprintln!(
        "warning: these are not the packages of {}, some of which the archive no longer has; `make packages` renews it. Newer ones:{}",
        path.display(),
        differences(&list.packages, &substitute.packages)
    );
    cache.unpack(substitute.packages)
}

/// Writes the request's list anew, from the newest versions in the archive, and fetches them. Returns the changes, a
/// line for each package.
///
/// # Errors
/// No mirror with security updates, no network, a signature or digest that is wrong, or a folder that cannot
/// be written.
pub fn renew(source: &Source, request: &Request<'_>) -> Result<String> {
    let cache = Cache::make(&source.cache)?;
    let path = list_path(&source.lists, request);
    // A list that cannot be read is replaced as well.
    let before = read_list(&path).ok().flatten();
    let before = before.map_or_else(Vec::new, |list| list.packages);
    let apt = archive(&cache, &source.mirror_with_security()?, request)?;
    let packages = resolve_and_download(&apt, &cache, request)?;
    let changed = differences(&before, &packages);
    fs::create_dir_all(&source.lists)
        .with_context(|| format!("cannot create {}", source.lists.display()))?;
    write_list(&path, &List::of(request, packages))?;
    Ok(changed)
}

impl List {
    fn of(request: &Request<'_>, packages: Vec<Package>) -> Self {
        Self {
            requested: request.names(),
            instead_of: None,
            packages,
        }
    }
}

/// Returns a line for each package that is in one list only, or in another version.
fn differences(before: &[Package], after: &[Package]) -> String {
    let find = |list: &[Package], name: &str| {
        let found = list.iter().find(|package| package.name == name);
        found.map_or("none".to_owned(), |package| package.version.clone())
    };
    let names: BTreeSet<&str> = before
        .iter()
        .chain(after)
        .map(|package| package.name.as_str())
        .collect();
    names
        .into_iter()
        .map(|name| (name, find(before, name), find(after, name)))
        .filter(|(_, old, new)| old != new)
        .map(|(name, old, new)| format!("\n  {name} {old} -> {new}"))
        .collect()
}

fn list_path(folder: &Path, request: &Request<'_>) -> PathBuf {
    folder.join(format!("{}-{}.json", request.suite, request.name))
}

fn read_list(path: &Path) -> Result<Option<List>> {
    match fs::read(path) {
        Ok(text) => {
            let list: List = serde_json::from_slice(&text)
                .with_context(|| format!("cannot read {}", path.display()))?;
            for package in &list.packages {
                check_digest_text(package)?;
            }
            Ok(Some(list))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

fn write_list(path: &Path, list: &List) -> Result<()> {
    let part = path.with_extension("part");
    let mut text = serde_json::to_vec_pretty(list)?;
    text.push(b'\n');
    fs::write(&part, text).with_context(|| format!("cannot write {}", part.display()))?;
    fs::rename(&part, path).with_context(|| format!("cannot write {}", path.display()))
}

/// Returns apt with the newest lists of the archive.
fn archive(cache: &Cache<'_>, mirror: &Mirror, request: &Request<'_>) -> Result<Apt> {
    let apt = Apt::new(&cache.root.join("apt"), mirror, request.suite)?;
    apt.update()?;
    Ok(apt)
}

/// Downloads the missing files of a list. If the archive lacks some of them, downloads nothing and returns those.
fn download_listed(apt: &Apt, cache: &Cache<'_>, packages: &[Package]) -> Result<Vec<String>> {
    let missing: Vec<&Package> = packages
        .iter()
        .filter(|package| !deb_is_good(&cache.files, package))
        .collect();
    let (mut records, mut gone) = (Vec::new(), Vec::new());
    for package in missing {
        match apt.record(&package.name, &package.version)? {
            Some(record) if record.sha256 == package.sha256 => records.push(record),
            Some(record) => bail!(
                "the archive has {} {} with the digest {}, the list with {}: one of them is not Debian's",
                package.name,
                package.version,
                record.sha256,
                package.sha256
            ),
            None => gone.push(format!("{} {}", package.name, package.version)),
        }
    }
    if gone.is_empty() {
        download(apt, cache, &records)?;
    }
    Ok(gone)
}

/// Downloads the newest versions that answer the request.
fn resolve_and_download(
    apt: &Apt,
    cache: &Cache<'_>,
    request: &Request<'_>,
) -> Result<Vec<Package>> {
    eprintln!("resolving packages of Debian {} through apt", request.suite);
    let mut names = match request.with_dependencies {
        [] => Vec::new(),
        some => apt.closure(some)?,
    };
    names.extend(request.alone.iter().map(|name| (*name).to_owned()));
    if let Some(through) = request.through {
        names.push(first_dependency(apt, through)?);
    }
    names.sort();
    names.dedup();
    let records = apt.records(&names.iter().map(String::as_str).collect::<Vec<_>>())?;
    let mut packages: Vec<Package> = records.iter().map(package).collect();
    packages.sort_by(|one, other| one.name.cmp(&other.name));
    for package in &packages {
        check_digest_text(package)?;
    }
    download(apt, cache, &records)?;
    Ok(packages)
}

/// Downloads the files of these records that are not in the cache.
fn download(apt: &Apt, cache: &Cache<'_>, records: &[Record]) -> Result<()> {
    let missing: Vec<&Record> = records
        .iter()
        .filter(|record| !deb_is_good(&cache.files, &package(record)))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    eprintln!("downloading {} packages", missing.len());
    let arrivals =
        tempfile::tempdir_in(cache.root).context("cannot create a folder for downloads")?;
    apt.download(&missing, arrivals.path())?;
    take_in(arrivals.path(), &cache.files, records)?;
    for record in missing {
        ensure!(
            deb_is_good(&cache.files, &package(record)),
            "apt did not deliver {} {} with the digest of the index",
            record.name,
            record.version
        );
    }
    Ok(())
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

/// Moves apt's downloads into the cache. apt chooses the files' names, so they are identified by their digest.
fn take_in(arrivals: &Path, files: &Path, records: &[Record]) -> Result<()> {
    for entry in fs::read_dir(arrivals).context("cannot list the downloads")? {
        let path = entry.context("cannot list the downloads")?.path();
        let digest = Sha256::of(
            &fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?,
        )
        .to_string();
        let Some(record) = records.iter().find(|record| record.sha256 == digest) else {
            bail!(
                "apt delivered {} with a digest that the index does not have",
                path.display()
            );
        };
        fs::rename(&path, deb(files, &package(record)))
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

/// Checks that the digest is one, as it becomes part of file names.
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

    /// A list of one package, and a cache with a file for it.
    struct Place {
        folder: tempfile::TempDir,
    }

    impl Place {
        fn new(package: &Package, deb_content: &[u8]) -> Self {
            let place = Self {
                folder: tempfile::tempdir().unwrap(),
            };
            let files = place.cache().join("packages");
            fs::create_dir_all(&files).unwrap();
            fs::write(deb(&files, package), deb_content).unwrap();
            place.list(package);
            place
        }

        fn cache(&self) -> PathBuf {
            self.folder.path().join("cache")
        }

        fn list(&self, package: &Package) {
            let list = List::of(&REQUEST, vec![package.clone()]);
            write_list(&list_path(self.folder.path(), &REQUEST), &list).unwrap();
        }

        fn unpacked(&self, package: &Package) -> PathBuf {
            self.cache().join("unpacked").join(package.file_stem())
        }

        /// Fetches from an archive that does not exist.
        fn fetch(&self, request: &Request<'_>, missing: Missing) -> Result<Vec<Fetched>> {
            let nowhere = self.folder.path().join("no-archive");
            let source = Source {
                lists: self.folder.path().to_owned(),
                cache: self.cache(),
                mirror: Some(Mirror {
                    archive: format!("file://{}", nowhere.display()),
                    security: None,
                }),
                missing,
            };
            fetch(&source, request)
        }
    }

    fn asks_the_archive(error: &anyhow::Error) -> bool {
        format!("{error:#}").contains("apt-get update failed")
    }

    #[test]
    fn a_complete_cache_needs_no_network() {
        let package = some_package(b"deb");
        let place = Place::new(&package, b"deb");
        fs::create_dir_all(place.unpacked(&package)).unwrap();
        let fetched = place.fetch(&REQUEST, Missing::Refuse).unwrap();
        assert_eq!(fetched.len(), 1);
        assert_eq!(fetched[0].package, package);
    }

    #[test]
    fn a_damaged_file_is_fetched_again() {
        let place = Place::new(&some_package(b"deb"), b"damaged");
        let error = place.fetch(&REQUEST, Missing::Refuse).unwrap_err();
        assert!(asks_the_archive(&error), "{error:#}");
    }

    #[test]
    fn a_request_without_a_list_says_how_to_write_one() {
        let place = Place::new(&some_package(b"deb"), b"deb");
        let request = Request {
            alone: &["ca-certificates"],
            ..REQUEST
        };
        let error = place.fetch(&request, Missing::Substitute).unwrap_err();
        assert!(error.to_string().contains("make packages"), "{error:#}");
    }

    #[test]
    fn a_substitute_stands_in_for_its_own_list_alone_and_never_where_exact_versions_are_wanted() {
        let (listed, newer) = (some_package(b"old"), some_package(b"new"));
        let place = Place::new(&newer, b"new");
        place.list(&listed);
        fs::create_dir_all(place.unpacked(&newer)).unwrap();
        let substitute = |list: &Package| List {
            instead_of: Some(
                Sha256::of(&serde_json::to_vec(&List::of(&REQUEST, vec![list.clone()])).unwrap())
                    .to_string(),
            ),
            ..List::of(&REQUEST, vec![newer.clone()])
        };
        let path = list_path(&place.cache(), &REQUEST);
        write_list(&path, &substitute(&listed)).unwrap();
        let fetched = place.fetch(&REQUEST, Missing::Substitute).unwrap();
        assert_eq!(fetched[0].package, newer);
        let error = place.fetch(&REQUEST, Missing::Refuse).unwrap_err();
        assert!(asks_the_archive(&error), "{error:#}");
        write_list(&path, &substitute(&newer)).unwrap();
        let error = place.fetch(&REQUEST, Missing::Substitute).unwrap_err();
        assert!(asks_the_archive(&error), "{error:#}");
    }

    #[test]
    fn lists_are_not_written_from_an_archive_without_security_updates() {
        let place = Place::new(&some_package(b"deb"), b"deb");
        let source = Source {
            lists: place.folder.path().to_owned(),
            cache: place.cache(),
            mirror: Some(Mirror {
                archive: "file:///nowhere".into(),
                security: None,
            }),
            missing: Missing::Refuse,
        };
        let error = renew(&source, &REQUEST).unwrap_err();
        assert!(error.to_string().contains("security"), "{error:#}");
    }

    #[test]
    fn what_changed_is_told_package_by_package() {
        let (old, mut new) = (some_package(b"1"), some_package(b"2"));
        new.version = "3".into();
        assert_eq!(
            differences(std::slice::from_ref(&old), &[new]),
            "\n  hello 1:2.0-1 -> 3"
        );
        assert_eq!(
            differences(&[], std::slice::from_ref(&old)),
            "\n  hello none -> 1:2.0-1"
        );
        assert_eq!(
            differences(std::slice::from_ref(&old), std::slice::from_ref(&old)),
            ""
        );
    }

    #[test]
    fn a_digest_cannot_name_a_path() {
        let mut package = some_package(b"deb");
        let place = Place::new(&package, b"deb");
        package.sha256 = format!("../../{}", &package.sha256[6..]);
        place.list(&package);
        let error = place.fetch(&REQUEST, Missing::Refuse).unwrap_err();
        assert!(error.to_string().contains("malformed"), "{error}");
    }

    #[test]
    fn something_that_is_no_package_is_not_unpacked() {
        let package = some_package(b"deb");
        let place = Place::new(&package, b"deb");
        let error = place.fetch(&REQUEST, Missing::Refuse).unwrap_err();
        assert!(
            error.to_string().contains("dpkg-deb cannot unpack hello"),
            "{error}"
        );
        assert!(!place.unpacked(&package).exists());
    }
}
