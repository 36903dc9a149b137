//! The nodes to ask and the client's identity: the client configuration, and overrides.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use instar_pki::client_config::{ClientConfig, Context};

use crate::config_file::ConfigLookup;
use crate::connection::{self, Trust};
use crate::endpoint::Endpoint;
use crate::failure::{Failure, FailureKind};
use crate::node::Node;
use crate::socket;

/// Nodes on one connection of a program that follows all of them: it has some thirteen streams of each, and a node allows 64 streams of a
/// connection, and 48 watches.
const NODES_OF_A_CONNECTION: usize = 4;

/// The nodes to ask and the client's identity. The default is the client configuration.
#[derive(Clone, Debug, Default)]
pub struct Target {
    /// The client configuration; the environment's if none (`$TALOSCONFIG`, `$TALOS_HOME/config`, `~/.talos/config`).
    pub config_file: Option<PathBuf>,
    /// The context of the configuration; its default context if `None`.
    pub context: Option<String>,
    /// Endpoints to connect to, instead of the context's if there are any. `unix:///path` alone is the socket of one node: no configuration
    /// is read.
    pub endpoints: Vec<String>,
    /// The nodes that calls are for, instead of the context's if there are any.
    pub nodes: Vec<String>,
    /// Talk to a node without a machine config: no certificates, and no configuration is read.
    pub insecure: bool,
    /// Accept only a server with one of these keys, by whatever authority its certificate is signed; see [`Trust`].
    pub fingerprints: Vec<String>,
}

impl Target {
    /// The only node.
    ///
    /// # Errors
    /// As [`Self::nodes`], and if there are several.
    pub async fn node(&self) -> Result<Node, Failure> {
        let mut nodes = self.nodes().await?;
        if nodes.len() > 1 {
            let names: Vec<&str> = nodes.iter().map(Node::name).collect();
            return Err(too_many(&names));
        }
        nodes
            .pop()
            .ok_or_else(|| Failure::new(FailureKind::Usage, "no node to ask"))
    }

    /// Every node that is named, or the one behind the endpoint if none is.
    ///
    /// # Errors
    /// The configuration cannot be used, or none of the endpoints can be reached.
    pub async fn nodes(&self) -> Result<Vec<Node>, Failure> {
        let nodes = self.each_node().await?;
        nodes.into_iter().map(|(_, node)| node).collect()
    }

    /// The same nodes with their names, each with a failure of its own if there is no connection to it.
    ///
    /// # Errors
    /// The configuration cannot be used, or none of the endpoints that all nodes are behind can be reached.
    pub async fn each_node(&self) -> Result<Vec<(String, Result<Node, Failure>)>, Failure> {
        let nodes = if let Some(node) = self.at_socket()? {
            vec![node]
        } else if self.insecure {
            let nodes = self.insecure_nodes().await?.into_iter();
            let named = nodes.map(|(endpoint, node)| (endpoint.host().to_owned(), node));
            return Ok(named.collect());
        } else {
            self.configured_nodes().await?
        };
        let named = |node: Node| (node.name().to_owned(), Ok(node));
        Ok(nodes.into_iter().map(named).collect())
    }

    /// The same nodes, for a program that waits for those that are away: they are among them as soon as one of all answers, and calls to them
    /// connect.
    ///
    /// # Errors
    /// As [`Self::nodes`], with no connection to any of the nodes.
    pub async fn nodes_also_away(&self) -> Result<Vec<Node>, Failure> {
        if self.is_at_socket() {
            return self.nodes().await;
        }
        if !self.insecure {
            return self.configured_nodes_apart().await;
        }
        let nodes = self.insecure_nodes().await?;
        let answers = nodes.iter().any(|(_, node)| node.is_ok());
        let connected = nodes.into_iter().map(|(endpoint, node)| match node {
            Err(_) if answers => {
                let channel = connection::connect_later(&endpoint, self.insecure_tls()?)?;
                Ok(Node::behind(channel, endpoint))
            }
            node => node,
        });
        connected.collect()
    }

