//! The API inside the machine: gRPC on a unix socket, for apid alone.
//!
//! Each service only translates: it checks the request, calls a domain, and puts the answer into the wire's messages.

mod apply_config;
mod caller;
mod events;
mod kernel_log;
mod logs;
mod machine_service;
mod memory;
mod read;
mod reset;
mod service_list;

pub use kernel_log::KernelLog;

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use instar_api::MAX_MESSAGE_BYTES;
use instar_api::machine::machine_service_server::MachineServiceServer;
use tokio::net::{UnixListener, UnixStream};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnixListenerStream;

use crate::apid;
use crate::machine::Machine;
use machine_service::MachineApi;

/// Makes machined's socket, reachable for apid and root.
pub fn bind() -> anyhow::Result<UnixListener> {
    use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, chown};
    let directory = Path::new(apid::ROOT);
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(directory)
        .with_context(|| format!("make {}", directory.display()))?;
    let path = directory.join(apid::SOCKET);
    // One of an earlier machined of this generation.
    if let Err(error) = std::fs::remove_file(&path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        return Err(error).with_context(|| format!("remove the old {}", path.display()));
    }
    let listener = UnixListener::bind(&path).with_context(|| format!("bind {}", path.display()))?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o660))
        .context("set the socket's mode")?;
    chown(&path, Some(0), Some(apid::USER)).context("give the socket to apid's group")?;
    Ok(listener)
}

/// Serves the API until the process ends.
pub async fn serve(listener: UnixListener, machine: Arc<Machine>) -> anyhow::Result<()> {
    let service = MachineServiceServer::new(MachineApi::new(machine))
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    let connections = UnixListenerStream::new(listener)
        .filter(|connection| connection.as_ref().map_or(true, is_apid_or_root));
    tonic::transport::Server::builder()
        .add_service(service)
        .serve_with_incoming(connections)
        .await
        .context("serve the API")
}

/// Others may not even reach the socket by its mode; this holds should the mode ever be wrong.
fn is_apid_or_root(connection: &UnixStream) -> bool {
    connection
        .peer_cred()
        .is_ok_and(|peer| peer.uid() == 0 || peer.uid() == apid::USER)
}
