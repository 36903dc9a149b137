//! apid: the only part of the machine that talks to unknown clients.
//!
//! It terminates TLS, reads the caller's roles from the client certificate, checks them against the table of methods,
//! and passes what is allowed on to machined over a unix socket, or to other nodes. It holds no secrets but the keys of its
//! own certificates, has its own user and no capabilities, and sees nothing of the filesystem but that socket.
//!
//! The decision: it is a process and a crate of its own. As a process it has no right that it does not need, as a crate it cannot name
//! disks, containers or the machine's state: an attacker can reach only what is written here. Serving TLS in machined was the other choice:
//! two MiB less, and every decoder of foreign bytes in the process that owns the machine.
//!
//! Descriptors that machined gives it: 0 is the listening TCP socket, 1 a unix stream on which machined's orders arrive and names are
//! asked for, 2 its log.

#![forbid(unsafe_code)]

mod caller;
mod control_message;
mod counted;
mod credential_watch;
mod exchange;
mod fan_out;
mod flag;
mod forward;
mod grpc_framing;
mod grpc_status;
mod handed_sockets;
mod identity;
mod impersonation;
mod in_flight;
mod lookup;
mod merge_replies;
mod metadata;
mod metrics;
mod node_ref;
mod one_call;
mod pace;
mod peers;
mod permissions;
mod pods;
mod proxy;
mod revocable;
mod sandbox;
mod self_check;
mod target;
mod tls;
mod unauthenticated_limit;
mod uploads;
mod workers;

pub use caller::{Mode, PODS, WORKER};
pub use control_message::{
    Answer, ControlMessage, Found, Question, receive as receive_question, send as send_control,
    send_socket,
};
pub use identity::Identity;
pub use lookup::LOOKUPS;
pub use one_call::OneCall;
pub use permissions::{is_judged_again, may_call};
pub use sandbox::enter as enter_sandbox;
pub use self_check::SelfCheck;
pub use tls::would_let_in;

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::unix::OwnedReadHalf;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use caller::Caller;
use counted::Counted;
use credential_watch::CredentialWatch;
use exchange::{NO_LONGER_ACCEPTED, refuse};
use grpc_status::Code;
use identity::Credentials;
use in_flight::{FAREWELL, InFlight, LULL};
use lookup::Lookups;
use metrics::MetricsListener;
use pods::PodsListener;
use proxy::Proxy;
use unauthenticated_limit::{Place, UnauthenticatedLimit};
use workers::WorkersListener;

use instar_base::quota::{Permit, Quota, Rank};
use instar_sys::text;

/// The user and group that it runs as (`/etc/passwd` of the rootfs).
pub const USER: u32 = 50;
/// The directory that becomes its root: it holds machined's socket and nothing else.
pub const ROOT: &str = "/run/apid";
/// machined's socket inside that directory.
pub const SOCKET: &str = "machined.sock";

/// Limit on connections at a time. More wait in the listen queue.
const CONNECTIONS: usize = 4096;
/// Limit on connections of clients whose certificate is not an administrator's.
const OTHERS: usize = 1024;
/// Limit on connections of clients that have not shown a certificate: in maintenance mode all of them.
const UNAUTHENTICATED: usize = 512;
/// Extra connections for the machine itself, which checks that it is reachable: no flood from the network takes these.
const OWN: usize = 32;
/// Limit on concurrent calls of one connection.
const CALLS: u32 = 128;
/// The same for callers who are no administrators: a dashboard makes some thirty calls.
const OTHERS_CALLS: u32 = 64;
/// HTTP/2 window of a caller who is no administrator: bytes received and not yet read per connection, and bytes waiting to be sent per
/// call.
const OTHERS_WINDOW: u32 = 64 << 10;
/// Timeout for the calls in flight of a caller whose credentials are no longer valid.
const LAST_ANSWERS: Duration = Duration::from_secs(10);
/// The same before this apid hands over to the next one; all clients wait for that.
const LAST_ANSWERS_OF_ALL: Duration = Duration::from_millis(1500);
/// Timeout for the TLS handshake; then the client is cut off.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// For fuzzing: decodes bytes as the answer of another node.
#[cfg(feature = "fuzzing")]
pub fn decode_answer_of_another_node(bytes: &[u8]) {
    fan_out::decode(bytes);
}

