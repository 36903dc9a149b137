//! A node in this process: the real API over real mutual TLS, with a machine behind it that follows the test's script.
//!
//! It keeps its listening socket over a change of generations, as a node does, and each generation has a runtime of its own, so that
//! ending one breaks its connections.

use std::net::TcpListener;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use instar_api::common::{Data, Error};
use instar_api::cosi::resource::state_server::StateServer;
use instar_api::events::{EventPayload, hello};
use instar_api::instar as own;
use instar_api::instar::node_certificate_service_server::{
    NodeCertificateService, NodeCertificateServiceServer,
};
use instar_api::machine as wire;
use instar_api::machine::image_service_server::ImageServiceServer;
use instar_api::machine::lifecycle_service_server::LifecycleServiceServer;
use instar_api::machine::machine_service_server::{MachineService, MachineServiceServer};
use instar_api::machine::machine_status_event::{MachineStage, MachineStatus};
use instar_pki::{CertificateAuthority, SubjectName};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status, Streaming};

mod lifecycle;
mod logs;
mod members;
mod tls;

/// The actor id that the actions return and the events of a script carry.
pub const ACTOR: &str = "6f1c0b9e-0000-4000-8000-000000000001";

/// The script of a machine after it accepted an action.
type Script = Box<dyn Fn(&Arc<FakeNode>) + Send + Sync>;

pub struct FakeNode {
    listener: TcpListener,
    tls: Arc<rustls::ServerConfig>,
    state: Mutex<State>,
    generation: Mutex<Option<Generation>>,
    script: Script,
}

/// A thread with a runtime of its own; dropping the sender ends it.
struct Generation {
    end: oneshot::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

/// The state that the API shows, and the requests that it received.
pub struct State {
    pub tag: String,
    pub boot_id: String,
    /// The error for all actions.
    pub refusal: Option<Status>,
    /// The error for reading files.
    pub read_refusal: Option<Status>,
    /// Values of the metadata key `node`, in the order of calls.
    pub asked_for: Vec<Option<String>>,
    /// Names and addresses of the members of the node's cluster.
    pub members: Vec<(String, [u8; 4])>,
    /// The last upgrade request.
    pub upgrade: Option<wire::UpgradeRequest>,
    /// Pause before the first event of a history.
    pub history_pause: Duration,
    /// The last config.
    pub config: Option<wire::ApplyConfigurationRequest>,
    /// The snapshot that was sent, and the last request to begin the cluster.
    pub begun: (Vec<u8>, Option<wire::BootstrapRequest>),
    /// How many times a log was followed whose first stream does not end well.
    followed: usize,
    /// How many times the same log was read to its end.
    readings: usize,
    /// The number of streams of events.
    pub subscriptions: usize,
    /// The last request for packets, and its deadline.
    pub capture: Option<(wire::PacketCaptureRequest, Option<String>)>,
    /// The output of the preparation of an upgrade: its lines, and the exit code if there is one.
    pub preparation: (Vec<&'static str>, Option<i32>),
    history: Vec<wire::Event>,
    readers: Vec<mpsc::UnboundedSender<wire::Event>>,
    count: u64,
}

impl FakeNode {
    /// Starts a node that is already running and ready, as `v0.1.0`.
    pub fn start(
        listener: TcpListener,
        authority: &CertificateAuthority,
        script: Script,
    ) -> Arc<Self> {
        let node = Arc::new(Self {
            listener,
            tls: tls::server_config(authority, &[SubjectName::from("127.0.0.1")]),
            state: Mutex::new(State {
                tag: "v0.1.0".into(),
                boot_id: "boot-1".into(),
                refusal: None,
                read_refusal: None,
                asked_for: Vec::new(),
                members: Vec::new(),
                upgrade: None,
                history_pause: Duration::ZERO,
                config: None,
                begun: (Vec::new(), None),
                followed: 0,
                readings: 0,
                subscriptions: 0,
                capture: None,
                preparation: (Vec::new(), None),
                history: Vec::new(),
                readers: Vec::new(),
                count: 0,
            }),
            generation: Mutex::new(None),
            script,
        });
        node.status(MachineStage::Running, true);
        node.begin_generation();
        node
    }

