//! The boot assets: the version's unified kernel image and its boot entry, by the plans of the crate `esp`.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use instar_esp::{
    Asset, DEFAULT_SLOTS, FileDigest, Mounted, NewSystem, NewVersion, Plan, State, Volume as _,
    add, install, loader::is_to_be_tried, paths, perform,
};

use crate::{
    arguments::Esp,
    error::Error,
    release::{Expected, Release},
};

/// systemd-boot in the image.
const LOADER: &str = "systemd-bootx64.efi";

/// Writes the version, and the loader too if the partition is empty; returns the order of the boot entry.
pub(crate) fn write(assets: &Path, release: &Release, esp: &Esp) -> Result<u32, Error> {
    let mut volume = Mounted::at(&esp.folder);
    let read = |volume: &Mounted| {
        State::read(volume).map_err(|source| Error::ReadEsp {
            path: esp.folder.clone(),
            source,
        })
    };
    let state = read(&volume)?;
    let plan = plan(&state, release, esp)?;
    print!("{plan}");
    perform(&plan, &mut volume, |asset| open(assets, asset))?;
    let written = read(&volume)?;
    if state.has_loader {
        offer_loader(assets, release, esp, &mut volume, &written)?;
    }
    Ok(written.highest_order())
}

/// Puts the image's loader beside the present one, unless that is newer or the same. machined starts it then.
fn offer_loader(
    assets: &Path,
    release: &Release,
    esp: &Esp,
    volume: &mut Mounted,
    state: &State,
) -> Result<(), Error> {
    let path = assets.join(LOADER);
    let new = std::fs::read(&path).map_err(|source| Error::Read { path, source })?;
    let present = volume.read(paths::LOADER);
    let present = present.map_err(|source| Error::ReadEsp {
        path: esp.folder.clone(),
        source,
    })?;
    if !is_to_be_tried(&new, &present) {
        return Ok(());
    }
    let plan = instar_esp::offer_loader(state, digest(release.loader.as_ref())?)?;
    print!("{plan}");
    Ok(perform(&plan, volume, |asset| open(assets, asset))?)
}

fn plan(state: &State, release: &Release, esp: &Esp) -> Result<Plan, Error> {
    let version = NewVersion {
        version: release
            .version
            .parse()
            .map_err(|error| Error::BadImage(format!("release.json: {error}")))?,
        uki: digest(release.uki.as_ref())?,
    };
    if state.has_loader {
        return Ok(add(state, &version, esp.running, DEFAULT_SLOTS)?);
    }
    let system = NewSystem {
        version,
        loader: digest(release.loader.as_ref())?,
        keys: Vec::new(),
        enrol_everywhere: false,
    };
    Ok(install(state, &system)?)
}

fn digest(expected: Option<&Expected>) -> Result<FileDigest, Error> {
    let expected = expected.ok_or_else(|| {
        Error::BadImage("it has no boot assets, and this machine boots from its disk".into())
    })?;
    let blake3 = blake3::Hash::from_hex(&expected.blake3)
        .map_err(|error| Error::BadImage(format!("release.json: {error}")))?;
    Ok(FileDigest {
        blake3,
        bytes: expected.bytes,
    })
}

/// Opens an asset. The root filesystem is stored in the image only once: the UKI is the part before it, the root filesystem, and the part
/// behind it.
fn open(assets: &Path, asset: Asset) -> io::Result<Box<dyn Read>> {
    let file = |name: &str| File::open(assets.join(name));
    Ok(match asset {
        Asset::Loader => Box::new(file(LOADER)?),
        Asset::Uki => Box::new(
            file("uki.head")?
                .chain(file("rootfs.squashfs")?)
                .chain(file("uki.tail")?),
        ),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn image(version: &str) -> (tempfile::TempDir, Release) {
        let assets = tempfile::tempdir().unwrap();
        let parts = [
            ("uki.head", "kernel "),
            ("rootfs.squashfs", version),
            ("uki.tail", " signature"),
            ("systemd-bootx64.efi", "loader"),
        ];
        for (name, content) in parts {
            std::fs::write(assets.path().join(name), content).unwrap();
        }
        let expected = |content: &str| Expected {
            blake3: blake3::hash(content.as_bytes()).to_hex().to_string(),
            bytes: content.len() as u64,
        };
        let release = Release {
            version: version.to_owned(),
            rootfs: expected(version),
            uki: Some(expected(&format!("kernel {version} signature"))),
            loader: Some(expected("loader")),
        };
        (assets, release)
    }

    #[test]
    fn the_first_version_comes_with_a_loader_and_the_next_one_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let esp = Esp {
            folder: folder.path().to_owned(),
            running: None,
        };
        let (assets, release) = image("v0.1.0");
        assert_eq!(write(assets.path(), &release, &esp).unwrap(), 1);
        let loader = folder.path().join("EFI/BOOT/BOOTX64.EFI");
        assert_eq!(std::fs::read(loader).unwrap(), b"loader");

        let (assets, release) = image("v0.2.0");
        assert_eq!(write(assets.path(), &release, &esp).unwrap(), 2);
        let state = State::read(&Mounted::at(folder.path())).unwrap();
        assert!(!state.has_new_loader);
        let next = state.next_boot().unwrap();
        assert_eq!(next.name.to_string(), "instar-2-v0.2.0+3.conf");
        let uki = std::fs::read(folder.path().join(next.slot.uki_path())).unwrap();
        assert_eq!(uki, b"kernel v0.2.0 signature");
        assert_eq!(
            state.last_known_good().unwrap().name.to_string(),
            "instar-1-v0.1.0.conf"
        );
    }

    #[test]
    fn a_newer_loader_waits_beside_the_old_one() {
        let folder = tempfile::tempdir().unwrap();
        let esp = Esp {
            folder: folder.path().to_owned(),
            running: None,
        };
        let loader = |version: &str| format!("#### LoaderInfo: systemd-boot {version} ####");
        for (number, version, waits) in [(1, "257.1", false), (2, "256", false), (3, "257.2", true)]
        {
            let (assets, mut release) = image(&format!("v0.{number}.0"));
            let content = loader(version);
            std::fs::write(assets.path().join(LOADER), &content).unwrap();
            release.loader = Some(Expected {
                blake3: blake3::hash(content.as_bytes()).to_hex().to_string(),
                bytes: content.len() as u64,
            });
            assert_eq!(write(assets.path(), &release, &esp).unwrap(), number);
            let volume = Mounted::at(folder.path());
            let state = State::read(&volume).unwrap();
            assert_eq!(state.has_new_loader, waits, "{version}");
            let present = volume.read(paths::LOADER).unwrap();
            assert_eq!(present, loader("257.1").as_bytes());
        }
    }

    #[test]
    fn a_damaged_asset_leaves_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let esp = Esp {
            folder: folder.path().to_owned(),
            running: None,
        };
        let (assets, release) = image("v0.1.0");
        write(assets.path(), &release, &esp).unwrap();
        let (assets, release) = image("v0.2.0");
        std::fs::write(assets.path().join("uki.tail"), " forgery!!").unwrap();
        let error = write(assets.path(), &release, &esp).unwrap_err();
        assert_eq!(error.exit_code(), 6);
        let state = State::read(&Mounted::at(folder.path())).unwrap();
        assert_eq!(
            state.next_boot().unwrap().name.to_string(),
            "instar-1-v0.1.0.conf"
        );
        assert_eq!(state.ukis.len(), 1);
    }
}
