//! The API inside the machine: gRPC on a unix socket, for apid alone.
//!
//! Each service only translates: it checks the request, calls a domain, and puts the answer into the wire's messages.

mod apply_config;
mod blocking;
mod bundle_export;
mod bundles;
mod caller;
mod caller_credentials;
mod changing;
mod cluster_service;
mod container_facts;
mod containers;
mod deadline;
mod epoch_seconds;
mod events;
mod files;
mod image_operations;
mod image_pins;
mod image_updates;
mod image_verification;
mod images;
mod inspect_service;
mod kernel_log;
mod lifecycle;
mod logs;
mod machine_service;
mod metrics;
mod netstat;
mod node_certificate;
mod packet_capture;
mod pod_facts;
mod readers;
mod readiness;
mod reflection;
mod reset;
pub mod resources;
mod security_service;
mod service_list;
mod shares;
mod state;
mod storage;
mod support;
mod temporary_registry;
mod time_service;
mod upgrade_follow;
mod upgrade_plan;
mod upgrade_request;

pub use kernel_log::{KernelLog, Record as KernelRecord};
pub use readers::serve_reader;
pub use support::{collect as collect_support, in_words as event_in_words};

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use instar_api::MAX_MESSAGE_BYTES;
use instar_api::cluster::cluster_service_server::ClusterServiceServer;
use instar_api::cosi::resource::state_server::StateServer;
use instar_api::inspect::inspect_service_server::InspectServiceServer;
use instar_api::instar::bundle_service_server::BundleServiceServer;
use instar_api::instar::image_pin_service_server::ImagePinServiceServer;
use instar_api::instar::image_update_service_server::ImageUpdateServiceServer;
use instar_api::instar::metrics_service_server::MetricsServiceServer;
use instar_api::instar::node_certificate_service_server::NodeCertificateServiceServer;
use instar_api::instar::temporary_registry_service_server::TemporaryRegistryServiceServer;
use instar_api::instar::upgrade_follow_service_server::UpgradeFollowServiceServer;
use instar_api::instar::upgrade_service_server::UpgradeServiceServer;
use instar_api::machine::image_service_server::ImageServiceServer;
use instar_api::machine::lifecycle_service_server::LifecycleServiceServer;
use instar_api::machine::machine_service_server::MachineServiceServer;
use instar_api::machine::storage_service_server::StorageServiceServer as FilesystemServiceServer;
use instar_api::securityapi::security_service_server::SecurityServiceServer;
use instar_api::storage::storage_service_server::StorageServiceServer as DiskServiceServer;
use instar_api::time::time_service_server::TimeServiceServer;
use tokio::net::{UnixListener, UnixStream};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::BoxStream;
use tonic::service::Routes;
use tonic::{Response, Status};

use crate::apid;
use crate::machine::Machine;
use bundles::BundleApi;
use caller_credentials::RecheckCredentials;
use cluster_service::ClusterApi;
use image_pins::ImagePinApi;
use image_updates::ImageUpdateApi;
use images::ImageApi;
use inspect_service::InspectApi;
use lifecycle::LifecycleApi;
use machine_service::MachineApi;
use metrics::MetricsApi;
use node_certificate::NodeCertificateApi;
use security_service::SecurityApi;
use state::StateApi;
use storage::StorageApi;
use temporary_registry::TemporaryRegistryApi;
use time_service::TimeApi;
use upgrade_follow::UpgradeFollowApi;
use upgrade_plan::UpgradePlanApi;

/// Pause after a connection could not be accepted for want of descriptors or memory.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// Flow-control windows: bytes that one caller may send before they are read, per call and in all.
const WINDOWS: (u32, u32) = (64 << 10, 256 << 10);
/// Limit on simultaneous calls over one connection. apid opens one for each connection of a caller, and allows fewer calls over that.
const STREAMS: u32 = 16 * 1024;

