//! The command line.

use std::{ffi::OsString, path::PathBuf};

use lexopt::{
    Arg::{Long, Value},
    Parser, ValueExt,
};

use crate::error::Error;

/// The folder of the files to install in the image.
const ASSETS: &str = "/usr/install/amd64";

/// The arguments of `install`, the only command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Arguments {
    /// The folder with the files of the image.
    pub(crate) assets: PathBuf,
    /// The EFI system partition and the running entry; `None` if the machine's boot assets are not on its disk.
    pub(crate) esp: Option<Esp>,
}

/// The target of boot assets.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Esp {
    /// The folder where the partition is mounted.
    pub(crate) folder: PathBuf,
    /// The order of the running boot entry; its slot is not written. `None` if it is not known.
    pub(crate) running: Option<u32>,
}

pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Arguments, Error> {
    let mut parser = Parser::from_args(arguments);
    let mut install = false;
    let mut assets = PathBuf::from(ASSETS);
    let mut folder = None;
    let mut running = None;
    while let Some(argument) = parser.next().map_err(usage)? {
        match argument {
            Value(command) if command == "install" && !install => install = true,
            // The content of the partition decides about the work; the flag is for readers of the command line.
            Long("upgrade") => {}
            Long("esp") => folder = Some(PathBuf::from(parser.value().map_err(usage)?)),
            Long("running") => {
                running = Some(parser.value().and_then(|it| it.parse()).map_err(usage)?)
            }
            Long("assets") => assets = parser.value().map_err(usage)?.into(),
            other => return Err(usage(other.unexpected())),
        }
    }
    if !install {
        return Err(Error::Usage("nothing else is known".into()));
    }
    let esp = match (folder, running) {
        (Some(folder), running) => Some(Esp { folder, running }),
        (None, None) => None,
        (None, Some(_)) => return Err(Error::Usage("--running goes with --esp".into())),
    };
    Ok(Arguments { assets, esp })
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
    fn only_an_installation_is_known() {
        assert_eq!(
            parse_text("install --upgrade").unwrap().assets,
            PathBuf::from(ASSETS)
        );
        assert_eq!(
            parse_text("install --upgrade --assets /a").unwrap().assets,
            PathBuf::from("/a")
        );
        assert_eq!(
            parse_text("install --esp /esp --running 7").unwrap().esp,
            Some(Esp {
                folder: "/esp".into(),
                running: Some(7)
            })
        );
        for bad in [
            "",
            "install --running 7",
            "install --esp /esp --running seven",
            "--upgrade",
            "install install --upgrade",
            "install --upgrade --disk /dev/vda",
            "remove --upgrade",
        ] {
            assert_eq!(parse_text(bad).unwrap_err().exit_code(), 2, "{bad}");
        }
    }
}
