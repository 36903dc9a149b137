//! Health checks of services: an HTTP answer, a TCP connection, a command that succeeds, or a way of their own.

use std::time::Duration;

use anyhow::{Context as _, bail};
use http::HeaderMap;
use instar_http_client::{Client, Get, Proxies, Trust};
use tokio::net::TcpStream;

use super::workload::Workload;
use crate::values::{CheckTarget, HealthProbe, HttpUrl};

/// How many more answers, one this long after the other, prove that a service is steady. One that has just begun may have answered once
/// and be on its way down.
const PROOF: (u32, Duration) = (5, Duration::from_millis(100));

/// What is asked of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Probe {
    /// What the config says.
    Configured(HealthProbe),
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

/// Tries once to reach the target; the error is the line that people see.
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
    /// One check; the error is the line that people see.
    pub async fn check(&self, workload: &dyn Workload) -> anyhow::Result<()> {
        match &self.probe {
            Probe::Configured(HealthProbe::Reach(target)) => reach(target, self.timeout).await,
            Probe::Configured(HealthProbe::Exec(command)) => {
                within(self.timeout, workload.exec(command)).await
            }
            Probe::Own => within(self.timeout, workload.check()).await,
        }
    }

    /// Whether it passes some more times in a row.
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