    pub fn address(&self) -> std::net::SocketAddr {
        self.listener.local_addr().unwrap()
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Breaks every connection; new ones wait.
    pub fn break_connections(&self) {
        if let Some(Generation { end, thread }) = self.generation.lock().unwrap().take() {
            drop(end);
            thread.join().unwrap();
        }
    }

    /// Ends the streams of events as a node ends them.
    pub fn end_events(&self) {
        self.state().readers.clear();
    }

    /// Breaks every connection, and forgets all events.
    pub fn end_generation(&self) {
        self.break_connections();
        let mut state = self.state();
        state.readers.clear();
        state.history.clear();
    }

    pub fn begin_generation(self: &Arc<Self>) {
        let listener = self.listener.try_clone().unwrap();
        listener.set_nonblocking(true).unwrap();
        let api = Api(self.clone());
        let tls = self.tls.clone();
        let (end, ended) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            let serve = async move {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                tonic::transport::Server::builder()
                    .add_service(ImageServiceServer::new(api.clone()))
                    .add_service(LifecycleServiceServer::new(api.clone()))
                    .add_service(NodeCertificateServiceServer::new(api.clone()))
                    .add_service(StateServer::new(api.clone()))
                    .add_service(MachineServiceServer::new(api))
                    .serve_with_incoming(tls::accept(listener, tls))
                    .await
                    .unwrap();
            };
            runtime.block_on(async {
                tokio::select! {
                    () = serve => {}
                    _ = ended => {}
                }
            });
        });
        *self.generation.lock().unwrap() = Some(Generation { end, thread });
    }

    pub fn emit(&self, actor: &str, payload: impl Into<EventPayload>) {
        let mut state = self.state();
        state.count += 1;
        let event = wire::Event {
            data: Some(payload.into().pack()),
            id: format!("{:08}", state.count),
            actor_id: actor.into(),
            ..wire::Event::default()
        };
        state.history.push(event.clone());
        state
            .readers
            .retain(|reader| reader.send(event.clone()).is_ok());
    }

    pub fn status(&self, stage: MachineStage, ready: bool) {
        let status = Some(MachineStatus {
            ready,
            unmet_conditions: Vec::new(),
        });
        self.emit(
            "",
            wire::MachineStatusEvent {
                stage: stage.into(),
                status,
            },
        );
    }

    pub fn sequence(&self, name: &str, action: wire::sequence_event::Action, error: Option<&str>) {
        let error = error.map(|message| Error {
            message: message.into(),
            ..Error::default()
        });
        self.emit(
            ACTOR,
            wire::SequenceEvent {
                sequence: name.into(),
                action: action.into(),
                error,
            },
        );
    }

    pub fn phase(&self, name: &str) {
        use wire::phase_event::Action;
        for action in [Action::Start, Action::Stop] {
            self.emit(
                ACTOR,
                wire::PhaseEvent {
                    phase: name.into(),
                    action: action.into(),
                },
            );
        }
    }

    pub fn task(&self, name: &str) {
        let action = wire::task_event::Action::Start.into();
        self.emit(
            ACTOR,
            wire::TaskEvent {
                task: name.into(),
                action,
            },
        );
    }

    fn read_events(&self, request: &wire::EventsRequest) -> mpsc::UnboundedReceiver<wire::Event> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut state = self.state();
        sender.send(hello()).unwrap();
        state.subscriptions += 1;
        let last = |event: &wire::Event| event.id == request.tail_id;
        let skipped = match usize::try_from(request.tail_events) {
            Ok(0) if !request.tail_id.is_empty() => {
                state.history.iter().position(last).map_or(0, |at| at + 1)
            }
            Ok(newest) => state.history.len().saturating_sub(newest),
            Err(_) => 0,
        };
        let matching = |event: &&wire::Event| {
            request.with_actor_id.is_empty() || event.actor_id == request.with_actor_id
        };
        for event in state.history[skipped..].iter().filter(matching) {
            sender.send(event.clone()).unwrap();
        }
        state.readers.push(sender);
        receiver
    }

    fn act(self: &Arc<Self>) -> Result<(), Status> {
        if let Some(refusal) = self.state().refusal.clone() {
            return Err(refusal);
        }
        let node = self.clone();
        std::thread::spawn(move || {
            // A real node waits too, for clients that subscribe late.
            std::thread::sleep(Duration::from_millis(100));
            (node.script)(&node);
        });
        Ok(())
    }
}

#[derive(Clone)]
struct Api(Arc<FakeNode>);

type Answer<T> = Result<Response<T>, Status>;

fn pieces(pieces: &[&[u8]]) -> BoxStream<Data> {
    let pieces: Vec<_> = pieces
        .iter()
        .map(|piece| {
            Ok::<_, Status>(Data {
                bytes: piece.to_vec(),
                ..Data::default()
            })
        })
        .collect();
    Box::pin(tokio_stream::iter(pieces))
}

/// A pcap file with one packet.
pub fn capture() -> Vec<u8> {
    let header = [0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0].into_iter();
    let header = header.chain([0; 8]).chain([0xff, 0xff, 0, 0, 1, 0, 0, 0]);
    let record = [0; 8].into_iter().chain([3, 0, 0, 0, 3, 0, 0, 0]);
    header.chain(record).chain(*b"abc").collect()
}

