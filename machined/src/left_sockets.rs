//! Listening sockets besides the API's. Over a change of generations they wait in init's hands: whoever connects meanwhile waits instead of being
//! refused, and nobody else can take their addresses.
//!
//! ```text
//! one generation ──leave──► init ──welcome──► the next ──take───► served
//!                                              │   └─────close──► the config does not name it
//!                                              └ forget, once it has proved itself: init closes its copies
//! ```
//!
//! The decision: init has them for that time alone, and only a version that says so gets them (`takes_sockets` of its installer). One that does
//! not know them could never close them, and could not listen at their addresses itself. A version that comes back by a rollback is the one
//! that has left them. Keeping them always, as the API's socket, would show them to any version that comes back.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use instar_init_protocol::MAX_KEPT;

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

/// The sockets that the generation before has left, and those that init has of them.
#[derive(Debug, Default)]
pub struct LeftSockets {
    open: Mutex<BTreeMap<Socket, OwnedFd>>,
    with_init: Mutex<BTreeSet<Socket>>,
}

impl LeftSockets {
    /// Finds them among the descriptors that init has kept.
    pub fn find(kept: &mut BTreeMap<String, OwnedFd>) -> Self {
        let found = Socket::ALL.into_iter();
        let found = found.filter_map(|socket| Some((socket, kept.remove(socket.name())?)));
        let open: BTreeMap<_, _> = found.collect();
        LeftSockets {
            with_init: Mutex::new(open.keys().copied().collect()),
            open: Mutex::new(open),
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
            let kept = init.keep(socket.name(), socket.scope(), &descriptor);
            match kept.await {
                Ok(()) => drop(self.with_init.locked().insert(socket)),
                Err(error) => {
                    tracing::warn!("the next version opens the socket for {socket} anew: {error:#}")
                }
            }
        }
    }

    /// Closes a socket that nobody will take, if it was left.
    pub fn close(&self, socket: Socket) {
        drop(self.take(socket));
    }

    /// Has init close its copies: no other version is to get them any more, before the next change of generations.
    pub async fn forget(&self, init: &InitLink) {
        let with_init = std::mem::take(&mut *self.with_init.locked());
        for socket in with_init {
            if let Err(error) = init.drop_kept(socket.name()).await {
                tracing::warn!("init holds on to the socket for {socket}: {error:#}");
            }
        }
    }
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

    #[tokio::test]
    async fn sockets_are_left_with_their_scopes_and_forgotten_once() {
        let (init, asked) = init_that_refuses("socket.metrics").await;
        let left = LeftSockets::default();
        let (listener, address) = listening();
        let sockets = [Socket::Workers, Socket::Metrics, Socket::Pods];
        let copies = sockets.map(|it| (it, OwnedFd::from(listener.try_clone().unwrap())));
        left.leave(&init, Vec::from(copies)).await;
        left.forget(&init).await;
        left.forget(&init).await;
        drop(listener);
        let mut asked = std::mem::take(&mut *asked.locked());
        let requests: Vec<Request> = asked.iter().map(|(request, _)| request.clone()).collect();
        let keep = |name: &str, scope| Request::Keep {
            name: name.parse().unwrap(),
            scope,
        };
        let drop_kept = |name: &str| Request::Drop {
            name: name.parse().unwrap(),
        };
        assert_eq!(
            requests,
            [
                keep("socket.workers", Scope::Machine),
                keep("socket.metrics", Scope::Machine),
                keep("socket.pods", Scope::Workloads),
                // What init has refused is not with it.
                drop_kept("socket.workers"),
                drop_kept("socket.pods"),
            ]
        );
        // init has the socket itself.
        let _waiting = TcpStream::connect(address).unwrap();
        let descriptor = asked[0].1.pop().unwrap();
        TcpListener::from(descriptor).accept().unwrap();
    }

    #[tokio::test]
    async fn one_that_init_forgets_is_open_until_nobody_wants_it() {
        let (init, asked) = init_that_refuses("nothing").await;
        let (listener, address) = listening();
        let left = LeftSockets::find(&mut kept(Socket::ImagesForPods, listener));
        left.forget(&init).await;
        assert_eq!(asked.locked().len(), 1, "drop");
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
