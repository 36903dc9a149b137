//! Labels of machines.

use std::fmt;
use std::str::FromStr;

/// Limit on the length of each half, in bytes.
const LONGEST: usize = 63;

/// A label of a machine, such as `canary=yes`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label(String);

/// The text is not a label.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a label: expected something like canary=yes, of letters, digits, - . _ and /"
)]
pub struct NotALabel(String);

impl FromStr for Label {
    type Err = NotALabel;

    fn from_str(text: &str) -> Result<Self, NotALabel> {
        let is_half = |half: &str| {
            (1..=LONGEST).contains(&half.len())
                && half
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-._/".contains(&byte))
        };
        match text.split_once('=') {
            Some((key, value)) if is_half(key) && is_half(value) => Ok(Label(text.to_owned())),
            _ => Err(NotALabel(text.chars().take(LONGEST).collect())),
        }
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

instar_values::serde_by_text!(Label);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_has_two_halves() {
        for good in ["canary=yes", "a/b=1.0"] {
            assert!(good.parse::<Label>().is_ok(), "{good}");
        }
        for bad in ["", "canary", "=yes", "canary=", "a=b=c", "a b=c"] {
            assert!(bad.parse::<Label>().is_err(), "{bad}");
        }
    }
}
