//! Objects that tests give to the cluster.

/// The pods of a CNI.
pub(crate) fn network(image: &str) -> String {
    with_image(include_str!("manifests/network.yaml"), image)
}

/// The pod `server`, which answers at the port 8080 of its node.
pub(crate) fn server(image: &str) -> String {
    with_image(include_str!("manifests/server.yaml"), image)
}

fn with_image(manifest: &str, image: &str) -> String {
    manifest.replace("${IMAGE}", image)
}
