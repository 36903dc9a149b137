//! The command line.

use std::{ffi::OsString, path::PathBuf};

use lexopt::{
    Arg::{Long, Value},
    Parser,
};

use crate::error::Error;

/// Where the image has what it installs.
const ASSETS: &str = "/usr/install/amd64";

/// `install --upgrade`, the one thing that the installer can do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Arguments {
    /// The folder with the files of the image.
    pub(crate) assets: PathBuf,
}

pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Arguments, Error> {
    let mut parser = Parser::from_args(arguments);
    let mut install = false;
    let mut upgrade = false;
    let mut assets = PathBuf::from(ASSETS);
    while let Some(argument) = parser.next().map_err(usage)? {
        match argument {
            Value(command) if command == "install" && !install => install = true,
            Long("upgrade") => upgrade = true,
            Long("assets") => assets = parser.value().map_err(usage)?.into(),
            other => return Err(usage(other.unexpected())),
        }
    }
    if install && upgrade {
        Ok(Arguments { assets })
    } else {
        Err(Error::Usage("nothing else is known".into()))
    }
}

fn usage(error: lexopt::Error) -> Error {
    Error::Usage(error.to_string())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse_text(text: &str) -> Result<Arguments, Error> {
        parse(text.split_whitespace().map(OsString::from))
    }

    #[test]
    fn only_an_upgrade_is_known() {
        assert_eq!(
            parse_text("install --upgrade").unwrap().assets,
            PathBuf::from(ASSETS)
        );
        assert_eq!(
            parse_text("install --upgrade --assets /a").unwrap().assets,
            PathBuf::from("/a")
        );
        for bad in [
            "",
            "install",
            "--upgrade",
            "install install --upgrade",
            "install --upgrade --disk /dev/vda",
            "remove --upgrade",
        ] {
            assert_eq!(parse_text(bad).unwrap_err().exit_code(), 2, "{bad}");
        }
    }
}
