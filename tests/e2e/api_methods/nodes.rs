//! Older clients name any number of nodes; an ambiguous name is refused.

use anyhow::{Context as _, Result, ensure};
use instar_api::common::{ContainerDriver, Metadata};
use instar_api::machine::ContainersRequest;
use instar_api::machine::image_service_client::ImageServiceClient;
use instar_tests::{Node, Outcome, chapters};
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Status};

use super::all;

pub(super) async fn several_nodes_may_be_named(node: &Node) -> Outcome {
    chapters![
        answers_have_the_name_that_was_asked_for(node),
        a_name_of_no_node_is_an_error_in_its_place(node),
        streams_of_several_are_refused(node),
    ]
    .await
}

/// A request with `nodes` in its metadata.
fn to_nodes<T>(nodes: &'static str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    let names = MetadataValue::from_static(nodes);
    request.metadata_mut().insert("nodes", names);
    request
}

/// Returns the metadata of the node of this name in its answer.
async fn metadata_of(node: &Node, name: &'static str) -> Result<Metadata> {
    let request = ContainersRequest {
        namespace: "system".to_owned(),
        driver: ContainerDriver::Containerd.into(),
    };
    let mut machine = node.machine().await?;
    let answer = machine.containers(to_nodes(name, request)).await?;
    let message = answer.into_inner().messages.into_iter().next();
    let message = message.context("an empty answer to Containers")?;
    Ok(message.metadata.unwrap_or_default())
}

async fn answers_have_the_name_that_was_asked_for(node: &Node) -> Outcome {
    let named = metadata_of(node, "127.0.0.1").await?;
    ensure!(named.hostname == "127.0.0.1", "{named:?}");
    Ok(())
}

async fn a_name_of_no_node_is_an_error_in_its_place(node: &Node) -> Outcome {
    let named = metadata_of(node, "elsewhere:1").await?;
    ensure!(named.hostname == "elsewhere:1", "{named:?}");
    let status = named.status.clone().unwrap_or_default();
    let code = Code::from_i32(status.code);
    ensure!(code == Code::InvalidArgument, "{named:?}");
    Ok(())
}

async fn streams_of_several_are_refused(node: &Node) -> Outcome {
    let mut images = ImageServiceClient::new(node.channel().await?);
    let listed = images.list(to_nodes("127.0.0.1", Default::default())).await;
    let refused = all(listed).await.map(drop);
    let code = refused.as_ref().err().map(Status::code);
    ensure!(code == Some(Code::InvalidArgument), "{refused:?}");
    Ok(())
}
