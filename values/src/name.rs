//! Names: every value is valid.

use std::{
    borrow::Borrow,
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

/// Why a text is not a valid name. The message describes a valid one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadName(String);

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $check:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = BadName;

            fn from_str(text: &str) -> Result<Self, BadName> {
                let check: fn(&str) -> Result<(), BadName> = $check;
                check(text)?;
                Ok(Self(text.to_owned()))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

name! {
    /// The name of a container: 1 to 63 of `a-z0-9-` with no hyphen at an end. It becomes a directory, a cgroup and a host name.
    ContainerName, |text| {
        dns_label(text)?;
        if text.starts_with('-') || text.ends_with('-') {
            return Err(BadName("a container's name has no `-` at an end".into()));
        }
        Ok(())
    }
}

name! {
    /// The name of a user volume: 1 to 34 of `a-zA-Z0-9-`, as in Talos. With the prefix `u-` it has to fit a partition's label of 36. Case
    /// counts: names become directories, and labels of partitions.
    VolumeName, |text| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if (1..=34).contains(&text.len()) && text.bytes().all(allowed) {
            return Ok(());
        }
        Err(BadName("a volume's name has 1 to 34 characters of `a-z`, `A-Z`, `0-9` and `-`".into()))
    }
}

name! {
    /// A host name, with or without domain: labels of `a-zA-Z0-9-`, at most 63 each and 253 in all.
    Hostname, hostname
}

/// The longest host name that the kernel takes: its `__NEW_UTS_LEN`.
const LONGEST_OF_MACHINE: usize = 64;

name! {
    /// The host name of a machine, with or without domain: at most 64 characters in all, as the kernel keeps no more.
    MachineName, |text| {
        hostname(text)?;
        if text.len() > LONGEST_OF_MACHINE {
            return Err(BadName(format!(
                "a machine's host name has at most {LONGEST_OF_MACHINE} characters with its domain, and this one {}; shorten it, or leave the domain out",
                text.len()
            )));
        }
        Ok(())
    }
}

name! {
    /// An NTP server: a host name or an address, with a port if it is not 123.
    TimeServer, |text| {
        if text.parse::<std::net::IpAddr>().is_ok() || hostname(text).is_ok() || text.parse::<HostPort>().is_ok() {
            return Ok(());
        }
        Err(BadName("a time server is a host name or an address, with or without a port".into()))
    }
}

name! {
    /// The name of a link, by the kernel's rules (`dev_valid_name`, net/core/dev.c): 1 to 15 bytes without `/`, `:` and space.
    LinkName, |text| {
        let allowed = |c: char| !c.is_whitespace() && !c.is_control() && c != '/' && c != ':';
        if (1..=15).contains(&text.len()) && text.chars().all(allowed) && text != "." && text != ".." {
            return Ok(());
        }
        Err(BadName("a link's name has 1 to 15 characters, and neither spaces nor `/` nor `:`".into()))
    }
}

name! {
    /// An absolute path without `..`, `.` and empty parts, so that every program reads it in the same way.
    AbsolutePath, |text| {
        let below = text.strip_prefix('/');
        let clean = below.is_some_and(|below| below.is_empty() || below.split('/').all(|part| !matches!(part, "" | "." | "..")));
        if clean && !text.contains('\0') && text.len() < 4096 {
            return Ok(());
        }
        Err(BadName("this must be an absolute path without `.`, `..` and doubled or trailing slashes".into()))
    }
}

impl AbsolutePath {
    /// The value as a path.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        Path::new(&self.0)
    }
}

name! {
    /// A URL of http or https with a host.
    HttpUrl, |text| match text.parse::<http::Uri>() {
        Ok(uri) if matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some_and(|host| !host.is_empty()) => Ok(()),
        _ => Err(BadName("this is no URL; write for example `http://127.0.0.1:8080/healthz`".into())),
    }
}

name! {
    /// A host and a port: `127.0.0.1:5432`, `[::1]:5432`, `db.local:5432`.
    HostPort, |text| {
        let wrong = || BadName("a host and a port belong here, such as `127.0.0.1:5432`".into());
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let host_ok = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => hostname(host).is_ok(),
        };
        if host_ok && port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0) {
            return Ok(());
        }
        Err(wrong())
    }
}

