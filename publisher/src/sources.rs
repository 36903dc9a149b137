//! Reads the digest and the labels of an installer image: at its registry, or in an OCI layout.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, ensure};
use instar_values::{Digest, ImageReference};
use serde_json::Value;

use crate::command_line::Place;
use crate::registries;

/// An image, as far as a channel has to know it.
pub(crate) struct Found {
    pub(crate) digest: Digest,
    pub(crate) labels: BTreeMap<String, String>,
}

/// Finds an image.
pub(crate) fn find(image: &ImageReference, place: &Place) -> anyhow::Result<Found> {
    match &place.layout {
        Some(layout) => of_layout(layout),
        None => at_registry(image, place),
    }
}

fn at_registry(named: &ImageReference, place: &Place) -> anyhow::Result<Found> {
    let client = registries::client(place.registries.as_deref())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let image = runtime.block_on(client.resolve(named));
    let image = image.with_context(|| {
        format!("look {named} up; without its registry, --layout DIR reads it from an OCI layout")
    })?;
    Ok(Found {
        digest: image.digest(),
        labels: image.labels().clone(),
    })
}

/// Reads a layout with one image. Every document is compared with its digest.
fn of_layout(layout: &Path) -> anyhow::Result<Found> {
    let name = layout.display();
    let index = fs::read(layout.join("index.json")).with_context(|| format!("read {name}"))?;
    let index: Value = serde_json::from_slice(&index)?;
    let manifests = index["manifests"].as_array().map_or(&[][..], Vec::as_slice);
    ensure!(
        manifests.len() == 1,
        "{name} has {} images, and one is expected",
        manifests.len()
    );
    let digest: Digest = text(&manifests[0]["digest"])?.parse()?;
    let manifest = document(layout, digest)?;
    let config = document(layout, text(&manifest["config"]["digest"])?.parse()?)?;
    let labels = config["config"]["Labels"].clone();
    Ok(Found {
        digest,
        labels: serde_json::from_value(labels).unwrap_or_default(),
    })
}

fn text(value: &Value) -> anyhow::Result<&str> {
    value.as_str().context("the layout has no digest there")
}

fn document(layout: &Path, digest: Digest) -> anyhow::Result<Value> {
    let file = layout.join("blobs/sha256").join(digest.hex());
    let bytes = fs::read(&file).with_context(|| format!("read {}", file.display()))?;
    ensure!(
        Digest::of(&bytes) == digest,
        "{} is not what its name says",
        file.display()
    );
    Ok(serde_json::from_slice(&bytes)?)
}
