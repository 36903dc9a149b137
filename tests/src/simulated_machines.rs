//! Machines of which there is the API alone, over mutual TLS, many in one process: for programs that upgrade fleets. Each has an address of its own
//! on this host's loopback.
//!
//! Their upgrades always work, in half a second. What a machine really does is tested with machines.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use instar_api::common::Data;
use instar_api::events::{EventPayload, hello};
use instar_api::machine as wire;
use instar_api::machine::machine_service_server::{MachineService, MachineServiceServer};
use instar_api::machine::machine_status_event::{MachineStage, MachineStatus};
use instar_base::lock::Lock as _;
use instar_client::version_in_tag;
use instar_qemu::{PortLease, lease_port};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::BoxStream;
use tonic::transport::{Certificate, Server, ServerTlsConfig};
use tonic::{Request, Response, Status};

use crate::identity::Identity;

/// The duration of an upgrade.
const UPGRADE: Duration = Duration::from_millis(500);
/// The pause between two looks at whether a machine has another version.
const LOOK: Duration = Duration::from_millis(100);
/// Connections that wait to be served.
const BACKLOG: usize = 64;
/// The number of machines in a /24 of the loopback.
const IN_A_ROW: usize = 250;
/// Room for the sockets of as many machines, and for all else that a test opens.
const MOST: usize = 10_000;

/// The machines, until they are dropped.
#[derive(Debug)]
pub struct SimulatedMachines {
    port: PortLease,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Called in the place of kubelet when a machine, by its number, runs another version.
pub type Upgraded = Box<dyn Fn(usize, &str) + Send + Sync>;

struct Shared {
    machines: Vec<Mutex<Machine>>,
    upgraded: Upgraded,
}

struct Machine {
    version: String,
    /// The number of its upgrades.
    upgrades: usize,
}

impl Shared {
    /// A machine's data are consistent after every statement, even after a panic.
    fn machine(&self, number: usize) -> MutexGuard<'_, Machine> {
        let machine = &self.machines[number];
        machine.locked()
    }
}

impl SimulatedMachines {
    /// Starts this number of machines, which run a version, and are of the identity's authority.
    pub fn start(
        identity: &Identity,
        count: usize,
        version: &str,
        upgraded: Upgraded,
    ) -> Result<Self> {
        anyhow::ensure!(count <= MOST, "{MOST} machines at most");
        make_room_for_sockets()?;
        let port = lease_port()?;
        let addresses: Vec<Ipv4Addr> = (0..count).map(address).collect();
        let listeners: io::Result<Vec<TcpListener>> = addresses
            .iter()
            .map(|address| {
                let listener = TcpListener::bind((*address, port.port()))?;
                listener.set_nonblocking(true)?;
                Ok(listener)
            })
            .collect();
        let listeners = listeners.context("cannot listen on the addresses of the machines")?;
        let (certificate, key) = identity.issue_server(&addresses)?;
        let tls = ServerTlsConfig::new()
            .identity(tonic::transport::Identity::from_pem(certificate, key))
            .client_ca_root(Certificate::from_pem(identity.authority_certificate()));
        let machine = || Machine {
            version: version.to_owned(),
            upgrades: 0,
        };
        let shared = Arc::new(Shared {
            machines: (0..count).map(|_| Mutex::new(machine())).collect(),
            upgraded,
        });
        let (end, ended) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let thread = std::thread::spawn(move || {
            if let Err(error) = runtime.block_on(serve(listeners, tls, Api(shared), ended)) {
                eprintln!("the simulated machines do not serve any more: {error:#}");
            }
        });
        Ok(Self {
            port,
            end: Some(end),
            thread: Some(thread),
        })
    }

    /// The address of a machine's API.
    pub fn address(&self, number: usize) -> String {
        SocketAddr::from((address(number), self.port.port())).to_string()
    }
}

impl Drop for SimulatedMachines {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has printed why.
            let _ = thread.join();
        }
    }
}

/// The address of a machine, by its number.
fn address(number: usize) -> Ipv4Addr {
    let part = |number: usize| u8::try_from(number).unwrap_or(u8::MAX);
    Ipv4Addr::new(127, 1, part(number / IN_A_ROW), part(number % IN_A_ROW + 1))
}

fn number(address: IpAddr) -> Option<usize> {
    let IpAddr::V4(address) = address else {
        return None;
    };
    let [127, 1, row, place] = address.octets() else {
        return None;
    };
    Some(usize::from(row) * IN_A_ROW + usize::from(place).checked_sub(1)?)
}

/// Lets this process have as many sockets as it may.
fn make_room_for_sockets() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, most).context("cannot have more sockets")
}