name! {
    /// A registry's host as in image names, with its port if there is one: `docker.io`, `registry.local:5000`; `*` is every registry.
    RegistryHost, |text| {
        if text == "*" || hostname(text).is_ok() || text.parse::<HostPort>().is_ok() {
            return Ok(());
        }
        Err(BadName("a registry's host belongs here, such as `docker.io` or `registry.local:5000`, or `*` for every registry".into()))
    }
}

impl TimeServer {
    /// Whether a text names a clock of the machine that Talos takes among time servers: `/dev/ptp0`.
    #[must_use]
    pub fn is_clock_device(text: &str) -> bool {
        let name = text.strip_prefix("/dev/");
        name.is_some_and(|name| name.starts_with("ptp") && !name.contains('/'))
    }
}

impl VolumeName {
    /// The directory with all volumes, on the machine and in the container of Kubernetes.
    pub const DIRECTORY: &str = "/var/mnt";

    /// The path of the volume, on the machine and in containers.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        Path::new(Self::DIRECTORY).join(&self.0)
    }
}

fn dns_label(text: &str) -> Result<(), BadName> {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if (1..=63).contains(&text.len()) && text.bytes().all(allowed) {
        return Ok(());
    }
    Err(BadName(
        "a name has 1 to 63 characters of `a-z`, `0-9` and `-`".into(),
    ))
}

fn hostname(text: &str) -> Result<(), BadName> {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if text.len() <= 253 && text.split('.').all(label) {
        return Ok(());
    }
    Err(BadName("a host name has labels of `a-z`, `0-9` and `-`, at most 63 characters each, joined by dots".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts<T: FromStr>(good: &[&str], bad: &[&str]) {
        for text in good {
            assert!(text.parse::<T>().is_ok(), "{text}");
        }
        for text in bad {
            assert!(text.parse::<T>().is_err(), "{text}");
        }
    }

    #[test]
    fn names_are_what_they_claim() {
        let long = "a".repeat(64);
        accepts::<ContainerName>(
            &["web", "a-1"],
            &["", "Web", "a_b", "a/b", "-a", "..", "a.b", "a-", &long],
        );
        accepts::<VolumeName>(
            &["data", "Data-1", &"a".repeat(34)],
            &["", "a_b", "a/b", ".", "\u{e4}", &"a".repeat(35)],
        );
        accepts::<Hostname>(
            &["node-1", "a.example.org", "N1"],
            &["", "-a", "a-", "a..b", "a_b", &long],
        );
        let longest = format!("{}.{}", "a".repeat(32), "b".repeat(31));
        accepts::<MachineName>(
            &["node-1", "a.example.org", &longest],
            &["", "a..b", &long, &format!("{longest}b")],
        );
        assert!(TimeServer::is_clock_device("/dev/ptp_kvm"));
        assert!(!TimeServer::is_clock_device("/dev/ptp/0"));
        accepts::<TimeServer>(
            &[
                "time.cloudflare.com",
                "::1",
                "10.0.2.2",
                "10.0.2.2:1123",
                "[::1]:1123",
            ],
            &["", "/dev/ptp0", "10.0.2.2:0", "::1:x"],
        );
        accepts::<LinkName>(
            &["eth0", "enp0s1"],
            &["", "a b", "a/b", "a:1", "..", "sixteen-chars-xx"],
        );
        accepts::<AbsolutePath>(
            &["/", "/var/lib", "/..a"],
            &["", "var", "/var/", "//var", "/a/../b", "/a/.", "/a\0"],
        );
        accepts::<HttpUrl>(
            &["http://127.0.0.1:80/x", "https://a.b/"],
            &["", "ftp://x/", "http://", "/x", "x"],
        );
        accepts::<HostPort>(
            &["127.0.0.1:5432", "[::1]:80", "db:1"],
            &[
                "", "db", "db:", "db:0", "db:65536", "::1:80", "[x]:1", "a b:1",
            ],
        );
        accepts::<RegistryHost>(
            &["*", "docker.io", "registry.local:5000"],
            &["", "docker.io/x", "http://x", "a b"],
        );
    }
}
