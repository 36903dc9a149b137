//! The SBOM, as an SPDX 2.3 document (<https://spdx.github.io/spdx-spec/v2.3/>).

use std::collections::BTreeSet;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};
use serde_json::{Value, json};

use crate::{
    crates::Crate,
    debian::{Fetched, copyright},
    digest::Blake3,
    version::Version,
};

/// Debian's short names of licences, and SPDX's names of the same.
const LICENCES: [(&str, &str); 17] = [
    ("Apache-2.0", "Apache-2.0"),
    ("BSD-2-clause", "BSD-2-Clause"),
    ("BSD-3-clause", "BSD-3-Clause"),
    ("CC0-1.0", "CC0-1.0"),
    ("Expat", "MIT"),
    ("GPL-2", "GPL-2.0-only"),
    ("GPL-2+", "GPL-2.0-or-later"),
    ("GPL-3", "GPL-3.0-only"),
    ("GPL-3+", "GPL-3.0-or-later"),
    ("ISC", "ISC"),
    ("LGPL-2", "LGPL-2.0-only"),
    ("LGPL-2+", "LGPL-2.0-or-later"),
    ("LGPL-2.1", "LGPL-2.1-only"),
    ("LGPL-2.1+", "LGPL-2.1-or-later"),
    ("LGPL-3+", "LGPL-3.0-or-later"),
    ("MIT", "MIT"),
    ("MPL-2.0", "MPL-2.0"),
];

/// Returns the document for an image of this version with this root filesystem.
#[must_use]
pub fn document(
    version: &Version,
    rootfs: Blake3,
    packages: &[&Fetched],
    crates: &[Crate],
) -> Value {
    let parts = packages
        .iter()
        .map(|fetched| debian_package(fetched))
        .chain(crates.iter().map(rust_crate));
    let subject = Subject::of_machines("instar", version);
    compose(&subject, rootfs, parts.collect())
}

/// Returns the document for the media of this version around this UKI: their content beside the image, which has a
/// document of its own.
#[must_use]
pub fn of_media(version: &Version, uki: Blake3, packages: &[&Fetched]) -> Value {
    let image = Subject::of_machines("instar", version).package();
    let parts = packages.iter().map(|fetched| debian_package(fetched));
    let parts = std::iter::once(image).chain(parts).collect();
    compose(&Subject::of_machines("instar-media", version), uki, parts)
}

/// Returns the document for the base image of Kubernetes of this version around this program.
#[must_use]
pub fn of_kubernetes_base(
    version: &Version,
    init: Blake3,
    packages: &[&Fetched],
    crates: &[Crate],
) -> Value {
    let packages = packages.iter().map(|fetched| debian_package(fetched));
    let parts = packages.chain(crates.iter().map(rust_crate)).collect();
    let subject = Subject::of_machines("instar-kubernetes-base", version);
    compose(&subject, init, parts)
}

/// Returns the document for a program that users run, e.g. instarctl, of this version for this architecture.
#[must_use]
pub fn of_program(
    name: &str,
    version: &Version,
    architecture: &str,
    program: Blake3,
    crates: &[Crate],
) -> Value {
    let subject = Subject {
        name,
        version,
        architecture,
        purpose: "APPLICATION",
    };
    compose(&subject, program, crates.iter().map(rust_crate).collect())
}

/// The subject of a document.
struct Subject<'a> {
    name: &'a str,
    version: &'a Version,
    architecture: &'a str,
    /// The purpose, one of SPDX's words.
    purpose: &'a str,
}

impl<'a> Subject<'a> {
    /// A subject that machines run.
    fn of_machines(name: &'a str, version: &'a Version) -> Self {
        Self {
            name,
            version,
            architecture: "amd64",
            purpose: "OPERATING-SYSTEM",
        }
    }

    fn id(&self) -> String {
        format!("SPDXRef-{}", self.name)
    }

    /// Returns the subject as a package of Instar's own.
    fn package(&self) -> Value {
        json!({
            "SPDXID": self.id(),
            "name": self.name,
            "versionInfo": self.version.to_string(),
            "primaryPackagePurpose": self.purpose,
            "downloadLocation": "NOASSERTION",
            "filesAnalyzed": false,
            "licenseConcluded": "NOASSERTION",
            "licenseDeclared": "Apache-2.0",
            "copyrightText": "NOASSERTION",
        })
    }
}

/// Returns the document of a subject with these parts. The digest is of a content that is only in this subject.
fn compose(subject: &Subject<'_>, digest: Blake3, parts: Vec<Value>) -> Value {
    let Subject {
        name,
        version,
        architecture,
        ..
    } = subject;
    let root = subject.package();
    let id = subject.id();
    let mut relationships = vec![relationship("SPDXRef-DOCUMENT", "DESCRIBES", &id)];
    relationships.extend(parts.iter().map(|part| {
        let part = part["SPDXID"].as_str().unwrap_or_default();
        relationship(&id, "CONTAINS", part)
    }));
    json!({
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": format!("{name}-{version}-{architecture}"),
        "documentNamespace": format!("https://instar.dev/spdx/{name}/{version}/{digest}"),
        // A constant instead of the time of the build: the same inputs give the same document.
        "creationInfo": { "created": "1970-01-01T00:00:00Z", "creators": ["Tool: instar-image"] },
        "packages": std::iter::once(root).chain(parts).collect::<Vec<_>>(),
        "relationships": relationships,
    })
}

