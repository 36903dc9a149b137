//! apid and machined's API, as processes of their own, connected as in a machine.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use instar_api::machine::machine_service_client::MachineServiceClient;
use instar_pki::{CertificateAuthority, IssuedCertificate, Role, SubjectName, with_standard_label};
use machined::apid::{self, ControlMessage, Identity, Mode};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};

use crate::machine;
use crate::processes::Part;

/// Lifetime of certificates: longer than any measurement.
const LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// Timeout for the start of the processes; they retry nothing, so this is only a bound.
const PATIENCE: Duration = Duration::from_secs(30);

/// The two processes and their authority.
pub(crate) struct Node {
    authority: Authority,
    address: SocketAddr,
    apid: Part,
    machined: Part,
    /// Closing this socket ends apid.
    _orders: UnixStream,
    directory: TempDir,
}

/// The authority, and the certificate of the one client.
pub(crate) struct Authority {
    authority: CertificateAuthority,
    client: IssuedCertificate,
}

impl Authority {
    fn new() -> anyhow::Result<Self> {
        let authority = CertificateAuthority::generate(SystemTime::now())?;
        let client = authority.issue_client(&[Role::Reader], SystemTime::now(), LIFETIME)?;
        Ok(Authority { authority, client })
    }

    /// Issues the certificate of a server on this machine.
    pub(crate) fn server(&self) -> anyhow::Result<IssuedCertificate> {
        let here = SubjectName::Ip(Ipv4Addr::LOCALHOST.into());
        Ok(self
            .authority
            .issue_server(&[here], SystemTime::now(), LIFETIME)?)
    }

    /// The authority's certificate, PEM.
    pub(crate) fn certificate(&self) -> String {
        self.authority.certificate_pem()
    }

    /// Returns the endpoint of a server by mTLS.
    pub(crate) fn endpoint(&self, address: SocketAddr) -> anyhow::Result<Endpoint> {
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(self.certificate()))
            .identity(tonic::transport::Identity::from_pem(
                self.client.pem(),
                with_standard_label(&self.client.key_pem()),
            ));
        Ok(Endpoint::from_shared(format!("https://{address}"))?
            .tls_config(tls)?
            .connect_timeout(PATIENCE))
    }
}

impl Node {
    /// Starts both processes.
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let directory = tempfile::tempdir().context("make a directory for the node")?;
        let authority = Authority::new()?;
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("listen for the API's clients")?;
        let address = listener.local_addr()?;
        let (orders, theirs) = UnixStream::pair().context("make the stream of orders")?;

        let machined = Part::start("machined", Stdio::null(), Stdio::null(), |command| {
            command.current_dir(directory.path())
        })?;
        let apid = Part::start(
            "apid",
            OwnedFd::from(listener),
            OwnedFd::from(theirs),
            |command| command.current_dir(directory.path()),
        )?;
        let server = authority.server()?;
        let identity = Identity::new(
            Mode::Normal,
            server.der(),
            server.key_der(),
            &[authority.authority.certificate().to_vec()],
            vec!["127.0.0.1".to_owned()],
        );
        orders.set_nonblocking(true)?;
        let mut sending = tokio::net::UnixStream::from_std(orders.try_clone()?)?;
        apid::send_control(&mut sending, &ControlMessage::Identity(identity)).await?;
        let mut node = Node {
            authority,
            address,
            apid,
            machined,
            _orders: orders,
            directory,
        };
        node.wait().await?;
        Ok(node)
    }

    async fn wait(&mut self) -> anyhow::Result<()> {
        let until = std::time::Instant::now() + PATIENCE;
        while !answers(&self.channel().await?).await {
            self.machined.still_runs()?;
            self.apid.still_runs()?;
            anyhow::ensure!(std::time::Instant::now() < until, "the API does not answer");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// The node's authority.
    pub(crate) fn authority(&self) -> &Authority {
        &self.authority
    }

    /// The node's endpoint.
    pub(crate) fn endpoint(&self) -> anyhow::Result<Endpoint> {
        self.authority.endpoint(self.address)
    }

    /// Opens a new connection.
    pub(crate) async fn channel(&self) -> anyhow::Result<Channel> {
        self.endpoint()?.connect().await.context("connect to apid")
    }

    /// Opens a connection to machined itself, without apid.
    pub(crate) async fn channel_to_machined(&self) -> anyhow::Result<Channel> {
        let socket = self.directory.path().join(apid::SOCKET);
        Endpoint::from_shared(format!("unix://{}", socket.display()))?
            .connect()
            .await
            .context("connect to machined")
    }

    /// Processor time that apid and machined have used.
    pub(crate) fn processor_times(&self) -> anyhow::Result<[Duration; 2]> {
        Ok([self.apid.processor_time()?, self.machined.processor_time()?])
    }

    /// Memory of both processes without their files, in KiB.
    pub(crate) fn resident_kib(&self) -> anyhow::Result<f64> {
        Ok(self.apid.resident_kib()? + self.machined.resident_kib()?)
    }

    /// Ends both processes; fails if one has ended by itself.
    pub(crate) fn end(mut self) -> anyhow::Result<()> {
        self.apid.still_runs()?;
        self.machined.still_runs()
    }
}

/// Runs as apid, without its sandbox, which needs a machine's rights.
pub(crate) fn be_apid() -> anyhow::Result<()> {
    let listener = std::io::stdin().as_fd().try_clone_to_owned()?;
    let orders = std::io::stdout().as_fd().try_clone_to_owned()?;
    one_thread()?.block_on(apid::serve(listener, orders))
}

/// Runs as the process with machined's API.
pub(crate) fn be_machined() -> anyhow::Result<()> {
    one_thread()?.block_on(async {
        let machine = machine::unbooted(Path::new(".")).await?;
        let listener = UnixListener::bind(apid::SOCKET).context("bind machined's socket")?;
        machined::api::serve(listener, machine).await
    })
}

/// Returns a runtime of one thread, as both programs have.
pub(crate) fn one_thread() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?)
}

/// Whether `Version` is answered.
pub(crate) async fn answers(channel: &Channel) -> bool {
    let mut client = MachineServiceClient::new(channel.clone());
    client.version(()).await.is_ok()
}
