//! Messages that are too large, too many, or never end.

use anyhow::{Result, bail, ensure};
use instar_api::MAX_MESSAGE_BYTES;
use instar_api::machine::machine_service_client::MachineServiceClient;
use instar_api::machine::{ApplyConfigurationRequest, VersionResponse};
use instar_tests::{Node, Outcome};
use tokio::task::JoinSet;
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;

use super::newcomers_are_served;

/// Number of connections with endless calls, and of calls on each.
const ENDLESS: (usize, usize) = (2, 100);

/// Number of messages of 16 MiB at a time: three are more than 40 MiB.
const LARGE_MESSAGES: usize = 6;

pub(super) async fn an_oversized_message_is_refused(node: &Node) -> Outcome {
    let mut machine = MachineServiceClient::new(node.channel().await?);
    let request = nothing_of(MAX_MESSAGE_BYTES + 1, false);
    match machine.apply_configuration(request).await {
        Err(status) if status.code() == Code::OutOfRange => {}
        other => bail!("33,554,433 bytes: {other:?}"),
    }
    newcomers_are_served(node, "after 32 MiB").await
}

/// A config that is a comment of this many bytes.
fn nothing_of(bytes: usize, dry_run: bool) -> ApplyConfigurationRequest {
    ApplyConfigurationRequest {
        data: vec![b'#'; bytes],
        dry_run,
        ..ApplyConfigurationRequest::default()
    }
}

/// The messages together exceed the node's memory for unfinished ones.
pub(super) async fn large_messages_are_refused_where_there_is_no_room(node: &Node) -> Outcome {
    let mut calls = JoinSet::new();
    for _ in 0..LARGE_MESSAGES {
        let mut machine = node.newcomer().await?;
        let request = nothing_of(MAX_MESSAGE_BYTES / 2, true);
        calls.spawn(async move { machine.apply_configuration(request).await });
    }
    let mut refused = 0;
    while let Some(ended) = calls.join_next().await {
        refused += usize::from(has_no_room(ended?)?);
    }
    println!("{refused} of {LARGE_MESSAGES} large messages were refused");
    ensure!((1..LARGE_MESSAGES).contains(&refused), "{refused}");
    newcomers_are_served(node, "after large messages").await
}

/// Whether a large message was refused for lack of room, and not for its content.
fn has_no_room<T: std::fmt::Debug>(answer: Result<T, Status>) -> Result<bool> {
    match answer {
        Err(status) if status.code() == Code::ResourceExhausted => Ok(true),
        Err(status) if status.code() == Code::InvalidArgument => Ok(false),
        other => bail!("16 MiB of nothing: {other:?}"),
    }
}

/// Calls send their headers and never end, until their connection closes.
pub(super) async fn endless_calls_keep_nobody_out(node: &Node) -> Outcome {
    let (connections, calls_of_each) = ENDLESS;
    let mut calls = JoinSet::new();
    for _ in 0..connections {
        let channel = node.channel().await?;
        for _ in 0..calls_of_each {
            calls.spawn(call_without_end(channel.clone()));
        }
    }
    // The endless calls are under way while others are answered.
    for _ in 0..3 {
        newcomers_are_served(node, "beside endless calls").await?;
    }
    let ended = calls.try_join_next();
    ensure!(ended.is_none(), "an endless call has ended: {ended:?}");
    Ok(())
}

async fn call_without_end(channel: Channel) -> Result<Response<VersionResponse>, Status> {
    let mut client = Grpc::new(channel);
    let said = client.ready().await;
    said.map_err(|error| Status::unknown(error.to_string()))?;
    let nothing = Request::new(tokio_stream::pending::<()>());
    let path = "/machine.MachineService/Version".parse().unwrap();
    let codec = ProstCodec::<(), VersionResponse>::default();
    client.client_streaming(nothing, path, codec).await
}
