//! `image`: lists, pulls, verifies, pins, serves, approves and removes images of the node.

mod serve;

use instar_api::common::{ContainerDriver, ContainerdInstance, ContainerdNamespace};
use instar_api::instar::image_pin_service_client::ImagePinServiceClient;
use instar_api::instar::image_update_service_client::ImageUpdateServiceClient;
use instar_api::instar::{
    ApproveImageUpdateRequest, FetchTerms as WireTerms, PinImagesRequest, UnpinImageRequest,
};
use instar_api::machine::image_service_client::ImageServiceClient;
use instar_api::machine::image_service_pull_response::Response;
use instar_api::machine::{
    ImageServiceListRequest, ImageServiceListResponse, ImageServicePullRequest,
    ImageServiceRemoveRequest, ImageServiceVerifyRequest,
};
use instar_client::{Failure, FailureKind, Node};
use serde_json::json;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::byte_bar::byte_bar;
use crate::cli::{FetchTerms, Global, Image};
use crate::each_node::each_node;
use crate::output::{human, table, time};

pub(super) async fn run(global: &Global, image: &Image) -> Result<(), Failure> {
    each_node(global, async |node| {
        match image {
            Image::List => list(global, node).await?,
            Image::Pull { image } => pull(global, node, image).await?,
            Image::Verify { image } => verify(global, node, image).await?,
            Image::Pin { images, terms } => pin(global, node, images, terms).await?,
            Image::Unpin { image } => unpin(global, node, image).await?,
            Image::Serve { stop: true, .. } => serve::stop(global, node).await?,
            Image::Serve {
                listen,
                time,
                images,
                tls,
                ..
            } => serve::serve(global, node, listen, *time, images, *tls).await?,
            Image::Approve { container, digest } => {
                approve(global, node, container, digest).await?
            }
            Image::Remove { image } => remove(global, node, image).await?,
        }
        Ok(())
    })
    .await
}

fn client(node: &Node) -> ImageServiceClient<Channel> {
    ImageServiceClient::new(node.channel())
}

/// The image store to use. Our nodes have one; other implementations need its name.
pub(super) fn store() -> Option<ContainerdInstance> {
    Some(ContainerdInstance {
        driver: ContainerDriver::Cri.into(),
        namespace: ContainerdNamespace::NsCri.into(),
    })
}

async fn list(global: &Global, node: &Node) -> Result<(), Failure> {
    let explain = |status| node.explain("cannot list images", status);
    let request = ImageServiceListRequest {
        containerd: store(),
    };
    let reply = client(node).list(node.request(request)).await;
    let mut stream = reply.map_err(explain)?.into_inner();
    let mut images = Vec::new();
    while let Some(image) = stream.message().await.map_err(explain)? {
        images.push(image);
    }
    global.output.show(
        || {
            let row = |image: &ImageServiceListResponse| {
                vec![
                    node.name().to_owned(),
                    image.name.clone(),
                    image.digest.clone(),
                    human(u64::try_from(image.size).unwrap_or(0)),
                    time(image.created_at.as_ref()),
                ]
            };
            table(
                &["NODE", "IMAGE", "DIGEST", "SIZE", "PULLED"],
                &images.iter().map(row).collect::<Vec<_>>(),
            )
        },
        || {
            let image = |image: &ImageServiceListResponse| {
                json!({
                    "name": image.name,
                    "digest": image.digest,
                    "size": image.size,
                    "pulled": time(image.created_at.as_ref()),
                    "labels": image.labels.iter().collect::<std::collections::BTreeMap<_, _>>(),
                })
            };
            json!({ "node": node.name(), "images": images.iter().map(image).collect::<Vec<_>>() })
        },
    )
}

async fn pull(global: &Global, node: &Node, image: &str) -> Result<(), Failure> {
    let name = bring(global, node, image).await?;
    global.output.show(
        || format!("{}: {name}", node.name()),
        || json!({ "node": node.name(), "image": name }),
    )
}

/// Has the node pull an image, and shows the progress; returns the name with the digest, which always means this very image.
pub(super) async fn bring(global: &Global, node: &Node, image: &str) -> Result<String, Failure> {
    let bar = byte_bar(global.output, image.to_owned());
    let pulled = bring_with(node, image, |total, offset| {
        bar.set_length(total);
        bar.set_position(offset);
    });
    let pulled = pulled.await;
    bar.finish_and_clear();
    pulled
}

