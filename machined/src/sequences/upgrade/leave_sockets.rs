//! Leaves the listening sockets besides the API's to the next generation (`left_sockets`).

use std::os::fd::{AsFd, OwnedFd};

use crate::left_sockets::{Socket, have_room};
use crate::machine::{Configured, Machine};
use crate::upgrade::InstallerOutput;

/// Leaves those that are open, if the next version takes them and init has room for them beside the output of containers.
pub(super) async fn leave(
    machine: &Machine,
    next: &InstallerOutput,
    next_config: Option<&Configured>,
) {
    let in_force = machine.config();
    let configs = [in_force.as_deref(), next_config];
    let containers = configs.into_iter().flatten();
    let containers = containers.map(|configured| configured.config.containers.len());
    if !next.takes_sockets || !have_room(containers.max().unwrap_or(0)) {
        return;
    }
    machine
        .left_sockets
        .leave(&machine.init, open(machine))
        .await;
}

/// Copies the sockets that are open.
pub(in crate::sequences) fn open(machine: &Machine) -> Vec<(Socket, OwnedFd)> {
    let images = machine.images_port.borrow().upgrade();
    let copies = [
        (
            Socket::Workers,
            copy(machine.workers_port.borrow().as_ref()),
        ),
        (
            Socket::Metrics,
            copy(machine.metrics_port.borrow().as_ref()),
        ),
        (Socket::Pods, copy(machine.pods_socket.borrow().as_ref())),
        (Socket::ImagesForPods, copy(images.as_deref())),
    ];
    let copies = copies.into_iter();
    copies
        .filter_map(|(socket, copy)| Some((socket, copy?)))
        .collect()
}

/// Copies a descriptor; one that cannot be copied is opened anew by the next version.
fn copy(socket: Option<&impl AsFd>) -> Option<OwnedFd> {
    socket?.as_fd().try_clone_to_owned().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::TcpListener;
    use std::sync::Arc;

    use super::*;
    use crate::left_sockets::LeftSockets;
    use crate::sequences::image_pins::machine_for_tests::unbooted;
    use crate::trust::{MetricsSpec, follow_metrics};

    #[tokio::test]
    async fn those_that_are_open_are_left() {
        let directory = tempfile::tempdir().unwrap();
        let machine = unbooted(directory.path()).await;
        assert!(open(&machine).is_empty());
        let spec = MetricsSpec {
            listen: "127.0.0.1:0".parse().unwrap(),
            with_tls: true,
        };
        assert!(follow_metrics(
            &machine.metrics_port,
            &LeftSockets::default(),
            Some(spec)
        ));
        let images = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
        machine.images_port.send_replace(Arc::downgrade(&images));
        let sockets = |machine| -> Vec<Socket> {
            let open = open(machine).into_iter();
            open.map(|(socket, _)| socket).collect()
        };
        assert_eq!(sockets(&machine), [Socket::Metrics, Socket::ImagesForPods]);
        drop(images);
        assert!(follow_metrics(
            &machine.metrics_port,
            &LeftSockets::default(),
            None
        ));
        assert!(sockets(&machine).is_empty());
    }
}