    /// Whether an endpoint is a unix socket.
    pub fn is_at_socket(&self) -> bool {
        self.endpoints
            .iter()
            .any(|text| socket::path_of(text).is_some())
    }

    /// The node at a unix socket, if the endpoint is one.
    fn at_socket(&self) -> Result<Option<Node>, Failure> {
        let mut sockets = self.endpoints.iter().map(|text| socket::path_of(text));
        let path = match (sockets.next().flatten(), sockets.next(), &self.nodes[..]) {
            (None, ..) => return Ok(None),
            (Some(path), None, []) => path,
            (Some(_), ..) => {
                return Err(Failure::new(
                    FailureKind::Usage,
                    "a unix socket leads to one node, its own: name no other endpoint and no node",
                ));
            }
        };
        let channel = socket::channel(&path);
        Ok(Some(Node::connected(channel, path.display().to_string())))
    }

    /// In maintenance mode a node does not route: its address is the endpoint.
    async fn insecure_nodes(&self) -> Result<Vec<(Endpoint, Result<Node, Failure>)>, Failure> {
        let addresses = if self.nodes.is_empty() {
            &self.endpoints
        } else {
            &self.nodes
        };
        if addresses.is_empty() {
            return Err(
                Failure::new(FailureKind::Usage, "--insecure needs the node's address")
                    .advise("name it with -n"),
            );
        }
        let mut nodes = Vec::new();
        for endpoint in parse(addresses)? {
            let channel = connection::connect(&endpoint, self.insecure_tls()?).await;
            let node = channel.map(|channel| Node::behind(channel, endpoint.clone()));
            nodes.push((endpoint, node));
        }
        Ok(nodes)
    }

    fn insecure_tls(&self) -> Result<Arc<rustls::ClientConfig>, Failure> {
        tls(Trust::Insecure {
            fingerprints: self.fingerprints.clone(),
        })
    }

    async fn configured_nodes(&self) -> Result<Vec<Node>, Failure> {
        let (node, names) = self.connect().await?;
        if names.is_empty() {
            return Ok(vec![node]);
        }
        names.iter().map(|name| node.routed_to(name)).collect()
    }

    /// The same nodes with few on each connection, for a program that holds many streams of each of them.
    async fn configured_nodes_apart(&self) -> Result<Vec<Node>, Failure> {
        let (node, names) = self.connect().await?;
        if names.is_empty() {
            return Ok(vec![node]);
        }
        let connect_again = async || Ok(self.connect().await?.0);
        with_few_on_each(node, &names, connect_again).await
    }

    /// The node that the endpoint belongs to, whatever nodes are named.
    ///
    /// # Errors
    /// As [`Self::nodes`].
    pub async fn behind_endpoint(&self) -> Result<Node, Failure> {
        if let Some(node) = self.at_socket()? {
            return Ok(node);
        }
        let (node, _) = self.connect().await?;
        Ok(node)
    }

    /// The client configuration that is read, or the first place where one would be.
    pub fn config_path(&self) -> Option<PathBuf> {
        let lookup = ConfigLookup::by_environment(self.config_file.clone());
        let found = lookup.find(|place| place.exists());
        found.or_else(|| lookup.places().into_iter().next())
    }

    /// The nodes and the endpoints that the context names.
    ///
    /// # Errors
    /// The configuration cannot be used.
    pub fn of_context(&self) -> Result<(Vec<String>, Vec<String>), Failure> {
        let (path, config) = self.load()?;
        let context = config.context(self.context.as_deref()).map_err(|error| {
            Failure::new(FailureKind::Usage, format!("cannot use {}", path.display()))
                .because(error)
        })?;
        Ok((context.nodes.clone(), context.endpoints()))
    }