fn relationship(from: &str, kind: &str, to: &str) -> Value {
    json!({ "spdxElementId": from, "relationshipType": kind, "relatedSpdxElement": to })
}

fn debian_package(fetched: &Fetched) -> Value {
    let package = &fetched.package;
    let licences = copyright::licences(&fetched.root, &package.name);
    let mut value = json!({
        "SPDXID": id("deb", &package.name, &package.version),
        "name": package.name,
        "versionInfo": package.version,
        "supplier": "Organization: Debian",
        "sourceInfo": format!("built from the Debian source package {}", package.source),
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": false,
        "checksums": [{ "algorithm": "SHA256", "checksumValue": package.sha256 }],
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": spdx_expression(&licences).unwrap_or_else(|| "NOASSERTION".into()),
        "copyrightText": "NOASSERTION",
        "externalRefs": [purl(&format!(
            "pkg:deb/debian/{}@{}?arch={}", percent(&package.name), percent(&package.version), package.architecture
        ))],
    });
    if !licences.is_empty() {
        let names: Vec<_> = licences.into_iter().collect();
        value["licenseComments"] =
            format!("named in Debian's copyright file: {}", names.join("; ")).into();
    }
    value
}

fn rust_crate(one: &Crate) -> Value {
    // Old crates write a slash where SPDX says OR.
    let licence = one.license.as_ref().map_or_else(
        || "NOASSERTION".into(),
        |text| text.replace('/', " OR ").replace("  ", " "),
    );
    let mut value = json!({
        "SPDXID": id("crate", &one.name, &one.version),
        "name": one.name,
        "versionInfo": one.version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": false,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": licence,
        "copyrightText": "NOASSERTION",
    });
    if one.source.is_some() {
        value["externalRefs"] = json!([purl(&format!(
            "pkg:cargo/{}@{}",
            one.name,
            percent(&one.version)
        ))]);
    }
    value
}

fn purl(locator: &str) -> Value {
    json!({ "referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": locator })
}

/// Returns an identifier, which may hold letters, digits, dots and dashes.
fn id(kind: &str, name: &str, version: &str) -> String {
    let plain = |text: &str| -> String {
        text.chars()
            .map(|character| {
                if character.is_ascii_alphanumeric() || character == '.' {
                    character
                } else {
                    '-'
                }
            })
            .collect()
    };
    format!("SPDXRef-{kind}-{}-{}", plain(name), plain(version))
}

/// Characters that a package URL escapes: all but letters, digits and a few others.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'.')
    .remove(b'-')
    .remove(b'_')
    .remove(b'~');

fn percent(text: &str) -> PercentEncode<'_> {
    utf8_percent_encode(text, ESCAPED)
}

/// Joins the licences to one expression; none when one of them has no SPDX name here.
fn spdx_expression(licences: &BTreeSet<String>) -> Option<String> {
    let known = |name: &String| {
        LICENCES
            .iter()
            .find(|(debian, _)| debian == name)
            .map(|(_, spdx)| *spdx)
    };
    let names: BTreeSet<&str> = licences.iter().map(known).collect::<Option<_>>()?;
    (!names.is_empty()).then(|| names.into_iter().collect::<Vec<_>>().join(" AND "))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn licences_are_translated_only_when_all_are_known() {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(
            spdx_expression(&set(&["GPL-2+", "Expat", "MIT"])).unwrap(),
            "GPL-2.0-or-later AND MIT"
        );
        assert_eq!(spdx_expression(&set(&["GPL-2+", "custom"])), None);
        assert_eq!(spdx_expression(&set(&[])), None);
    }

    #[test]
    fn a_program_is_told_by_its_architecture() {
        let version = "v0.1.0".parse().unwrap();
        let document = of_program("instarctl", &version, "arm64", Blake3::of(b""), &[]);
        assert_eq!(document["name"], "instarctl-v0.1.0-arm64");
        let root = &document["packages"][0];
        assert_eq!(root["primaryPackagePurpose"], "APPLICATION");
        assert_eq!(root["versionInfo"], "v0.1.0");
    }

    #[test]
    fn identifiers_and_package_urls_are_well_formed() {
        assert_eq!(
            id("deb", "libcap2", "1:2.75-10+deb13u1"),
            "SPDXRef-deb-libcap2-1-2.75-10-deb13u1"
        );
        assert_eq!(percent("1:2.75+b1").to_string(), "1%3A2.75%2Bb1");
    }
}
