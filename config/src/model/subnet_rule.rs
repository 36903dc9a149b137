//! Rules that choose among the machine's addresses.

use std::str::FromStr;

use instar_values::{Cidr, NotACidr};

/// A rule about addresses: those in a subnet, or those outside of it (`!10.0.0.0/8`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubnetRule {
    /// The subnet.
    pub subnet: Cidr,
    /// Whether its addresses are left out.
    pub is_excluded: bool,
}

impl FromStr for SubnetRule {
    type Err = NotACidr;

    fn from_str(text: &str) -> Result<Self, NotACidr> {
        let subnet = text.strip_prefix('!');
        Ok(Self {
            subnet: subnet.unwrap_or(text).parse()?,
            is_excluded: subnet.is_some(),
        })
    }
}
