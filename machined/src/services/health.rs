//! Health checks of services: an HTTP answer, a TCP connection, a command that succeeds, or a way of their own.

use std::time::Duration;

use anyhow::{Context as _, bail};
use http::HeaderMap;
use instar_http_client::{Client, Get, Proxies, Trust};
use tokio::net::TcpStream;

use super::workload::Workload;

/// What anybody on the machine can ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Question {
    /// GET; healthy on 200 to 399. `http` only: the probe is for a service of this machine.
    Http {
        /// `host:port`.
        authority: String,
        /// With the query, beginning with `/`.
        path: String,
    },
    /// A connection that is accepted at `host:port`.
    Tcp(String),
}

/// What is asked of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Probe {
    /// From outside of it.
    Ask(Question),
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

impl Question {
    /// Asks once; the error is the line that people see.
    pub async fn ask(&self, timeout: Duration) -> anyhow::Result<()> {
        let asked = async {
            match self {
                Question::Http { authority, path } => get(authority, path).await,
                Question::Tcp(address) => {
                    TcpStream::connect(address)
                        .await
                        .with_context(|| format!("connect to {address}"))?;
                    Ok(())
                }
            }
        };
        within(timeout, asked).await
    }
}

impl HealthCheck {
    /// One check; the error is the line that people see.
    pub async fn check(&self, workload: &dyn Workload) -> anyhow::Result<()> {
        match &self.probe {
            Probe::Ask(question) => question.ask(self.timeout).await,
            Probe::Exec(command) => within(self.timeout, workload.exec(command)).await,
            Probe::Own => within(self.timeout, workload.check()).await,
        }
    }
}

async fn within(
    timeout: Duration,
    asked: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    tokio::time::timeout(timeout, asked)
        .await
        .with_context(|| format!("no answer within {timeout:?}"))?
}

async fn get(authority: &str, path: &str) -> anyhow::Result<()> {
    let url = format!("http://{authority}{path}");
    let get = Get {
        uri: &url
            .parse()
            .with_context(|| format!("{url} is no address"))?,
        headers: &HeaderMap::new(),
        form: None,
        origin: None,
        redirections: 0,
    };
    let client = Client::new(Trust::default(), &Proxies::default());
    let status = client.send(get).await?.status;
    if !(200..400).contains(&status.as_u16()) {
        bail!("GET {url} answered {status}");
    }
    Ok(())
}
