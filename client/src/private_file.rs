//! Files for their owner alone: what is written there may hold secrets.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use crate::failure::{Exit, Failure};

/// Makes the file. One that exists is replaced by `force` alone.
pub(crate) fn create(path: &Path, force: bool) -> Result<File, Failure> {
    let name = path.display();
    let mut options = File::options();
    options.write(true).mode(0o600);
    let opened = match force {
        true => options.create(true).truncate(true).open(path),
        false => options.create_new(true).open(path),
    };
    opened.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            Failure::new(Exit::Refused, format!("{name} exists")).advise("replace it with --force")
        }
        _ => Failure::io(format!("cannot write {name}"), error),
    })
}
