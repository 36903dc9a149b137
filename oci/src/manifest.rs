//! The documents of registries about images (index, manifest and config), read into the parts that we use.
//!
//! Both the OCI and the older Docker media types are understood; they differ in name only.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use instar_values::Digest;

/// The platform of this machine.
pub const PLATFORM: Platform<'static> = Platform {
    os: "linux",
    architecture: "amd64",
};
/// Limit on layers: more than any builder makes (overlay mounts end at 128 or so).
const MOST_LAYERS: usize = 256;

/// The `Accept` header of a manifest request.
pub(super) const MANIFEST_MEDIA_TYPES: &str = "application/vnd.oci.image.index.v1+json, \
    application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.list.v2+json, \
    application/vnd.docker.distribution.manifest.v2+json";

/// Operating system and processor of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Platform<'a> {
    /// The operating system, for example `linux`.
    pub os: &'a str,
    /// The processor, for example `amd64`.
    pub architecture: &'a str,
}

impl fmt::Display for Platform<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)
    }
}

/// One layer: a blob and the digest of its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// The digest of the blob as it is stored.
    pub digest: Digest,
    /// The size of the blob, in bytes.
    pub size: u64,
    /// The digest of the unpacked archive.
    pub diff_id: Digest,
}

/// The label that names an image's version, by the OCI's image specification.
pub const VERSION_LABEL: &str = "org.opencontainers.image.version";

/// The image's settings for running it, and its labels.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct ImageConfig {
    /// The processor, for example `amd64`.
    pub architecture: String,
    /// The operating system, for example `linux`.
    pub os: String,
    /// The build time (RFC 3339), if it is given.
    pub created: Option<String>,
    /// The program and its first arguments.
    pub entrypoint: Vec<String>,
    /// The other arguments, or the program where there is no entry point.
    pub command: Vec<String>,
    /// The environment, each as `KEY=VALUE`.
    pub environment: Vec<String>,
    /// `USER[:GROUP]`, names or numbers; empty for root.
    pub user: String,
    /// The working directory; empty for the root directory.
    pub working_dir: String,
    /// Labels by name.
    pub labels: BTreeMap<String, String>,
    /// The signal that stops it gracefully, for example `SIGTERM`.
    pub stop_signal: Option<String>,
    /// The digests of the unpacked layers, lowest first; none in records of earlier versions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<Digest>,
}

/// Why a registry's document is refused.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// The document is not JSON, or lacks fields.
    #[error("the {what} cannot be read")]
    Json {
        /// The kind of document: `manifest` or `config`.
        what: &'static str,
        /// The error with its position.
        source: serde_json::Error,
    },
    /// The document has the fields of an index and of a manifest, so it could be read as either.
    #[error("the manifest is both an index and an image; it is refused as ambiguous")]
    Ambiguous,
    /// The media type is not supported, for example schema 1.
    #[error("the manifest is of type {0:?}, which is no image")]
    MediaType(String),
    /// The header and the document disagree about the media type, so another client may read the document as another kind.
    #[error(
        "the registry serves the manifest as {served:?}, but it is {own:?}; it is refused as ambiguous"
    )]
    ContentType {
        /// The media type in the response header.
        served: String,
        /// The media type in the document, or the one that its fields belong to.
        own: String,
    },
    /// The config is of another type: Helm charts and other things that registries store like images.
    #[error("its config is of type {0:?}, which is no image's")]
    ConfigType(String),
    /// A layer is of another type: Helm charts, WASM modules, foreign layers.
    #[error("a layer is of type {0:?}, which cannot be unpacked; tar, tar+gzip and tar+zstd can")]
    LayerType(String),
    /// The image is not for this platform: an index without it, or a single image for another one.
    #[error("the image is for {found}, this machine is {wanted}", wanted = PLATFORM)]
    Platform {
        /// The platforms that there are.
        found: String,
    },
    /// The image is not for the platform that a bundle is to be for.
    #[error("the image is for {found}, not for {wanted}")]
    OtherPlatform {
        /// The platforms that there are.
        found: String,
        /// The platform that was asked for.
        wanted: String,
    },
    /// Manifest and config list different numbers of layers.
    #[error("the manifest has {layers} layers, the config {diff_ids}")]
    LayerCount {
        /// The number in the manifest.
        layers: usize,
        /// The number in the config.
        diff_ids: usize,
    },
    /// There are more layers than the limit: a bomb.
    #[error("the image has {0} layers; at most {MOST_LAYERS} are taken")]
    TooManyLayers(usize),
}

