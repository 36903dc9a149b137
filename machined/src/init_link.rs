//! The socket to init: requests and their replies, and the exits that init reports on its own.
//!
//! init replies in the order of the requests, so replies are matched first in, first out.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use instar_init_protocol::{
    FdName, Line, NextGeneration, RecvFlags, Reply, Request, SendFlags, Welcome, receive, send,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{oneshot, watch};

pub use instar_init_protocol::{BootId, Domain, End, Scope, StartReason, Workloads};

use crate::base::Exit;
use crate::base::lock::Lock as _;
use crate::sys::readiness;

/// Time limit for a reply. init does nothing else meanwhile; its longest task is to check the digest of the next image.
const ANSWER: Duration = Duration::from_secs(60);

/// Limit on exits that are remembered without a caller that asked for them.
const EXITS: usize = 1024;

/// init's reply to the greeting: the facts about this generation, and the descriptors that init kept for it.
#[derive(Debug)]
pub struct Handshake {
    /// This generation, and why it was started.
    pub welcome: Welcome,
    /// Kept descriptors by name.
    pub kept: BTreeMap<String, OwnedFd>,
}

/// The next generation, for [`InitLink::next`].
pub struct Next<'a> {
    /// Its root filesystem, sealed.
    pub memfd: BorrowedFd<'a>,
    /// The digest of it.
    pub blake3: &'a blake3::Hash,
    /// Its version, for people.
    pub version: &'a str,
    /// Time limit for its report of health, at most an hour.
    pub deadline: Duration,
    /// Whether the workloads live on.
    pub workloads: Workloads,
    /// Time limit for the last work of this generation; init may allow less.
    pub finish: Duration,
}

/// The link; clones share it.
#[derive(Clone)]
pub struct InitLink {
    shared: Arc<Shared>,
}

/// Callers that wait for a reply, in the order of the requests.
type Waiting = VecDeque<oneshot::Sender<(Reply, Vec<OwnedFd>)>>;

struct Shared {
    socket: AsyncFd<OwnedFd>,
    waiting: Mutex<Waiting>,
    /// One request at a time: the order on the socket is the order in the queue.
    order: tokio::sync::Mutex<()>,
    /// Longest time in seconds that init waits for this process after it has taken the next generation; unset from an init that does not.
    finish: OnceLock<u32>,
    exits: watch::Sender<BTreeMap<u32, ReportedExit>>,
}

/// An exit that init reported.
#[derive(Debug, Clone, Copy)]
struct ReportedExit {
    exit: Exit,
    at: Instant,
}

impl InitLink {
    /// Greets init over the socket.
    pub async fn connect(socket: OwnedFd) -> anyhow::Result<(InitLink, Handshake)> {
        rustix::io::ioctl_fionbio(&socket, true)
            .context("set the socket to init to non-blocking")?;
        let shared = Arc::new(Shared {
            socket: readiness::watch(socket, Interest::READABLE | Interest::WRITABLE)
                .context("watch the socket to init")?,
            waiting: Mutex::default(),
            order: tokio::sync::Mutex::default(),
            finish: OnceLock::new(),
            exits: watch::channel(BTreeMap::new()).0,
        });
        let link = InitLink {
            shared: shared.clone(),
        };
        crate::base::task::spawn(async move {
            let error = shared.receive_for_ever().await;
            // Without init machined cannot go on; init starts a new one.
            tracing::error!("the link to init is broken: {error:#}");
            std::process::exit(1);
        });
        let handshake = match link.ask(Request::Hello, None).await? {
            (Reply::Welcome(welcome), descriptors) => {
                if welcome.kept.len() != descriptors.len() {
                    bail!(
                        "init named {} descriptors and sent {}",
                        welcome.kept.len(),
                        descriptors.len()
                    );
                }
                if let Some(limit) = welcome.finish {
                    // Nothing else sets it.
                    let _ = link.shared.finish.set(limit);
                }
                let names = welcome.kept.iter().map(|name| name.as_str().to_owned());
                let kept = names.zip(descriptors).collect();
                Handshake { welcome, kept }
            }
            (other, _) => bail!("init answered the greeting with {other:?}"),
        };
        Ok((link, handshake))
    }

