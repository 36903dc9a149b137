//! The file with an authority and its key, on the computer of the person who signs.

use std::path::Path;

use instar_client::{Failure, FailureKind};
use instar_pki::CertificateAuthority;

use crate::commands::gen_secrets::Secrets;
use crate::patch;

/// Reads secrets of `gen secrets`, a machine config with the authority's key, or a certificate and its key in PEM.
pub(super) fn read(path: &Path) -> Result<CertificateAuthority, Failure> {
    let name = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::io(format!("cannot read {name}"), error))?;
    if text.contains("-----BEGIN CERTIFICATE-----") {
        return CertificateAuthority::from_pem(&text, &text).map_err(|error| {
            let what = format!("{name} holds no authority with its key");
            Failure::new(FailureKind::Usage, what).because(error)
        });
    }
    let is_config = patch::documents(&text)
        .is_ok_and(|documents| documents.iter().any(|it| it.get("machine").is_some()));
    match is_config {
        true => Secrets::of_config(path)?.authority(path),
        false => Secrets::read(path)?.authority(path),
    }
}

/// An authority and its key in PEM, as [`read`] reads them.
pub(super) fn to_pem(authority: &CertificateAuthority) -> String {
    let mut text = authority.certificate_pem();
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text + &authority.key_pem()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::SystemTime;

    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;

    use super::*;

    #[test]
    fn each_kind_of_file_gives_the_same_authority() {
        let authority = CertificateAuthority::generate(SystemTime::now()).unwrap();
        let encoded = |text: String| BASE64_STANDARD.encode(text);
        let pair = format!(
            "{{crt: {}, key: {}}}",
            encoded(authority.certificate_pem()),
            encoded(authority.key_pem())
        );
        let folder = tempfile::tempdir().unwrap();
        for text in [
            to_pem(&authority),
            format!("certs: {{os: {pair}}}\n"),
            format!("version: v1alpha1\nmachine: {{ca: {pair}}}\n"),
        ] {
            let file = folder.path().join("file");
            std::fs::write(&file, &text).unwrap();
            let read = read(&file).unwrap();
            assert_eq!(read.certificate(), authority.certificate(), "{text}");
        }
        let file = folder.path().join("file");
        for bad in ["", "machine: {}\n", &authority.certificate_pem()] {
            std::fs::write(&file, bad).unwrap();
            assert!(read(&file).is_err(), "{bad}");
        }
    }
}
