//! The files resolv.conf, hosts and hostname: rendered as text, written whole or not at all.
//!
//! The root filesystem's /etc links into /run/etc, where these files are.

use std::{
    fmt::Write as _,
    fs, io,
    net::IpAddr,
    path::{Path, PathBuf},
};

use crate::base::whole_file;
use crate::values::StaticHost;

/// Why a file of /run/etc could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {path}; is /run mounted and not full?")]
pub struct EtcError {
    path: PathBuf,
    source: io::Error,
}

/// Limit on the servers in resolv.conf: glibc and musl ignore any more.
const MOST_RESOLVERS: usize = 3;

/// Renders resolv.conf.
pub(super) fn resolv_conf(resolvers: &[IpAddr], search: &[String]) -> String {
    let mut text = String::new();
    for resolver in resolvers.iter().take(MOST_RESOLVERS) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "nameserver {resolver}");
    }
    if !search.is_empty() {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "search {}", search.join(" "));
    }
    text
}

/// Renders hosts. It maps the machine's name to the machine's own address, so that the name works before any DNS does.
pub(super) fn hosts(hostname: &str, own: Option<IpAddr>, extra: &[StaticHost]) -> String {
    let mut text = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n".to_owned();
    if !hostname.is_empty() && hostname != "localhost" {
        let own = own.unwrap_or(IpAddr::V4([127, 0, 1, 1].into()));
        let short = hostname.split('.').next().unwrap_or(hostname);
        let alias = if short == hostname {
            String::new()
        } else {
            format!(" {short}")
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{own} {hostname}{alias}");
    }
    for StaticHost { address, hostnames } in extra {
        // Writing to a String cannot fail.
        let _ = write!(text, "{address}");
        for name in hostnames {
            // Writing to a String cannot fail.
            let _ = write!(text, " {name}");
        }
        text.push('\n');
    }
    text
}

/// Writes a file atomically: readers see the old or the new text, never half of one. An unchanged text is not written.
pub(super) fn write(directory: &Path, name: &str, text: &str) -> Result<(), EtcError> {
    let path = directory.join(name);
    if fs::read(&path).is_ok_and(|old| old == text.as_bytes()) {
        return Ok(());
    }
    let replaced = whole_file::replace(&path, 0o644, text.as_bytes());
    replaced.map_err(|source| EtcError { path, source })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn texts_are_what_libc_reads() {
        let four: Vec<IpAddr> = ["1.1.1.1", "2.2.2.2", "::1", "4.4.4.4"]
            .map(|text| text.parse().unwrap())
            .into();
        assert_eq!(
            resolv_conf(&four, &["a.example".into(), "b.example".into()]),
            "nameserver 1.1.1.1\nnameserver 2.2.2.2\nnameserver ::1\nsearch a.example b.example\n"
        );
        assert_eq!(resolv_conf(&[], &[]), "");
        assert_eq!(
            hosts(
                "n1.example.org",
                Some("10.0.2.15".parse().unwrap()),
                &[StaticHost {
                    address: "10.9.9.9".parse().unwrap(),
                    hostnames: vec!["x".parse().unwrap(), "y".parse().unwrap()],
                }]
            ),
            "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n10.0.2.15 n1.example.org n1\n10.9.9.9 x y\n"
        );
        assert!(hosts("n1", None, &[]).ends_with("127.0.1.1 n1\n"));
        assert_eq!(hosts("localhost", None, &[]).lines().count(), 2);
    }

    #[test]
    fn files_are_replaced_whole_and_only_when_they_change() {
        use std::os::unix::fs::MetadataExt;
        let run = tempfile::tempdir().unwrap();
        let etc = run.path().join("etc");
        write(&etc, "hosts", "a\n").unwrap();
        let inode = || fs::metadata(etc.join("hosts")).unwrap().ino();
        let first = inode();
        write(&etc, "hosts", "a\n").unwrap();
        assert_eq!(inode(), first);
        write(&etc, "hosts", "b\n").unwrap();
        assert_eq!(fs::read_to_string(etc.join("hosts")).unwrap(), "b\n");
        assert_eq!(
            fs::read_dir(&etc).unwrap().count(),
            1,
            "no left-over temporary file"
        );
        fs::write(run.path().join("file"), "").unwrap();
        let error = write(&run.path().join("file"), "hosts", "").unwrap_err();
        assert!(error.to_string().contains("/file/hosts"), "{error}");
    }
}
