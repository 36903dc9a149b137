//! Listening sockets besides the API's. Over a change of generations and a restart of machined they wait in init's hands: whoever connects
//! meanwhile waits instead of being refused, and nobody else can take their addresses.
//!
//! ```text
//! one generation ──leave──► init ──welcome──► the next ──take───► served
//!                                              │   └─────close──► the config does not name it
//!                                              └ keep, once it has proved itself: init has them for this generation alone
//!                                                  └──welcome──► machined again ──take──► served
//! ```
//!
//! The decision: init has them for one generation, so that they are closed with it, and only a version that says so gets them from the one
//! before (`takes_sockets` of its installer). One that does not know them could never close them, and could not listen at their addresses
//! itself. A version that comes back by a rollback is the one that has left them. Keeping them for the machine, as the API's socket, would show
//! them to any version that comes back.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use instar_init_protocol::MAX_KEPT;
use tokio::sync::watch;

use crate::base::lock::Lock as _;
use crate::init_link::{InitLink, Scope};

/// Descriptors that init keeps at most besides these and the output of the config's containers: the API's socket, four records, a prepared version
/// in two, and the output of Kubernetes' container.
const OWN: usize = 8;

/// A listening socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Socket {
    /// The port at which workers ask for certificates.
    Workers,
    /// The port for metrics.
    Metrics,
    /// The socket by which pods reach the API.
    Pods,
    /// The port at which containerd asks for images of the machine.
    ImagesForPods,
}

impl Socket {
    const ALL: [Socket; 4] = [
        Socket::Workers,
        Socket::Metrics,
        Socket::Pods,
        Socket::ImagesForPods,
    ];

    /// The name under which init keeps it.
    fn name(self) -> &'static str {
        match self {
            Socket::Workers => "socket.workers",
            Socket::Metrics => "socket.metrics",
            Socket::Pods => "socket.pods",
            Socket::ImagesForPods => "socket.images",
        }
    }

    /// The scope in which it waits for the next generation.
    fn scope(self) -> Scope {
        match self {
            // It lies in a container.
            Socket::Pods => Scope::Workloads,
            Socket::Workers | Socket::Metrics | Socket::ImagesForPods => Scope::Machine,
        }
    }
}

impl fmt::Display for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Socket::Workers => "workers",
            Socket::Metrics => "metrics",
            Socket::Pods => "pods",
            Socket::ImagesForPods => "images for pods",
        })
    }
}

/// Whether init has room for all sockets beside the output of so many containers, which must never find none.
pub fn have_room(containers: usize) -> bool {
    containers + OWN + Socket::ALL.len() <= MAX_KEPT
}

/// The sockets that the generation before has left, or the machined before, and those that init has.
#[derive(Debug, Default)]
pub struct LeftSockets {
    open: Mutex<BTreeMap<Socket, OwnedFd>>,
    /// Each with the number by which it is known again; None of one that is not known.
    with_init: Mutex<BTreeMap<Socket, Option<u64>>>,
    /// Whether this generation has proved itself; it is told again when the sockets have to be looked at anew.
    is_proved: watch::Sender<bool>,
}

impl LeftSockets {
    /// Finds them among the descriptors that init has kept.
    pub fn find(kept: &mut BTreeMap<String, OwnedFd>) -> Self {
        let found = Socket::ALL.into_iter();
        let found = found.filter_map(|socket| Some((socket, kept.remove(socket.name())?)));
        let open: BTreeMap<_, _> = found.collect();
        LeftSockets {
            with_init: Mutex::new(open.keys().map(|socket| (*socket, None)).collect()),
            open: Mutex::new(open),
            is_proved: watch::Sender::default(),
        }
    }

    /// Takes a socket; a second call finds none.
    pub fn take(&self, socket: Socket) -> Option<OwnedFd> {
        self.open.locked().remove(&socket)
    }

    /// Takes a TCP socket that listens at this address; one at another address is closed.
    pub fn take_at(&self, socket: Socket, wanted: SocketAddr) -> Option<OwnedFd> {
        let taken = self.take(socket)?;
        let at = rustix::net::getsockname(&taken).ok()?;
        (SocketAddr::try_from(at).ok()? == wanted).then_some(taken)
    }

    /// Leaves these sockets to the next generation. One that init does not take is opened anew there.
    pub async fn leave(&self, init: &InitLink, sockets: Vec<(Socket, OwnedFd)>) {
        for (socket, descriptor) in sockets {
            let scope = socket.scope();
            if let Err(error) = self.give(init, socket, scope, &descriptor).await {
                tracing::warn!("the next version opens the socket for {socket} anew: {error:#}");
            }
        }
    }