/// A pointer to a blob or manifest.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    #[serde(default)]
    pub(super) media_type: String,
    pub(super) digest: Digest,
    pub(super) size: u64,
    #[serde(default)]
    platform: Option<RawPlatform>,
}

#[derive(Debug, Clone, Deserialize)]
struct RawPlatform {
    os: String,
    architecture: String,
    #[serde(default)]
    variant: Option<String>,
}

/// The answer to a manifest request.
#[derive(Debug)]
pub(crate) enum Manifest {
    /// Several images, one per platform.
    Index(Vec<Descriptor>),
    /// One image.
    Image {
        config: Descriptor,
        layers: Vec<Descriptor>,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawManifest {
    #[serde(default)]
    schema_version: u32,
    #[serde(default)]
    media_type: Option<String>,
    manifests: Option<Vec<Descriptor>>,
    config: Option<Descriptor>,
    layers: Option<Vec<Descriptor>>,
}

const INDEX_TYPES: [&str; 2] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
];
const IMAGE_TYPES: [&str; 2] = [
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];
const CONFIG_TYPES: [&str; 2] = [
    "application/vnd.oci.image.config.v1+json",
    "application/vnd.docker.container.image.v1+json",
];

fn shortened(text: &str) -> String {
    text.chars().take(100).collect()
}

impl Manifest {
    /// Reads a manifest. Its media type must agree with the Content-Type of the response, if there is one.
    pub(crate) fn parse(bytes: &[u8], content_type: Option<&str>) -> Result<Self, ManifestError> {
        let raw: RawManifest =
            serde_json::from_slice(bytes).map_err(|source| ManifestError::Json {
                what: "manifest",
                source,
            })?;
        let media_type = raw.media_type.unwrap_or_default();
        if raw.schema_version != 2 {
            return Err(ManifestError::MediaType(format!(
                "schema version {}",
                raw.schema_version
            )));
        }
        let (manifest, types) = match (raw.manifests, raw.config, raw.layers) {
            (Some(manifests), None, None) => (Manifest::Index(manifests), INDEX_TYPES),
            (None, Some(config), Some(layers)) => (Manifest::Image { config, layers }, IMAGE_TYPES),
            (Some(_), _, _) => return Err(ManifestError::Ambiguous),
            _ => return Err(ManifestError::MediaType(shortened(&media_type))),
        };
        if !media_type.is_empty() && !types.contains(&media_type.as_str()) {
            return Err(ManifestError::MediaType(shortened(&media_type)));
        }
        if let Some(served) = content_type {
            let served = served.split(';').next().unwrap_or_default().trim();
            // Old builders leave the media type out of the document.
            let agrees = match media_type.as_str() {
                "" => types.iter().any(|own| own.eq_ignore_ascii_case(served)),
                own => own.eq_ignore_ascii_case(served),
            };
            if !agrees {
                let own = if media_type.is_empty() {
                    types[0]
                } else {
                    &media_type
                };
                return Err(ManifestError::ContentType {
                    served: shortened(served),
                    own: own.to_owned(),
                });
            }
        }
        if let Manifest::Image { config, .. } = &manifest {
            let media_type = config.media_type.as_str();
            // Old builders leave the media type out here as well; the config itself is checked when it is read.
            if !media_type.is_empty() && !CONFIG_TYPES.contains(&media_type) {
                return Err(ManifestError::ConfigType(shortened(media_type)));
            }
        }
        Ok(manifest)
    }
}

/// The entry of an index for this platform.
pub(crate) fn select(manifests: Vec<Descriptor>) -> Result<Descriptor, ManifestError> {
    select_for(manifests, PLATFORM)
}

/// The variant of an architecture that every processor of it runs, and the only one that is selected: amd64/v2 and up may need instructions
/// that a processor lacks; v8 is every arm64.
pub fn base_variant(architecture: &str) -> &'static str {
    match architecture {
        "arm64" => "v8",
        _ => "v1",
    }
}

