//! Extensions as files: made from a folder, listed in SHA256SUMS, and checked as a machine would check them. A folder with `etc` is a confext,
//! which only the machine itself takes; one with `usr` is for Kubernetes or for the machine itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use instar_extension::{
    Architecture, Extension, ExtensionName, ExtensionVersion, FileName, Host, OsExtension, Sums,
    is_confext,
};
use instar_values::Digest;

/// The list of the files that a folder publishes.
const SUMS: &str = "SHA256SUMS";
/// Stands for the node's name, which units may ask for.
const NODE: &str = "node";

/// The system that takes an extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Kubernetes, which runs its services.
    Kubernetes,
    /// The machine itself, which takes its files.
    Os,
}

/// An extension that was checked.
#[derive(Debug)]
pub enum Checked {
    /// One of Kubernetes.
    Kubernetes(Extension),
    /// One of the machine itself.
    Os(OsExtension),
}

/// An extension to make.
#[derive(Debug)]
pub struct Options {
    /// The system that it is for.
    pub target: Target,
    /// The folder with `usr` or `etc`.
    pub folder: PathBuf,
    /// Its name.
    pub name: ExtensionName,
    /// Its version.
    pub version: ExtensionVersion,
    /// The architecture of its programs.
    pub architecture: Architecture,
    /// The version of Instar that it is for, if its release file names one.
    pub os_version: Option<String>,
    /// The folder to write.
    pub out: PathBuf,
}

/// Makes the file of an extension in the folder `out`, and lists it there; returns its path.
///
/// # Errors
/// A machine would refuse it; mksquashfs is missing or fails; a file cannot be written.
pub fn build(options: &Options) -> Result<PathBuf> {
    let host = host(options.architecture, options.os_version.as_deref());
    read(options.target, &options.folder, &options.name, host)
        .with_context(|| format!("{} is no extension", options.folder.display()))?;
    let file = FileName {
        name: options.name.clone(),
        build: Some((options.version.clone(), options.architecture)),
    };
    let path = options.out.join(file.to_string());
    fs::create_dir_all(&options.out)
        .with_context(|| format!("cannot make {}", options.out.display()))?;
    pack(&options.folder, &path)?;
    list(&options.out, &file.to_string(), &path)?;
    Ok(path)
}

/// Checks the file of an extension; a folder counts as one that was unpacked.
///
/// # Errors
/// A machine would refuse it; unsquashfs is missing or fails.
pub fn check(target: Target, path: &Path, os_version: Option<&str>) -> Result<Checked> {
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.with_context(|| format!("{} has no name", path.display()))?;
    if path.is_dir() {
        let name = name.parse()?;
        let host = host(Architecture::OWN, os_version);
        return read(target, path, &name, host);
    }
    let file: FileName = name.parse()?;
    let architecture = file
        .build
        .as_ref()
        .map_or(Architecture::OWN, |(_, architecture)| *architecture);
    let scratch = tempfile::tempdir().context("cannot make a folder to unpack into")?;
    let tree = scratch.path().join("tree");
    let mut unsquashfs = Command::new("unsquashfs");
    unsquashfs.args(["-no-xattrs", "-quiet", "-no-progress", "-d"]);
    run(unsquashfs.arg(&tree).arg(path))?;
    read(target, &tree, &file.name, host(architecture, os_version))
}

/// Reads a tree as the system would that takes it. The machine's own files are not here: only a machine finds that one would be replaced.
fn read(target: Target, tree: &Path, name: &ExtensionName, host: Host<'_>) -> Result<Checked> {
    match target {
        Target::Kubernetes if !is_confext(tree) => Ok(Checked::Kubernetes(Extension::read(
            tree, name, host, NODE,
        )?)),
        Target::Kubernetes | Target::Os => {
            Ok(Checked::Os(OsExtension::read(tree, name, host, None)?))
        }
    }
}

/// The system that an extension is checked for.
fn host(architecture: Architecture, os_version: Option<&str>) -> Host<'_> {
    Host::instar(
        os_version.unwrap_or("any, as no version was given"),
        architecture,
    )
}

fn pack(folder: &Path, path: &Path) -> Result<()> {
    let part = path.with_extension("part");
    let mut mksquashfs = Command::new("mksquashfs");
    mksquashfs.arg(folder).arg(&part);
    // Reproducible: no times or owners of this machine.
    mksquashfs.args([
        "-noappend",
        "-comp",
        "zstd",
        "-all-root",
        "-no-xattrs",
        "-no-exports",
    ]);
    mksquashfs.args([
        "-mkfs-time",
        "0",
        "-all-time",
        "0",
        "-quiet",
        "-no-progress",
    ]);
    // mksquashfs refuses to run with this variable beside the options above.
    run(mksquashfs.env_remove("SOURCE_DATE_EPOCH"))?;
    fs::rename(&part, path).with_context(|| format!("cannot name the finished {}", path.display()))
}

/// Adds a file to the list, or replaces its line.
fn list(folder: &Path, name: &str, path: &Path) -> Result<()> {
    let sums = folder.join(SUMS);
    let known = match fs::read_to_string(&sums) {
        Ok(known) => known,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", sums.display())),
    };
    Sums::parse(&known).with_context(|| format!("{} is left as it is", sums.display()))?;
    let content = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let line = format!("{}  {name}", Digest::of(&content).hex());
    let is_other = |known: &&str| known.get(66..) != Some(name);
    let mut lines: Vec<&str> = known.lines().filter(is_other).collect();
    lines.push(&line);
    lines.sort_by_key(|line| line.get(66..));
    let text = lines.join("\n") + "\n";
    fs::write(&sums, text).with_context(|| format!("cannot write {}", sums.display()))
}

fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .with_context(|| format!("cannot start {program} (Debian: squashfs-tools)"))?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        bail!("{program} failed ({}): {}", output.status, complaint.trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn folder(release: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let releases = folder.path().join("usr/lib/extension-release.d");
        fs::create_dir_all(&releases).unwrap();
        fs::write(releases.join("extension-release.tool"), release).unwrap();
        fs::create_dir_all(folder.path().join("usr/bin")).unwrap();
        fs::write(folder.path().join("usr/bin/tool"), "a program").unwrap();
        folder
    }

    fn options(folder: &Path, version: &str, out: &Path) -> Options {
        Options {
            target: Target::Kubernetes,
            folder: folder.to_owned(),
            name: "tool".parse().unwrap(),
            version: ExtensionVersion::new(version).unwrap(),
            architecture: Architecture::X86_64,
            os_version: None,
            out: out.to_owned(),
        }
    }

    #[test]
    fn an_extension_is_made_listed_and_checked() {
        let folder = folder("ID=_any\nARCHITECTURE=x86-64\n");
        let out = tempfile::tempdir().unwrap();
        let first = build(&options(folder.path(), "1.2", out.path())).unwrap();
        let bytes = fs::read(&first).unwrap();
        assert_eq!(first, out.path().join("tool-v1.2-x86-64.raw"));
        let checked = check(Target::Kubernetes, &first, None).unwrap();
        assert!(matches!(checked, Checked::Kubernetes(it) if it.name.as_str() == "tool"));
        let checked = check(Target::Os, &first, None).unwrap();
        assert!(matches!(checked, Checked::Os(OsExtension::Usr)));
        build(&options(folder.path(), "1.10", out.path())).unwrap();
        build(&options(folder.path(), "1.2", out.path())).unwrap();
        assert_eq!(
            fs::read(&first).unwrap(),
            bytes,
            "the same files, the same bytes"
        );
        let sums = Sums::parse(&fs::read_to_string(out.path().join(SUMS)).unwrap()).unwrap();
        assert_eq!(
            sums.digest_of("tool-v1.2-x86-64.raw"),
            Some(Digest::of(&bytes))
        );
        let pattern = "tool-v@v-%a.raw".parse().unwrap();
        let (version, _) = sums.newest(&pattern, Architecture::X86_64).unwrap();
        assert_eq!(version.as_str(), "1.10");
    }

    #[test]
    fn a_folder_that_a_machine_would_refuse_is_not_packed() {
        let folder = folder("ID=other\nVERSION_ID=1\n");
        let out = tempfile::tempdir().unwrap();
        let refused = build(&options(folder.path(), "1", out.path())).unwrap_err();
        assert!(
            format!("{refused:#}").contains("is for ID \"other\""),
            "{refused:#}"
        );
        assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_file_that_is_no_extension_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tool-v1-x86-64.raw");
        fs::write(&path, "nonsense").unwrap();
        for target in [Target::Kubernetes, Target::Os] {
            assert!(check(target, &path, None).is_err());
            assert!(check(target, &folder.path().join("tool"), None).is_err());
        }
    }

    #[test]
    fn a_folder_with_etc_is_a_confext() {
        let folder = tempfile::tempdir().unwrap();
        let releases = folder.path().join("etc/extension-release.d");
        fs::create_dir_all(&releases).unwrap();
        fs::write(folder.path().join("etc/motd"), "hello\n").unwrap();
        let release = releases.join("extension-release.tool");
        fs::write(&release, "ID=instar\nCONFEXT_LEVEL=1.0\n").unwrap();
        let out = tempfile::tempdir().unwrap();
        let made = build(&options(folder.path(), "1", out.path())).unwrap();
        let Checked::Os(OsExtension::Etc(texts)) = check(Target::Os, &made, None).unwrap() else {
            panic!("{} is no confext", made.display());
        };
        assert_eq!(texts.len(), 1);
        assert_eq!((&*texts[0].path, &*texts[0].text), ("motd", "hello\n"));

        fs::create_dir(folder.path().join("usr")).unwrap();
        let refused = build(&options(folder.path(), "2", out.path())).unwrap_err();
        assert!(format!("{refused:#}").contains("has /usr"), "{refused:#}");
    }

    #[test]
    fn an_extension_of_the_machine_itself_runs_nothing() {
        let folder = folder("ID=_any\n");
        let unit = folder.path().join("usr/lib/systemd/system/tool.service");
        fs::create_dir_all(unit.parent().unwrap()).unwrap();
        fs::write(unit, "[Service]\nExecStart=/usr/bin/tool\n").unwrap();
        let out = tempfile::tempdir().unwrap();
        build(&options(folder.path(), "1", out.path())).unwrap();
        let of_machine = Options {
            target: Target::Os,
            ..options(folder.path(), "1", out.path())
        };
        let refused = format!("{:#}", build(&of_machine).unwrap_err());
        assert!(
            refused.contains("run the program in a container"),
            "{refused}"
        );
    }
}
