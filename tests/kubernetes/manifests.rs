//! Objects that tests give to the cluster.

/// The pods of a CNI.
pub(crate) fn network(image: &str) -> String {
    with_image(include_str!("manifests/network.yaml"), image)
}

/// The pod `server`, which answers at the port 8080 of its node.
pub(crate) fn server(image: &str) -> String {
    with_image(include_str!("manifests/server.yaml"), image)
}

/// The Deployments `answerer`, at the port 8080 of its node, and `beat`, at 8081.
pub(crate) fn own_cluster(image: &str) -> String {
    with_image(include_str!("manifests/own_cluster.yaml"), image)
}

/// The Deployment `answerer`, whose pod answers at the port 8080 of its node and sees the node's /var/run at /sentinel.
pub(crate) fn answerer(image: &str) -> String {
    with_image(include_str!("manifests/answerer.yaml"), image)
}

/// kured, for an API server at this port.
pub(crate) fn kured(image: &str, port: u16) -> String {
    let manifest = with_image(include_str!("manifests/kured.yaml"), image);
    manifest.replace("${PORT}", &port.to_string())
}

fn with_image(manifest: &str, image: &str) -> String {
    manifest.replace("${IMAGE}", image)
}
