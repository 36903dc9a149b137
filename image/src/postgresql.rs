//! An image of PostgreSQL, for tests of databases on machines: Debian's server with no more than it starts with, and a script that makes the
//! database at its first start.
//!
//! The decision: programs of packages as everywhere here, and no debootstrapped Debian of 200 MB: an emulated machine unpacks a megabyte in a second.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::{
    build::SUITE,
    debian::{self, Fetched, Request},
    oci::layout::{self, Compression, Image, Layer},
    programs::Programs,
    tree::Tree,
};

const SERVER: &str = "postgresql-17";
const PACKAGES: [&str; 5] = [SERVER, "coreutils", "dash", "tzdata", "util-linux"];

/// The programs: package and path.
const PROGRAMS: [(&str, &str); 9] = [
    (SERVER, "usr/lib/postgresql/17/bin/postgres"),
    (SERVER, "usr/lib/postgresql/17/bin/initdb"),
    // The new database has their functions.
    (SERVER, "usr/lib/postgresql/17/lib/dict_snowball.so"),
    (SERVER, "usr/lib/postgresql/17/lib/plpgsql.so"),
    ("coreutils", "usr/bin/install"),
    ("coreutils", "usr/bin/mv"),
    ("coreutils", "usr/bin/rm"),
    ("dash", "usr/bin/dash"),
    ("util-linux", "usr/bin/setpriv"),
];
/// The folder that initdb reads.
const SHARE: &str = "usr/share/postgresql/17";
/// The only time zone.
const ZONE: &str = "usr/share/zoneinfo/Etc/UTC";
const START: &str = "usr/bin/start-postgresql";

/// Makes the database in /data unless it is there, and becomes the server.
const SCRIPT: &str = r#"#!/bin/sh
set -eu
install -d -o 999 -g 999 -m 700 /data
exec setpriv --reuid 999 --regid 999 --clear-groups sh -eu -c '
    if [ ! -e /data/database ]; then
        rm -rf /data/new
        initdb -D /data/new -U postgres --auth trust --no-locale -E UTF8 --data-checksums
        echo "host all all all trust" >> /data/new/pg_hba.conf
        mv /data/new /data/database
    fi
    exec postgres -D /data/database -c listen_addresses=* -c unix_socket_directories=/tmp -c shared_buffers=16MB'
"#;

/// The inputs and output of a build.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder to write.
    pub out: PathBuf,
    /// Where packages come from.
    pub packages: debian::Source,
}

/// Builds the image as an OCI layout.
///
/// # Errors
/// A package cannot be fetched, or the folder cannot be written.
pub fn build(options: &Options) -> Result<()> {
    let packages = debian::fetch(&options.packages, &packages())?;
    let image = Image {
        layers: vec![Layer {
            tree: tree(&packages)?,
            compression: Compression::None,
        }],
        entrypoint: vec![format!("/{START}")],
        environment: vec![
            "PATH=/usr/lib/postgresql/17/bin:/usr/sbin:/usr/bin".to_owned(),
            "TZ=Etc/UTC".to_owned(),
        ],
        tag: Some("17".to_owned()),
        ..Image::default()
    };
    layout::write(&image, &options.out).map(drop)
}

/// The packages of the programs.
#[must_use]
pub fn packages() -> Request<'static> {
    Request {
        suite: SUITE,
        with_dependencies: &PACKAGES,
        alone: &[],
        through: None,
        name: "postgresql",
    }
}

fn tree(packages: &[Fetched]) -> Result<Tree> {
    let mut tree = Tree::new();
    for folder in ["bin", "sbin", "lib", "lib64"] {
        tree.directory(&format!("usr/{folder}"))?;
        tree.symlink(folder, &format!("usr/{folder}"))?;
    }
    for folder in ["data", "dev", "proc", "run", "sys"] {
        tree.directory(folder)?;
    }
    tree.directory_with_mode("tmp", 0o1777)?;
    let mut programs = Programs::new(packages);
    for (package, path) in PROGRAMS {
        programs.add(&mut tree, package, path)?;
    }
    tree.symlink("usr/bin/sh", "dash")?;
    tree.file(ZONE, 0o644, programs.read("tzdata", ZONE)?)?;
    let of_server = |fetched: &&Fetched| fetched.package.name == SERVER;
    let server = packages.iter().find(of_server);
    let server = server.with_context(|| format!("{SERVER} was not fetched"))?;
    add_folder(&mut tree, &server.root, Path::new(SHARE))?;
    let users = "root:x:0:0::/:/usr/bin/sh\npostgres:x:999:999::/data:/usr/bin/sh\n";
    tree.file("etc/passwd", 0o644, users.as_bytes())?;
    tree.file("etc/group", 0o644, &b"root:x:0:\npostgres:x:999:\n"[..])?;
    tree.file(START, 0o755, SCRIPT.as_bytes())?;
    Ok(tree)
}

/// Adds all files of a folder of the package. Documentation and links to other packages stay behind.
fn add_folder(tree: &mut Tree, root: &Path, folder: &Path) -> Result<()> {
    let place = root.join(folder);
    let failed = || format!("cannot list {}", place.display());
    for entry in fs::read_dir(&place).with_context(failed)? {
        let entry = entry.with_context(failed)?;
        let path = folder.join(entry.file_name());
        let kind = entry.file_type().with_context(failed)?;
        if kind.is_dir() && entry.file_name() != "man" {
            add_folder(tree, root, &path)?;
        } else if kind.is_file() {
            tree.file_from(&path.to_string_lossy(), 0o644, &entry.path())?;
        }
    }
    Ok(())
}