    /// Connects to the first endpoint that can be reached; returns the node behind it, and the names of the nodes that calls are for.
    async fn connect(&self) -> Result<(Node, Vec<String>), Failure> {
        let (path, config) = self.load()?;
        let context = config.context(self.context.as_deref()).map_err(|error| {
            Failure::new(FailureKind::Usage, format!("cannot use {}", path.display()))
                .because(error)
        })?;
        let endpoints = if self.endpoints.is_empty() {
            context.endpoints()
        } else {
            self.endpoints.clone()
        };
        let names = if self.nodes.is_empty() {
            &context.nodes
        } else {
            &self.nodes
        };
        // Like other clients of this API: without an endpoint, the nodes themselves are the endpoints.
        let endpoints = parse(if endpoints.is_empty() {
            names
        } else {
            &endpoints
        })?;
        if endpoints.is_empty() {
            return Err(Failure::new(
                FailureKind::Usage,
                format!("the context in {} has no endpoint", path.display()),
            )
            .advise("name one with -e"));
        }
        let tls = tls(mutual(context, &path, &self.fingerprints)?)?;
        let mut failures = Vec::new();
        for endpoint in endpoints {
            match connection::connect(&endpoint, tls.clone()).await {
                Ok(channel) => {
                    return Ok((Node::behind(channel, endpoint), names.clone()));
                }
                Err(failure) => failures.push(failure),
            }
        }
        // The first endpoint is the preferred one, so its failure is reported.
        Err(failures.swap_remove(0))
    }

    /// The configuration file and its content.
    fn load(&self) -> Result<(PathBuf, ClientConfig), Failure> {
        let lookup = ConfigLookup::by_environment(self.config_file.clone());
        let path = lookup.find(|place| place.exists()).ok_or_else(|| {
            let places: Vec<_> = lookup
                .places()
                .iter()
                .map(|place| place.display().to_string())
                .collect();
            Failure::new(
                FailureKind::Usage,
                format!("no client configuration at {}", places.join(" or ")),
            )
            .advise("make one with `instarctl gen config`, or name it with --talosconfig")
        })?;
        let text = std::fs::read_to_string(&path)
            .map_err(|error| Failure::io(format!("cannot read {}", path.display()), error))?;
        let config = ClientConfig::from_yaml(&text).map_err(|error| {
            Failure::new(FailureKind::Usage, format!("cannot use {}", path.display()))
                .because(error)
        })?;
        Ok((path, config))
    }
}

/// The nodes of these names, a few on this connection, and the rest on new ones.
async fn with_few_on_each(
    first: Node,
    names: &[String],
    mut connect_again: impl AsyncFnMut() -> Result<Node, Failure>,
) -> Result<Vec<Node>, Failure> {
    let mut nodes = Vec::new();
    let mut free = Some(first);
    for names in names.chunks(NODES_OF_A_CONNECTION) {
        let node = match free.take() {
            Some(node) => node,
            None => connect_again().await?,
        };
        for name in names {
            nodes.push(node.routed_to(name)?);
        }
    }
    Ok(nodes)
}

/// The failure of a command for one node that several are named for.
fn too_many(names: &[&str]) -> Failure {
    let why = format!(
        "this command is for one node at a time, and {} are named: {}",
        names.len(),
        names.join(", ")
    );
    Failure::new(FailureKind::Usage, why).advise(
        "name one with -n; for several repeat the command, `for node in …; do instarctl -n $node …; done`, or see `instarctl fleet --help`",
    )
}

/// The client's identity in a context.
fn mutual(context: &Context, path: &Path, fingerprints: &[String]) -> Result<Trust, Failure> {
    let bad = |what: &str| {
        Failure::new(
            FailureKind::Usage,
            format!("the context in {} has no usable {what}", path.display()),
        )
    };
    let pem = |what: &'static str, value: Result<Option<String>, _>| match value {
        Ok(Some(pem)) => Ok(pem),
        Ok(None) => Err(bad(what)),
        Err(error) => Err(bad(what).because(error)),
    };
    let (ca, crt, key) = ("ca", "crt", "key");
    Ok(Trust::Mutual {
        fingerprints: fingerprints.to_vec(),
        authorities: instar_pki::certificates_from_pem(&pem(ca, context.ca_pem())?)
            .map_err(|error| bad(ca).because(error))?,
        certificates: instar_pki::certificates_from_pem(&pem(crt, context.crt_pem())?)
            .map_err(|error| bad(crt).because(error))?,
        key: instar_pki::private_key_from_pem(&pem(key, context.key_pem())?)
            .map_err(|error| bad(key).because(error))?,
    })
}

