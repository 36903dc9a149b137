//! Keeps the socket for pods in the container of Kubernetes, whichever container that is by now.

use anyhow::Context as _;

use crate::base::blocking_io;
use crate::config::Kubernetes;
use crate::containers::Runtime;
use crate::kubernetes::{FoundSocket, PodsSocket};
use crate::left_sockets::Socket;
use crate::machine::Machine;
use crate::services::Cgroup;

/// Makes the socket if the container has none, or takes the one that the generation before, or the machined before, has left, and gives it to
/// apid.
///
/// # Errors
/// The socket cannot be made.
pub(super) async fn keep(machine: &Machine) -> anyhow::Result<()> {
    let before = machine.pods_socket.borrow().clone();
    let left = machine.left_sockets.take(Socket::Pods);
    let find = move || {
        let Some((container, cgroup)) = container()? else {
            return Ok(FoundSocket::AsBefore);
        };
        anyhow::Ok(PodsSocket::find(before.as_ref(), left, container, &cgroup)?)
    };
    let found = blocking_io::within(blocking_io::ANSWER, find).await?;
    let socket = match found.context("look for the socket for pods")? {
        FoundSocket::AsBefore => None,
        FoundSocket::Left(socket) => Some(socket),
        FoundSocket::Nothing => {
            // Before there is a new one of the same name: a machined that starts again would take the old one, which no pod reaches, for it.
            machine.pods_socket.send_replace(None);
            let (left, init) = (&machine.left_sockets, &machine.init);
            left.forget(init, Socket::Pods).await;
            make().await.context("make the socket for pods")?
        }
    };
    if let Some(socket) = socket {
        machine.pods_socket.send_replace(Some(socket));
    }
    Ok(())
}

async fn make() -> anyhow::Result<Option<PodsSocket>> {
    let make = || {
        let Some((container, cgroup)) = container()? else {
            return Ok(None);
        };
        anyhow::Ok(PodsSocket::make(container, &cgroup)?)
    };
    blocking_io::within(blocking_io::ANSWER, make).await?
}

/// Returns the container's first process and its cgroup; `None` if it does not run.
fn container() -> anyhow::Result<Option<(u32, Cgroup)>> {
    let name = Kubernetes::CONTAINER.parse()?;
    let running = Cgroup::where_it_runs(Kubernetes::CONTAINER)?;
    Ok(Runtime::default().noted_pid(&name).zip(running))
}