/// The entry of an index for a platform.
pub(crate) fn select_for(
    manifests: Vec<Descriptor>,
    wanted: Platform<'_>,
) -> Result<Descriptor, ManifestError> {
    let base = base_variant(wanted.architecture);
    let runs_here = |entry: &Descriptor| {
        entry.platform.as_ref().is_some_and(|platform| {
            let variant = platform.variant.as_deref();
            platform.os == wanted.os
                && platform.architecture == wanted.architecture
                && variant.is_none_or(|variant| variant.is_empty() || variant == base)
        })
    };
    if let Some(entry) = manifests.iter().find(|entry| runs_here(entry)) {
        return Ok(entry.clone());
    }
    // An index with one entry and no platform: the image's config names the platform.
    if let [only @ Descriptor { platform: None, .. }] = manifests.as_slice() {
        return Ok(only.clone());
    }
    let platforms = manifests.iter().filter_map(|entry| entry.platform.as_ref());
    let mut found: Vec<String> = platforms
        .filter(|platform| platform.os != "unknown")
        .map(|platform| match &platform.variant {
            Some(variant) => format!("{}/{}/{variant}", platform.os, platform.architecture),
            None => format!("{}/{}", platform.os, platform.architecture),
        })
        .collect();
    found.dedup();
    found.truncate(20);
    let found = if found.is_empty() {
        "no platform".to_owned()
    } else {
        found.join(", ")
    };
    Err(match wanted == PLATFORM {
        true => ManifestError::Platform { found },
        false => ManifestError::OtherPlatform {
            found,
            wanted: wanted.to_string(),
        },
    })
}

