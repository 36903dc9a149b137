//! The machine config: from bytes to one validated model.
//!
//! ```text
//! bytes ─ yaml ─► documents ─ shape ─► known kinds and fields ─ resolve ─► MachineConfig
//!                    │                     │            └ warnings: known, but not served here
//!                    │                     └ conflicts: the same thing said twice
//!                    └ every node knows its line and column
//! ```
//!
//! Two shapes are input: one large document `version: v1alpha1` (`machine:`, `cluster:`), and a document per concern (`apiVersion:
//! v1alpha1`, `kind: …`). They may be mixed, as long as no setting is in both. The possible content of a document is a table ([`v1alpha1`],
//! [`documents`]); the part that this node serves is another ([`settings`]). No code beyond the tables sees YAML: the rest of the daemon
//! reads [`MachineConfig`].
//!
//! The decision: this crate does not know the machine. It reads no file, asks no service, and makes the same model of the same text on a
//! node, in `instarctl validate` and in a test; the domains that act on the model translate it for themselves (machined's `intent`). Types
//! of the domains in the model were the other choice: they save a translation, but a config could only be checked where disks and
//! containers are linked in.
//!
//! All problems of a config are reported at once, each with its document, line and column. Messages never quote a value that could be a
//! secret.

#![forbid(unsafe_code)]

mod as_written;
mod check_shape;
mod conflicts;
mod documents;
mod manifest_containers;
mod model;
mod own_documents;
mod problem;
mod pull_warnings;
mod resolve;
mod section;
pub mod settings;
mod shape;
mod suggestion;
#[cfg(test)]
mod tests;
mod v1alpha1;
mod validate;
mod warnings;
mod yaml;

pub use self::{
    as_written::document_as_json,
    manifest_containers::{ManifestContainer, NotManifests, Pull, manifest_objects},
    model::*,
    own_documents::{Kept, keep_own, without_own},
    problem::{ConfigErrors, Position, Problem},
    resolve::source_of_own_file,
    warnings::Warning,
};
use self::{documents::Identified, problem::Problems};

/// Size limit of a config, in bytes. Large configs carry a few certificates and manifests: tens of KiB.
pub const MAX_CONFIG_BYTES: usize = 1024 * 1024;

/// A valid config.
#[derive(Debug, Clone)]
pub struct Parsed {
    /// The config.
    pub config: MachineConfig,
    /// Settings that are not served, or may not do what they are set for, in the order of the file.
    pub warnings: Vec<Warning>,
}

/// Reads and checks a machine config.
///
/// All errors of the config, in the order of the file: YAML that is not well-formed, an unknown kind or field, a value that does not fit
/// its field, a setting that is given twice, a reference to a missing name.
pub fn parse(bytes: &[u8]) -> Result<Parsed, ConfigErrors> {
    read(bytes, false)
}

/// Reads a config that its machine has already: a version that checked less may have taken it. What checks of later versions refuse is left out, each
/// with a warning. Without a config the machine would be out of reach, or never get past that version.
///
/// # Errors
/// All other errors of the config, as [`parse`] finds them.
pub fn parse_taken(bytes: &[u8]) -> Result<Parsed, ConfigErrors> {
    read(bytes, true)
}

fn read(bytes: &[u8], is_taken: bool) -> Result<Parsed, ConfigErrors> {
    let problems = Problems::default();
    let documents = yaml::documents(bytes, MAX_CONFIG_BYTES)?;
    let documents = identified(&documents, &problems)?;

    let config = resolve::config(&documents, &problems);
    if let Some((config, origins)) = &config {
        validate::references(config, origins);
    }
    let left_out = match is_taken {
        true => problems.take_those_of_new(),
        false => Vec::new(),
    };
    problems.result()?;
    let (config, _) = config.ok_or_else(ConfigErrors::no_machine_document)?;
    let mut warnings = warnings::collect(&documents);
    warnings.extend(pull_warnings::collect(&documents));
    warnings.extend(left_out.into_iter().filter_map(Warning::of_left_out));
    warnings.sort_by_key(|warning| warning.at);
    Ok(Parsed { config, warnings })
}

/// Identifies the documents, and checks their shapes and what contradicts itself.
fn identified<'a>(
    documents: &'a [yaml::Document],
    problems: &Problems,
) -> Result<Vec<Identified<'a>>, ConfigErrors> {
    let documents: Vec<Identified<'a>> = documents
        .iter()
        .filter_map(|document| documents::identify(document, problems))
        .collect();
    for document in &documents {
        check_shape::check(document, problems);
    }
    conflicts::check(&documents, problems);
    problems.result()?;
    Ok(documents)
}

/// Reads where images come from out of documents that need not make a whole config: for a computer that is no machine of ours, but asks the
/// same registries.
///
/// # Errors
/// All errors of the documents, as [`parse`] finds them, except that a machine document is missing.
pub fn parse_image_sources(bytes: &[u8]) -> Result<ImageSources, ConfigErrors> {
    let problems = Problems::default();
    let documents = yaml::documents(bytes, MAX_CONFIG_BYTES)?;
    let documents = identified(&documents, &problems)?;
    let sources = resolve::image_sources(&documents, &problems);
    problems.result()?;
    Ok(sources)
}
