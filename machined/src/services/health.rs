//! Health checks of services: an HTTP answer, a TCP connection or a command that succeeds.

use std::time::Duration;

use anyhow::{Context as _, bail};
use http_body_util::Empty;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::workload::Workload;

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Probe {
    /// GET; healthy on 200 to 399. `http` only: the probe is for a service of this machine.
    Http {
        /// `host:port`.
        authority: String,
        /// With the query, beginning with `/`.
        path: String,
    },
    /// A connection that is accepted at `host:port`.
    Tcp(String),
    /// A command inside the container that exits with 0.
    Exec(Vec<String>),
    /// What the workload itself knows to ask.
    Own,
}

/// How often, how long and how many times in a row a check may fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheck {
    /// What is asked.
    pub probe: Probe,
    /// Between two checks.
    pub interval: Duration,
    /// A check that takes longer has failed.
    pub timeout: Duration,
    /// Failures in a row until the service counts as unhealthy.
    pub failures: u32,
}

impl HealthCheck {
    /// One check; the error is the line that people see.
    pub async fn check(&self, workload: &dyn Workload) -> anyhow::Result<()> {
        let asked = async {
            match &self.probe {
                Probe::Http { authority, path } => get(authority, path).await,
                Probe::Tcp(address) => {
                    TcpStream::connect(address)
                        .await
                        .with_context(|| format!("connect to {address}"))?;
                    Ok(())
                }
                Probe::Exec(command) => workload.exec(command).await,
                Probe::Own => workload.check().await,
            }
        };
        tokio::time::timeout(self.timeout, asked)
            .await
            .with_context(|| format!("no answer within {:?}", self.timeout))?
    }
}

async fn get(authority: &str, path: &str) -> anyhow::Result<()> {
    let stream = TcpStream::connect(authority)
        .await
        .with_context(|| format!("connect to {authority}"))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(connection));
    let request = http::Request::get(path)
        .header(http::header::HOST, authority)
        .body(Empty::<Bytes>::new())
        .context("make the request")?;
    let status = sender.send_request(request).await?.status();
    drop(connection);
    if !(200..400).contains(&status.as_u16()) {
        bail!("GET http://{authority}{path} answered {status}");
    }
    Ok(())
}
