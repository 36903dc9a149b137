//! Chooses the source of the machine config.
//!
//! ```text
//! instar.config=URL on the kernel's command line   ─► fetch
//! QEMU's fw_cfg, opt/dev.instar/config             ─► read
//! the STATE partition                              ─► read
//! none of them                                     ─► maintenance mode
//! ```
//!
//! [`choose`] returns the source as a value and reads nothing. It also fills the machine's identity into the URL, so that
//! one URL serves a whole rack.

use std::{
    fmt,
    io::Read,
    path::{Path, PathBuf},
};

use instar_pki::Role;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::config::MAX_CONFIG_BYTES;
use crate::values::config_argument::{CONFIG_ARGUMENTS, without_config_urls};

/// Path where the kernel shows the config from QEMU's `-fw_cfg name=opt/dev.instar/config,file=…`, once its module is loaded.
pub const FW_CFG_PATH: &str = "/sys/firmware/qemu_fw_cfg/by_name/opt/dev.instar/config/raw";

/// All characters but RFC 3986's unreserved ones. With these escaped, a value stays one part of a path or query, whatever a
/// vendor wrote into its SMBIOS.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// A source that may hold the config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Fetch it from this URL.
    Url(http::Uri),
    /// Read it from QEMU, if it has one.
    FwCfg,
    /// Read it from the STATE partition, if there is one and it holds a config.
    State,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Show only host and path: a query may hold a token, and the console is not private.
            Self::Url(url) => f.write_str(&shown(url)),
            Self::FwCfg => f.write_str("QEMU fw_cfg"),
            Self::State => f.write_str("STATE"),
        }
    }
}

/// Formats a URL without user and query.
pub(super) fn shown(url: &http::Uri) -> String {
    let authority = url.authority().map_or("", http::uri::Authority::as_str);
    let host = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    format!(
        "{}://{host}{}",
        url.scheme_str().unwrap_or_default(),
        url.path()
    )
}

/// The values of the variables in a URL. None means unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// `${uuid}`: the machine's UUID, from SMBIOS.
    pub uuid: Option<String>,
    /// `${mac}`: the hardware address of the link that has the default route, or of the first link.
    pub mac: Option<String>,
    /// `${serial}`: the machine's serial number, from SMBIOS.
    pub serial: Option<String>,
    /// `${hostname}`: the hostname from DHCP.
    pub hostname: Option<String>,
}

/// Why no source can be chosen. Nothing was tried.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoSource {
    /// The argument is not a URL of http or https.
    #[error(
        "the kernel argument {argument} is no URL of http or https; write for example {argument}=http://10.0.2.2:8080/config.yaml"
    )]
    NotAUrl {
        /// The kernel argument.
        argument: &'static str,
    },
    /// The URL has an unknown variable `${…}`.
    #[error(
        "the kernel argument {argument} has the variable ${{{variable}}}, which is not one of ${{uuid}}, ${{mac}}, ${{serial}}, ${{hostname}}"
    )]
    UnknownVariable {
        /// The kernel argument.
        argument: &'static str,
        /// The variable.
        variable: String,
    },
    /// The URL has a variable without a value on this machine.
    #[error("the kernel argument {argument} asks for ${{{variable}}}, and this machine has none")]
    NoValue {
        /// The kernel argument.
        argument: &'static str,
        /// The variable.
        variable: &'static str,
    },
}

impl NoSource {
    /// Whether the argument is wrong in itself, so that it stays so. A value may come later, with a lease or a link.
    #[must_use]
    pub fn is_of_the_argument(&self) -> bool {
        !matches!(self, Self::NoValue { .. })
    }
}

/// Returns the first source that exists.
///
/// `cmdline` is the kernel's command line, `identity` holds the known values for the URL. `fw_cfg` tells whether this is QEMU with that
/// entry (see [`FW_CFG_PATH`]).
///
/// # Errors
/// The kernel's command line names an invalid URL.
pub fn choose(cmdline: &str, identity: &Identity, fw_cfg: bool) -> Result<Source, NoSource> {
    for argument in CONFIG_ARGUMENTS {
        if let Some(value) = last_argument(cmdline, argument) {
            let url = substitute(argument, value, identity)?;
            return parse_url(&url)
                .map(Source::Url)
                .ok_or(NoSource::NotAUrl { argument });
        }
    }
    Ok(if fw_cfg { Source::FwCfg } else { Source::State })
}