impl Api {
    /// Notes the target. A node whose name begins with `dead` is not reached, and one with `full` refuses everything.
    fn pass_on<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let name = request
            .metadata()
            .get("node")
            .map(|name| name.to_str().unwrap().to_owned());
        self.0.state().asked_for.push(name.clone());
        match name.unwrap_or_default() {
            name if name.starts_with("dead") => Err(Status::unavailable(format!(
                "cannot connect to the node {name}: TCP: no answer"
            ))),
            name if name.starts_with("full") => Err(Status::resource_exhausted("it is full")),
            _ => Ok(()),
        }
    }
}

#[tonic::async_trait]
impl MachineService for Api {
    async fn version(&self, request: Request<()>) -> Answer<wire::VersionResponse> {
        self.pass_on(&request)?;
        let tag = self.0.state().tag.clone();
        let version = Some(wire::VersionInfo {
            tag,
            ..wire::VersionInfo::default()
        });
        let messages = vec![wire::Version {
            version,
            ..wire::Version::default()
        }];
        Ok(Response::new(wire::VersionResponse { messages }))
    }

    async fn events(
        &self,
        request: Request<wire::EventsRequest>,
    ) -> Answer<BoxStream<wire::Event>> {
        let mut events = self.0.read_events(request.get_ref());
        let (sender, receiver) = mpsc::channel(1);
        let pause = self.0.state().history_pause;
        tokio::spawn(async move {
            let mut pause = Some(pause);
            while let Some(event) = events.recv().await {
                if sender.send(Ok(event)).await.is_err() {
                    return;
                }
                // After the greeting.
                if let Some(pause) = pause.take() {
                    tokio::time::sleep(pause).await;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn read(&self, request: Request<wire::ReadRequest>) -> Answer<BoxStream<Data>> {
        let state = self.0.state();
        if let Some(refusal) = &state.read_refusal {
            return Err(refusal.clone());
        }
        match request.get_ref().path.as_str() {
            "/proc/sys/kernel/random/boot_id" => {
                Ok(Response::new(pieces(&[state.boot_id.as_bytes(), b"\n"])))
            }
            "/etc/os-release" => Ok(Response::new(pieces(&[b"ID=in", b"star\n"]))),
            path => Err(Status::not_found(format!("no file {path}"))),
        }
    }

    async fn upgrade(
        &self,
        request: Request<wire::UpgradeRequest>,
    ) -> Answer<wire::UpgradeResponse> {
        self.0.act()?;
        self.0.state().upgrade = Some(request.into_inner());
        let message = wire::Upgrade {
            actor_id: ACTOR.into(),
            ..wire::Upgrade::default()
        };
        Ok(Response::new(wire::UpgradeResponse {
            messages: vec![message],
        }))
    }

    async fn reboot(&self, _: Request<wire::RebootRequest>) -> Answer<wire::RebootResponse> {
        self.0.act()?;
        let message = wire::Reboot {
            actor_id: ACTOR.into(),
            ..wire::Reboot::default()
        };
        Ok(Response::new(wire::RebootResponse {
            messages: vec![message],
        }))
    }

    async fn shutdown(&self, _: Request<wire::ShutdownRequest>) -> Answer<wire::ShutdownResponse> {
        self.0.act()?;
        let message = wire::Shutdown {
            actor_id: ACTOR.into(),
            ..wire::Shutdown::default()
        };
        Ok(Response::new(wire::ShutdownResponse {
            messages: vec![message],
        }))
    }

    async fn service_list(&self, _: Request<()>) -> Answer<wire::ServiceListResponse> {
        let service = |id: &str, healthy| wire::ServiceInfo {
            id: id.into(),
            state: "Running".into(),
            health: Some(wire::ServiceHealth {
                healthy,
                ..wire::ServiceHealth::default()
            }),
            events: Some(wire::ServiceEvents::default()),
        };
        let services = vec![service("web", false), service("apid", true)];
        let messages = vec![wire::ServiceList {
            services,
            ..wire::ServiceList::default()
        }];
        Ok(Response::new(wire::ServiceListResponse { messages }))
    }

    async fn service_restart(
        &self,
        request: Request<wire::ServiceRestartRequest>,
    ) -> Answer<wire::ServiceRestartResponse> {
        let resp = format!("Service \"{}\" restarted", request.get_ref().id);
        let messages = vec![wire::ServiceRestart {
            resp,
            ..wire::ServiceRestart::default()
        }];
        Ok(Response::new(wire::ServiceRestartResponse { messages }))
    }

    async fn logs(&self, request: Request<wire::LogsRequest>) -> Answer<BoxStream<Data>> {
        let request = request.into_inner();
        match request.id.as_str() {
            "halting" => return Ok(Response::new(self.halting_log(request.follow))),
            "quiet" => return Ok(Response::new(self.log(&request, logs::changes_version()))),
            "mounting" => return Ok(Response::new(self.mounting_log(request.follow))),
            "torn" => {
                let silent = Box::pin(tokio_stream::pending::<Result<Data, Status>>());
                return Ok(Response::new(self.log(&request, silent)));
            }
            _ => {}
        }
        if request.namespace != "system" || request.id != "web" || request.tail_lines != -1 {
            return Err(Status::invalid_argument(format!("unexpected {request:?}")));
        }
        let stream = pieces(&[b"one\ntw", b"o\nthree"]);
        if request.follow {
            // A stream that breaks: the client says so.
            let broken =
                tokio_stream::once(Err(Status::unavailable("the service's log went away")));
            return Ok(Response::new(Box::pin(stream.chain(broken))));
        }
        Ok(Response::new(stream))
    }

    /// Sends a log like that of the service `quiet`.
    async fn dmesg(&self, request: Request<wire::DmesgRequest>) -> Answer<BoxStream<Data>> {
        let request = request.into_inner();
        let part = wire::LogsRequest {
            follow: request.follow,
            tail_lines: if request.tail { 0 } else { -1 },
            ..wire::LogsRequest::default()
        };
        Ok(Response::new(self.log(&part, logs::changes_version())))
    }

    /// Sends a capture with a second packet that is cut off: on `eth0` by the deadline, on `eth1` with the connection. `lo` sends
    /// nothing more, and has no deadline.
    async fn packet_capture(
        &self,
        request: Request<wire::PacketCaptureRequest>,
    ) -> Answer<BoxStream<Data>> {
        let deadline = request.metadata().get("grpc-timeout");
        let deadline = deadline.map(|value| value.to_str().unwrap().to_owned());
        let link = request.get_ref().interface.clone();
        self.0.state().capture = Some((request.into_inner(), deadline));
        let file = capture();
        let (first, rest) = file.split_at(30);
        let stream = pieces(&[first, rest, &[0; 7]]);
        let end = match link.as_str() {
            "eth0" => Status::deadline_exceeded("the time is over"),
            "eth1" => Status::unavailable("the link to the node went away"),
            "lo" => {
                return Ok(Response::new(Box::pin(
                    stream.chain(tokio_stream::pending()),
                )));
            }
            _ => return Err(Status::not_found(format!("there is no link {link:?}"))),
        };
        let end = tokio_stream::once(Err(end));
        Ok(Response::new(Box::pin(stream.chain(end))))
    }

    async fn etcd_recover(
        &self,
        request: Request<Streaming<Data>>,
    ) -> Answer<wire::EtcdRecoverResponse> {
        let mut pieces = request.into_inner();
        while let Some(piece) = pieces.message().await? {
            self.0.state().begun.0.extend(piece.bytes);
        }
        Ok(Response::new(wire::EtcdRecoverResponse {
            messages: vec![wire::EtcdRecover::default()],
        }))
    }

    async fn bootstrap(
        &self,
        request: Request<wire::BootstrapRequest>,
    ) -> Answer<wire::BootstrapResponse> {
        self.0.state().begun.1 = Some(request.into_inner());
        Ok(Response::new(wire::BootstrapResponse {
            messages: vec![wire::Bootstrap::default()],
        }))
    }

    async fn apply_configuration(
        &self,
        request: Request<wire::ApplyConfigurationRequest>,
    ) -> Answer<wire::ApplyConfigurationResponse> {
        self.pass_on(&request)?;
        self.0.state().config = Some(request.into_inner());
        let message = wire::ApplyConfiguration {
            warnings: vec!["machine.features is not served".into()],
            mode_details: "taken\n".into(),
            ..wire::ApplyConfiguration::default()
        };
        Ok(Response::new(wire::ApplyConfigurationResponse {
            messages: vec![message],
        }))
    }
}

/// A node that has its authority's key.
#[tonic::async_trait]
impl NodeCertificateService for Api {
    async fn show(
        &self,
        _: Request<own::ShowCertificateRequest>,
    ) -> Result<Response<own::ShowCertificateResponse>, Status> {
        Ok(Response::new(own::ShowCertificateResponse {
            signs_for_itself: true,
            ..own::ShowCertificateResponse::default()
        }))
    }

    async fn grant(
        &self,
        _: Request<own::GrantCertificateRequest>,
    ) -> Result<Response<own::GrantCertificateResponse>, Status> {
        Err(Status::failed_precondition("it signs for itself"))
    }
}
