//! Keeps the socket for pods in the container of Kubernetes, whichever container that is by now.

use anyhow::Context as _;

use crate::base::blocking_io;
use crate::config::Kubernetes;
use crate::containers::Runtime;
use crate::kubernetes::PodsSocket;
use crate::machine::Machine;
use crate::services::Cgroup;

/// Makes the socket if the container has none, and gives it to apid.
///
/// # Errors
/// The socket cannot be made.
pub(super) async fn keep(machine: &Machine) -> anyhow::Result<()> {
    let before = machine.pods_socket.borrow().clone();
    let renew = move || {
        let name = Kubernetes::CONTAINER.parse()?;
        let running = Cgroup::where_it_runs(Kubernetes::CONTAINER)?;
        let Some((container, cgroup)) = Runtime::default().noted_pid(&name).zip(running) else {
            return Ok(None);
        };
        anyhow::Ok(PodsSocket::renewed(before.as_ref(), container, &cgroup)?)
    };
    let renewed = blocking_io::within(blocking_io::ANSWER, renew).await?;
    if let Some(socket) = renewed.context("make the socket for pods")? {
        machine.pods_socket.send_replace(Some(socket));
    }
    Ok(())
}
