//! Extensions: of Kubernetes, or of the machine itself.

use std::{ops::RangeInclusive, time::Duration};

use super::{
    super::{
        model::{
            Extension, ExtensionFile, ExtensionSource, OsExtension, OsExtensionSource,
            PublishedExtension,
        },
        section::Section,
    },
    Documents,
    containers::within,
    window,
};

/// Limit on extensions: each is a layer of one overlay, and a service or two.
const MAX_EXTENSIONS: usize = 16;
/// The interval between two looks at a publisher's list: by default, and the limits.
const LIST_INTERVAL: Duration = Duration::from_secs(6 * 3600);
const LIST_INTERVALS: RangeInclusive<Duration> =
    Duration::from_secs(10)..=Duration::from_secs(7 * 24 * 3600);

/// The extensions of a config, each list in the order of its names.
#[derive(Default)]
pub(super) struct Extensions {
    pub(super) of_kubernetes: Vec<Extension>,
    pub(super) of_os: Vec<OsExtension>,
}

/// Whether the document is for the machine itself, and not for Kubernetes.
pub(super) fn is_of_os(document: &Section<'_>) -> bool {
    document.text("target") == Some("os")
}

pub(super) fn extensions(documents: &Documents<'_>) -> Extensions {
    let mut extensions = Extensions::default();
    for (number, document) in documents.of("ExtensionConfig").enumerate() {
        if number == MAX_EXTENSIONS {
            document.wrong(format_args!(
                "a machine takes at most {MAX_EXTENSIONS} extensions"
            ));
        }
        let (Some(name), Some(source)) = (name(&document), source(&document)) else {
            continue;
        };
        if !is_of_os(&document) {
            extensions.of_kubernetes.push(Extension { name, source });
        } else if let Some(source) = source_of_os(&document, source) {
            extensions.of_os.push(OsExtension { name, source });
        }
    }
    extensions.of_kubernetes.sort_by(|a, b| a.name.cmp(&b.name));
    extensions.of_os.sort_by(|a, b| a.name.cmp(&b.name));
    extensions
}

/// The machine itself gets no other files than the config names.
fn source_of_os(document: &Section<'_>, source: ExtensionSource) -> Option<OsExtensionSource> {
    match source {
        ExtensionSource::Image(image) => Some(OsExtensionSource::Image(image)),
        ExtensionSource::File(file) => Some(OsExtensionSource::File(file)),
        ExtensionSource::Published(_) => {
            document.wrong_field(
                "match",
                "an extension of the machine itself follows no publisher; name an `image`, or a file by `url` and `sha256`",
            );
            None
        }
    }
}

/// Reads where an extension comes from: an image, a file with its digest, or the newest of a publisher's files.
fn source(document: &Section<'_>) -> Option<ExtensionSource> {
    let has = |field| document.text(field).is_some();
    let follows = has("match");
    if !follows && (has("publicKey") || has("interval") || document.section("window").is_some()) {
        document.wrong("`publicKey`, `interval` and `window` are for an extension with `match`");
    }
    match (has("image"), has("url"), has("sha256"), follows) {
        (true, false, false, false) => Some(ExtensionSource::Image(document.parsed("image")?)),
        (false, true, true, false) => file(document).map(ExtensionSource::File),
        (false, true, false, true) => published(document).map(ExtensionSource::Published),
        _ => {
            document.wrong(
                "an extension comes from an `image`, from a file by `url` and `sha256`, or from a publisher by `url`, `match` and `publicKey`",
            );
            None
        }
    }
}

fn file(document: &Section<'_>) -> Option<ExtensionFile> {
    let digest = document.required::<String>("sha256")?;
    let digest = digest.strip_prefix("sha256:").unwrap_or(&digest);
    let Ok(sha256) = format!("sha256:{digest}").parse() else {
        document.wrong_field(
            "sha256",
            "this must be the SHA-256 of the file, 64 hexadecimal digits in lower case",
        );
        return None;
    };
    Some(ExtensionFile {
        url: document.required("url")?,
        sha256,
    })
}

fn published(document: &Section<'_>) -> Option<PublishedExtension> {
    let (folder, key) = (document.required("url"), document.required("publicKey"));
    let interval = within(document, "interval", LIST_INTERVALS, LIST_INTERVAL);
    Some(PublishedExtension {
        pattern: document.parsed("match")?,
        window: window::of(document)?,
        folder: folder?,
        key: key?,
        interval: interval?,
    })
}

/// Reads the name of an extension, which is a part of file names.
fn name(document: &Section<'_>) -> Option<String> {
    let name: String = document.required("name")?;
    let is_right = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.len() <= 64
        && name.bytes().all(is_right)
    {
        return Some(name);
    }
    document.wrong_field(
        "name",
        "the name of an extension begins with a letter or digit, and has letters, digits, `-`, `_` and `.`, 64 at most",
    );
    None
}
