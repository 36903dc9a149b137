//! `bundle create`: gathers images from registries, and writes them as a bundle.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use instar_bundle::{Platform, Summary, has_bundle, remove_bundle};
use instar_client::{Failure, FailureKind};
use instar_oci::bundled::{Gathered, LocalFile, Target, write};
use instar_oci::registry::RegistryClient;
use instar_oci::{Retries, base_variant};
use instar_values::ImageReference;
use serde_json::json;
use tempfile::NamedTempFile;

use super::show::{file_as_json, file_line};
use super::{extension_files, manifests, registries, tags};
use crate::byte_bar::byte_bar;
use crate::channel_folder::{self, ChannelFolder};
use crate::cli::{CreateBundle, Global};
use crate::output::human;

/// The label of an installer image with its version.
const VERSION: &str = "dev.instar.version";

pub(super) async fn run(global: &Global, arguments: &CreateBundle) -> Result<(), Failure> {
    let platforms = arguments.platform.iter().map(|text| platform(text));
    let platforms: Vec<Platform> = platforms.collect::<Result<_, _>>()?;
    let images = references(&arguments.image)?;
    let installers = references(&arguments.installer)?;
    let channels = arguments.channel.iter();
    let channels = channels.map(|folder| channel_folder::read(folder));
    let channels: Vec<ChannelFolder> = channels.collect::<Result<_, _>>()?;
    let files = extension_files::read(&arguments.extension)?;
    let objects = manifests::read(arguments)?;
    let output = Output::begin(arguments)?;
    let settings = Arc::new(registries::settings(arguments)?);
    let client = RegistryClient::new(settings, Retries::default());
    let mut gathered = Vec::new();
    for reference in images.iter().chain(&installers) {
        for platform in &platforms {
            gathered.push(gather(&client, reference, platform).await?);
        }
    }
    check_installers(&gathered, &installers)?;
    let mut warnings = warnings(&gathered);
    warnings.extend(channels.iter().filter_map(|it| of_no_use(it, &gathered)));
    warnings.extend(manifests::warnings(
        &objects,
        gathered.iter().map(|it| &it.image),
    ));
    let channels = channels.into_iter();
    let channels: Vec<_> = channels.map(|it| (it.list.channel, it.files)).collect();
    let bar = byte_bar(global.output, output.name());
    let progress = |progress: instar_oci::Progress| {
        bar.set_length(progress.total);
        bar.set_position(progress.bytes);
    };
    let target = output.target(arguments.force)?;
    let written = write(&client, gathered, &channels, &files, target, &progress).await;
    bar.finish_and_clear();
    let summary = written.map_err(|error| failed(&output.name()).because(error))?;
    let name = output.finish(arguments.force)?;
    show(global, &name, &summary, &files, &warnings)
}

fn failed(name: &str) -> Failure {
    Failure::new(FailureKind::Failed, format!("cannot make {name}"))
}

fn platform(text: &str) -> Result<Platform, Failure> {
    let word = |part: &str| !part.is_empty() && part.bytes().all(|it| it.is_ascii_alphanumeric());
    let parts: Vec<&str> = text.split('/').collect();
    let (os, architecture) = match parts[..] {
        // The variant that is selected anyway.
        [os, architecture, variant] if variant == base_variant(architecture) => (os, architecture),
        [os, architecture] => (os, architecture),
        [_, architecture, _] => {
            let base = base_variant(architecture);
            return Err(Failure::new(
                FailureKind::Usage,
                format!(
                    "{text:?} cannot be had: of {architecture}, only the variant {base} is taken, which every processor of it runs"
                ),
            ));
        }
        _ => ("", ""),
    };
    match word(os) && word(architecture) {
        true => Ok(Platform {
            architecture: architecture.to_owned(),
            os: os.to_owned(),
        }),
        false => Err(Failure::new(
            FailureKind::Usage,
            format!("{text:?} is no platform, such as linux/amd64"),
        )),
    }
}

fn references(texts: &[String]) -> Result<Vec<ImageReference>, Failure> {
    let parse = |text: &String| {
        text.parse::<ImageReference>().map_err(|error| {
            Failure::new(
                FailureKind::Usage,
                format!("{text:?} is no reference of an image"),
            )
            .because(error)
        })
    };
    texts.iter().map(parse).collect()
}

async fn gather(
    client: &RegistryClient,
    reference: &ImageReference,
    platform: &Platform,
) -> Result<Gathered, Failure> {
    let gathered = client.gather(reference, platform).await;
    gathered.map_err(|error| {
        Failure::new(
            FailureKind::Failed,
            format!("cannot take {reference} into the bundle"),
        )
        .because(error)
    })
}

/// Checks that installers are such: an image without the label cannot be upgraded to, and that is better known here than at the machine.
fn check_installers(gathered: &[Gathered], installers: &[ImageReference]) -> Result<(), Failure> {
    let is_other = |it: &&Gathered| {
        installers.contains(&it.image.reference) && !it.labels.contains_key(VERSION)
    };
    match gathered.iter().find(is_other) {
        None => Ok(()),
        Some(other) => {
            let reference = &other.image.reference;
            let message = format!("{reference} is no installer: it has no label {VERSION}");
            Err(Failure::new(FailureKind::Failed, message)
                .advise("name images that are no installers with --image"))
        }
    }
}

fn warnings(gathered: &[Gathered]) -> Vec<String> {
    let mut warnings = Vec::new();
    for image in gathered {
        let reference = &image.image.reference;
        warnings.extend(tags::warning(reference, image.image.named_digest()));
        if image.signatures.is_empty() {
            warnings.push(format!(
                "{reference} is not signed: machines that want a signature refuse it"
            ));
        }
        for (endpoint, error) in &image.not_asked {
            warnings.push(format!(
                "{endpoint} was not asked for signatures of {reference}: {error}"
            ));
        }
    }
    warnings.dedup();
    warnings
}

