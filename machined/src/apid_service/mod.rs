//! apid as a service: a process of the rootfs that gets the listening socket, and a stream with control messages, above all its
//! identity (keys and certificates). The other direction of the stream carries the names that apid wants to be looked up.

mod lookup;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use instar_api::PORT;
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::process::Command;
use tokio::sync::{mpsc, watch};

use crate::apid::{Answer, ControlMessage, Identity, send_control, send_socket};
use crate::base::Exit;
use crate::intent;
use crate::kubernetes::PodsSocket;
use crate::machine::Machine;
use crate::services::{
    Adopted, Cgroup, Definition, HealthCheck, LogRing, OwnProcess, Probe, Running, Signal, Step,
    Workload,
};
use crate::statistics::{self, Namespaces, Protocol, Shown, SocketQuery};
use crate::sys::{listen, oom_score};
use crate::trust::{Keys, MetricsPort, WorkersPort};
use crate::values::system_process;

/// The name of the service.
pub const NAME: &str = system_process::APID;

/// Memory limit of apid, in bytes: a quarter of the machine's memory, within bounds. A caller with a certificate can make it use
/// a lot, by requesting much and reading nothing; then only apid ends, and starts again.
fn memory_limit(total: u64) -> u64 {
    (total / 4).clamp(64 << 20, 512 << 20)
}

/// Defines apid as a service of this machine, on the API's listening socket.
pub fn definition(machine: &Arc<Machine>, listener: OwnedFd) -> anyhow::Result<Definition> {
    let keys = intent::keep_identity(machine);
    Ok(Definition {
        id: NAME.to_owned(),
        workload: Arc::new(Apid {
            listener,
            keys,
            settled: machine.watch_settled(),
            pods_socket: machine.pods_socket.subscribe(),
            workers_port: machine.workers_port.subscribe(),
            metrics_port: machine.metrics_port.subscribe(),
            cgroup: Cgroup::beside_machined(NAME)?
                .with_memory_limit(memory_limit(statistics::memory()?.memtotal << 10)),
        }),
        depends_on: Vec::new(),
        health: Some(HealthCheck {
            probe: Probe::Own,
            interval: Duration::from_secs(30),
            timeout: Duration::from_secs(10),
            failures: 3,
        }),
        controllable: false,
        required: true,
        judged: true,
        // An apid that runs but does not answer would lock out every client.
        restart_unhealthy: true,
    })
}

/// Everything that apid needs at each start.
struct Apid {
    listener: OwnedFd,
    keys: Keys,
    /// Whether the boot is over.
    settled: watch::Receiver<bool>,
    /// The listening socket for pods, if the machine has any.
    pods_socket: watch::Receiver<Option<PodsSocket>>,
    /// The listening socket for workers, if the machine signs their certificates.
    workers_port: watch::Receiver<Option<WorkersPort>>,
    /// The listening socket for metrics, if the config asks for them.
    metrics_port: watch::Receiver<Option<MetricsPort>>,
    cgroup: Cgroup,
}

impl Apid {
    async fn spawn(&self, log: LogRing) -> anyhow::Result<Box<dyn Running>> {
        let mut identity = self.keys.identity.clone();
        let first = identity
            .wait_for(Option::is_some)
            .await
            .context("there will be no identity")?
            .clone()
            .context("there is no identity")?;
        let (mut ours, theirs) = UnixStream::pair().context("make the stream of orders")?;
        let theirs = OwnedFd::from(theirs.into_std()?);
        let mut command = std::process::Command::new("/sbin/apid");
        command
            .arg0(NAME)
            .env_clear()
            .stdin(Stdio::from(self.listener.as_fd().try_clone_to_owned()?))
            .stdout(Stdio::from(theirs));
        // apid waits until it has its identity.
        let mut command = Command::from(command);
        let process = OwnProcess::start(&mut command, &self.cgroup, oom_score::KEPT, log)?;
        send_control(&mut ours, &ControlMessage::Identity(first))
            .await
            .context("send the identity")?;
        let settled = self.settled.clone();
        let (mut pods, mut workers) = (self.pods_socket.clone(), self.workers_port.clone());
        // This apid has not got the sockets that are there already.
        pods.mark_changed();
        workers.mark_changed();
        let mut metrics = self.metrics_port.clone();
        metrics.mark_changed();
        let sockets = Sockets {
            pods,
            workers,
            metrics,
        };
        let (questions, orders) = ours.into_split();
        let (found, answers) = mpsc::channel(1);
        let (drain, to_drain) = watch::channel(false);
        let feeder = crate::base::task::spawn(async move {
            // Both end when apid ends or machined does, so their results say nothing new.
            tokio::select! {
                _ = give_orders(orders, identity, settled, sockets, answers, to_drain) => {}
                _ = lookup::answer(questions, found) => {}
            }
        });
        let feeder = tokio_util::task::AbortOnDropHandle::new(feeder);
        Ok(Box::new(RunningApid {
            process,
            cgroup: self.cgroup.clone(),
            drain,
            _feeder: feeder,
        }))
    }
}

