//! The resources of the node: the members of its cluster, and no others.

use instar_api::common::NetIp;
use instar_api::cosi::resource as wire;
use instar_api::cosi::resource::state_server::State;
use instar_api::definitions::cluster::MemberSpec;
use prost::Message as _;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use super::Api;

fn resource((name, address): &(String, [u8; 4])) -> wire::ListResponse {
    let spec = MemberSpec {
        addresses: vec![NetIp {
            ip: address.to_vec(),
        }],
        hostname: name.clone(),
        machine_type: 3,
        ..MemberSpec::default()
    };
    wire::ListResponse {
        resource: Some(wire::Resource {
            metadata: Some(wire::Metadata {
                id: name.clone(),
                ..wire::Metadata::default()
            }),
            spec: Some(wire::Spec {
                proto_spec: spec.encode_to_vec(),
                ..wire::Spec::default()
            }),
        }),
    }
}

fn absent<T>() -> Result<T, Status> {
    Err(Status::unimplemented("not in the script"))
}

#[tonic::async_trait]
impl State for Api {
    async fn list(
        &self,
        request: Request<wire::ListRequest>,
    ) -> Result<Response<BoxStream<wire::ListResponse>>, Status> {
        let request = request.into_inner();
        let asked = (request.namespace.as_str(), request.r#type.as_str());
        if asked != ("cluster", "Members.cluster.talos.dev") {
            return absent();
        }
        let members = self.0.state().members.clone();
        let resources: Vec<_> = members.iter().map(resource).map(Ok).collect();
        Ok(Response::new(Box::pin(tokio_stream::iter(resources))))
    }

    async fn get(
        &self,
        _: Request<wire::GetRequest>,
    ) -> Result<Response<wire::GetResponse>, Status> {
        absent()
    }

    async fn create(
        &self,
        _: Request<wire::WriteRequest>,
    ) -> Result<Response<wire::WriteResponse>, Status> {
        absent()
    }

    async fn update(
        &self,
        _: Request<wire::WriteRequest>,
    ) -> Result<Response<wire::WriteResponse>, Status> {
        absent()
    }

    async fn destroy(
        &self,
        _: Request<wire::WriteRequest>,
    ) -> Result<Response<wire::WriteResponse>, Status> {
        absent()
    }

    async fn watch(
        &self,
        _: Request<wire::WatchRequest>,
    ) -> Result<Response<BoxStream<wire::WatchResponse>>, Status> {
        absent()
    }
}
