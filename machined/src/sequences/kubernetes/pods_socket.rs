//! Keeps the socket for pods in the container of Kubernetes, whichever container that is by now.

use anyhow::Context as _;

use crate::base::blocking_io;
use crate::config::Kubernetes;
use crate::containers::Runtime;
use crate::kubernetes::PodsSocket;
use crate::left_sockets::Socket;
use crate::machine::Machine;
use crate::services::Cgroup;

/// Makes the socket if the container has none, or takes the one that the generation before has left, and gives it to apid.
///
/// # Errors
/// The socket cannot be made.
pub(super) async fn keep(machine: &Machine) -> anyhow::Result<()> {
    let before = machine.pods_socket.borrow().clone();
    let left = machine.left_sockets.take(Socket::Pods);
    let renew = move || {
        let name = Kubernetes::CONTAINER.parse()?;
        let running = Cgroup::where_it_runs(Kubernetes::CONTAINER)?;
        let Some((container, cgroup)) = Runtime::default().noted_pid(&name).zip(running) else {
            return Ok(None);
        };
        let before = before.as_ref();
        anyhow::Ok(PodsSocket::renewed(before, left, container, &cgroup)?)
    };
    let renewed = blocking_io::within(blocking_io::ANSWER, renew).await?;
    if let Some(socket) = renewed.context("make the socket for pods")? {
        machine.pods_socket.send_replace(Some(socket));
    }
    Ok(())
}
