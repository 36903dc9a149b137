//! Files are listed, read and copied.

use super::*;

pub(super) async fn files_are_listed_read_and_copied(talosctl: &Talosctl<'_>) -> Outcome {
    rows(talosctl, FILES).await?;
    let flat = talosctl.run("list /var").await;
    ensure!(!flat.output.contains('/'), "{flat:?}");
    let directories = talosctl.run("list -t d /etc").await;
    ensure!(
        !directories.output.contains("os-release"),
        "{directories:?}"
    );
    Ok(())
}

const FILES: &[Row<'_>] = &[
    ("list /", 0, &[".\n", "etc\n", "usr\n", "var\n"]),
    ("list /var -r", 0, &["log/machined.log"]),
    ("list /var -d 2", 0, &["lib/instar\n"]),
    ("list -l /dev/null", 0, &["crw-rw-rw- 0 0 0 ."]),
    ("list -l /etc", 0, &["drwx", " -> "]),
    ("list -t d /usr", 0, &["sbin\n"]),
    ("list -t f,l /etc", 0, &["os-release\n"]),
    ("list /no/such", 1, &["/no/such"]),
    ("read /etc/os-release", 0, &["ID=instar"]),
    ("read /proc/sys/kernel/random/boot_id", 0, &["-"]),
    ("read /no/such", 1, &["NotFound", "/no/such"]),
    ("read /etc", 1, &["/etc"]),
    ("copy /var", 0, &["log\n", "log/machined.log\n"]),
    ("copy /no/such", 1, &["NotFound"]),
    ("usage /var", 0, &["."]),
    ("usage -d 1 -a -t 10 /var /etc", 0, &["log\n"]),
];
