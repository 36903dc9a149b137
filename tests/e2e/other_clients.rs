//! Clients that others wrote, with stubs that others generated.

use anyhow::ensure;
use instar_tests::{Grpcio, ImageUnderTest, Node, Outcome, Scratch, Test, tests};
use serde_json::json;

pub(crate) fn tests() -> Vec<Test> {
    tests![grpcio_is_answered_and_refused]
}

async fn grpcio_is_answered_and_refused(scratch: Scratch) -> Outcome {
    let grpcio = Grpcio::ready(&scratch)?;
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .boot()
        .await?;
    let version = grpcio.call(&node, "Version", &json!({}))?;
    ensure!(
        version["answer"]["messages"][0]["version"]["tag"] == "v0.1.0",
        "Version: {version}"
    );
    let services = grpcio.call(&node, "ServiceList", &json!({}))?;
    let first = &services["answer"]["messages"][0]["services"][0];
    ensure!(
        first["id"] == "apid" && first["state"] == "Running",
        "ServiceList: {services}"
    );
    // A stream.
    let file = grpcio.call(&node, "Read", &json!({"path": "/etc/os-release"}))?;
    ensure!(
        file["answers"]
            .as_array()
            .is_some_and(|parts| parts.len() == 1),
        "Read: {file}"
    );
    // Errors of each kind keep their code and their words.
    for (method, request, code, words) in [
        (
            "Upgrade",
            json!({"image": "NO IMAGE"}),
            "INVALID_ARGUMENT",
            "the image's name is unusable",
        ),
        (
            "Upgrade",
            json!({"image": "127.0.0.1:1/instar/installer:v0.2.0"}),
            "FAILED_PRECONDITION",
            "cannot be resolved",
        ),
        (
            "Read",
            json!({"path": "/no/such/file"}),
            "NOT_FOUND",
            "/no/such/file",
        ),
        (
            "Rollback",
            json!({}),
            "FAILED_PRECONDITION",
            "does not boot from its disk",
        ),
        ("Bootstrap", json!({}), "UNIMPLEMENTED", ""),
    ] {
        let said = grpcio.call(&node, method, &request)?;
        ensure!(
            said["code"] == code
                && said["details"]
                    .as_str()
                    .is_some_and(|text| text.contains(words)),
            "{method}: {said}"
        );
    }
    Ok(())
}
