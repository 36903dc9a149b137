//! `bundle`: makes, shows, verifies and uploads bundles of images. Only the upload needs a node.

mod create;
mod credentials;
mod extension_files;
mod fetch;
mod manifests;
mod registries;
mod show;
mod tags;
mod upload;

use std::io;
use std::path::Path;

use instar_bundle::{Files, Refused, VerifiedBundle, verify};
use instar_client::{Failure, FailureKind};

use crate::byte_bar::byte_bar;
use crate::cli::{Bundle, Global};

pub(super) async fn run(global: &Global, bundle: &Bundle) -> Result<(), Failure> {
    match bundle {
        Bundle::Create(arguments) => create::run(global, arguments).await,
        Bundle::Show { bundle, key } => show::show(global, bundle, key),
        Bundle::Verify { bundle, key } => show::verify(global, bundle, key),
        Bundle::Upload { bundle, unchecked } => upload::run(global, bundle, *unchecked).await,
        Bundle::Fetch { images, from } => fetch::run(global, images, from).await,
    }
}

fn open(path: &Path) -> Result<Files, Failure> {
    Files::open(path).map_err(|error| cannot_read(path, error))
}

fn cannot_read(path: &Path, error: io::Error) -> Failure {
    Failure::io(format!("cannot read {}", path.display()), error)
}

fn refused(path: &Path, refused: Refused) -> Failure {
    Failure::new(
        FailureKind::Failed,
        format!("cannot use {}", path.display()),
    )
    .because(refused)
}

/// Reads every byte of a bundle.
fn verified(global: &Global, path: &Path) -> Result<VerifiedBundle, Failure> {
    let files = open(path)?;
    let (_, summary) = files.metadata().map_err(|it| refused(path, it))?;
    let bar = byte_bar(global.output, path.display().to_string());
    bar.set_length(summary.bytes);
    let verified = verify(files, &mut |bytes| bar.set_position(bytes));
    bar.finish_and_clear();
    verified.map_err(|it| refused(path, it))
}
