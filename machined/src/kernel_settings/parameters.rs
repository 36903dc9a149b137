//! Kernel parameters: a [`Plan`] says which ones are set and which are restored; functions below read and write them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

use crate::values::KernelParameter;

/// Parameters and values.
pub(super) type Values = BTreeMap<KernelParameter, String>;

/// The steps: first restore, then set.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Parameters that get their earlier value back.
    pub(super) restore: Values,
    /// Parameters that are set, including those that already have the value.
    pub(super) set: Values,
}

/// Compares the spec with the parameters that are set now; `before` has their earlier values.
pub(super) fn plan(wanted: &Values, before: &Values) -> Plan {
    let is_no_longer_wanted =
        |(parameter, _): &(&KernelParameter, _)| !wanted.contains_key(*parameter);
    let restore = before.iter().filter(is_no_longer_wanted);
    Plan {
        restore: restore
            .map(|(parameter, value)| (parameter.clone(), value.clone()))
            .collect(),
        set: wanted.clone(),
    }
}

/// Reads the value of a parameter, in a form that can be written.
pub(super) fn read(root: &Path, parameter: &KernelParameter) -> io::Result<String> {
    Ok(writable(&fs::read_to_string(parameter.path(root))?))
}

/// Writes the value of a parameter, unless the parameter already has it.
pub(super) fn write(root: &Path, parameter: &KernelParameter, value: &str) -> io::Result<()> {
    if read(root, parameter).is_ok_and(|now| is_same(&now, value)) {
        return Ok(());
    }
    // A missing file is not created: the kernel does not have this parameter.
    let mut file = File::options()
        .write(true)
        .truncate(true)
        .open(parameter.path(root))?;
    // In one write, because the kernel takes each write as a value of its own.
    file.write_all(format!("{value}\n").as_bytes())
}

/// Checks that a parameter has this value: the kernel accepts some writes without an error and keeps the old value.
pub(super) fn expect(root: &Path, parameter: &KernelParameter, value: &str) -> io::Result<()> {
    let now = read(root, parameter)?;
    match is_same(&now, value) {
        true => Ok(()),
        false => Err(io::Error::other(format!("it has {now:?} still"))),
    }
}

/// Returns the chosen word where the kernel shows a choice: `a [b] c` means that `b` is in force.
fn writable(shown: &str) -> String {
    let shown = shown.trim();
    let chosen: Vec<&str> = shown
        .split_whitespace()
        .filter_map(|word| word.strip_prefix('[')?.strip_suffix(']'))
        .collect();
    match chosen[..] {
        [chosen] => chosen.to_owned(),
        _ => shown.to_owned(),
    }
}

/// Compares two values; the kernel shows tabs for blanks, and Y for 1.
fn is_same(shown: &str, wanted: &str) -> bool {
    let is_same_word = |(one, other): (&str, &str)| {
        let pairs = [("Y", "1"), ("N", "0")];
        one == other || pairs.contains(&(one, other))
    };
    let (shown, wanted) = (shown.split_whitespace(), wanted.split_whitespace());
    shown.clone().count() == wanted.clone().count() && shown.zip(wanted).all(is_same_word)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn values(pairs: &[(&str, &str)]) -> Values {
        let value = |(name, value): &(&str, &str)| {
            (KernelParameter::sysctl(name).unwrap(), (*value).to_owned())
        };
        pairs.iter().map(value).collect()
    }

    #[test]
    fn what_is_wanted_is_set_and_what_no_longer_is_goes_back() {
        let before = values(&[("vm.swappiness", "60"), ("kernel.panic", "0")]);
        let wanted = values(&[("vm.swappiness", "10"), ("net.ipv4.ip_forward", "1")]);
        let expected = Plan {
            restore: values(&[("kernel.panic", "0")]),
            set: wanted.clone(),
        };
        assert_eq!(plan(&wanted, &before), expected);
        assert_eq!(plan(&Values::new(), &before).restore, before);
    }

    #[test]
    fn a_choice_is_read_as_it_is_written() {
        for (shown, value) in [
            ("60\n", "60"),
            ("4096\t131072\t6291456\n", "4096\t131072\t6291456"),
            ("always [madvise] never\n", "madvise"),
            ("[none] mq-deadline\n", "none"),
            ("[a] [b]\n", "[a] [b]"),
            ("\n", ""),
        ] {
            assert_eq!(writable(shown), value);
        }
        assert!(is_same("4096\t131072\t6291456", "4096 131072 6291456"));
        assert!(is_same("Y", "1"));
        assert!(!is_same("4096\t131072", "4096 131072 6291456"));
        assert!(!is_same("", "1"));
    }

    #[test]
    fn a_parameter_that_the_kernel_lacks_is_not_made() {
        let root = tempfile::tempdir().unwrap();
        let parameter = KernelParameter::sysctl("kernel.panic").unwrap();
        fs::create_dir_all(root.path().join("proc/sys/kernel")).unwrap();
        let missing = write(root.path(), &parameter, "1").unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        fs::write(parameter.path(root.path()), "0\n").unwrap();
        write(root.path(), &parameter, "1").unwrap();
        assert_eq!(read(root.path(), &parameter).unwrap(), "1");
    }
}
