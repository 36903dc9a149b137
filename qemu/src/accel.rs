//! QEMU's version on this host, and the accelerator for guest code.

use std::fmt;
use std::path::Path;
use std::process::Command;

use crate::error::{Error, Result};

/// Overrides the choice of the accelerator: `tcg` or `kvm`.
const ACCEL_VARIABLE: &str = "INSTAR_ACCEL";
/// Overrides the QEMU program.
const PROGRAM_VARIABLE: &str = "INSTAR_QEMU";
const PROGRAM: &str = "qemu-system-x86_64";

/// The accelerator for guest code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accel {
    /// QEMU translates it.
    Tcg,
    /// The processor runs it.
    Kvm,
}

impl Accel {
    /// Returns KVM where it works, else TCG; `INSTAR_ACCEL` overrides.
    pub fn detect() -> Result<Self> {
        let choice = std::env::var(ACCEL_VARIABLE).unwrap_or_default();
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let kvm = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/kvm")
            .is_ok();
        Self::choose(&choice, &cpuinfo, kvm)
    }

    /// `/dev/kvm` alone is no proof: it may exist without vmx or svm, and then the guest hangs.
    fn choose(choice: &str, cpuinfo: &str, kvm_opens: bool) -> Result<Self> {
        match choice {
            "" => {}
            "tcg" => return Ok(Self::Tcg),
            "kvm" => return Ok(Self::Kvm),
            other => return Err(Error::UnknownAccel(other.to_owned())),
        }
        let hardware = cpuinfo
            .lines()
            .find(|line| line.starts_with("flags"))
            .is_some_and(|flags| {
                flags
                    .split_whitespace()
                    .any(|flag| flag == "vmx" || flag == "svm")
            });
        Ok(if hardware && kvm_opens {
            Self::Kvm
        } else {
            Self::Tcg
        })
    }
}

/// A version of QEMU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct QemuVersion {
    /// The first number.
    pub major: u32,
    /// The second number.
    pub minor: u32,
}

impl QemuVersion {
    /// Parses the output of `--version`: `QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)`.
    fn parse(text: &str) -> Option<Self> {
        let numbers = text.split_once("version ")?.1;
        let mut parts = numbers.split(|c: char| !c.is_ascii_digit());
        Some(Self {
            major: parts.next()?.parse().ok()?,
            minor: parts.next()?.parse().ok()?,
        })
    }

    /// QEMU 7.2 under TCG miscomputes cmpxchg16b at random: 4 of 30 boots failed, 0 of 110 with the feature off; 10.0 does
    /// not. Versions between were not tried.
    pub(crate) fn miscomputes_cx16(self) -> bool {
        self.major < 10
    }
}

impl fmt::Display for QemuVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Returns the QEMU program to run.
pub(crate) fn program() -> String {
    std::env::var(PROGRAM_VARIABLE).unwrap_or_else(|_| PROGRAM.to_owned())
}

/// Asks the program for its version.
pub(crate) fn version_of(program: &Path) -> Result<QemuVersion> {
    let output = Command::new(program)
        .arg("--version")
        .output()
        .map_err(|source| Error::NoQemu {
            program: program.to_owned(),
            source,
        })?;
    let text = String::from_utf8_lossy(&output.stdout);
    QemuVersion::parse(&text).ok_or_else(|| Error::UnknownVersion {
        program: program.to_owned(),
        text: text.trim().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const WITH_SVM: &str = "processor\t: 0\nflags\t\t: fpu svm lm\n";
    const WITHOUT: &str = "processor\t: 0\nflags\t\t: fpu svm_lock lm\n";

    #[test]
    fn kvm_needs_both_the_device_and_the_processor_flag() {
        assert_eq!(Accel::choose("", WITH_SVM, true).unwrap(), Accel::Kvm);
        assert_eq!(Accel::choose("", WITH_SVM, false).unwrap(), Accel::Tcg);
        assert_eq!(Accel::choose("", WITHOUT, true).unwrap(), Accel::Tcg);
        assert_eq!(Accel::choose("", "", true).unwrap(), Accel::Tcg);
    }

    #[test]
    fn a_choice_overrides_and_a_typo_is_refused() {
        assert_eq!(Accel::choose("tcg", WITH_SVM, true).unwrap(), Accel::Tcg);
        assert_eq!(Accel::choose("kvm", WITHOUT, false).unwrap(), Accel::Kvm);
        assert!(Accel::choose("KVM", WITH_SVM, true).is_err());
    }

    #[test]
    fn reads_versions() {
        let of = |text| QemuVersion::parse(text).map(|v| (v.major, v.minor));
        assert_eq!(
            of("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)"),
            Some((7, 2))
        );
        assert_eq!(of("QEMU emulator version 10.0.2\n"), Some((10, 0)));
        assert_eq!(of("qemu: not found"), None);
    }

    #[test]
    fn only_old_versions_lose_the_feature() {
        assert!(QemuVersion { major: 7, minor: 2 }.miscomputes_cx16());
        assert!(
            !QemuVersion {
                major: 10,
                minor: 0
            }
            .miscomputes_cx16()
        );
    }
}
