//! From whom a machine without a config takes one.

use std::sync::Arc;

use super::remembered::Authorities;

/// From whom a machine without a config takes one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Maintenance {
    /// From anybody: there is nothing on the machine that a config could give away.
    Open,
    /// From administrators of the authorities that its last config had.
    Authorities(Arc<Authorities>),
    /// From nobody, for this reason: it may hold data, and does not know whose.
    Closed(String),
}

impl Maintenance {
    /// What a machine does until it has looked.
    #[must_use]
    pub fn undecided() -> Self {
        Self::Closed("the machine has not looked for its config yet".to_owned())
    }

    /// What to do, for people.
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
