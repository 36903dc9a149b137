//! Health checks of services: an HTTP answer, a TCP connection, a command that succeeds, or the workload's own check.

use std::time::Duration;

use anyhow::{Context as _, bail};
use http::HeaderMap;
use instar_http_client::{Client, Get, Proxies, Trust};
use tokio::net::TcpStream;

use super::workload::Workload;
use crate::values::{CheckTarget, HealthProbe, HttpUrl};

/// Number of further answers, and the interval between them, that prove that a service is steady. A service that has just started may have
/// answered once and be about to fail.
const PROOF: (u32, Duration) = (5, Duration::from_millis(100));

/// The probe of a health check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Probe {
    /// The one in the config.
    Configured(HealthProbe),
    /// The workload's own.
    Own,
}

/// A health check: its probe, interval, timeout and limit of failures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheck {
    /// The probe.
    pub probe: Probe,
    /// Interval between two checks.
    pub interval: Duration,
    /// Time limit of a check; a longer one has failed.
    pub timeout: Duration,
    /// Failures in a row that make the service unhealthy.
    pub failures: u32,
}

/// Tries once to reach the target; the error is the line that operators see.
pub async fn reach(target: &CheckTarget, timeout: Duration) -> anyhow::Result<()> {
    let reached = async {
        match target {
            CheckTarget::Http(url) => get(url).await,
            CheckTarget::Tcp(address) => {
                TcpStream::connect(address.as_str())
                    .await
                    .with_context(|| format!("connect to {address}"))?;
                Ok(())
            }
        }
    };
    within(timeout, reached).await
}

impl HealthCheck {
    /// Runs one check; the error is the line that operators see.
    pub async fn check(&self, workload: &dyn Workload) -> anyhow::Result<()> {
        match &self.probe {
            Probe::Configured(HealthProbe::Reach(target)) => reach(target, self.timeout).await,
            Probe::Configured(HealthProbe::Exec(command)) => {
                within(self.timeout, workload.exec(command)).await
            }
            Probe::Own => within(self.timeout, workload.check()).await,
        }
    }

    /// Returns whether the check passes several times in a row.
    pub(super) async fn passes_again(&self, workload: &dyn Workload) -> bool {
        let (times, pause) = PROOF;
        for _ in 0..times {
            tokio::time::sleep(pause).await;
            if self.check(workload).await.is_err() {
                return false;
            }
        }
        true
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

async fn get(url: &HttpUrl) -> anyhow::Result<()> {
    let get = Get {
        uri: &url
            .as_str()
            .parse()
            .with_context(|| format!("{url} is no address"))?,
        headers: &HeaderMap::new(),
        body: None,
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