    /// Reports this generation healthy: it is committed, and the previous one is dropped.
    pub async fn healthy(&self, boot_id: &BootId) -> anyhow::Result<()> {
        self.tell(
            Request::Healthy {
                boot_id: boot_id.clone(),
            },
            None,
        )
        .await
    }

    /// Gives this generation up: init returns to the previous one and passes it the reason.
    pub async fn give_up(&self, reason: &str) -> anyhow::Result<()> {
        self.tell(
            Request::GiveUp {
                reason: Line::lossy(reason),
            },
            None,
        )
        .await
    }

    /// Hands over the next generation. When this returns without an error, this process has to end.
    ///
    /// `last` is the work after which no caller is answered. It is done once init has verified and mounted the image; an init that would end
    /// this process at that moment is asked after the work.
    pub async fn next(&self, next: Next<'_>, last: impl Future<Output = ()>) -> anyhow::Result<()> {
        let seconds = |time: Duration| u32::try_from(time.as_secs());
        let finish = self.shared.finish.get();
        let needed = seconds(next.finish).context("the time to finish")?;
        let request = Request::Next(NextGeneration {
            blake3: next.blake3.to_hex().parse().context("the digest")?,
            version: next.version.parse::<Line>().context("the version")?,
            deadline: seconds(next.deadline).context("the time to become healthy")?,
            workloads: next.workloads,
            finish: finish.map_or(0, |limit| needed.min(*limit)),
        });
        if finish.is_some() {
            self.tell(request, Some(next.memfd)).await?;
            last.await;
            Ok(())
        } else {
            last.await;
            self.tell(request, Some(next.memfd)).await
        }
    }

    /// Makes init keep a descriptor.
    pub async fn keep(
        &self,
        name: &str,
        scope: Scope,
        descriptor: &impl AsFd,
    ) -> anyhow::Result<()> {
        let name = name
            .parse::<FdName>()
            .with_context(|| format!("the name {name:?}"))?;
        self.tell(Request::Keep { name, scope }, Some(descriptor.as_fd()))
            .await
    }

    /// Makes init drop a descriptor.
    pub async fn drop_kept(&self, name: &str) -> anyhow::Result<()> {
        let name = name
            .parse::<FdName>()
            .with_context(|| format!("the name {name:?}"))?;
        self.tell(Request::Drop { name }, None).await
    }

    /// Ends the machine. When this returns without an error, init is about to do so.
    pub async fn end(&self, end: End) -> anyhow::Result<()> {
        self.tell(Request::End(end), None).await
    }

    /// Waits for init's report on how a process ended, and returns it; each exit is returned once. `since`: a time at which the process was
    /// alive; an exit that was reported earlier belongs to another process with the same number.
    pub async fn exit_of(&self, pid: u32, since: Instant) -> Exit {
        self.exit_when(pid, |exit| exit.at >= since).await
    }

    /// The same for a process of an earlier machined: its exit may have been reported before this machined could watch the process.
    pub async fn noted_exit(&self, pid: u32) -> Exit {
        self.exit_when(pid, |_| true).await
    }

    /// Returns the exit of a process that init has reported, and that nobody has asked for yet.
    pub fn unclaimed_exit(&self, pid: u32) -> Option<Exit> {
        let exits = self.shared.exits.borrow();
        exits.get(&pid).map(|reported| reported.exit)
    }

    /// Notes exits that init reported to an earlier machined.
    pub fn note_earlier_exits(&self, exits: &BTreeMap<u32, Exit>) {
        for (pid, exit) in exits {
            // What init has reported here is newer.
            if self.unclaimed_exit(*pid).is_none() {
                self.shared.note_exit(*pid, *exit);
            }
        }
    }

