//! The cluster's API at a port of the machine's loopback (KubePrism). On nodes of Talos pods with the machine's network expect it, above all those that
//! make the network of all other pods: without it such a node is never ready.
//!
//! The decision: bytes are passed on to the endpoint that the config names, and TLS is between the two ends. To choose among the machines of a
//! control plane, as Talos does, was the other choice: it takes a list of them, which a worker is not given, and the endpoint is there for that.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream, lookup_host};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use crate::base::first_address::first_that_answers;
use crate::config::Kubernetes;
use crate::values::EndpointUrl;

/// Limit on connections at once: those beyond it wait.
const MOST: usize = 128;
/// Time limit for a connection to the cluster's API.
const CONNECT: Duration = Duration::from_secs(10);
/// The time after which the kernel asks whether the other end of a silent connection is still there, and again; at the third question in vain
/// the connection ends.
const SILENCE: Duration = Duration::from_secs(30);
const QUESTIONS: u32 = 3;
/// The pause after the port could not be listened at, or a connection not be accepted.
const PAUSE: Duration = Duration::from_secs(30);
const REST: Duration = Duration::from_secs(1);

/// The port, and the address that it leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Way {
    port: u16,
    to: String,
}

/// The port while it is served.
#[derive(Default)]
pub(super) struct Prism {
    serves: Option<Serves>,
    /// The last failure, and when it was.
    failed: Option<(Way, Instant, String)>,
}

/// Whoever serves a way; all of its connections end with it.
struct Serves {
    way: Way,
    task: JoinHandle<()>,
}

impl Drop for Serves {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Prism {
    /// Serves the port as the config has it now.
    ///
    /// # Errors
    /// The port cannot be listened at, or could not a moment ago.
    pub(super) async fn tend(&mut self, kubernetes: &Kubernetes) -> anyhow::Result<()> {
        let way = kubernetes.prism.map(|port| Way {
            port,
            to: address(&kubernetes.cluster.endpoint),
        });
        self.lead(way).await
    }

    async fn lead(&mut self, way: Option<Way>) -> anyhow::Result<()> {
        let is_served = |it: &Serves| way.as_ref() == Some(&it.way) && !it.task.is_finished();
        if self.serves.as_ref().is_some_and(is_served) {
            return Ok(());
        }
        if let Some(mut before) = self.serves.take() {
            before.task.abort();
            // Its port is free once it has ended.
            let _ = (&mut before.task).await;
        }
        let Some(way) = way else {
            self.failed = None;
            return Ok(());
        };
        if let Some((failed, at, why)) = &self.failed
            && *failed == way
            && at.elapsed() < PAUSE
        {
            bail!(why.clone());
        }
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, way.port));
        match TcpListener::bind(at).await {
            Ok(listener) => {
                self.failed = None;
                let task = crate::base::task::spawn(serve(listener, way.to.clone().into()));
                self.serves = Some(Serves { way, task });
                Ok(())
            }
            Err(error) => {
                let why = format!(
                    "KubePrism: cannot listen at {at}, where pods expect the cluster's API; a pod with the node's network may have the port: \
                     {error}"
                );
                self.failed = Some((way, Instant::now(), why.clone()));
                bail!(why)
            }
        }
    }
}

/// Returns the address of an endpoint, with its port.
fn address(endpoint: &EndpointUrl) -> String {
    let authority = &endpoint.authority;
    let is_number = |port: &str| !port.is_empty() && port.bytes().all(|it| it.is_ascii_digit());
    let port = authority.rsplit_once(':').map(|(_, port)| port);
    match (port.is_some_and(is_number), endpoint.https) {
        (true, _) => authority.clone(),
        (false, true) => format!("{authority}:443"),
        (false, false) => format!("{authority}:80"),
    }
}

/// Passes each connection on, until it is aborted.
async fn serve(listener: TcpListener, to: Arc<str>) {
    let room = Arc::new(Semaphore::new(MOST));
    let mut connections = JoinSet::new();
    loop {
        let Ok(place) = room.clone().acquire_owned().await else {
            return;
        };
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                let to = to.clone();
                connections.spawn(async move {
                    pass_on(stream, &to).await;
                    drop(place);
                });
            }
            // Descriptors are used up, most likely: closed ones come back.
            Err(error) => {
                tracing::warn!("KubePrism: a connection is not accepted: {error}");
                sleep(REST).await;
            }
        }
    }
}

