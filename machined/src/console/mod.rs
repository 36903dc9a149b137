//! The dashboard on the machine's own screen.
//!
//! The dashboard runs if there is a screen: a virtual terminal on the text mode of a VGA card or on a framebuffer, as opposed to the
//! terminal that the kernel makes up on a machine without a screen. It takes the second terminal; the kernel's messages, machined's
//! among them, stay on the first (Alt+F1). It does not use serial consoles. `instar.dashboard=off` on the kernel's command line leaves
//! the screen to the messages.
//!
//! It is a process of its own in a sandbox like apid's: own user, no capabilities, few system calls, no files, no network. It has the
//! terminal, and a connection on which machined serves it as a reader ([`crate::api::serve_reader`]). Keys only change the view.

mod sandbox;
mod screen;
mod service;

use service::Dashboard;

use std::future::{Ready, ready};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::Context as _;
use hyper_util::rt::TokioIo;
use instar_client::Node;
use instar_dashboard::{Keys, Look};
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tonic::transport::{Endpoint, Uri};
use tower_service::Service;

use crate::command_line;
use crate::machine::Machine;
use crate::services::{Cgroup, Definition};
use crate::terminals;
use crate::values::system_process;

/// The name of the dashboard's service.
pub const NAME: &str = system_process::DASHBOARD;
/// The user and group of the dashboard (`/etc/passwd` of the rootfs).
pub const USER: u32 = 51;
/// Interval of the dashboard's requests for figures.
const INTERVAL: Duration = Duration::from_secs(3);
/// The descriptor of the dashboard's connection to machined.
const CONNECTION: std::os::fd::RawFd = 3;

/// Defines the dashboard as a service of this machine; none if there is no screen for it.
pub fn definition(machine: &Arc<Machine>) -> anyhow::Result<Option<Definition>> {
    let arguments = command_line::read()?;
    if screen::is_switched_off(&arguments) || !terminals::exists()? {
        return Ok(None);
    }
    Ok(Some(Definition {
        id: NAME.to_owned(),
        workload: Arc::new(Dashboard::new(
            machine.clone(),
            Cgroup::beside_machined(NAME)?,
        )),
        depends_on: Vec::new(),
        health: None,
        controllable: true,
        required: false,
        // A new version is not judged by the dashboard: the screen may be gone tomorrow.
        judged: false,
        restart_unhealthy: false,
    }))
}

/// Runs the dashboard until machined closes its connection. The terminal is its standard input and output.
pub fn run() -> anyhow::Result<()> {
    let connection = crate::sys::inherited::take(CONNECTION).context("take the connection")?;
    sandbox::enter().context("enter the sandbox")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(show(connection))
}

async fn show(connection: OwnedFd) -> anyhow::Result<()> {
    let stream = std::os::unix::net::UnixStream::from(connection);
    stream.set_nonblocking(true)?;
    let stream = UnixStream::from_std(stream).context("take the connection to machined")?;
    let ended = Arc::new(Notify::new());
    let channel = Endpoint::from_static("http://machined")
        .connect_with_connector(OneConnection {
            stream: Some(stream),
            ended: ended.clone(),
        })
        .await
        .context("talk to machined")?;
    let node = Node::connected(channel, "this machine");
    // The kernel's fonts lack the characters for eighths of blocks.
    let look = Look {
        unicode: false,
        colour: true,
    };
    tokio::select! {
        shown = instar_dashboard::run(vec![node], INTERVAL, look, Keys::OnlyLook) => Ok(shown?),
        () = ended.notified() => Ok(()),
    }
}

/// A connector with one connection to machined. A request for a second one means that the first has ended; then this process ends too.
struct OneConnection {
    stream: Option<UnixStream>,
    ended: Arc<Notify>,
}

impl Service<Uri> for OneConnection {
    type Response = TokioIo<UnixStream>;
    type Error = std::io::Error;
    type Future = Ready<std::io::Result<TokioIo<UnixStream>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        ready(match self.stream.take() {
            Some(stream) => Ok(TokioIo::new(stream)),
            None => {
                self.ended.notify_one();
                Err(std::io::ErrorKind::ConnectionAborted.into())
            }
        })
    }
}
