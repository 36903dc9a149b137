//! Has init keep the listening sockets besides the API's for a machined that starts again in this generation (`left_sockets`).

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::upgrade::leave_sockets::open;
use crate::left_sockets::{Socket, have_room};
use crate::machine::Machine;

/// Follows them for as long as machined runs, once this generation has proved itself: until then init has those of the version before, which
/// gets them back if this one fails.
pub async fn keep_sockets(machine: Arc<Machine>) {
    let mut proof = machine.left_sockets.watch_proof();
    // All senders live in the machine.
    let _ = proof.wait_for(|is_proved| *is_proved).await;
    let mut config = machine.watch_config();
    let (mut workers, mut metrics) = (
        machine.workers_port.subscribe(),
        machine.metrics_port.subscribe(),
    );
    let (mut pods, mut images) = (
        machine.pods_socket.subscribe(),
        machine.images_port.subscribe(),
    );
    loop {
        let sockets = to_keep(&machine);
        machine.left_sockets.keep(&machine.init, sockets).await;
        tokio::select! {
            _ = proof.changed() => {}
            _ = config.changed() => {}
            _ = workers.changed() => {}
            _ = metrics.changed() => {}
            _ = pods.changed() => {}
            _ = images.changed() => {}
        }
    }
}

/// Copies the sockets that are open; none if init needs its room for the output of containers.
fn to_keep(machine: &Machine) -> Vec<(Socket, OwnedFd)> {
    let configured = machine.config();
    let containers = configured.map_or(0, |configured| configured.config.containers.len());
    match have_room(containers) {
        true => open(machine),
        false => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::left_sockets::LeftSockets;
    use crate::sequences::image_pins::machine_for_tests::{configured, unbooted};
    use crate::trust::{MetricsSpec, follow_metrics};

    /// A container's output has nowhere else to wait.
    #[tokio::test]
    async fn containers_come_before_sockets() {
        let directory = tempfile::tempdir().unwrap();
        let machine = unbooted(directory.path()).await;
        let spec = MetricsSpec {
            listen: "127.0.0.1:0".parse().unwrap(),
            with_tls: true,
        };
        let none = LeftSockets::default();
        assert!(follow_metrics(&machine.metrics_port, &none, Some(spec)));
        let kept = || -> Vec<Socket> {
            let sockets = to_keep(&machine).into_iter();
            sockets.map(|(socket, _)| socket).collect()
        };
        assert_eq!(kept(), [Socket::Metrics]);
        for (containers, is_kept) in [(52, true), (53, false)] {
            let documents: Vec<String> = (0..containers).map(container).collect();
            let documents: Vec<&str> = documents.iter().map(String::as_str).collect();
            machine.set_config(configured(&documents));
            assert_eq!(!kept().is_empty(), is_kept, "{containers}");
        }
    }

    fn container(number: usize) -> String {
        format!(
            "apiVersion: v1alpha1\nkind: ContainerConfig\nname: c{number}\nimage: r.example.com/a:v1"
        )
    }
}