/// Returns whether the command line has a URL for the config, valid or not.
#[must_use]
pub fn names_a_server(cmdline: &str) -> bool {
    let mut arguments = CONFIG_ARGUMENTS.iter();
    arguments.any(|argument| last_argument(cmdline, argument).is_some())
}

/// Describes the source that takes precedence over the config on STATE; none if there is no such source. Arguments as for [`choose`].
#[must_use]
pub fn before_state(cmdline: &str, fw_cfg: bool) -> Option<&'static str> {
    if names_a_server(cmdline) {
        return Some("the URL on the kernel's command line");
    }
    fw_cfg.then_some("QEMU's fw_cfg")
}

/// The command line's setting for a machine without a config.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaintenanceArgument {
    /// The machine takes a config from any caller, whatever is on its disk.
    Open,
    /// The machine takes none from callers without a certificate, even if its disk is empty.
    Closed,
}

/// Parses `instar.maintenance=` on the command line; any other value than the two is ignored.
#[must_use]
pub fn maintenance(cmdline: &str) -> Option<MaintenanceArgument> {
    match last_argument(cmdline, "instar.maintenance")? {
        "open" => Some(MaintenanceArgument::Open),
        "closed" => Some(MaintenanceArgument::Closed),
        _ => None,
    }
}

/// Returns the disk to install on, from the command line.
#[must_use]
pub fn install_disk(cmdline: &str) -> Option<PathBuf> {
    last_argument(cmdline, "instar.install.disk").map(PathBuf::from)
}

/// Whether a caller is shown secrets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Secrets {
    /// Secrets are shown.
    Shown,
    /// Secrets are hidden.
    Hidden,
}

impl Secrets {
    /// Returns the setting for a caller with these roles.
    #[must_use]
    pub fn of(roles: &[Role]) -> Self {
        match roles.contains(&Role::Admin) {
            true => Secrets::Shown,
            false => Secrets::Hidden,
        }
    }

    /// Returns a line, without the config's URL if secrets are hidden. The line may hold the kernel's command line; the URL may
    /// hold a password or a token, and leads to the config.
    #[must_use]
    pub fn shown(self, line: String) -> String {
        match self {
            Secrets::Shown => line,
            Secrets::Hidden => without_config_urls(line),
        }
    }
}

/// Returns the value of an argument. The last one wins, as with the kernel's own; a value may be in double quotes.
fn last_argument<'a>(cmdline: &'a str, name: &str) -> Option<&'a str> {
    cmdline
        .split_ascii_whitespace()
        // The arguments after `--` are init's.
        .take_while(|word| *word != "--")
        .filter_map(|word| word.trim_matches('"').strip_prefix(name)?.strip_prefix('='))
        .map(|value| value.trim_matches('"'))
        .filter(|value| !value.is_empty())
        .last()
}

fn substitute(
    argument: &'static str,
    template: &str,
    identity: &Identity,
) -> Result<String, NoSource> {
    let mut url = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("${") {
        let (variable, tail) = after
            .split_once('}')
            .ok_or(NoSource::NotAUrl { argument })?;
        let (variable, value) = match variable {
            "uuid" => ("uuid", &identity.uuid),
            "mac" => ("mac", &identity.mac),
            "serial" => ("serial", &identity.serial),
            "hostname" => ("hostname", &identity.hostname),
            other => {
                return Err(NoSource::UnknownVariable {
                    argument,
                    variable: other.chars().take(32).collect(),
                });
            }
        };
        let value = value.as_deref().filter(|value| !value.is_empty());
        url.push_str(before);
        let value = value.ok_or(NoSource::NoValue { argument, variable })?;
        url.extend(utf8_percent_encode(value, RESERVED));
        rest = tail;
    }
    url.push_str(rest);
    Ok(url)
}

