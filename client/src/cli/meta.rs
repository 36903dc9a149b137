//! The commands for META values, which a node keeps.

use clap::Subcommand;

/// Actions on values.
#[derive(Debug, Subcommand)]
pub(crate) enum Meta {
    /// Set the value of a key
    Write {
        /// Key: a number, decimal or hexadecimal with 0x
        #[arg(value_parser = meta_key)]
        key: u8,
        /// Value
        value: String,
    },
    /// Delete a key and its value
    Delete {
        /// Key: a number, decimal or hexadecimal with 0x
        #[arg(value_parser = meta_key)]
        key: u8,
    },
}

/// Parses a key: 10 or 0x0a.
fn meta_key(text: &str) -> Result<u8, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u8::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| "must be 0 to 255, or 0x00 to 0xff".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_one_byte() {
        assert_eq!(meta_key("10"), Ok(10));
        assert_eq!(meta_key("0x0a"), Ok(10));
        for bad in ["", "256", "-1", "0x100", "a"] {
            assert!(meta_key(bad).is_err(), "{bad:?}");
        }
    }
}
