//! Who is heard by the extension, and what it makes of calls that no manager makes.

use anyhow::{Context as _, ensure};
use instar_tests::{
    CapiExtension, ControlPlane, Identity, Outcome, Scratch, Test, TlsClient, chapters, tests,
};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

pub(super) fn tests() -> Vec<Test> {
    tests![only_callers_of_the_authority_are_heard]
}

/// An update of a Machine that there is not.
const OF_NOBODY: &str = r#"{"desired": {"machine": {"metadata": {"name": "m", "namespace": "n"}}, "infrastructureMachine": {"apiVersion": "a/v1"}}}"#;
/// The hook that updates a Machine.
pub(super) const UPDATE: &str = "updatemachine/update-machine";
const CAN_UPDATE: &str = "canupdatemachine/can-update-machine";
const HOOKS: &str = "/hooks.runtime.cluster.x-k8s.io/v1alpha1";

/// The extension, and its cluster.
struct Lab {
    extension: CapiExtension,
    plane: ControlPlane,
    caller: Caller,
}

async fn only_callers_of_the_authority_are_heard(scratch: Scratch) -> Outcome {
    let lab = Lab::start(&scratch)?;
    chapters![
        discovery_is_answered_without_a_content_type(&lab),
        other_callers_are_not_heard(&lab),
        what_is_no_hook_has_a_code_of_http(&lab),
        what_is_no_request_is_a_failure_of_the_hook(&lab),
        a_renewed_certificate_counts_at_once(&lab),
    ]
    .await
}

impl Lab {
    fn start(scratch: &Scratch) -> anyhow::Result<Self> {
        let plane = ControlPlane::start(scratch)?;
        let extension = CapiExtension::start(&plane, scratch)?;
        Ok(Self {
            caller: Caller::of(&plane, &extension)?,
            extension,
            plane,
        })
    }
}

/// A caller of the extension that is no manager.
pub(super) struct Caller {
    client: TlsClient,
    address: String,
}

impl Caller {
    /// One with a certificate of the authority that the extension asks for.
    pub(super) fn of(plane: &ControlPlane, extension: &CapiExtension) -> anyhow::Result<Self> {
        let [certificate, key] = plane.client_certificate()?;
        let client = TlsClient {
            protocols: vec!["h2", "http/1.1"],
            certificate: Some((certificate, key)),
            authorities: plane.authority_certificate().to_owned(),
            ..TlsClient::of(&Identity::administrator()?)
        };
        let address = extension.url().replace("https://", "");
        Ok(Self { client, address })
    }

    /// The same with another certificate, or without one.
    fn with(&self, certificate: Option<(String, String)>) -> Self {
        let client = TlsClient {
            certificate,
            ..self.client.clone()
        };
        let address = self.address.clone();
        Self { client, address }
    }

    /// Makes one call; returns the code and the body.
    async fn call(&self, head: &str, body: &str) -> anyhow::Result<(u16, String)> {
        let mut stream = self.client.connect(&self.address).await?;
        let length = body.len();
        let request =
            format!("{head} HTTP/1.1\r\nHost: here\r\nContent-Length: {length}\r\n\r\n{body}");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        // Who is not heard is cut off without a word.
        let read = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8(answer)?;
        ensure!(!answer.is_empty(), "no answer: {read:?}");
        let code = answer.get(9..12).context("no code")?.parse()?;
        let (_, body) = answer
            .split_once("\r\n\r\n")
            .context("no end of the head")?;
        Ok((code, body.to_owned()))
    }

    /// Calls a hook; returns its answer.
    pub(super) async fn hook(&self, path: &str, body: &str) -> anyhow::Result<Value> {
        let head = format!("POST {HOOKS}/{path}?timeout=10s");
        let (code, body) = self.call(&head, body).await?;
        ensure!(code == 200, "{code}: {body}");
        Ok(serde_json::from_str(&body)?)
    }
}

async fn discovery_is_answered_without_a_content_type(lab: &Lab) -> Outcome {
    let body =
        r#"{"kind":"DiscoveryRequest","apiVersion":"hooks.runtime.cluster.x-k8s.io/v1alpha1"}"#;
    let answer = lab.caller.hook("discovery", body).await?;
    ensure!(answer["status"] == "Success", "{answer}");
    ensure!(
        answer["handlers"].as_array().map(Vec::len) == Some(3),
        "{answer}"
    );
    Ok(())
}

async fn other_callers_are_not_heard(lab: &Lab) -> Outcome {
    let head = format!("POST {HOOKS}/discovery");
    let stranger = Identity::administrator()?;
    let strange = (stranger.certificate.clone(), stranger.key.clone());
    for certificate in [None, Some(strange)] {
        let heard = lab.caller.with(certificate).call(&head, "{}").await;
        ensure!(heard.is_err(), "{heard:?}");
    }
    Ok(())
}

async fn what_is_no_hook_has_a_code_of_http(lab: &Lab) -> Outcome {
    for (head, expected) in [
        (format!("GET {HOOKS}/discovery"), 405),
        (format!("POST {HOOKS}/updatemachine/another"), 404),
        ("POST /".to_owned(), 404),
        ("GET /healthz".to_owned(), 200),
    ] {
        let (code, body) = lab.caller.call(&head, "").await?;
        ensure!(code == expected, "{head}: {code}: {body}");
    }
    Ok(())
}

/// Also an update of a Machine that there is not: this cluster does not even know the kind.
async fn what_is_no_request_is_a_failure_of_the_hook(lab: &Lab) -> Outcome {
    for (path, body, words) in [
        (UPDATE, "{", "cannot be read"),
        (UPDATE, "{}", "cannot be read"),
        (CAN_UPDATE, "[]", "cannot be read"),
        (UPDATE, OF_NOBODY, "Machine n/m cannot be read"),
    ] {
        let answer = lab.caller.hook(path, body).await?;
        ensure!(answer["status"] == "Failure", "{answer}");
        let message = answer["message"].as_str().unwrap_or_default();
        ensure!(message.contains(words), "{message}");
    }
    Ok(())
}

async fn a_renewed_certificate_counts_at_once(lab: &Lab) -> Outcome {
    let shown = async || {
        let stream = lab.caller.client.connect(&lab.caller.address).await?;
        let shown = stream.get_ref().1.peer_certificates();
        let first = shown.and_then(|chain| chain.first());
        Ok::<_, anyhow::Error>(first.context("no certificate")?.to_vec())
    };
    let before = shown().await?;
    ensure!(shown().await? == before, "another one each time");
    lab.extension.renew(&lab.plane)?;
    ensure!(shown().await? != before, "the previous one");
    Ok(())
}