fn tls(trust: Trust) -> Result<Arc<rustls::ClientConfig>, Failure> {
    trust.into_tls().map_err(|error| {
        Failure::new(
            FailureKind::Usage,
            "the certificates of the client configuration cannot be used",
        )
        .because(error)
    })
}

fn parse(texts: &[String]) -> Result<Vec<Endpoint>, Failure> {
    let endpoints: Result<Vec<Endpoint>, _> = texts.iter().map(|text| text.parse()).collect();
    endpoints.map_err(|error| Failure::new(FailureKind::Usage, "cannot connect").because(error))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::{Duration, SystemTime};

    use instar_pki::CertificateAuthority;
    use rustls::pki_types::PrivatePkcs8KeyDer;
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;

    /// An HTTP/2 server's first bytes: settings, of which there are none.
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];

    /// A node in maintenance mode, as far as a connection goes; returns its address.
    async fn node_without_config() -> String {
        let now = SystemTime::now();
        let authority = CertificateAuthority::generate(now).unwrap();
        let names = ["127.0.0.1".into()];
        let server = authority.issue_server(&names, now, Duration::from_secs(3600));
        let server = server.unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![server.der().clone()],
                PrivatePkcs8KeyDer::from(server.key_der().to_vec()).into(),
            )
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            let mut held = Vec::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let mut stream = acceptor.accept(stream).await.unwrap();
                stream.write_all(&SETTINGS).await.unwrap();
                stream.flush().await.unwrap();
                held.push(stream);
            }
        });
        address
    }

    fn insecure(nodes: &[&str]) -> Target {
        Target {
            nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
            insecure: true,
            ..Target::default()
        }
    }

    #[tokio::test]
    async fn a_node_that_is_away_is_waited_for_if_another_one_answers() {
        let answers = node_without_config().await;
        let both = insecure(&["127.0.0.9:1", &answers]);
        assert_eq!(
            both.nodes().await.unwrap_err().kind(),
            FailureKind::Unreachable
        );
        let nodes = both.nodes_also_away().await.unwrap();
        let names: Vec<&str> = nodes.iter().map(Node::name).collect();
        assert_eq!(names, ["127.0.0.9", "127.0.0.1"]);
        // A call to it connects, and says that it is away.
        let failure = nodes[0].version().await.unwrap_err();
        assert_eq!(failure.kind(), FailureKind::Unreachable);
        assert!(
            failure.chain().contains("127.0.0.9:1"),
            "{}",
            failure.chain()
        );
        let alone = insecure(&["127.0.0.9:1"]).nodes_also_away().await;
        assert_eq!(alone.unwrap_err().kind(), FailureKind::Unreachable);
    }

    /// All streams of a connection are few: six nodes that are followed would starve each other on one.
    #[tokio::test]
    async fn many_nodes_that_are_followed_are_on_several_connections() {
        let tls = insecure(&[]).insecure_tls().unwrap();
        let node = || {
            let endpoint: Endpoint = "127.0.0.9:1".parse().unwrap();
            let channel = connection::connect_later(&endpoint, tls.clone()).unwrap();
            Node::behind(channel, endpoint)
        };
        for (nodes, expected) in [(1, 0), (4, 0), (5, 1), (9, 2)] {
            let names: Vec<String> = (0..nodes).map(|it| format!("10.0.0.{it}")).collect();
            let mut more = 0;
            let connect_again = async || {
                more += 1;
                Ok(node())
            };
            let found = with_few_on_each(node(), &names, connect_again).await;
            let found = found.unwrap();
            let found: Vec<&str> = found.iter().map(Node::name).collect();
            assert_eq!(found, names);
            assert_eq!(more, expected, "{nodes}");
        }
    }

    #[test]
    fn a_command_for_one_node_names_those_that_are_too_many() {
        let failure = too_many(&["lamp-1", "lamp-2"]);
        assert_eq!(failure.kind(), FailureKind::Usage);
        assert!(failure.chain().ends_with("2 are named: lamp-1, lamp-2"));
        assert!(failure.advice().unwrap().contains("instarctl fleet"));
    }
}
