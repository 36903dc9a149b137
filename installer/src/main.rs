//! The program in the installer image. machined runs it in a container, with a socket as descriptor 3 (docs/contracts.md): it copies the
//! new root filesystem into sealed memory, checks it, and passes it on. On an installed machine it also writes the boot assets to the EFI
//! system partition, at the folder that machined names. It changes nothing else.
//!
//! The decision: the new version brings the program that lays out its boot assets, and sees one folder and one socket. Letting the running
//! machined write them was the other choice: a version could then never change how it starts. Giving the installer the disk, as Talos does,
//! was the third: a bad image could then destroy the working version.

mod arguments;
mod boot_assets;
mod error;
mod handover;
mod release;
mod rootfs;
mod sys;

use std::process::ExitCode;

use error::Error;
use release::Release;

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
    let release = Release::read(&arguments.assets)?;
    let sealed = rootfs::seal(&arguments.assets, &release)?;
    let order = match &arguments.esp {
        Some(esp) => Some(boot_assets::write(&arguments.assets, &release, esp)?),
        None => None,
    };
    handover::send(&socket, &release, order, &sealed)
}