async fn serve(
    listeners: Vec<TcpListener>,
    tls: ServerTlsConfig,
    api: Api,
    ended: oneshot::Receiver<()>,
) -> Result<()> {
    let (sender, connections) = mpsc::channel::<io::Result<TcpStream>>(BACKLOG);
    for listener in listeners {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let sender = sender.clone();
        tokio::spawn(async move {
            // A client that leaves at once is no failure of the machine.
            while let Ok((connection, _)) = listener.accept().await {
                if sender.send(Ok(connection)).await.is_err() {
                    return;
                }
            }
        });
    }
    let served = Server::builder()
        .tls_config(tls)?
        .add_service(MachineServiceServer::new(api))
        .serve_with_incoming(ReceiverStream::new(connections));
    tokio::select! {
        served = served => Ok(served?),
        // The machines are dropped.
        _ = ended => Ok(()),
    }
}

#[derive(Clone)]
struct Api(Arc<Shared>);

type Answer<T> = Result<Response<T>, Status>;

impl Api {
    /// The machine that a request is for: the one at the address that the client has called.
    fn called<T>(&self, request: &Request<T>) -> Result<usize, Status> {
        let address = request.local_addr().map(|address| address.ip());
        let number = address.and_then(number);
        number
            .filter(|number| *number < self.0.machines.len())
            .ok_or_else(|| Status::internal(format!("no machine is at {address:?}")))
    }
}

#[tonic::async_trait]
impl MachineService for Api {
    async fn version(&self, request: Request<()>) -> Answer<wire::VersionResponse> {
        let number = self.called(&request)?;
        let version = wire::VersionInfo {
            tag: self.0.machine(number).version.clone(),
            ..wire::VersionInfo::default()
        };
        let message = wire::Version {
            version: Some(version),
            ..wire::Version::default()
        };
        Ok(Response::new(wire::VersionResponse {
            messages: vec![message],
        }))
    }

    async fn read(&self, request: Request<wire::ReadRequest>) -> Answer<BoxStream<Data>> {
        let number = self.called(&request)?;
        let path = &request.get_ref().path;
        if path != "/proc/sys/kernel/random/boot_id" {
            return Err(Status::not_found(format!("no file {path}")));
        }
        let boot = format!("boot-{number}-{}\n", self.0.machine(number).upgrades);
        let data = Data {
            bytes: boot.into_bytes(),
            ..Data::default()
        };
        Ok(Response::new(Box::pin(tokio_stream::once(Ok(data)))))
    }

    async fn events(
        &self,
        request: Request<wire::EventsRequest>,
    ) -> Answer<BoxStream<wire::Event>> {
        let number = self.called(&request)?;
        let shared = self.0.clone();
        let before = shared.machine(number).upgrades;
        let (sender, receiver) = mpsc::channel(2);
        tokio::spawn(async move {
            // A client that has left needs no events.
            let _ = sender.send(Ok(hello())).await;
            while shared.machine(number).upgrades == before && !sender.is_closed() {
                sleep(LOOK).await;
            }
            // As above.
            let _ = sender.send(Ok(ready())).await;
            sender.closed().await;
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn upgrade(
        &self,
        request: Request<wire::UpgradeRequest>,
    ) -> Answer<wire::UpgradeResponse> {
        let number = self.called(&request)?;
        let image = &request.get_ref().image;
        let version = version_in_tag(image).ok_or_else(|| {
            Status::invalid_argument(format!("{image} has no version in its tag"))
        })?;
        tokio::spawn(change(self.0.clone(), number, version.to_owned()));
        let message = wire::Upgrade {
            actor_id: format!("upgrade of {number}"),
            ..wire::Upgrade::default()
        };
        Ok(Response::new(wire::UpgradeResponse {
            messages: vec![message],
        }))
    }
}

/// Changes a machine to a version.
async fn change(shared: Arc<Shared>, number: usize, version: String) {
    sleep(UPGRADE).await;
    let (told, named) = (shared.clone(), version.clone());
    let telling = tokio::task::spawn_blocking(move || (told.upgraded)(number, &named));
    // A panic in it has been printed, and the test waits for the machine in vain.
    if telling.await.is_ok() {
        let mut machine = shared.machine(number);
        machine.version = version;
        machine.upgrades += 1;
    }
}

/// The event of a machine that runs and is ready.
fn ready() -> wire::Event {
    let status = MachineStatus {
        ready: true,
        unmet_conditions: Vec::new(),
    };
    let payload = EventPayload::from(wire::MachineStatusEvent {
        stage: MachineStage::Running.into(),
        status: Some(status),
    });
    wire::Event {
        data: Some(payload.pack()),
        id: "ready".to_owned(),
        ..wire::Event::default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn each_machine_has_an_address_of_its_own() {
        for machine in [0, 1, 249, 250, 999, MOST - 1] {
            assert_eq!(number(address(machine).into()), Some(machine), "{machine}");
        }
        assert_eq!(address(0), Ipv4Addr::new(127, 1, 0, 1));
        assert_eq!(address(250), Ipv4Addr::new(127, 1, 1, 1));
        assert_eq!(number(Ipv4Addr::LOCALHOST.into()), None);
    }
}
