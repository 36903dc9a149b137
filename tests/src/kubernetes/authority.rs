//! The cluster's certificate authority, and the files that the parts of a control plane read.

use std::path::PathBuf;

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};

use crate::scratch::Scratch;

/// An authority, whose files are in a folder of its own.
#[derive(Debug)]
pub(super) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
    folder: Scratch,
}

/// A certificate and its key, as files.
#[derive(Debug, Clone)]
pub(super) struct Credentials {
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
}

/// The key pair that signs tokens of service accounts, as files.
#[derive(Debug)]
pub(super) struct TokenKey {
    pub(super) private: PathBuf,
    pub(super) public: PathBuf,
}

impl Authority {
    /// Makes an authority; its certificate and key are `ca.crt` and `ca.key` in the folder.
    pub(super) fn make(folder: Scratch) -> Result<Self> {
        let key = KeyPair::generate()?;
        let mut wish = CertificateParams::default();
        wish.distinguished_name = DistinguishedName::new();
        wish.distinguished_name
            .push(DnType::OrganizationName, "kubernetes");
        wish.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        wish.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyCertSign,
        ];
        let certificate = wish.self_signed(&key)?.pem();
        folder.write("ca.crt", &certificate)?;
        folder.write("ca.key", key.serialize_pem())?;
        Ok(Self {
            issuer: Issuer::new(wish, key),
            certificate,
            folder,
        })
    }

    /// Its certificate, PEM.
    pub(super) fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Its own certificate and key.
    pub(super) fn own(&self) -> Credentials {
        self.files("ca")
    }

    /// Issues a certificate for a server and client with these names: the files `NAME.crt` and `NAME.key`.
    pub(super) fn issue(
        &self,
        file: &str,
        common_name: &str,
        group: Option<&str>,
        names: &[&str],
    ) -> Result<Credentials> {
        let key = KeyPair::generate()?;
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut wish = CertificateParams::new(names)?;
        wish.distinguished_name = DistinguishedName::new();
        if let Some(group) = group {
            wish.distinguished_name
                .push(DnType::OrganizationName, group);
        }
        wish.distinguished_name
            .push(DnType::CommonName, common_name);
        wish.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        wish.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let certificate = wish.signed_by(&key, &self.issuer)?;
        self.folder
            .write(&format!("{file}.crt"), certificate.pem())?;
        self.folder
            .write(&format!("{file}.key"), key.serialize_pem())?;
        Ok(self.files(file))
    }

    /// Makes the key pair of the service accounts.
    pub(super) fn token_key(&self) -> Result<TokenKey> {
        let key = KeyPair::generate()?;
        Ok(TokenKey {
            private: self.folder.write("sa.key", key.serialize_pem())?,
            public: self.folder.write("sa.pub", key.public_key_pem())?,
        })
    }

    /// Writes a kubeconfig, the file `NAME.conf`.
    pub(super) fn kubeconfig(
        &self,
        name: &str,
        server: &str,
        credentials: &Credentials,
    ) -> Result<PathBuf> {
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: test\n\
             clusters:\n- name: test\n  cluster: {{server: \"{server}\", certificate-authority: \"{}\"}}\n\
             users:\n- name: test\n  user: {{client-certificate: \"{}\", client-key: \"{}\"}}\n\
             contexts:\n- name: test\n  context: {{cluster: test, user: test}}\n",
            self.own().certificate.display(),
            credentials.certificate.display(),
            credentials.key.display(),
        );
        self.folder.write(&format!("{name}.conf"), text)
    }

    fn files(&self, name: &str) -> Credentials {
        Credentials {
            certificate: self.folder.join(&format!("{name}.crt")),
            key: self.folder.join(&format!("{name}.key")),
        }
    }
}
