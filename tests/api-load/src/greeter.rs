//! tonic's hello world, as its users get it without additions, with the same certificates and one thread as well.

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;
use instar_pki::with_standard_label;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Certificate, Channel, Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status};

use crate::node::{Authority, one_thread};
use crate::processes::Part;

/// Its generated messages, client and server.
#[allow(missing_docs, unreachable_pub, unused_qualifications)]
pub(crate) mod wire {
    tonic::include_proto!("hello");
}

use wire::greeter_server::{Greeter as GreeterService, GreeterServer};
use wire::{HelloReply, HelloRequest};

/// The process's certificate: three PEM files in its directory.
const FILES: [&str; 3] = ["server.crt", "server.key", "ca.crt"];

/// The greeter's process.
pub(crate) struct Greeter {
    address: SocketAddr,
    part: Part,
    _directory: tempfile::TempDir,
}

impl Greeter {
    /// Starts the process.
    pub(crate) fn start(authority: &Authority) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir().context("make a directory for the greeter")?;
        let server = authority.server()?;
        let texts = [
            server.pem(),
            with_standard_label(&server.key_pem()),
            authority.certificate(),
        ];
        for (name, text) in FILES.iter().zip(texts) {
            let mut file = std::fs::File::create(directory.path().join(name))?;
            file.write_all(text.as_bytes())?;
        }
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let part = Part::start(
            "greeter",
            OwnedFd::from(listener),
            Stdio::null(),
            |command| command.current_dir(directory.path()),
        )?;
        Ok(Greeter {
            address,
            part,
            _directory: directory,
        })
    }

    /// Processor time that the process has used.
    pub(crate) fn processor_time(&self) -> anyhow::Result<Duration> {
        self.part.processor_time()
    }

    /// A new connection; the listen queue holds it until the process has started.
    pub(crate) async fn channel(&self, authority: &Authority) -> anyhow::Result<Channel> {
        authority
            .endpoint(self.address)?
            .connect()
            .await
            .context("connect to the greeter")
    }
}

/// Runs as the process itself.
pub(crate) fn be() -> anyhow::Result<()> {
    let listener = TcpListener::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    listener.set_nonblocking(true)?;
    let [certificate, key, authority] = FILES.map(std::fs::read);
    let tls = ServerTlsConfig::new()
        .identity(Identity::from_pem(certificate?, key?))
        .client_ca_root(Certificate::from_pem(authority?));
    one_thread()?.block_on(async {
        let connections = TcpListenerStream::new(tokio::net::TcpListener::from_std(listener)?);
        Server::builder()
            .tcp_nodelay(true)
            .tls_config(tls)?
            .add_service(GreeterServer::new(HelloWorld))
            .serve_with_incoming(connections)
            .await
            .context("serve")
    })
}

struct HelloWorld;

#[tonic::async_trait]
impl GreeterService for HelloWorld {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        Ok(Response::new(HelloReply {
            message: format!("Hello {}!", request.into_inner().name),
        }))
    }
}
