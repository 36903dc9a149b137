//! `image serve`: has the node serve images as a registry for a while.

use std::time::Duration;

use instar_api::instar::temporary_registry_service_client::TemporaryRegistryServiceClient;
use instar_api::instar::{ServeImagesRequest, StopServingRequest};
use instar_client::{Failure, Node};
use serde_json::json;

use crate::cli::Global;

pub(super) async fn serve(
    global: &Global,
    node: &Node,
    listen: &str,
    time: Duration,
    images: &[String],
    tls: bool,
) -> Result<(), Failure> {
    let request = ServeImagesRequest {
        listen: listen.to_owned(),
        time: time.try_into().ok(),
        images: images.to_vec(),
        tls,
    };
    let mut client = TemporaryRegistryServiceClient::new(node.channel());
    let reply = client.serve(node.request(request)).await;
    let served = reply.map_err(|status| node.explain("cannot serve images", status))?;
    let served = served.into_inner();
    global.output.show(
        || {
            let mut text = format!(
                "{}: serves at {} for {time:?}:",
                node.name(),
                match tls {
                    true => format!("https://{}", served.listen),
                    false => format!("http://{}, without TLS,", served.listen),
                }
            );
            for image in &served.images {
                text.push_str(&format!("\n  {image}"));
            }
            text
        },
        || json!({ "node": node.name(), "listen": served.listen, "images": served.images }),
    )
}

pub(super) async fn stop(global: &Global, node: &Node) -> Result<(), Failure> {
    let mut client = TemporaryRegistryServiceClient::new(node.channel());
    let reply = client.stop(node.request(StopServingRequest {})).await;
    let stopped = reply.map_err(|status| node.explain("cannot stop serving images", status))?;
    let listen = stopped.into_inner().listen;
    global.output.show(
        || match listen.as_str() {
            "" => format!("{}: no images were served", node.name()),
            listen => format!("{}: no longer serves at {listen}", node.name()),
        },
        || json!({ "node": node.name(), "listen": listen }),
    )
}
