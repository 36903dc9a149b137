//! The limits of a reader's connection.

use anyhow::ensure;
use instar_api::cosi::resource::state_client::StateClient;
use instar_api::machine::machine_service_client::MachineServiceClient;
use instar_api::time::TimeRequest;
use instar_api::time::time_service_client::TimeServiceClient;
use instar_tests::{Identity, Node, Outcome, chapters};
use tonic::Code;
use tonic::transport::Channel;

use super::{hostnames, usage_of_everything};

/// A reader's connection has limits.
pub(super) async fn readers_have_limits(node: &Node, reader: &Identity) -> Outcome {
    let channel = node.channel_as(reader).await?;
    chapters![
        many_paths_at_once_are_refused(channel.clone()),
        readers_may_not_name_a_time_server(channel.clone()),
        watches_of_a_connection_are_counted(channel, node.channel_as(reader).await?),
    ]
    .await
}

async fn many_paths_at_once_are_refused(reader: Channel) -> Outcome {
    let mut machine = MachineServiceClient::new(reader);
    let refused = machine.disk_usage(usage_of_everything(65)).await.err();
    let code = refused.map(|status| status.code());
    ensure!(code == Some(Code::InvalidArgument), "65 paths: {code:?}");
    Ok(())
}

async fn readers_may_not_name_a_time_server(reader: Channel) -> Outcome {
    let elsewhere = TimeRequest {
        server: "10.0.2.2:50000".to_owned(),
    };
    let mut time = TimeServiceClient::new(reader);
    let refused = time.time_check(elsewhere).await.err();
    let code = refused.map(|status| status.code());
    ensure!(
        code == Some(Code::PermissionDenied),
        "any address: {code:?}"
    );
    Ok(())
}

async fn watches_of_a_connection_are_counted(reader: Channel, other: Channel) -> Outcome {
    let mut state = StateClient::new(reader);
    let mut watches = Vec::new();
    let refused = loop {
        match state.watch(hostnames()).await {
            Ok(watch) => watches.push(watch),
            Err(status) => break status,
        }
    };
    ensure!(refused.code() == Code::ResourceExhausted, "{refused}");
    ensure!(watches.len() == 48, "{} watches", watches.len());
    // Another connection has limits of its own.
    StateClient::new(other).watch(hostnames()).await?;
    Ok(())
}
