//! A machine config for a test, in the shape that `talosctl gen config` writes from 1.14 on: a document per concern.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use crate::identity::Identity;

/// A config under construction. Names go into YAML unquoted: tests choose plain ones.
#[derive(Debug, Clone)]
pub struct MachineConfig {
    documents: Vec<String>,
}

impl MachineConfig {
    /// Returns the minimal config of a node: its authority, and a name in its certificate that tests connect to.
    pub fn new(identity: &Identity) -> Self {
        let encoded = |pem: String| BASE64_STANDARD.encode(pem);
        let main = format!(
            "version: v1alpha1\nmachine:\n  type: controlplane\n  token: instar.0123456789abcdef\n  ca:\n    crt: {}\n    key: {}\n  certSANs:\n    - 127.0.0.1\n",
            encoded(identity.authority_certificate()),
            encoded(identity.authority_key()),
        );
        Self {
            documents: vec![main],
        }
    }

    /// Begins with an existing config.
    pub fn from_yaml(yaml: &str) -> Self {
        Self {
            documents: vec![yaml.to_owned()],
        }
    }

    /// Accepts clients of this authority as well.
    pub fn accepting(mut self, other: &Identity) -> Self {
        let accepted = BASE64_STANDARD.encode(other.authority_certificate());
        // The first document ends inside `machine:`.
        if let Some(main) = self.documents.first_mut() {
            main.push_str(&format!("  acceptedCAs:\n    - crt: {accepted}\n"));
        }
        self
    }

    /// Adds a name to the node's certificate.
    pub fn extra_name(mut self, name: &str) -> Self {
        let usual = "    - 127.0.0.1\n";
        if let Some(main) = self.documents.first_mut() {
            *main = main.replacen(usual, &format!("{usual}    - {name}\n"), 1);
        }
        self
    }

    /// Sets the host name.
    pub fn hostname(self, name: &str) -> Self {
        self.document(&format!(
            "apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: {name}\n"
        ))
    }

    /// Sets the disk to install to, e.g. `/dev/vda`.
    pub fn install_disk(self, device: &str) -> Self {
        self.document(&format!(
            "apiVersion: v1alpha1\nkind: UnattendedInstallConfig\nprovisioning:\n  diskSelector:\n    match: disk.dev_path == \"{device}\"\n"
        ))
    }

    /// Sets the disk, and the image of the version that is to be installed on it.
    pub fn install(self, device: &str, image: &str) -> Self {
        self.document(&format!(
            "apiVersion: v1alpha1\nkind: UnattendedInstallConfig\ninstaller:\n  image: {image}\nprovisioning:\n  diskSelector:\n    match: disk.dev_path == \"{device}\"\n"
        ))
    }

    /// Adds any document.
    pub fn document(mut self, yaml: &str) -> Self {
        self.documents.push(yaml.to_owned());
        self
    }

    /// Returns all documents as one YAML stream.
    pub fn to_yaml(&self) -> String {
        self.documents.join("---\n")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn documents_are_separated() {
        let identity = Identity::administrator().unwrap();
        let yaml = MachineConfig::new(&identity)
            .hostname("node-1")
            .extra_name("lamp.example")
            .install_disk("/dev/vda")
            .to_yaml();
        assert_eq!(yaml.matches("\n---\n").count(), 2);
        assert!(yaml.contains("certSANs:\n    - 127.0.0.1\n    - lamp.example\n"));
        assert!(
            yaml.contains("hostname: node-1\n")
                && yaml.contains("match: disk.dev_path == \"/dev/vda\"\n")
        );
    }
}
