//! Follows logs of a node.

use instar_api::common::{ContainerDriver, Data};
use instar_api::machine::{DmesgRequest, LogsRequest};
use instar_client::{Lines, Node};
use tokio::sync::watch;
use tonic::{Status, Streaming};

use super::Teller;
use crate::known::Update;
use crate::log::{LogName, short_kernel_line};

/// Number of old lines of a service's log to show.
const TAIL: i32 = 500;
/// The namespace of the node's own services.
const NAMESPACE: &str = "system";

/// Follows the kernel's log, from its begin to the end of the dashboard.
pub(super) async fn kernel(node: Node, teller: Teller) {
    loop {
        let request = node.request(DmesgRequest {
            follow: true,
            tail: false,
        });
        let ended = match node.machine().dmesg(request).await {
            Ok(reply) => copy(LogName::Kernel, reply.into_inner(), &teller).await,
            Err(status) => status,
        };
        teller.failed(&ended).await;
    }
}

/// Follows the log of the wanted service.
pub(super) async fn services(
    node: Node,
    mut wanted: watch::Receiver<Option<String>>,
    teller: Teller,
) {
    loop {
        let service = wanted.borrow_and_update().clone();
        let follow = async {
            match service {
                Some(id) => service_log(&node, id, &teller).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = follow => {}
            changed = wanted.changed() => {
                if changed.is_err() {
                    return;
                }
            }
        }
    }
}

/// Follows one service's log until the link breaks.
async fn service_log(node: &Node, id: String, teller: &Teller) {
    let request = node.request(LogsRequest {
        namespace: NAMESPACE.to_owned(),
        id: id.clone(),
        driver: ContainerDriver::Containerd.into(),
        follow: true,
        tail_lines: TAIL,
    });
    let ended = match node.machine().logs(request).await {
        Ok(reply) => copy(LogName::Service(id), reply.into_inner(), teller).await,
        Err(status) => status,
    };
    teller.failed(&ended).await;
}

/// Sends the lines of a stream; returns why it ended.
async fn copy(name: LogName, mut stream: Streaming<Data>, teller: &Teller) -> Status {
    teller.tell(Update::Reached).await;
    teller.tell(Update::LogBegins(name.clone())).await;
    let mut lines = Lines::default();
    loop {
        match stream.message().await {
            Ok(Some(data)) => {
                let mut whole = lines.push(&data.bytes);
                if name == LogName::Kernel {
                    for line in &mut whole {
                        *line = short_kernel_line(line);
                    }
                }
                if !whole.is_empty() {
                    teller.tell(Update::LogLines(name.clone(), whole)).await;
                }
            }
            Ok(None) => return Status::unavailable("the node ended its log"),
            Err(status) => return status,
        }
    }
}