/// A warning of a list none of whose releases is in the bundle: a machine could go to none of them without a registry.
fn of_no_use(folder: &ChannelFolder, gathered: &[Gathered]) -> Option<String> {
    let mut releases = folder.list.releases.iter();
    let is_here = |digest| {
        let mut images = gathered.iter().map(|it| &it.image);
        images.any(|it| it.manifest.digest == digest || it.index == Some(digest))
    };
    let channel = &folder.list.channel;
    (!releases.any(|release| is_here(release.digest))).then(|| {
        format!("no release of the channel {channel} is in this bundle: name its installer with --installer")
    })
}

/// The folder of a file; the present one of a mere name.
fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Brings a new name to the disk: a stick may be pulled out as soon as the bundle is whole.
fn sync_folder_of(path: &Path) -> io::Result<()> {
    File::open(folder_of(path))?.sync_all()
}

/// The place of the bundle. A file gets its name when it is whole.
enum Output {
    File { path: PathBuf, file: NamedTempFile },
    Directory(PathBuf),
}

impl Output {
    fn begin(arguments: &CreateBundle) -> Result<Self, Failure> {
        let path = &arguments.to;
        let cannot = |error| Failure::io(format!("cannot write {}", path.display()), error);
        if path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/") {
            if !path.is_dir() {
                let made = fs::create_dir_all(path).and_then(|()| sync_folder_of(path));
                made.map_err(cannot)?;
            }
            if !arguments.force && has_bundle(path) {
                let message = format!("{} holds a bundle, or a part of one", path.display());
                return Err(
                    Failure::new(FailureKind::Refused, message).advise("replace it with --force")
                );
            }
            return Ok(Output::Directory(path.clone()));
        }
        if !arguments.force && path.symlink_metadata().is_ok() {
            let message = format!("{} exists", path.display());
            return Err(
                Failure::new(FailureKind::Refused, message).advise("replace it with --force")
            );
        }
        let file = tempfile::Builder::new()
            .prefix(".bundle-")
            .permissions(Permissions::from_mode(0o644))
            .tempfile_in(folder_of(path));
        Ok(Output::File {
            path: path.clone(),
            file: file.map_err(cannot)?,
        })
    }

    fn name(&self) -> String {
        match self {
            Output::File { path, .. } | Output::Directory(path) => path.display().to_string(),
        }
    }

    /// The file or the directory that the bundle is written to. With `force`, an earlier bundle goes from the directory only now: everything that may
    /// fail before the first byte has been done.
    fn target(&self, force: bool) -> Result<Target, Failure> {
        Ok(match self {
            Output::Directory(path) => {
                if force {
                    remove_bundle(path).map_err(|error| failed(&self.name()).because(error))?;
                }
                Target::Directory(path.clone())
            }
            Output::File { file, .. } => {
                let file = file.as_file().try_clone();
                let file: File = file.map_err(|error| failed(&self.name()).because(error))?;
                Target::Archive(file)
            }
        })
    }

    /// Gives a file its name; returns it.
    fn finish(self, force: bool) -> Result<String, Failure> {
        let name = self.name();
        if let Output::File { path, file } = self {
            let named = match force {
                true => file.persist(&path),
                false => file.persist_noclobber(&path),
            };
            named.map_err(|error| failed(&name).because(error.error))?;
            sync_folder_of(&path).map_err(|error| failed(&name).because(error))?;
        }
        Ok(name)
    }
}

fn show(
    global: &Global,
    name: &str,
    summary: &Summary,
    files: &[LocalFile],
    warnings: &[String],
) -> Result<(), Failure> {
    if global.output == crate::output::Output::Table {
        for warning in warnings {
            eprintln!("warning: {warning}");
        }
    }
    global.output.show(
        || {
            let (blobs, size) = (summary.blobs, human(summary.bytes));
            let files: String = files.iter().map(|it| file_line(&it.file)).collect();
            let digest = summary.digest;
            format!("{files}wrote {name}: {digest}, {blobs} blobs, {size}")
        },
        || {
            let files: Vec<_> = files.iter().map(|it| file_as_json(&it.file)).collect();
            json!({ "bundle": name, "summary": summary, "files": files, "warnings": warnings })
        },
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_file_has_a_folder_in_any_case() {
        for (path, folder) in [
            ("site.bundle", "."),
            ("/media/stick/site.bundle", "/media/stick"),
            ("stick/site.bundle", "stick"),
            ("/site.bundle", "/"),
        ] {
            assert_eq!(folder_of(Path::new(path)), Path::new(folder));
        }
    }

    #[test]
    fn a_variant_is_taken_if_it_is_the_one_that_is_selected() {
        let taken = |text: &str| platform(text).map(|it| format!("{}/{}", it.os, it.architecture));
        assert_eq!(taken("linux/amd64").unwrap(), "linux/amd64");
        assert_eq!(taken("linux/arm64/v8").unwrap(), "linux/arm64");
        assert_eq!(taken("linux/amd64/v1").unwrap(), "linux/amd64");
        for (refused, why) in [
            ("linux/amd64/v3", "only the variant v1"),
            ("linux", "no platform"),
            ("linux/", "no platform"),
            ("linux/arm64/v8/x", "no platform"),
            ("li nux/arm64/v8", "no platform"),
        ] {
            let said = taken(refused).unwrap_err().chain();
            assert!(said.contains(why), "{refused}: {said}");
        }
    }
}
