//! The program in the installer image. machined runs it in a container, with a socket as descriptor 3 (docs/contracts.md):
//! it puts the new root filesystem into sealed memory, checks it, and passes it on. It touches nothing else.

mod arguments;
mod error;
mod handover;
mod rootfs;
mod sys;

use std::process::ExitCode;

use error::Error;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("installer: {}", error::chain(&error));
            ExitCode::from(error.exit_code())
        }
    }
}

fn run() -> Result<(), Error> {
    let arguments = arguments::parse(std::env::args_os().skip(1))?;
    let socket = handover::socket()?;
    let release = rootfs::Release::read(&arguments.assets)?;
    let sealed = rootfs::seal(&arguments.assets, &release)?;
    handover::send(&socket, &release, &sealed)
}
