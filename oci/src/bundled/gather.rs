//! Gathers the documents of an image and of its signatures from registries. Layers come later, when the bundle is written.

use std::collections::BTreeMap;

use instar_bundle::{Document, Image, Platform, Signature};
use instar_values::{Digest, ImageReference};
use serde::Deserialize;
use tokio::time::timeout;

use super::signatures::{Found, Search};
use crate::manifest::{self, ManifestError};
use crate::registries::Endpoint;
use crate::registry::{RESOLVE, RegistryClient, RegistryError, RequestError, Tried};

/// An image with its signatures, without its layers.
#[derive(Debug)]
pub struct Gathered {
    /// The image.
    pub image: Image,
    /// The index that the reference names, if it names an index.
    pub index: Option<Document>,
    /// The manifests of its signatures.
    pub signatures: Vec<Signature>,
    /// The documents by digest: manifests, the index, the config, and the payloads of signatures.
    pub documents: BTreeMap<Digest, Vec<u8>>,
    /// The image's labels.
    pub labels: BTreeMap<String, String>,
    /// The registries that could not be asked for signatures, with the reason; others were asked.
    pub not_asked: Vec<(String, RequestError)>,
}

/// Why an image is not gathered.
#[derive(Debug, thiserror::Error)]
pub enum GatherError {
    /// No registry gives the image.
    #[error("the image cannot be resolved")]
    Resolve(#[source] Box<RegistryError>),
    /// No registry can be asked for signatures.
    #[error("the signatures of {reference} cannot be searched for")]
    Signatures {
        /// The image.
        reference: ImageReference,
        /// The error of each endpoint.
        #[source]
        tried: Tried,
    },
}

#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    config: Option<RunConfig>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase")]
struct RunConfig {
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MediaType {
    #[serde(default)]
    media_type: Option<String>,
}

/// A document with its media type: the one in it, else the one of its kind.
fn document(bytes: &[u8], of_its_kind: &str) -> Document {
    let own: Option<MediaType> = serde_json::from_slice(bytes).ok();
    Document {
        digest: Digest::of(bytes),
        size: bytes.len() as u64,
        media_type: own
            .and_then(|own| own.media_type)
            .unwrap_or_else(|| of_its_kind.to_owned()),
    }
}

impl RegistryClient {
    /// Gathers an image for a platform, with all signatures of it.
    ///
    /// # Errors
    /// No registry gives the image, or none can be asked for signatures.
    pub async fn gather(
        &self,
        reference: &ImageReference,
        platform: &Platform,
    ) -> Result<Gathered, GatherError> {
        let mut round = self.round(reference);
        while let Some(turn) = round.turn() {
            let gathering = self.gather_at(&turn.endpoint, reference, platform);
            let gathered = timeout(RESOLVE, gathering).await;
            match gathered.unwrap_or(Err(RequestError::Late)) {
                Ok(image) => return self.with_signatures(image).await,
                Err(error) => _ = round.failed(turn, error),
            }
        }
        Err(GatherError::Resolve(Box::new(RegistryError {
            reference: reference.clone(),
            tried: round.into_tried(),
        })))
    }

    async fn gather_at(
        &self,
        endpoint: &Endpoint,
        reference: &ImageReference,
        platform: &Platform,
    ) -> Result<Gathered, RequestError> {
        let wanted = manifest::Platform {
            os: &platform.os,
            architecture: &platform.architecture,
        };
        let manifest = self.image_manifest(endpoint, reference, wanted).await?;
        let config = self.config(endpoint, reference, &manifest.config).await?;
        let labels = labels_for(&config, platform)?;
        let mut documents = BTreeMap::from([(manifest.config.digest, config)]);
        let of_image = document(
            &manifest.bytes,
            "application/vnd.oci.image.manifest.v1+json",
        );
        documents.insert(of_image.digest, manifest.bytes);
        let index = manifest.index.map(|bytes| {
            let of_index = document(&bytes, "application/vnd.oci.image.index.v1+json");
            documents.insert(of_index.digest, bytes);
            of_index
        });
        Ok(Gathered {
            image: Image {
                reference: reference.clone(),
                platform: platform.clone(),
                manifest: of_image,
                index: index.as_ref().map(|index| index.digest),
            },
            index,
            signatures: Vec::new(),
            documents,
            labels,
            not_asked: Vec::new(),
        })
    }

    /// Adds the signatures at all registries of the image.
    async fn with_signatures(&self, mut gathered: Gathered) -> Result<Gathered, GatherError> {
        let reference = gathered.image.reference.clone();
        let (mut asked, mut round) = (0, self.round(&reference));
        while let Some(turn) = round.turn() {
            let search = Search::new(self, &turn.endpoint, &reference);
            let subjects = [gathered.image.index, Some(gathered.image.manifest.digest)];
            let found = timeout(RESOLVE, search.run(subjects.into_iter().flatten())).await;
            match found.unwrap_or(Err(RequestError::Late)) {
                Ok(Found {
                    signatures,
                    documents,
                }) => {
                    asked += 1;
                    gathered.signatures.extend(signatures);
                    gathered.documents.extend(documents);
                }
                Err(error) => _ = round.failed(turn, error),
            }
        }
        let tried = round.into_tried();
        if asked == 0 {
            return Err(GatherError::Signatures { reference, tried });
        }
        gathered.not_asked = tried.0;
        Ok(gathered)
    }
}

/// The labels of a config, which has to be for this platform.
fn labels_for(
    config: &[u8],
    platform: &Platform,
) -> Result<BTreeMap<String, String>, ManifestError> {
    let config: Config = serde_json::from_slice(config).map_err(|source| ManifestError::Json {
        what: "config",
        source,
    })?;
    let found = Platform {
        os: config.os,
        architecture: config.architecture,
    };
    match found == *platform {
        true => Ok(config.config.unwrap_or_default().labels.unwrap_or_default()),
        false => Err(ManifestError::OtherPlatform {
            found: found.to_string().chars().take(100).collect(),
            wanted: platform.to_string(),
        }),
    }
}