/// Runs apid until machined closes the stream of orders or orders a drain.
pub fn run() -> anyhow::Result<()> {
    let listener = std::io::stdin().as_fd().try_clone_to_owned()?;
    let orders = std::io::stdout().as_fd().try_clone_to_owned()?;
    sandbox::enter().context("enter the sandbox")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(serve(listener, orders))
}

/// Serves on a listening TCP socket as the orders say, until their stream is closed or an order says to drain. machined's socket is
/// [`SOCKET`] in the current directory.
pub async fn serve(listener: OwnedFd, orders: OwnedFd) -> anyhow::Result<()> {
    let listener = std::net::TcpListener::from(listener);
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener).context("take the listening socket")?;
    let stream = std::os::unix::net::UnixStream::from(orders);
    stream.set_nonblocking(true)?;
    let stream = UnixStream::from_std(stream).context("take the stream of orders")?;
    let (mut orders, to_machined) = stream.into_split();

    let Some(ControlMessage::Identity(first)) = control_message::receive(&mut orders).await? else {
        bail!("machined did not begin with an identity");
    };
    let (sender, credentials) = watch::channel(Arc::new(Credentials::new(&first)?));
    let (lookups, questions) = Lookups::new();
    let (drain, draining) = watch::channel(false);
    let (pods, for_pods) = watch::channel(None);
    let (workers, for_workers) = watch::channel(None);
    let (metrics, for_metrics) = watch::channel(None);
    let senders = Senders {
        credentials: sender,
        drain,
        pods,
        workers,
        metrics,
    };
    let listeners = Listeners {
        network: listener,
        pods: for_pods,
        workers: for_workers,
        metrics: for_metrics,
    };
    tokio::select! {
        ended = follow_orders(orders, senders, lookups.clone()) => ended,
        ended = questions.ask(to_machined) => ended,
        () = accept_until_drained(listeners, credentials, lookups, draining) => Ok(()),
    }
}

/// Where orders go.
struct Senders {
    credentials: watch::Sender<Arc<Credentials>>,
    drain: watch::Sender<bool>,
    pods: watch::Sender<Option<PodsListener>>,
    workers: watch::Sender<Option<WorkersListener>>,
    metrics: watch::Sender<Option<MetricsListener>>,
}

/// The sockets that connections come from.
struct Listeners {
    network: TcpListener,
    /// None until machined gives one, as on a machine without pods.
    pods: watch::Receiver<Option<PodsListener>>,
    /// None on a machine that signs no certificates.
    workers: watch::Receiver<Option<WorkersListener>>,
    /// None unless the config asks for metrics.
    metrics: watch::Receiver<Option<MetricsListener>>,
}

async fn follow_orders(
    mut orders: OwnedReadHalf,
    senders: Senders,
    lookups: Lookups,
) -> anyhow::Result<()> {
    while let Some(order) = control_message::receive(&mut orders).await? {
        match order {
            ControlMessage::Identity(identity) => match Credentials::new(&identity) {
                Ok(credentials) => {
                    senders.credentials.send_replace(Arc::new(credentials));
                }
                Err(error) => {
                    eprintln!("apid: the new identity is unusable, the old one stays: {error:#}")
                }
            },
            ControlMessage::ForgetStart => {
                if let Err(error) = text::forget() {
                    eprintln!("apid: the code of its start stays in memory: {error}");
                }
            }
            ControlMessage::TakeAddresses(answer) => lookups.answer(answer),
            ControlMessage::ServePods => {
                let socket = control_message::receive_socket(orders.as_ref()).await;
                let listener = pods::listener(socket.context("receive the socket for pods")?)?;
                senders.pods.send_replace(Some(listener));
            }
            ControlMessage::ServeWorkers => {
                let socket = control_message::receive_socket(orders.as_ref()).await;
                let socket = socket.context("receive the socket for workers")?;
                senders
                    .workers
                    .send_replace(Some(workers::listener(socket)?));
            }
            ControlMessage::StopServingWorkers => {
                senders.workers.send_replace(None);
            }
            ControlMessage::ServeMetrics { with_tls } => {
                let socket = control_message::receive_socket(orders.as_ref()).await;
                let socket = socket.context("receive the socket for metrics")?;
                let listener = metrics::listener(socket, with_tls)?;
                senders.metrics.send_replace(Some(listener));
            }
            ControlMessage::StopServingMetrics => {
                senders.metrics.send_replace(None);
            }
            ControlMessage::Drain => {
                senders.drain.send_replace(true);
            }
        }
    }
    Ok(())
}

