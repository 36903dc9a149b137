//! The image that is pulled: files of this host's /usr in four layers, some 60 MB compressed.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use instar_tests::{OciImage, Registry};

/// Number of layers.
const LAYERS: usize = 4;
/// Uncompressed bytes of a layer: compressed, four of them have some 60 MB.
const LAYER_BYTES: u64 = 40 << 20;
/// The largest file that is taken: a layer has many files, as real ones do.
const LARGEST_FILE: u64 = 4 << 20;

/// The compression of the layers.
#[derive(Debug, Clone, Copy)]
pub(super) enum Packing {
    Zstd,
    Gzip,
}

/// The image at the registry.
pub(super) struct Subject {
    /// `127.0.0.1:PORT/NAME:TAG`
    pub(super) name: String,
    /// Bytes of its compressed layers.
    pub(super) bytes: u64,
}

/// Makes the image and pushes it.
pub(super) fn push(registry: &Registry, packing: Packing) -> Result<Subject> {
    let (program, media_type, tag) = match packing {
        Packing::Zstd => (
            "zstd",
            "application/vnd.oci.image.layer.v1.tar+zstd",
            "zstd",
        ),
        Packing::Gzip => (
            "gzip",
            "application/vnd.oci.image.layer.v1.tar+gzip",
            "gzip",
        ),
    };
    let mut image = OciImage::starting(&["/bin/true"]);
    let mut bytes = 0;
    for archive in layers()? {
        let blob = compressed(program, &archive)?;
        bytes += blob.len() as u64;
        image = image.packed(&archive, media_type, blob);
    }
    image.push(registry, "bench", tag)?;
    Ok(Subject {
        name: format!("{}/bench:{tag}", registry.address()),
        bytes,
    })
}

/// Returns the archives of the layers.
fn layers() -> Result<Vec<Vec<u8>>> {
    let mut files = Vec::new();
    for directory in ["/usr/bin", "/usr/lib", "/usr/share"] {
        find(Path::new(directory), &mut files)?;
    }
    let mut files = files.into_iter();
    let mut layers = Vec::new();
    for _ in 0..LAYERS {
        let mut archive = tar::Builder::new(Vec::new());
        let mut bytes = 0;
        while bytes < LAYER_BYTES {
            let (path, size) = files.next().context("this host's /usr has too few files")?;
            let name = path.strip_prefix("/")?;
            archive.append_path_with_name(&path, name)?;
            bytes += size;
        }
        layers.push(archive.into_inner()?);
    }
    Ok(layers)
}

/// Lists the regular files below a directory with their sizes, sorted.
fn find(directory: &Path, files: &mut Vec<(PathBuf, u64)>) -> Result<()> {
    let mut entries = std::fs::read_dir(directory)?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let metadata = entry.metadata()?;
        if metadata.is_dir() {
            find(&entry.path(), files)?;
        } else if metadata.is_file() && metadata.len() <= LARGEST_FILE {
            files.push((entry.path(), metadata.len()));
        }
    }
    Ok(())
}

fn compressed(program: &str, archive: &[u8]) -> Result<Vec<u8>> {
    let mut process = Command::new(program)
        .arg("-c")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {program}"))?;
    let mut input = process.stdin.take().context("no standard input")?;
    let output = std::thread::scope(|scope| {
        let writer = scope.spawn(move || input.write_all(archive));
        let output = process.wait_with_output();
        let written = writer
            .join()
            .map_err(|_| anyhow::anyhow!("the writer failed"))?;
        written?;
        anyhow::Ok(output?)
    })?;
    ensure!(output.status.success(), "{program}: {}", output.status);
    Ok(output.stdout)
}
