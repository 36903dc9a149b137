//! The API server without TLS, for an administrator: `kubectl proxy`. A thousand objects are changed in seconds, where a kubectl for each takes
//! minutes.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use instar_qemu::{PortLease, lease_port};
use serde_json::Value;

use super::control_plane::ControlPlane;
use crate::followed_program::FollowedProgram;
use crate::http_client::http;

/// Timeout for the proxy to serve.
const PATIENCE: Duration = Duration::from_secs(30);

/// The proxy, until it is dropped.
#[derive(Debug)]
pub struct ApiProxy {
    _program: FollowedProgram,
    port: PortLease,
}

/// A client of the proxy.
#[derive(Debug, Clone)]
pub struct PlainApi {
    address: String,
}

impl ApiProxy {
    /// Starts a proxy.
    pub fn start(plane: &ControlPlane) -> Result<Self> {
        let port = lease_port()?;
        let at = format!("--port={}", port.port());
        let proxy = ["proxy", "--address=127.0.0.1", &at];
        let mut program = plane.kubectl().follow(&proxy)?;
        program.wait_for("it serves", PATIENCE, |line| line.contains("serve"))?;
        Ok(Self {
            _program: program,
            port,
        })
    }

    /// A client, for any thread.
    pub fn client(&self) -> PlainApi {
        PlainApi {
            address: format!("127.0.0.1:{}", self.port.port()),
        }
    }
}

impl PlainApi {
    /// Gets an object or a list.
    pub fn get(&self, path: &str) -> Result<Value> {
        self.ask("GET", path, &[], &[])
    }

    /// Changes an object by a merge patch.
    pub fn merge(&self, path: &str, patch: &Value) -> Result<()> {
        let kind = ("Content-Type", "application/merge-patch+json");
        self.ask("PATCH", path, &[kind], patch.to_string().as_bytes())
            .map(drop)
    }

    fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Value> {
        let answer = http(&self.address, method, path, headers, body)?;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        ensure!(
            (200..300).contains(&answer.status),
            "{method} {path} answered {}: {text}",
            answer.status
        );
        serde_json::from_str(&text).with_context(|| format!("{method} {path} gives no JSON"))
    }
}
