//! The running system: this generation's version, and the kernel and init under it.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use serde::Deserialize;

use crate::values::Version;

/// The file in which the image describes itself (docs/contracts.md).
const IMAGE_FACTS: &str = "/usr/lib/instar/image.json";

/// The running version, and the kernel and init under it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningSystem {
    /// As in `v0.1.0`.
    pub version: String,
    /// As in `amd64`.
    pub architecture: String,
    /// BLAKE3 of the kernel image; None if the booted kernel is not the one of this version.
    pub kernel: Option<blake3::Hash>,
    /// BLAKE3 of the running init.
    pub init: blake3::Hash,
    /// The floor that this version sets.
    pub floor: Option<Version>,
}

#[derive(Deserialize)]
struct ImageFacts {
    version: String,
    architecture: String,
    kernel_banner: String,
    kernel_blake3: String,
    #[serde(default)]
    floor: Option<Version>,
}

impl RunningSystem {
    /// Reads the image's description and compares it with the running kernel and init.
    pub fn read() -> anyhow::Result<Self> {
        let facts = fs::read(IMAGE_FACTS).with_context(|| format!("read {IMAGE_FACTS}"))?;
        let facts: ImageFacts =
            serde_json::from_slice(&facts).with_context(|| format!("parse {IMAGE_FACTS}"))?;
        let banner = fs::read_to_string("/proc/version").context("read /proc/version")?;
        let kernel = same_kernel(&facts.kernel_banner, &banner)
            .then(|| blake3::Hash::from_hex(&facts.kernel_blake3))
            .transpose()
            .with_context(|| format!("parse kernel_blake3 of {IMAGE_FACTS}"))?;
        Ok(RunningSystem {
            version: facts.version,
            architecture: facts.architecture,
            kernel,
            init: hash_file(Path::new("/proc/1/exe"))?,
            floor: facts.floor,
        })
    }
}

/// Whether both are the same kernel. The bzImage header holds `RELEASE (BUILDER) #BUILD`, /proc/version `Linux version RELEASE (BUILDER)
/// (COMPILER) #BUILD`.
fn same_kernel(header: &str, proc_version: &str) -> bool {
    let build = |text: &str| {
        text.split_once('#')
            .map(|(_, build)| build.trim().to_owned())
    };
    let release = header.split_whitespace().next();
    release.is_some()
        && release == proc_version.split_whitespace().nth(2)
        && build(header).is_some()
        && build(header) == build(proc_version)
}

fn hash_file(path: &Path) -> anyhow::Result<blake3::Hash> {
    let mut hasher = blake3::Hasher::new();
    let file = fs::File::open(path).with_context(|| format!("open {}", path.display()))?;
    hasher
        .update_reader(file)
        .with_context(|| format!("read {}", path.display()))?;
    Ok(hasher.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_known_by_release_and_build() {
        let header = "6.12.57+deb13-cloud-amd64 (debian-kernel@lists.debian.org) #1 SMP PREEMPT_DYNAMIC Debian 6.12.57-1 (2025-11-05)";
        let running = "Linux version 6.12.57+deb13-cloud-amd64 (debian-kernel@lists.debian.org) (x86_64-linux-gnu-gcc-14) #1 SMP PREEMPT_DYNAMIC Debian 6.12.57-1 (2025-11-05)\n";
        assert!(same_kernel(header, running));
        assert!(!same_kernel(
            header,
            &running.replace("6.12.57-1", "6.12.57-2")
        ));
        assert!(!same_kernel(
            header,
            &running.replace("6.12.57+deb13-cloud", "6.12.57+deb13")
        ));
        assert!(!same_kernel("", ""));
    }
}