/// Accepts connections until an order to drain. It goes on to accept while connections wait for a good moment to end, so that no client
/// waits for that; later clients wait in the listening socket, which init holds, for the next apid.
async fn accept_until_drained(
    listeners: Listeners,
    credentials: watch::Receiver<Arc<Credentials>>,
    lookups: Lookups,
    mut draining: watch::Receiver<bool>,
) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let proxy = Proxy::new(SOCKET, lookups);
    let ends = draining.clone();
    let lull = async {
        if draining.wait_for(|draining| *draining).await.is_err() {
            return std::future::pending().await;
        }
        tokio::time::sleep(LULL).await;
    };
    let Listeners {
        network,
        pods,
        workers,
        metrics,
    } = listeners;
    let (of_pods, for_pods) = (credentials.clone(), proxy.for_another());
    let (of_workers, for_workers) = (credentials.clone(), proxy.for_another());
    let (of_metrics, for_metrics) = (credentials.clone(), proxy.for_another());
    tokio::select! {
        never = accept(network, credentials, proxy, places.clone(), ends.clone()) => match never {},
        never = pods::accept(pods, of_pods, for_pods, places.clone(), ends.clone()) => match never {},
        never = workers::accept(workers, of_workers, for_workers, places.clone(), ends) => match never {},
        never = metrics::accept(metrics, of_metrics, for_metrics) => match never {},
        () = lull => {}
    }
    // Each connection has a place until its end.
    let all = places.acquire_many(CONNECTIONS as u32);
    if tokio::time::timeout(LAST_ANSWERS_OF_ALL, all)
        .await
        .is_err()
    {
        let left = CONNECTIONS - places.available_permits();
        eprintln!("apid: {left} connections are cut off: they did not end in time");
    }
}