    /// Has init keep these sockets, which are open, for a machined that starts again in this generation, and close its copies of all others.
    pub async fn keep(&self, init: &InitLink, sockets: Vec<(Socket, OwnedFd)>) {
        for other in Socket::ALL {
            if !sockets.iter().any(|(socket, _)| *socket == other) {
                self.forget(init, other).await;
            }
        }
        for (socket, descriptor) in sockets {
            let known = self.with_init.locked().get(&socket).copied().flatten();
            if known.is_some() && known == number(&descriptor) {
                continue;
            }
            let scope = Scope::Generation;
            if let Err(error) = self.give(init, socket, scope, &descriptor).await {
                tracing::warn!(
                    "a machined that starts again opens the socket for {socket} anew: {error:#}"
                );
            }
        }
    }

    async fn give(
        &self,
        init: &InitLink,
        socket: Socket,
        scope: Scope,
        descriptor: &OwnedFd,
    ) -> anyhow::Result<()> {
        init.keep(socket.name(), scope, descriptor).await?;
        self.with_init.locked().insert(socket, number(descriptor));
        Ok(())
    }

    /// Closes a socket that nobody will take, if it was left.
    pub fn close(&self, socket: Socket) {
        drop(self.take(socket));
    }

    /// Has init close its copy of a socket, if it has one.
    pub async fn forget(&self, init: &InitLink, socket: Socket) {
        if self.with_init.locked().remove(&socket).is_none() {
            return;
        }
        if let Err(error) = init.drop_kept(socket.name()).await {
            tracing::warn!("init holds on to the socket for {socket}: {error:#}");
        }
    }

    /// Notes that this generation has proved itself: no version before it needs its sockets back.
    pub fn prove(&self) {
        self.is_proved.send_replace(true);
    }

    /// Takes back what was left to a generation that does not start; the sockets are kept for this one again.
    pub async fn take_back(&self, init: &InitLink) {
        for socket in Socket::ALL {
            self.forget(init, socket).await;
        }
        self.prove();
    }

    /// Watches whether this generation has proved itself.
    pub fn watch_proof(&self) -> watch::Receiver<bool> {
        self.is_proved.subscribe()
    }
}