/// Parses a URL of http or https with a host; a fragment is left out.
pub(super) fn parse_url(text: &str) -> Option<http::Uri> {
    let text = text.split('#').next().unwrap_or(text);
    let url: http::Uri = text.parse().ok()?;
    let host = url.host().is_some_and(|host| !host.is_empty());
    (matches!(url.scheme_str(), Some("http" | "https")) && host).then_some(url)
}

/// Why an existing config could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Reading failed.
    #[error("cannot read the machine config from {path}")]
    Io {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The file is longer than a config may be.
    #[error("the machine config at {path} is longer than {MAX_CONFIG_BYTES} bytes")]
    TooLong {
        /// The file.
        path: String,
    },
    /// The file is gzip, and damaged.
    #[error("the machine config at {path} is gzip that cannot be decompressed")]
    Gzip {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
}

/// Reads the config from a file, for example QEMU's entry ([`FW_CFG_PATH`]), and unpacks it if it is gzip.
///
/// # Errors
/// The file is missing, cannot be read, or is too long.
pub fn read(path: &Path) -> Result<Vec<u8>, ReadError> {
    let shown = || path.display().to_string();
    let failed = |source| ReadError::Io {
        path: shown(),
        source,
    };
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    // sysfs reports a page as the size, so the file is read to its end.
    file.take(MAX_CONFIG_BYTES as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() > MAX_CONFIG_BYTES {
        return Err(ReadError::TooLong { path: shown() });
    }
    gunzip(bytes).map_err(|error| match error {
        GunzipError::TooLong => ReadError::TooLong { path: shown() },
        GunzipError::Broken(source) => ReadError::Gzip {
            path: shown(),
            source,
        },
    })
}

/// Why gzip data could not be decompressed.
#[derive(Debug)]
pub(super) enum GunzipError {
    /// It is longer than a config may be.
    TooLong,
    /// The data is damaged.
    Broken(std::io::Error),
}

/// Decompresses gzip data; returns any other data as it is.
pub(super) fn gunzip(bytes: Vec<u8>) -> Result<Vec<u8>, GunzipError> {
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(bytes);
    }
    let mut plain = Vec::new();
    flate2::read::MultiGzDecoder::new(bytes.as_slice())
        .take(MAX_CONFIG_BYTES as u64 + 1)
        .read_to_end(&mut plain)
        .map_err(GunzipError::Broken)?;
    if plain.len() > MAX_CONFIG_BYTES {
        return Err(GunzipError::TooLong);
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write;

    use super::*;

    fn identity() -> Identity {
        Identity {
            uuid: Some("0b9f-42".into()),
            mac: Some("52:54:00:12:34:56".into()),
            serial: Some("A/B C?&é".into()),
            hostname: None,
        }
    }

    fn url(cmdline: &str) -> String {
        match choose(cmdline, &identity(), true).unwrap() {
            Source::Url(url) => url.to_string(),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn the_first_that_there_is_decides() {
        let named = "quiet instar.config=http://10.0.2.2:8080/c.yaml";
        assert_eq!(url(named), "http://10.0.2.2:8080/c.yaml");
        let chosen = |cmdline, fw_cfg| choose(cmdline, &identity(), fw_cfg).unwrap();
        assert_eq!(chosen("quiet", true), Source::FwCfg);
        assert_eq!(chosen("", false), Source::State);
        let none = "instar.config= -- instar.config=http://x/";
        assert_eq!(chosen(none, false), Source::State);
        assert_eq!(before_state(none, false), None);
        assert_eq!(before_state(none, true), Some("QEMU's fw_cfg"));
        assert!(before_state(named, true).is_some_and(|source| source.contains("URL")));
    }

    #[test]
    fn the_disk_to_install_on_is_the_last_one_named() {
        let named = "instar.install.disk=/dev/vda quiet instar.install.disk=/dev/sda";
        assert_eq!(install_disk(named), Some("/dev/sda".into()));
        assert_eq!(install_disk("instar.install.disk= quiet"), None);
    }

    #[test]
    fn the_last_of_ours_wins() {
        assert_eq!(
            url("instar.config=http://a/ instar.config=http://b/"),
            "http://b/"
        );
        assert_eq!(url("talos.config=http://a/"), "http://a/");
        assert_eq!(
            url("instar.config=http://b/ talos.config=http://a/"),
            "http://b/"
        );
        assert_eq!(url("instar.config=\"https://b/x\""), "https://b/x");
    }

    #[test]
    fn the_identity_is_encoded() {
        assert_eq!(
            url("instar.config=http://a/${uuid}/${mac}.yaml"),
            "http://a/0b9f-42/52%3A54%3A00%3A12%3A34%3A56.yaml"
        );
        assert_eq!(
            url("instar.config=http://a/?s=${serial}"),
            "http://a/?s=A%2FB%20C%3F%26%C3%A9"
        );
    }

    #[test]
    fn a_value_may_come_later_but_a_wrong_argument_stays_wrong() {
        let stays = |url: &str| {
            let chosen = choose(&format!("instar.config={url}"), &identity(), false);
            chosen.unwrap_err().is_of_the_argument()
        };
        assert!(!stays("http://a/${hostname}"));
        assert!(stays("http://a/${ip}") && stays("ftp://a/b"));
    }

    #[test]
    fn a_url_that_cannot_be_is_said() {
        let error = |cmdline: &str| choose(cmdline, &identity(), true).unwrap_err().to_string();
        assert_eq!(
            error("instar.config=http://a/${hostname}"),
            "the kernel argument instar.config asks for ${hostname}, and this machine has none"
        );
        assert_eq!(
            error("instar.config=http://a/${ip}"),
            "the kernel argument instar.config has the variable ${ip}, which is not one of ${uuid}, ${mac}, ${serial}, ${hostname}"
        );
        for bad in [
            "metal-iso",
            "ftp://a/b",
            "http://",
            "/etc/config",
            "http://a/${uuid",
        ] {
            assert_eq!(
                error(&format!("talos.config={bad}")),
                "the kernel argument talos.config is no URL of http or https; write for example talos.config=http://10.0.2.2:8080/config.yaml"
            );
        }
    }

    #[test]
    fn only_administrators_are_shown_where_the_config_comes_from() {
        let line = "a instar.config=http://u:p@h/x?t=1 b";
        let hidden = "a instar.config=<hidden> b";
        assert_eq!(Secrets::Hidden.shown(line.to_owned()), hidden);
        assert_eq!(Secrets::Shown.shown(line.to_owned()), line);
        assert_eq!(Secrets::of(&[Role::Operator]), Secrets::Hidden);
        assert_eq!(Secrets::of(&[Role::Admin]), Secrets::Shown);
    }

    #[test]
    fn secrets_of_a_url_are_not_shown() {
        let source = Source::Url("https://user:secret@a:1/x?token=secret".parse().unwrap());
        assert_eq!(source.to_string(), "https://a:1/x");
    }

    #[test]
    fn a_file_is_read_to_its_end_and_no_further() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("raw");
        assert_eq!(
            read(&path).unwrap_err().to_string(),
            format!("cannot read the machine config from {}", path.display())
        );
        std::fs::write(&path, "version: v1alpha1").unwrap();
        assert_eq!(read(&path).unwrap(), b"version: v1alpha1");
        std::fs::write(&path, vec![b'#'; MAX_CONFIG_BYTES + 1]).unwrap();
        assert!(matches!(read(&path), Err(ReadError::TooLong { .. })));
        assert!(matches!(read(directory.path()), Err(ReadError::Io { .. })));
    }

    #[test]
    fn gzip_is_unpacked_within_bounds() {
        let pack = |bytes: &[u8]| {
            let mut encoder =
                flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        };
        assert_eq!(gunzip(b"plain".to_vec()).unwrap(), b"plain");
        assert_eq!(gunzip(pack(b"packed")).unwrap(), b"packed");
        let bomb = pack(&vec![0; 100 * MAX_CONFIG_BYTES]);
        assert!(bomb.len() < MAX_CONFIG_BYTES);
        assert!(matches!(gunzip(bomb), Err(GunzipError::TooLong)));
        let mut cut = pack(b"packed packed packed");
        cut.truncate(cut.len() - 9);
        assert!(matches!(gunzip(cut), Err(GunzipError::Broken(_))));
    }
}
