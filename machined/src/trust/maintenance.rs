//! Decides from which callers a machine without a config takes one.

use std::sync::Arc;

use super::remembered::Authorities;

/// The callers from whom a machine without a config takes one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Maintenance {
    /// Any caller: the machine holds nothing that a config could expose.
    Open,
    /// Administrators, with certificates from the authorities of its last config.
    Authorities(Arc<Authorities>),
    /// No caller, for this reason: the machine may hold data, and does not know whose.
    Closed(String),
}

impl Maintenance {
    /// Returns the mode until the machine has examined its disk.
    #[must_use]
    pub fn undecided() -> Self {
        Self::Closed("the machine has not looked for its config yet".to_owned())
    }

    /// Returns advice for operators.
    #[must_use]
    pub fn advice(&self) -> String {
        match self {
            Self::Open => "bring a config with apply-config --insecure".to_owned(),
            Self::Authorities(_) => "the API takes the certificates that it took before: bring a config with apply-config, as an administrator".to_owned(),
            Self::Closed(why) => format!(
                "nobody may bring a config ({why}); boot with the kernel argument instar.maintenance=open to let anybody do it"
            ),
        }
    }
}