    async fn exit_when(&self, pid: u32, is_its: impl Fn(&ReportedExit) -> bool) -> Exit {
        let mut exits = self.shared.exits.subscribe();
        // The sender lives in `self.shared`, so this cannot fail.
        let _ = exits
            .wait_for(|exits| exits.get(&pid).is_some_and(&is_its))
            .await;
        let mut exit = Exit::Unknown;
        self.shared.exits.send_if_modified(|exits| {
            exit = exits
                .remove(&pid)
                .map_or(Exit::Unknown, |reported| reported.exit);
            false
        });
        exit
    }

    async fn tell(
        &self,
        request: Request,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> anyhow::Result<()> {
        let verb = request.verb();
        match self.ask(request, descriptor).await? {
            (Reply::Ok { to }, _) if to.as_str() == verb => Ok(()),
            (Reply::Error { code, text, .. }, _) => bail!("init refused {verb} ({code}): {text}"),
            (other, _) => bail!("init answered {verb} with {other:?}"),
        }
    }

    async fn ask(
        &self,
        request: Request,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> anyhow::Result<(Reply, Vec<OwnedFd>)> {
        let asked = self.ask_and_wait(&request, descriptor);
        tokio::time::timeout(ANSWER, asked).await.with_context(|| {
            format!(
                "init did not answer {} within {} s",
                request.verb(),
                ANSWER.as_secs()
            )
        })?
    }

    async fn ask_and_wait(
        &self,
        request: &Request,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> anyhow::Result<(Reply, Vec<OwnedFd>)> {
        let (answer, answered) = oneshot::channel();
        {
            let _order = self.shared.order.lock().await;
            let packet = request.encode();
            self.shared
                .socket
                .async_io(Interest::WRITABLE, |socket| {
                    send(socket, &packet, descriptor.as_slice(), SendFlags::empty())
                })
                .await
                .with_context(|| format!("send {} to init", request.verb()))?;
            // A request that was not sent gets no reply. No reply can be taken before this entry is in the queue: there is one thread, and
            // no wait in between.
            self.shared.lock_waiting().push_back(answer);
        }
        answered
            .await
            .with_context(|| format!("init did not answer {}", request.verb()))
    }
}

impl Shared {
    fn lock_waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.locked()
    }

    async fn receive_for_ever(&self) -> anyhow::Error {
        loop {
            let received = self.socket.async_io(Interest::READABLE, |socket| {
                receive(socket, RecvFlags::empty())
            });
            let received = received.await;
            let (packet, descriptors) = match received {
                Ok((packet, _)) if packet.is_empty() => return anyhow::anyhow!("init closed it"),
                Ok(received) => received,
                Err(error) => return anyhow::Error::from(error).context("receive from init"),
            };
            match Reply::parse(&packet) {
                Ok(Reply::Exited { pid, status }) => {
                    if let Ok(pid) = u32::try_from(pid) {
                        self.note_exit(pid, Exit::from_wait_status(status));
                    }
                }
                Ok(reply) => {
                    if let Some(waiting) = self.lock_waiting().pop_front() {
                        // The caller may have stopped waiting.
                        let _ = waiting.send((reply, descriptors));
                    }
                }
                Err(error) => tracing::warn!("a message of init makes no sense: {error}"),
            }
        }
    }

    fn note_exit(&self, pid: u32, exit: Exit) {
        let reported = ReportedExit {
            exit,
            at: Instant::now(),
        };
        self.exits.send_modify(|exits| {
            exits.insert(pid, reported);
            if exits.len() > EXITS
                && let Some(oldest) = exits
                    .iter()
                    .min_by_key(|(_, reported)| reported.at)
                    .map(|(pid, _)| *pid)
            {
                exits.remove(&oldest);
            }
        });
    }
}

#[cfg(test)]
pub(crate) mod init_for_tests;
#[cfg(test)]
mod tests;