async fn accept(
    listener: TcpListener,
    credentials: watch::Receiver<Arc<Credentials>>,
    proxy: Proxy,
    places: Arc<Semaphore>,
    draining: watch::Receiver<bool>,
) -> std::convert::Infallible {
    let (others, own) = (
        UnauthenticatedLimit::new(UNAUTHENTICATED),
        UnauthenticatedLimit::new(OWN),
    );
    let known = Quota::new(CONNECTIONS, OTHERS);
    loop {
        // The semaphore is never closed.
        let place = places.clone().acquire_owned().await;
        match listener.accept().await {
            Ok((stream, peer)) => {
                let credentials = credentials.clone();
                let (proxy, known, draining) =
                    (proxy.for_another(), known.clone(), draining.clone());
                let limit = match peer.ip().to_canonical().is_loopback() {
                    true => &own,
                    false => &others,
                };
                limit.admit(|unknown| {
                    let connection = async move {
                        let arrived = Arrived::Network(stream, unknown, known);
                        let served = serve_connection(arrived, credentials, proxy, draining);
                        // The errors of an unknown client's connection are not logged, or anyone could fill the log.
                        let _ = served.await;
                        drop(place);
                    };
                    instar_base::task::spawn(connection).abort_handle()
                });
            }
            Err(error) => {
                eprintln!("apid: accept: {error}");
                // Descriptors or memory are used up: wait until connections have ended.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// A connection of any kind: one type, so that the code that serves it is there once.
type Stream = Either<TlsStream<TcpStream>, UnixStream>;

/// A connection whose caller is not known yet.
enum Arrived {
    /// From the network, with its place among the unknown ones, and the places of those who are known.
    Network(TcpStream, Place, Quota),
    /// From a pod.
    Pod(UnixStream),
    /// From a machine that wants a certificate, with its place among those of its kind.
    Worker(TcpStream, Place),
}

/// A connection whose caller is known, with its place among others.
struct Accepted {
    caller: Caller,
    stream: Stream,
    _place: (Option<Place>, Option<Permit>),
}

impl Arrived {
    /// Finds out who calls.
    async fn accept(self, credentials: &Credentials) -> anyhow::Result<Accepted> {
        let (stream, unknown, known) = match self {
            Arrived::Network(stream, unknown, known) => (stream, unknown, known),
            Arrived::Pod(stream) => {
                return Ok(Accepted {
                    caller: credentials.pod().context("the node has no config")?,
                    stream: Either::Right(stream),
                    _place: (None, None),
                });
            }
            Arrived::Worker(stream, place) => {
                let peer = stream.peer_addr()?;
                stream.set_nodelay(true)?;
                let caller = credentials.worker(peer).context("the node has no config")?;
                let acceptor = credentials.acceptor_of_workers()?;
                let tls = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await??;
                return Ok(Accepted {
                    caller,
                    stream: Either::Left(tls),
                    _place: (Some(place), None),
                });
            }
        };
        let peer = stream.peer_addr()?;
        stream.set_nodelay(true)?;
        let handshake = credentials.acceptor().accept(stream);
        let tls = tokio::time::timeout(HANDSHAKE, handshake).await??;
        let caller = credentials.caller(tls.get_ref().1, peer)?;
        let place = match credentials.mode() {
            Mode::Normal => {
                drop(unknown);
                let place = known.try_acquire(caller.rank());
                (None, Some(place.context("too many connections")?))
            }
            Mode::Maintenance | Mode::Closed => (Some(unknown), None),
        };
        Ok(Accepted {
            caller,
            stream: Either::Left(tls),
            _place: place,
        })
    }
}

async fn serve_connection(
    arrived: Arrived,
    mut newest: watch::Receiver<Arc<Credentials>>,
    proxy: Proxy,
    draining: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    // Each idle connection is a task of this future, so it is to be small: the handshake's part is boxed and freed, and the block ends the
    // variable that was lent (docs/promises.md, "Where the memory of idle connections goes").
    let Accepted {
        caller,
        stream,
        _place,
    } = {
        let credentials = newest.borrow_and_update().clone();
        Box::pin(arrived.accept(&credentials)).await?
    };
    let (rank, stream) = (caller.rank(), TokioIo::new(stream));
    let current = newest.clone();
    let mut standing = CredentialWatch::of(caller.clone(), newest);
    let lost = standing.is_lost();
    let (calls, in_flight) = (proxy.clone(), InFlight::default());
    let asked = in_flight.clone();
    let service = hyper::service::service_fn(move |request| {
        // Read again for each call: the node's names and rights may have changed since the connection began, a day ago for example.
        let (proxy, credentials) = (calls.clone(), current.borrow().clone());
        let (caller, lost, asked) = (caller.clone(), lost.clone(), asked.begin());
        async move {
            let answer = match lost.is_so() {
                false => proxy.forward(request, &caller, &lost, &credentials).await,
                true => refuse(Code::Unauthenticated, NO_LONGER_ACCEPTED).map(Counted::free),
            };
            asked.let_goaway_pass().await;
            let answer = answer.map(|body| asked.answered_by(body));
            Ok::<_, std::convert::Infallible>(answer)
        }
    });
    let mut connection = std::pin::pin!(http2_for(rank).serve_connection(stream, service));
    let mut lost = std::pin::pin!(standing.lost());
    tokio::select! {
        ended = connection.as_mut() => return Ok(ended?),
        () = lost.as_mut() => connection.as_mut().graceful_shutdown(),
        () = in_flight.may_end(draining) => {
            // Streams end after GOAWAY, so that their callers do not ask again here.
            connection.as_mut().graceful_shutdown();
            in_flight.note_told();
            if let Ok(ended) = tokio::time::timeout(FAREWELL, connection.as_mut()).await {
                return Ok(ended?);
            }
            // A client that does not answer the ping must not delay the drain.
            if in_flight.is_idle() {
                return Ok(());
            }
        }
        never = proxy.rest_when_idle() => match never {},
    }
    // The call that changed the credentials may be among the calls in flight.
    Ok(tokio::time::timeout(LAST_ANSWERS, connection).await??)
}

/// The HTTP/2 server, with limits by the rank of the caller.
fn http2_for(rank: Rank) -> hyper::server::conn::http2::Builder<TokioExecutor> {
    let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(CALLS)
        .max_header_list_size(16 * 1024)
        // A peer that vanished without closing does not hold its place for ever.
        .keep_alive_interval(Duration::from_secs(60));
    if rank == Rank::Other {
        builder
            .max_concurrent_streams(OTHERS_CALLS)
            .initial_stream_window_size(OTHERS_WINDOW)
            .initial_connection_window_size(OTHERS_WINDOW)
            .max_send_buf_size(OTHERS_WINDOW as usize);
    }
    builder
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size of the future that a function of four arguments returns.
    fn size_of_future<A, B, C, D, Fut: Future>(_: fn(A, B, C, D) -> Fut) -> usize {
        size_of::<Fut>()
    }

    #[test]
    fn an_idle_connection_costs_a_small_task() {
        let bytes = size_of_future(serve_connection);
        assert!(bytes <= 4096, "{bytes} bytes");
    }
}