/// Has the node pull an image, and tells how many of how many bytes have come.
pub(super) async fn bring_with(
    node: &Node,
    image: &str,
    tell: impl Fn(u64, u64),
) -> Result<String, Failure> {
    let doing = format!("cannot pull {image}");
    let explain = |status| node.explain(&doing, status);
    let request = ImageServicePullRequest {
        containerd: store(),
        image_ref: image.to_owned(),
    };
    let reply = client(node).pull(node.request(request)).await;
    let mut stream = reply.map_err(explain)?.into_inner();
    let mut pulled = None;
    while let Some(message) = stream.message().await.map_err(explain)? {
        match message.response {
            Some(Response::Name(name)) => pulled = Some(name),
            Some(Response::PullProgress(progress)) => {
                let layer = progress.progress.unwrap_or_default();
                let bytes = |number| u64::try_from(number).unwrap_or(0);
                tell(bytes(layer.total), bytes(layer.offset));
            }
            None => {}
        }
    }
    pulled.ok_or_else(|| {
        Failure::new(
            FailureKind::Failed,
            format!("{doing}: the node did not say what it pulled"),
        )
    })
}

async fn verify(global: &Global, node: &Node, image: &str) -> Result<(), Failure> {
    let request = ImageServiceVerifyRequest {
        image_ref: image.to_owned(),
        credentials: None,
    };
    let reply = client(node).verify(node.request(request)).await;
    let answer = reply.map_err(|status| refused(node, image, status))?;
    let answer = answer.into_inner();
    let (verified, message, name) = (answer.verified, answer.message, answer.digested_image_ref);
    global.output.show(
        || format!("{}: {name}: {message}", node.name()),
        || json!({ "node": node.name(), "verified": verified, "message": message, "image": name }),
    )
}

/// Explains why an image is not verified. The node refuses an image with the status that otherwise means that the caller lacks a role.
fn refused(node: &Node, image: &str, status: Status) -> Failure {
    let doing = format!("cannot verify {image}");
    let by_rule =
        status.code() == Code::PermissionDenied && status.message().starts_with("verification ");
    match by_rule {
        true => Failure::new(
            FailureKind::Failed,
            format!("{}: {image}: {}", node.name(), status.message()),
        ),
        false => node.explain(&doing, status),
    }
}

async fn approve(
    global: &Global,
    node: &Node,
    container: &str,
    digest: &str,
) -> Result<(), Failure> {
    let request = ApproveImageUpdateRequest {
        container: container.to_owned(),
        digest: digest.to_owned(),
    };
    let mut client = ImageUpdateServiceClient::new(node.channel());
    let reply = client.approve(node.request(request)).await;
    let doing = format!("cannot approve {digest} for {container}");
    let standing = reply.map_err(|status| node.explain(&doing, status))?;
    let standing = standing.into_inner().standing;
    global.output.show(
        || format!("{}: {standing}", node.name()),
        || json!({ "node": node.name(), "standing": standing }),
    )
}

/// The terms of a fetch, for a request.
pub(super) fn wire_terms(terms: &FetchTerms) -> WireTerms {
    let text = |text: Option<String>| text.unwrap_or_default();
    WireTerms {
        window: text(terms.window.as_ref().map(ToString::to_string)),
        bandwidth: text(terms.bandwidth.as_ref().map(ToString::to_string)),
    }
}

async fn pin(
    global: &Global,
    node: &Node,
    images: &[String],
    terms: &FetchTerms,
) -> Result<(), Failure> {
    let request = PinImagesRequest {
        images: images.to_vec(),
        terms: Some(wire_terms(terms)),
    };
    let mut client = ImagePinServiceClient::new(node.channel());
    let reply = client.pin(node.request(request)).await;
    let reply = reply.map_err(|status| node.explain("cannot pin the images", status))?;
    let images = reply.into_inner().images;
    global.output.show(
        || {
            let name = node.name();
            let lines = images.iter();
            let lines = lines.map(|image| format!("{name}: {image} is fetched and kept"));
            let mut lines: Vec<String> = lines.collect();
            lines.push(format!("{name}: \"get pins\" shows how far it is"));
            lines.join("\n")
        },
        || json!({ "node": node.name(), "images": images }),
    )
}

async fn unpin(global: &Global, node: &Node, image: &str) -> Result<(), Failure> {
    let request = UnpinImageRequest {
        image: image.to_owned(),
    };
    let mut client = ImagePinServiceClient::new(node.channel());
    let reply = client.unpin(node.request(request)).await;
    let doing = format!("cannot unpin {image}");
    let reply = reply.map_err(|status| node.explain(&doing, status))?;
    let stays = reply.into_inner().stays;
    global.output.show(
        || match stays {
            true => format!("{}: ImagePinConfig still pins {image}", node.name()),
            false => format!("{}: {image} is not pinned any more", node.name()),
        },
        || json!({ "node": node.name(), "image": image, "stays": stays }),
    )
}

async fn remove(global: &Global, node: &Node, image: &str) -> Result<(), Failure> {
    let request = ImageServiceRemoveRequest {
        containerd: store(),
        image_ref: image.to_owned(),
    };
    let reply = client(node).remove(node.request(request)).await;
    reply.map_err(|status| node.explain(&format!("cannot remove {image}"), status))?;
    global.output.show(
        || format!("{}: removed {image}", node.name()),
        || json!({ "node": node.name(), "removed": image }),
    )
}