/// The sockets that apid serves besides its own.
struct Sockets {
    pods: watch::Receiver<Option<PodsSocket>>,
    workers: watch::Receiver<Option<WorkersPort>>,
    metrics: watch::Receiver<Option<MetricsPort>>,
}

/// A socket on its way to apid.
enum Sent {
    Pods(PodsSocket),
    Workers(WorkersPort),
    Metrics(MetricsPort),
}

impl AsFd for Sent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Sent::Pods(socket) => socket.as_fd(),
            Sent::Workers(socket) => socket.as_fd(),
            Sent::Metrics(socket) => socket.as_fd(),
        }
    }
}

/// Sends apid every new identity, every socket for pods or workers, every answer, and once each the orders to forget its start and to drain.
async fn give_orders(
    mut apid: OwnedWriteHalf,
    mut identity: watch::Receiver<Option<Identity>>,
    mut settled: watch::Receiver<bool>,
    mut sockets: Sockets,
    mut answers: mpsc::Receiver<Answer>,
    mut to_drain: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let mut forgotten = false;
    loop {
        let mut socket = None;
        let order = tokio::select! {
            changed = identity.changed() => {
                changed?;
                identity.borrow_and_update().clone().map(ControlMessage::Identity)
            }
            settled = settled.wait_for(|settled| *settled), if !forgotten => {
                settled?;
                forgotten = true;
                Some(ControlMessage::ForgetStart)
            }
            changed = sockets.pods.changed() => {
                changed?;
                socket = sockets.pods.borrow_and_update().clone().map(Sent::Pods);
                socket.is_some().then_some(ControlMessage::ServePods)
            }
            changed = sockets.workers.changed() => {
                changed?;
                socket = sockets.workers.borrow_and_update().clone().map(Sent::Workers);
                Some(match socket {
                    Some(_) => ControlMessage::ServeWorkers,
                    None => ControlMessage::StopServingWorkers,
                })
            }
            changed = sockets.metrics.changed() => {
                changed?;
                let newest = sockets.metrics.borrow_and_update().clone();
                let order = match &newest {
                    Some(port) => ControlMessage::ServeMetrics { with_tls: port.with_tls() },
                    None => ControlMessage::StopServingMetrics,
                };
                socket = newest.map(Sent::Metrics);
                Some(order)
            }
            Some(answer) = answers.recv() => Some(ControlMessage::TakeAddresses(answer)),
            // When the sender goes, the running apid has ended, and so does this task.
            Ok(()) = to_drain.changed() => Some(ControlMessage::Drain),
        };
        if let Some(order) = order {
            send_control(&mut apid, &order).await?;
        }
        if let Some(socket) = socket {
            send_socket(apid.as_ref(), socket.as_fd()).await?;
        }
    }
}

impl Workload for Apid {
    fn prepare(&self) -> Step<'_, anyhow::Result<()>> {
        // An apid that an earlier machined started would go on with an identity that is not renewed any more.
        Box::pin(async { self.cgroup.kill_all() })
    }

    fn start(&self, log: LogRing) -> Step<'_, anyhow::Result<Box<dyn Running>>> {
        Box::pin(self.spawn(log))
    }

    fn adopt(&self, _log: LogRing) -> Step<'_, Adopted> {
        Box::pin(async { Adopted::Nothing })
    }

    fn exec<'a>(&'a self, _command: &'a [String]) -> Step<'a, anyhow::Result<()>> {
        Box::pin(async { anyhow::bail!("apid is not a container") })
    }

    fn check(&self) -> Step<'_, anyhow::Result<()>> {
        let newest = self.keys.self_check.borrow().clone();
        Box::pin(async move { newest.context("there are no keys yet")?.ask().await })
    }

    fn is_overrun(&self) -> bool {
        let listening = statistics::sockets(&SocketQuery {
            shown: Shown::Listening,
            protocols: vec![Protocol::Tcp6],
            namespaces: Namespaces::Host,
            processes: false,
        });
        let is_full = |queue: u64| queue >= u64::from(listen::BACKLOG);
        listening.is_ok_and(|sockets| {
            let mut sockets = sockets.iter();
            // The queue holds connections that apid has not accepted yet.
            sockets.any(|socket| socket.localport == u32::from(PORT) && is_full(socket.rxqueue))
        })
    }
}

struct RunningApid {
    process: OwnProcess,
    cgroup: Cgroup,
    drain: watch::Sender<bool>,
    _feeder: tokio_util::task::AbortOnDropHandle<()>,
}

impl Running for RunningApid {
    fn pid(&self) -> u32 {
        self.process.pid()
    }

    fn wait(&mut self) -> Step<'_, Exit> {
        Box::pin(self.process.wait())
    }

    fn signal(&mut self, signal: Signal) -> anyhow::Result<()> {
        match signal {
            Signal::Terminate => {
                self.drain.send_replace(true);
                Ok(())
            }
            Signal::Kill => self.process.kill().context("kill apid"),
        }
    }

    fn memory_kills(&self) -> u64 {
        self.cgroup.memory_kills()
    }

    fn clean_up(&mut self) -> Step<'_, ()> {
        Box::pin(async {})
    }
}
