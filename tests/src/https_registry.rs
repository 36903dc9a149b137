//! A registry's content by HTTPS, with a certificate of an authority of its own: an image pushed to one server is in
//! both.

use std::net::TcpStream;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};
use instar_pki::{CertificateAuthority, SubjectName};
use instar_qemu::{OwnedProcess, PortLease, lease_port};

use crate::HOST_FOR_GUEST;
use crate::machine_config::MachineConfig;
use crate::registry::{Registry, config, serve};
use crate::scratch::Scratch;

const LIFETIME: Duration = Duration::from_secs(24 * 3600);
const PATIENCE: Duration = Duration::from_secs(60);

/// The second server over a registry's storage.
#[derive(Debug)]
pub struct HttpsRegistry {
    process: OwnedProcess,
    lease: PortLease,
    authority: CertificateAuthority,
}

impl HttpsRegistry {
    /// Starts the server.
    pub fn over(registry: &Registry, scratch: &Scratch) -> Result<Self> {
        let lease = lease_port()?;
        let now = SystemTime::now();
        let authority = CertificateAuthority::generate(now)?;
        let names = [HOST_FOR_GUEST, "127.0.0.1"].map(str::parse);
        let names = names.into_iter().map(|name| Ok(SubjectName::Ip(name?)));
        let names = names.collect::<Result<Vec<_>>>()?;
        let issued = authority.issue_server(&names, now, LIFETIME)?;
        let certificate = scratch.write("https-registry.crt", issued.pem())?;
        let key = scratch.write("https-registry.key", issued.key_pem())?;
        let config = format!(
            "{}  tls:\n    certificate: \"{}\"\n    key: \"{}\"\n",
            config(registry.storage(), lease.port()),
            certificate.display(),
            key.display()
        );
        let started = Self {
            process: serve(scratch, "https-registry", &config)?,
            lease,
            authority,
        };
        started.wait_until_it_listens()?;
        Ok(started)
    }

    fn wait_until_it_listens(&self) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            match TcpStream::connect(("127.0.0.1", self.lease.port())) {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() >= until => {
                    return Err(error).context("the HTTPS registry does not listen");
                }
                Err(_) => {}
            }
            if let Some(ended) = self.process.ended() {
                bail!("docker-registry ended ({ended}): see https-registry.log");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The server's address in a guest: `10.0.2.2:PORT`.
    pub fn host_for_guest(&self) -> String {
        format!("{HOST_FOR_GUEST}:{}", self.lease.port())
    }

    /// The server's address on this machine: `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.lease.port())
    }

    /// The certificate of the server's authority, PEM.
    pub fn authority_certificate(&self) -> String {
        self.authority.certificate_pem()
    }
}

impl MachineConfig {
    /// Trusts this authority, PEM, for images from this host.
    pub fn registry_authority(self, host: &str, certificate: &str) -> Self {
        let indented = certificate.trim_end().replace('\n', "\n  ");
        self.document(&format!(
            "apiVersion: v1alpha1\nkind: RegistryTLSConfig\nname: {host}\nca: |\n  {indented}\n"
        ))
    }
}