#[derive(Deserialize)]
struct RawConfig {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
    created: Option<String>,
    config: Option<RawRunConfig>,
    rootfs: RawRootfs,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase")]
struct RawRunConfig {
    user: Option<String>,
    env: Option<Vec<String>>,
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    working_dir: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    stop_signal: Option<String>,
}

#[derive(Deserialize)]
struct RawRootfs {
    diff_ids: Vec<Digest>,
}

/// Reads a config and pairs the layers of the manifest with the digests of their content.
pub(crate) fn image(
    config: &[u8],
    layers: &[Descriptor],
) -> Result<(ImageConfig, Vec<Layer>), ManifestError> {
    let raw: RawConfig = serde_json::from_slice(config).map_err(|source| ManifestError::Json {
        what: "config",
        source,
    })?;
    let platform = Platform {
        os: &raw.os,
        architecture: &raw.architecture,
    };
    if platform != PLATFORM {
        return Err(ManifestError::Platform {
            found: platform.to_string().chars().take(100).collect(),
        });
    }
    let diff_ids = raw.rootfs.diff_ids;
    if layers.len() != diff_ids.len() {
        return Err(ManifestError::LayerCount {
            layers: layers.len(),
            diff_ids: diff_ids.len(),
        });
    }
    if layers.len() > MOST_LAYERS {
        return Err(ManifestError::TooManyLayers(layers.len()));
    }
    let layers = layers.iter().zip(diff_ids).map(|(descriptor, diff_id)| {
        if !is_layer(&descriptor.media_type) {
            return Err(ManifestError::LayerType(shortened(&descriptor.media_type)));
        }
        Ok(Layer {
            digest: descriptor.digest,
            size: descriptor.size,
            diff_id,
        })
    });
    let layers = layers.collect::<Result<Vec<Layer>, ManifestError>>()?;
    let run = raw.config.unwrap_or_default();
    let config = ImageConfig {
        architecture: raw.architecture,
        os: raw.os,
        created: raw.created,
        entrypoint: run.entrypoint.unwrap_or_default(),
        command: run.cmd.unwrap_or_default(),
        environment: run.env.unwrap_or_default(),
        user: run.user.unwrap_or_default(),
        working_dir: run.working_dir.unwrap_or_default(),
        labels: run.labels.unwrap_or_default(),
        stop_signal: run.stop_signal,
        layers: layers.iter().map(|layer| layer.diff_id).collect(),
    };
    Ok((config, layers))
}

/// Whether a layer is an archive, packed or not; the way of packing is detected by its first bytes.
fn is_layer(media_type: &str) -> bool {
    matches!(
        media_type,
        "application/vnd.oci.image.layer.v1.tar"
            | "application/vnd.oci.image.layer.v1.tar+gzip"
            | "application/vnd.oci.image.layer.v1.tar+zstd"
            | "application/vnd.oci.image.layer.nondistributable.v1.tar"
            | "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip"
            | "application/vnd.oci.image.layer.nondistributable.v1.tar+zstd"
            | "application/vnd.docker.image.rootfs.diff.tar"
            | "application/vnd.docker.image.rootfs.diff.tar.gzip"
            | "application/vnd.docker.image.rootfs.diff.tar.zstd"
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;
    use serde_json::json;

    fn descriptor(platform: serde_json::Value) -> serde_json::Value {
        json!({"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": Digest::of(platform.to_string().as_bytes()),
               "size": 10, "platform": platform})
    }

    fn index(platforms: &[serde_json::Value]) -> Result<Descriptor, ManifestError> {
        let manifests: Vec<_> = platforms.iter().cloned().map(descriptor).collect();
        let document = json!({"schemaVersion": 2, "manifests": manifests});
        match Manifest::parse(document.to_string().as_bytes(), None)? {
            Manifest::Index(manifests) => select(manifests),
            Manifest::Image { .. } => panic!("not an index"),
        }
    }

    #[test]
    fn an_index_gives_the_image_for_this_machine() {
        let ours = json!({"os": "linux", "architecture": "amd64"});
        let newer = json!({"os": "linux", "architecture": "amd64", "variant": "v3"});
        let arm = json!({"os": "linux", "architecture": "arm64", "variant": "v8"});
        let attestation = json!({"os": "unknown", "architecture": "unknown"});
        let expected = Digest::of(ours.to_string().as_bytes());
        let chosen = index(&[arm.clone(), newer.clone(), attestation.clone(), ours]).unwrap();
        assert_eq!(chosen.digest, expected);

        let error = index(&[arm, newer, attestation]).unwrap_err();
        let said = error.to_string();
        assert_eq!(
            said,
            "the image is for linux/arm64/v8, linux/amd64/v3, this machine is linux/amd64"
        );
        assert!(index(&[serde_json::Value::Null]).is_ok());
        assert!(index(&[serde_json::Value::Null, serde_json::Value::Null]).is_err());
        assert!(index(&[]).is_err());
    }

    #[test]
    fn documents_that_are_two_things_or_none_are_refused() {
        let config = json!({"digest": Digest::of(b""), "size": 1});
        let parse =
            |document: serde_json::Value| Manifest::parse(document.to_string().as_bytes(), None);
        let both = json!({"schemaVersion": 2, "manifests": [], "config": config, "layers": []});
        assert!(matches!(parse(both), Err(ManifestError::Ambiguous)));
        let mislabelled = json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "manifests": []});
        assert!(matches!(
            parse(mislabelled),
            Err(ManifestError::MediaType(_))
        ));
        assert!(matches!(
            parse(json!({"schemaVersion": 1, "fsLayers": []})),
            Err(ManifestError::MediaType(_))
        ));
        assert!(matches!(
            parse(json!({"schemaVersion": 2})),
            Err(ManifestError::MediaType(_))
        ));
        assert!(matches!(
            Manifest::parse(b"<html>", None),
            Err(ManifestError::Json { .. })
        ));
        let evil = json!({"schemaVersion": 2, "config": {"digest": "sha256:../../etc", "size": 1}, "layers": []});
        assert!(matches!(parse(evil), Err(ManifestError::Json { .. })));
    }