/// Returns the number of a socket, which no other one has while it is open anywhere; None if it cannot be read.
fn number(socket: &OwnedFd) -> Option<u64> {
    rustix::fs::fstat(socket).ok().map(|stat| stat.st_ino)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::init_link::init_for_tests::{agreement, link_to};
    use instar_init_protocol::{Line, Reply, Request};
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;

    /// What init was asked for, and the descriptors that came with that.
    type Asked = Arc<Mutex<Vec<(Request, Vec<OwnedFd>)>>>;

    async fn init_that_refuses(refused: &'static str) -> (InitLink, Asked) {
        let asked = Asked::default();
        let noted = asked.clone();
        let answer = move |request: Request, descriptors: Vec<OwnedFd>| {
            let reply = match &request {
                Request::Keep { name, .. } if name.as_str() == refused => Reply::Error {
                    to: Line::lossy(request.verb()),
                    code: Line::lossy("too-many-kept"),
                    text: Line::lossy("64 descriptors are kept already"),
                },
                _ => agreement(&request),
            };
            noted.locked().push((request, descriptors));
            reply
        };
        let (link, _) = link_to(move |init| init.answer(answer)).await;
        (link, asked)
    }

    fn listening() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    fn kept(socket: Socket, listener: TcpListener) -> BTreeMap<String, OwnedFd> {
        BTreeMap::from([(socket.name().to_owned(), listener.into())])
    }

    #[test]
    fn a_connection_waits_in_a_socket_that_was_left() {
        let (listener, address) = listening();
        let mut kept = kept(Socket::Metrics, listener);
        let _waiting = TcpStream::connect(address).unwrap();
        let left = LeftSockets::find(&mut kept);
        assert!(kept.is_empty());
        assert!(left.take_at(Socket::Workers, address).is_none());
        let taken = left.take_at(Socket::Metrics, address).unwrap();
        TcpListener::from(taken).accept().unwrap();
        assert!(left.take(Socket::Metrics).is_none());
    }

    #[test]
    fn a_socket_at_another_address_is_closed() {
        let (listener, address) = listening();
        let left = LeftSockets::find(&mut kept(Socket::Metrics, listener));
        let wanted = SocketAddr::new([127, 0, 0, 2].into(), address.port());
        assert!(left.take_at(Socket::Metrics, wanted).is_none());
        TcpStream::connect(address).unwrap_err();
    }

    fn keep(name: &str, scope: Scope) -> Request {
        Request::Keep {
            name: name.parse().unwrap(),
            scope,
        }
    }

    fn drop_kept(name: &str) -> Request {
        Request::Drop {
            name: name.parse().unwrap(),
        }
    }

    /// Returns what init was asked for since the last call.
    fn requests(asked: &Asked) -> Vec<Request> {
        let asked = std::mem::take(&mut *asked.locked());
        asked.into_iter().map(|(request, _)| request).collect()
    }

    fn copies(listener: &TcpListener, sockets: &[Socket]) -> Vec<(Socket, OwnedFd)> {
        let copy = |socket: &Socket| (*socket, OwnedFd::from(listener.try_clone().unwrap()));
        sockets.iter().map(copy).collect()
    }

    #[tokio::test]
    async fn sockets_are_left_with_their_scopes_and_taken_back_once() {
        let (init, asked) = init_that_refuses("socket.metrics").await;
        let left = LeftSockets::default();
        let (listener, address) = listening();
        let sockets = [Socket::Workers, Socket::Metrics, Socket::Pods];
        left.leave(&init, copies(&listener, &sockets)).await;
        drop(listener);
        // init has the socket itself.
        let _waiting = TcpStream::connect(address).unwrap();
        let descriptor = asked.locked()[0].1.pop().unwrap();
        TcpListener::from(descriptor).accept().unwrap();
        left.take_back(&init).await;
        left.take_back(&init).await;
        assert_eq!(
            requests(&asked),
            [
                keep("socket.workers", Scope::Machine),
                keep("socket.metrics", Scope::Machine),
                keep("socket.pods", Scope::Workloads),
                // What init has refused is not with it.
                drop_kept("socket.workers"),
                drop_kept("socket.pods"),
            ]
        );
    }

    #[tokio::test]
    async fn init_has_each_open_socket_once_and_for_this_generation_alone() {
        let (init, asked) = init_that_refuses("nothing").await;
        let (of_before, _) = listening();
        let left = LeftSockets::find(&mut kept(Socket::Pods, of_before));
        let (listener, address) = listening();
        let both = [Socket::Workers, Socket::Metrics];
        for open in [&both[..], &both[..], &both[1..]] {
            left.keep(&init, copies(&listener, open)).await;
        }
        let generation = Scope::Generation;
        assert_eq!(
            requests(&asked),
            [
                drop_kept("socket.pods"),
                keep("socket.workers", generation),
                keep("socket.metrics", generation),
                // The second time nothing has changed, and then one is closed.
                drop_kept("socket.workers"),
            ]
        );
        // Another one at the same address.
        drop(listener);
        let another = TcpListener::bind(address).unwrap();
        left.keep(&init, copies(&another, &both[1..])).await;
        assert_eq!(requests(&asked), [keep("socket.metrics", generation)]);
    }

    /// The version before may have left it for the machine, whichever version comes.
    #[tokio::test]
    async fn one_that_was_left_is_kept_anew() {
        let (init, asked) = init_that_refuses("nothing").await;
        let (listener, address) = listening();
        let left = LeftSockets::find(&mut kept(Socket::Metrics, listener));
        let taken = left.take_at(Socket::Metrics, address).unwrap();
        left.keep(&init, vec![(Socket::Metrics, taken)]).await;
        let expected = [keep("socket.metrics", Scope::Generation)];
        assert_eq!(requests(&asked), expected);
    }

    #[tokio::test]
    async fn one_that_init_forgets_is_open_until_nobody_wants_it() {
        let (init, asked) = init_that_refuses("nothing").await;
        let (listener, address) = listening();
        let left = LeftSockets::find(&mut kept(Socket::ImagesForPods, listener));
        left.forget(&init, Socket::ImagesForPods).await;
        left.forget(&init, Socket::ImagesForPods).await;
        assert_eq!(requests(&asked), [drop_kept("socket.images")]);
        TcpStream::connect(address).unwrap();
        left.close(Socket::ImagesForPods);
        TcpStream::connect(address).unwrap_err();
    }

    #[test]
    fn containers_have_room_before_sockets() {
        assert!(have_room(52));
        assert!(!have_room(53));
    }
}
