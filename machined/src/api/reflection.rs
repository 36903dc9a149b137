//! gRPC reflection: tells clients without our protos which services exist.
//!
//! The descriptors are unpacked for each call and freed after it: they take half a megabyte that most machines never need.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use instar_api::FILE_DESCRIPTOR_SET;
use instar_api::cluster::cluster_service_server;
use instar_api::cosi::resource::state_server;
use instar_api::inspect::inspect_service_server;
use instar_api::instar::{
    bundle_service_server, image_pin_service_server, image_update_service_server,
    metrics_service_server, node_certificate_service_server, temporary_registry_service_server,
    upgrade_follow_service_server, upgrade_service_server,
};
use instar_api::machine::{
    image_service_server, lifecycle_service_server, machine_service_server,
    storage_service_server as filesystems,
};
use instar_api::storage::storage_service_server as disks;
use instar_api::time::time_service_server;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic_reflection::server::{Builder, Error};
use tower_service::Service;

/// Reflection, version v1.
#[derive(Clone, Copy)]
pub(super) struct V1;

/// Reflection, version v1alpha, for older clients such as Python's.
#[derive(Clone, Copy)]
pub(super) struct V1Alpha;

/// The services that this node serves. The descriptors hold more than these.
const SERVED: [&str; 18] = [
    machine_service_server::SERVICE_NAME,
    lifecycle_service_server::SERVICE_NAME,
    image_service_server::SERVICE_NAME,
    filesystems::SERVICE_NAME,
    disks::SERVICE_NAME,
    time_service_server::SERVICE_NAME,
    cluster_service_server::SERVICE_NAME,
    state_server::SERVICE_NAME,
    inspect_service_server::SERVICE_NAME,
    bundle_service_server::SERVICE_NAME,
    image_pin_service_server::SERVICE_NAME,
    image_update_service_server::SERVICE_NAME,
    metrics_service_server::SERVICE_NAME,
    node_certificate_service_server::SERVICE_NAME,
    temporary_registry_service_server::SERVICE_NAME,
    upgrade_follow_service_server::SERVICE_NAME,
    upgrade_service_server::SERVICE_NAME,
    tonic_health::pb::health_server::SERVICE_NAME,
];

type Answer = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

fn builder() -> Builder<'static> {
    let descriptors = Builder::configure()
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
    SERVED.iter().fold(descriptors, |builder, name| {
        builder.with_service_name(*name)
    })
}

fn answer<S>(service: Result<S, Error>, request: http::Request<Body>) -> Answer
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    match service {
        Ok(mut service) => Box::pin(service.call(request)),
        Err(error) => {
            let status = tonic::Status::internal(format!("unpack the descriptors: {error}"));
            Box::pin(async move { Ok(status.into_http()) })
        }
    }
}

impl NamedService for V1 {
    const NAME: &'static str = "grpc.reflection.v1.ServerReflection";
}

impl NamedService for V1Alpha {
    const NAME: &'static str = "grpc.reflection.v1alpha.ServerReflection";
}

impl Service<http::Request<Body>> for V1 {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Answer {
        answer(builder().build_v1(), request)
    }
}

impl Service<http::Request<Body>> for V1Alpha {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Answer {
        answer(builder().build_v1alpha(), request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_descriptors_can_be_unpacked() {
        assert!(builder().build_v1().is_ok());
        assert!(builder().build_v1alpha().is_ok());
    }
}