/// Creates machined's socket, which apid and root can connect to.
pub fn bind() -> anyhow::Result<UnixListener> {
    use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, chown};
    let directory = Path::new(apid::ROOT);
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(directory)
        .with_context(|| format!("make {}", directory.display()))?;
    let path = directory.join(apid::SOCKET);
    // The socket may be left from an earlier machined of this generation.
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
    let (of_a_call, of_all) = WINDOWS;
    tonic::transport::Server::builder()
        .max_concurrent_streams(STREAMS)
        .initial_stream_window_size(of_a_call)
        .initial_connection_window_size(of_all)
        .http2_max_header_list_size(caller_credentials::LONGEST_HEADERS)
        .layer(RecheckCredentials(machine.clone()))
        .add_routes(routes(&machine))
        .serve_with_incoming(connections(listener))
        .await
        .context("serve the API")
}

/// Returns the connections of apid and root. After an error it pauses, because the server would try again at once, for ever.
fn connections(listener: UnixListener) -> impl Stream<Item = std::io::Result<UnixStream>> {
    futures_util::stream::unfold(listener, async |listener| {
        loop {
            match listener.accept().await {
                Ok((connection, _)) if is_apid_or_root(&connection) => {
                    return Some((Ok(connection), listener));
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!("no connection can be taken: {error}");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            }
        }
    })
}

/// Registers every service.
fn routes(machine: &Arc<Machine>) -> Routes {
    let machine_service = MachineServiceServer::new(MachineApi::new(machine.clone()))
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    let storage = StorageApi::new(machine.clone());
    // Without an entry for a single service, the reply is that all are served, which is true from here on.
    let (_, health) = tonic_health::server::health_reporter();
    Routes::new(machine_service)
        .add_service(ImageServiceServer::new(ImageApi::new(machine.clone())))
        .add_service(LifecycleServiceServer::new(LifecycleApi::new(
            machine.clone(),
        )))
        .add_service(DiskServiceServer::new(storage.clone()))
        .add_service(FilesystemServiceServer::new(storage))
        .add_service(TimeServiceServer::new(TimeApi::new(machine.clone())))
        .add_service(ClusterServiceServer::new(ClusterApi::new(machine.clone())))
        .add_service(StateServer::new(StateApi::new(machine.clone())))
        .add_service(InspectServiceServer::new(InspectApi))
        .add_service(BundleServiceServer::new(BundleApi::new(machine.clone())))
        .add_service(UpgradeServiceServer::new(UpgradePlanApi::new(
            machine.clone(),
        )))
        .add_service(TemporaryRegistryServiceServer::new(
            TemporaryRegistryApi::new(machine.clone()),
        ))
        .add_service(ImagePinServiceServer::new(ImagePinApi::new(
            machine.clone(),
        )))
        .add_service(UpgradeFollowServiceServer::new(UpgradeFollowApi::new(
            machine.clone(),
        )))
        .add_service(ImageUpdateServiceServer::new(ImageUpdateApi::new(
            machine.clone(),
        )))
        .add_service(NodeCertificateServiceServer::new(NodeCertificateApi::new(
            machine.clone(),
        )))
        .add_service(MetricsServiceServer::new(MetricsApi::new(machine.clone())))
        .add_service(SecurityServiceServer::new(SecurityApi::new(
            machine.clone(),
        )))
        .add_service(health)
        .add_service(reflection::V1)
        .add_service(reflection::V1Alpha)
}

/// Boxes a stream, as the generated traits require.
fn streamed<T: Send + 'static>(
    stream: ReceiverStream<Result<T, Status>>,
) -> Response<BoxStream<T>> {
    Response::new(Box::pin(stream))
}

/// Returns whether the peer is apid or root. The socket's mode already keeps all others out; this check holds if the mode is ever wrong.
fn is_apid_or_root(connection: &UnixStream) -> bool {
    connection
        .peer_cred()
        .is_ok_and(|peer| peer.uid() == 0 || peer.uid() == apid::USER)
}