/// Passes the bytes of a connection on, both ways, until one end closes it or is gone. A caller of an API that does not answer sees its
/// connection end, as with the API itself.
async fn pass_on(mut stream: TcpStream, to: &str) {
    let connected = timeout(CONNECT, connect(to)).await;
    let mut api = match connected {
        Ok(Ok(api)) => api,
        Ok(Err(error)) => {
            tracing::debug!("KubePrism: {to}: {error}");
            return;
        }
        Err(_) => {
            let seconds = CONNECT.as_secs();
            tracing::debug!("KubePrism: {to}: no connection within {seconds} s");
            return;
        }
    };
    for end in [&stream, &api] {
        // Small messages go on at once, as their senders want it.
        let set = end.set_nodelay(true).and(notice_silence(end));
        if let Err(error) = set {
            tracing::debug!("KubePrism: {to}: {error}");
        }
    }
    if let Err(error) = copy_bidirectional(&mut stream, &mut api).await {
        tracing::debug!("KubePrism: {to}: {error}");
    }
}

/// Connects to one of the addresses of an endpoint: its name may stand for several machines of a control plane, of which one is off.
async fn connect(to: &str) -> io::Result<TcpStream> {
    let found = lookup_host(to).await?;
    let (api, _) = first_that_answers(found.collect(), CONNECT).await?;
    Ok(api)
}

/// Has the kernel end a connection whose other end is gone without a word.
fn notice_silence(stream: &TcpStream) -> io::Result<()> {
    let questions = TcpKeepalive::new()
        .with_time(SILENCE)
        .with_interval(SILENCE)
        .with_retries(QUESTIONS);
    SockRef::from(stream).set_tcp_keepalive(&questions)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    async fn listener() -> TcpListener {
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap()
    }

    /// A port that nobody listens at.
    async fn free_port() -> u16 {
        listener().await.local_addr().unwrap().port()
    }

    /// Says a word at a port, and returns the answer of a server that says it again.
    async fn said_at(port: u16, api: &TcpListener) -> String {
        let mut caller = TcpStream::connect((Ipv4Addr::LOCALHOST, port))
            .await
            .unwrap();
        caller.write_all(b"hello").await.unwrap();
        let (mut served, _) = api.accept().await.unwrap();
        let mut word = [0; 5];
        served.read_exact(&mut word).await.unwrap();
        served.write_all(&word).await.unwrap();
        drop(served);
        let mut answer = String::new();
        caller.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn the_port_leads_to_the_endpoint_and_to_another_one_after_a_change() {
        let mut prism = Prism::default();
        let port = free_port().await;
        for _ in 0..2 {
            let api = listener().await;
            let to = api.local_addr().unwrap().to_string();
            prism.lead(Some(Way { port, to })).await.unwrap();
            assert_eq!(said_at(port, &api).await, "hello");
        }
        prism.lead(None).await.unwrap();
        let refused = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await;
        refused.unwrap_err();
    }

    /// It is told each time, and the port is not tried at each look.
    #[tokio::test]
    async fn a_port_that_is_taken_is_told() {
        let taken = listener().await;
        let port = taken.local_addr().unwrap().port();
        let to = "127.0.0.1:6443".to_owned();
        let way = Some(Way { port, to });
        let mut prism = Prism::default();
        let first = prism.lead(way.clone()).await.unwrap_err().to_string();
        assert!(
            first.contains(&format!("cannot listen at 127.0.0.1:{port}")),
            "{first}"
        );
        drop(taken);
        let again = prism.lead(way.clone()).await.unwrap_err().to_string();
        assert_eq!(again, first);
        prism.failed = None;
        prism.lead(way).await.unwrap();
    }

    #[test]
    fn an_endpoint_without_a_port_has_that_of_its_scheme() {
        for (endpoint, expected) in [
            ("https://10.0.2.2:6443", "10.0.2.2:6443"),
            ("https://api.example.com", "api.example.com:443"),
            ("http://api.example.com", "api.example.com:80"),
            ("https://[fd00::1]", "[fd00::1]:443"),
            ("https://[fd00::1]:6443", "[fd00::1]:6443"),
        ] {
            let endpoint: EndpointUrl = endpoint.parse().unwrap();
            assert_eq!(address(&endpoint), expected);
        }
    }
}