    #[test]
    fn what_is_no_image_and_what_may_be_two_things_is_refused() {
        const OCI: &str = "application/vnd.oci.image.manifest.v1+json";
        const INDEX: &str = "application/vnd.oci.image.index.v1+json";
        const DOCKER: &str = "application/vnd.docker.distribution.manifest.v2+json";
        let image = |media_type: Option<&str>, config: &str| {
            let config = json!({"mediaType": config, "digest": Digest::of(b""), "size": 1});
            let mut image = json!({"schemaVersion": 2, "config": config, "layers": []});
            if let Some(media_type) = media_type {
                image["mediaType"] = media_type.into();
            }
            image.to_string()
        };
        let parse = |document: &str, served| Manifest::parse(document.as_bytes(), served);
        let (config, chart) = (
            "application/vnd.oci.image.config.v1+json",
            "application/vnd.cncf.helm.config.v1+json",
        );
        for (media_type, served, good) in [
            (Some(OCI), None, true),
            (Some(OCI), Some(OCI), true),
            (
                Some(OCI),
                Some("Application/vnd.oci.image.manifest.v1+json; charset=utf-8"),
                true,
            ),
            (None, Some(OCI), true),
            (None, Some(DOCKER), true),
            (None, None, true),
            (Some(OCI), Some(DOCKER), false),
            (Some(OCI), Some(INDEX), false),
            (Some(DOCKER), Some(OCI), false),
            (None, Some(INDEX), false),
            (Some(OCI), Some("application/json"), false),
            (Some(OCI), Some(""), false),
        ] {
            let result = parse(&image(media_type, config), served);
            let refused = matches!(result, Err(ManifestError::ContentType { .. }));
            assert_eq!(
                (result.is_ok(), refused),
                (good, !good),
                "{media_type:?} {served:?}"
            );
        }
        assert!(matches!(
            parse(&image(None, chart), None),
            Err(ManifestError::ConfigType(found)) if found == chart
        ));
        assert!(parse(&image(None, CONFIG_TYPES[1]), None).is_ok());
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": []}).to_string();
        assert!(parse(&index, Some(INDEX)).is_ok());
        assert!(parse(&index, Some(OCI)).is_err());
    }

    fn layer(media_type: &str) -> Descriptor {
        let json = json!({"mediaType": media_type, "digest": Digest::of(b"l"), "size": 3});
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn a_config_is_paired_with_its_layers() {
        let config = json!({
            "os": "linux", "architecture": "amd64", "rootfs": {"type": "layers", "diff_ids": [Digest::of(b"d")]},
            "config": {"Env": ["A=b"], "Entrypoint": ["/app"], "Cmd": null, "Labels": {"k": "v"}, "User": "10:20"},
        });
        let gzip = layer("application/vnd.oci.image.layer.v1.tar+gzip");
        let (config_read, layers) =
            image(config.to_string().as_bytes(), std::slice::from_ref(&gzip)).unwrap();
        assert_eq!(config_read.entrypoint, ["/app"]);
        assert!(config_read.command.is_empty());
        assert_eq!(config_read.labels["k"], "v");
        assert_eq!(layers[0].diff_id, Digest::of(b"d"));
        assert_eq!(config_read.layers, [Digest::of(b"d")]);

        let error =
            image(config.to_string().as_bytes(), &[gzip.clone(), gzip.clone()]).unwrap_err();
        assert!(matches!(
            error,
            ManifestError::LayerCount {
                layers: 2,
                diff_ids: 1
            }
        ));
        let chart = layer("application/vnd.cncf.helm.chart.content.v1.tar+gzip");
        assert!(matches!(
            image(config.to_string().as_bytes(), &[chart]),
            Err(ManifestError::LayerType(_))
        ));
        let arm = config.to_string().replace("amd64", "arm64");
        let error = image(arm.as_bytes(), &[gzip]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the image is for linux/arm64, this machine is linux/amd64"
        );
    }
}
