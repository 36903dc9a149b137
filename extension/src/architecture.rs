//! The architecture of an extension, by systemd's names (`ConditionArchitecture=` of systemd.unit(5)).

use std::fmt;

/// An architecture that Instar runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// `x86-64`
    X86_64,
    /// `arm64`
    Arm64,
}

impl Architecture {
    /// The architecture of this program.
    pub const OWN: Architecture = if cfg!(target_arch = "aarch64") {
        Architecture::Arm64
    } else {
        Architecture::X86_64
    };

    /// All of them.
    pub const ALL: [Architecture; 2] = [Architecture::X86_64, Architecture::Arm64];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Architecture::X86_64 => "x86-64",
            Architecture::Arm64 => "arm64",
        }
    }

    /// The architecture of this name; `None` for others.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == name)
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
