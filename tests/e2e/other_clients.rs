//! Other projects' clients, with generated stubs of their own.

use anyhow::ensure;
use instar_tests::{Grpcio, ImageUnderTest, Node, Outcome, Scratch, Test, chapters, tests};
use serde_json::json;

pub(crate) fn tests() -> Vec<Test> {
    tests![grpcio_is_answered_and_refused]
}

async fn grpcio_is_answered_and_refused(scratch: Scratch) -> Outcome {
    let grpcio = Grpcio::ready(&scratch)?;
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .boot()
        .await?;
    chapters![
        grpcio_is_answered(&grpcio, &node),
        grpcio_reads_a_stream(&grpcio, &node),
        errors_keep_their_code_and_their_words(&grpcio, &node),
    ]
    .await
}

async fn grpcio_is_answered(grpcio: &Grpcio, node: &Node) -> Outcome {
    let version = grpcio.call(node, "Version", &json!({}))?;
    ensure!(
        version["answer"]["messages"][0]["version"]["tag"] == "v0.1.0",
        "Version: {version}"
    );
    let services = grpcio.call(node, "ServiceList", &json!({}))?;
    let first = &services["answer"]["messages"][0]["services"][0];
    ensure!(
        first["id"] == "apid" && first["state"] == "Running",
        "ServiceList: {services}"
    );
    Ok(())
}

async fn grpcio_reads_a_stream(grpcio: &Grpcio, node: &Node) -> Outcome {
    let file = grpcio.call(node, "Read", &json!({"path": "/etc/os-release"}))?;
    let parts = file["answers"].as_array().map(Vec::len);
    ensure!(parts == Some(1), "Read: {file}");
    Ok(())
}

/// A method, its request, the code of its refusal, and words of the message.
type Refusal = (&'static str, &'static str, &'static str, &'static str);

const REFUSALS: [Refusal; 5] = [
    (
        "Upgrade",
        r#"{"image": "NO IMAGE"}"#,
        "INVALID_ARGUMENT",
        "the image's name is unusable",
    ),
    (
        "Upgrade",
        r#"{"image": "127.0.0.1:1/instar/installer:v0.2.0"}"#,
        "FAILED_PRECONDITION",
        "cannot be resolved",
    ),
    (
        "Read",
        r#"{"path": "/no/such/file"}"#,
        "NOT_FOUND",
        "/no/such/file",
    ),
    (
        "Rollback",
        "{}",
        "FAILED_PRECONDITION",
        "does not boot from its disk",
    ),
    ("Bootstrap", "{}", "UNIMPLEMENTED", ""),
];

async fn errors_keep_their_code_and_their_words(grpcio: &Grpcio, node: &Node) -> Outcome {
    for (method, request, code, words) in REFUSALS {
        let said = grpcio.call(node, method, &serde_json::from_str(request)?)?;
        let details = said["details"].as_str();
        ensure!(
            said["code"] == code && details.is_some_and(|text| text.contains(words)),
            "{method}: {said}"
        );
    }
    Ok(())
}
