//! Fetching from real servers on the loopback.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::{
    io::Write,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpListener,
};

use super::fetch::{FetchError, FetchPolicy, FetchStatus, fetch};
use crate::base::back_off::BackOff;
use crate::base::error_chain::chain;
use crate::config::MAX_CONFIG_BYTES;
use instar_http_client::HttpError;

/// A policy with one try: the pause after it would be longer than the time for all tries.
fn once() -> FetchPolicy {
    FetchPolicy {
        within: Duration::from_secs(10),
        pauses: BackOff {
            first: Duration::from_secs(60),
            longest: Duration::from_secs(60),
        },
        timeout: Duration::from_secs(10),
        redirects: 3,
        ca_bundle: "/nonexistent/bundle.pem".into(),
    }
}

/// A policy with as many quick tries as fit into the time.
fn again_and_again(within: Duration) -> FetchPolicy {
    FetchPolicy {
        within,
        pauses: BackOff {
            first: Duration::from_millis(5),
            longest: Duration::from_millis(10),
        },
        ..once()
    }
}

/// Starts a server that gives each connection the next of these answers, and the last one for ever. Returns its address and its
/// number of connections.
async fn server(answers: Vec<Vec<u8>>) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let n = counted.fetch_add(1, Ordering::SeqCst);
            let answer = answers[n.min(answers.len() - 1)].clone();
            tokio::spawn(serve(stream, answer));
        }
    });
    (address, count)
}

async fn serve(mut stream: impl AsyncRead + AsyncWrite + Unpin, answer: Vec<u8>) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => request.push(byte),
            Err(_) => return,
        }
    }
    assert!(
        request.starts_with(b"GET /"),
        "{}",
        String::from_utf8_lossy(&request)
    );
    // The client may have ended; the test checks the client's side.
    let _ = stream.write_all(&answer).await;
    let _ = stream.shutdown().await;
}

fn ok(body: &[u8]) -> Vec<u8> {
    let mut answer =
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes();
    answer.extend_from_slice(body);
    answer
}

fn redirect(to: &str) -> Vec<u8> {
    format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n").into_bytes()
}

async fn get(url: &str, policy: &FetchPolicy) -> Result<Vec<u8>, FetchError> {
    fetch(&url.parse().unwrap(), policy, |_| {}).await
}

#[tokio::test]
async fn a_config_arrives() {
    let (address, _) = server(vec![ok(b"version: v1alpha1")]).await;
    assert_eq!(
        get(&format!("http://{address}/c?uuid=1"), &once())
            .await
            .unwrap(),
        b"version: v1alpha1"
    );
}

#[tokio::test]
async fn gzip_is_unpacked() {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(b"packed").unwrap();
    let (address, _) = server(vec![ok(&encoder.finish().unwrap())]).await;
    assert_eq!(
        get(&format!("http://{address}/"), &once()).await.unwrap(),
        b"packed"
    );
}

#[tokio::test]
async fn failures_are_tried_again_and_told() {
    let missing = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_vec();
    let (address, count) = server(vec![missing, b"HTTP/1.1 2".to_vec(), ok(b"there")]).await;
    let mut told = Vec::new();
    let url = format!("http://user:s3cret@{address}/c?token=s3cret")
        .parse()
        .unwrap();
    let bytes = fetch(
        &url,
        &again_and_again(Duration::from_secs(10)),
        |status: FetchStatus<'_>| told.push(status.to_string()),
    )
    .await
    .unwrap();
    assert_eq!(
        (bytes.as_slice(), count.load(Ordering::SeqCst)),
        (b"there".as_slice(), 3)
    );
    assert_eq!(
        told[0],
        format!("fetching the machine config from http://{address}/c")
    );
    assert_eq!(
        told[1],
        format!("http://{address}/c answers 404 Not Found; trying again in 0.005 s")
    );
    assert_eq!(
        told[2],
        format!("fetching the machine config from http://{address}/c, try 2")
    );
    assert!(
        told[3].starts_with(&format!(
            "http://{address}/c cannot be fetched: the connection to {address} broke: "
        )),
        "{}",
        told[3]
    );
    assert_eq!(told[5], "received the machine config, 5 bytes");
    assert!(!told.concat().contains("s3cret"));
}

#[tokio::test]
async fn the_time_for_all_tries_is_bounded() {
    let (address, count) = server(vec![
        b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n".to_vec(),
    ])
    .await;
    let begun = Instant::now();
    // On a busy machine a try takes tens of milliseconds.
    let policy = again_and_again(Duration::from_secs(1));
    let error = get(&format!("http://{address}/"), &policy)
        .await
        .unwrap_err();
    assert!(
        matches!(error, FetchError::Status { status, .. } if status.as_u16() == 500),
        "{error}"
    );
    assert!(count.load(Ordering::SeqCst) > 2);
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn a_try_ends_with_the_time_for_all() {
    // Connections wait in the listener's queue, and are never accepted.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let begun = Instant::now();
    let policy = again_and_again(Duration::from_millis(200));
    let error = get(&format!("http://{address}/"), &policy)
        .await
        .unwrap_err();
    assert!(matches!(error, FetchError::Timeout { .. }), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn nobody_listens() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let error = get(&format!("http://{address}/"), &once())
        .await
        .unwrap_err();
    let said = chain(&error).to_string();
    let expected = format!("http://{address}/ cannot be fetched: connecting to {address} failed: ");
    assert!(said.starts_with(&expected), "{said}");
}

#[tokio::test]
async fn a_silent_server_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let quick = FetchPolicy {
        timeout: Duration::from_millis(100),
        ..once()
    };
    let error = get(&format!("http://{address}/"), &quick)
        .await
        .unwrap_err();
    assert!(matches!(error, FetchError::Timeout { .. }), "{error}");
}

#[tokio::test]
async fn what_is_too_long_is_not_read_to_its_end() {
    // Without a length, the body goes on until the connection ends.
    let mut answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n".to_vec();
    answer.resize(answer.len() + 2 * MAX_CONFIG_BYTES, b'#');
    let (address, _) = server(vec![answer]).await;
    let error = get(&format!("http://{address}/"), &once())
        .await
        .unwrap_err();
    assert!(matches!(error, FetchError::TooLong { .. }), "{error}");

    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(&vec![0; 50 * MAX_CONFIG_BYTES]).unwrap();
    let (address, _) = server(vec![ok(&encoder.finish().unwrap())]).await;
    let error = get(&format!("http://{address}/"), &once())
        .await
        .unwrap_err();
    assert!(matches!(error, FetchError::TooLong { .. }), "{error}");
}

#[tokio::test]
async fn a_cut_answer_is_no_config() {
    let (address, _) = server(vec![
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nversion: v1alpha1\n".to_vec(),
    ])
    .await;
    let error = get(&format!("http://{address}/"), &once())
        .await
        .unwrap_err();
    assert!(matches!(error, FetchError::Http { .. }), "{error}");
}

#[tokio::test]
async fn redirects_are_followed_a_few_times() {
    let (there, _) = server(vec![ok(b"there")]).await;
    let (here, _) = server(vec![
        redirect("/next"),
        redirect(&format!("http://{there}/c")),
    ])
    .await;
    assert_eq!(
        get(&format!("http://{here}/"), &once()).await.unwrap(),
        b"there"
    );

    let (circle, count) = server(vec![redirect("/again")]).await;
    let error = get(&format!("http://{circle}/"), &once())
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            FetchError::Http {
                source: HttpError::TooManyRedirections { .. },
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(
        count.load(Ordering::SeqCst),
        4,
        "the first and three redirects"
    );

    for nowhere in ["file:///etc/shadow", "//host/x", "", "relative"] {
        let (address, _) = server(vec![redirect(nowhere)]).await;
        let error = get(&format!("http://{address}/"), &once())
            .await
            .unwrap_err();
        assert!(
            matches!(
                error,
                FetchError::Http {
                    source: HttpError::Redirection { .. },
                    ..
                }
            ),
            "{nowhere}: {error}"
        );
    }
}

/// Starts a server of https with a certificate of its own for `localhost`. Returns its port and the PEM to trust.
async fn tls_server(answers: Vec<Vec<u8>>) -> (u16, String) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = rustls_pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(
        rustls::crypto::ring::default_provider(),
    ))
    .with_safe_default_protocol_versions()
    .unwrap()
    .with_no_client_auth()
    .with_single_cert(vec![made.cert.der().clone()], key)
    .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let mut n = 0;
        while let Ok((stream, _)) = listener.accept().await {
            let answer = answers[n.min(answers.len() - 1)].clone();
            n += 1;
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    serve(stream, answer).await;
                }
            });
        }
    });
    (port, made.cert.pem())
}

fn is_handshake(error: &FetchError) -> bool {
    matches!(
        error,
        FetchError::Http {
            source: HttpError::Handshake { .. },
            ..
        }
    )
}

#[tokio::test]
async fn https_trusts_the_bundle_and_nobody_else() {
    let (port, pem) = tls_server(vec![ok(b"secret config")]).await;
    let bundle = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(bundle.path(), pem).unwrap();
    let trusting = FetchPolicy {
        ca_bundle: bundle.path().into(),
        ..once()
    };
    assert_eq!(
        get(&format!("https://localhost:{port}/"), &trusting)
            .await
            .unwrap(),
        b"secret config"
    );

    // The certificate is trusted, but it is for another name.
    let error = get(&format!("https://127.0.0.1:{port}/"), &trusting)
        .await
        .unwrap_err();
    assert!(is_handshake(&error), "{error}");

    let (_, stranger) = tls_server(vec![ok(b"")]).await;
    std::fs::write(bundle.path(), stranger).unwrap();
    let error = get(&format!("https://localhost:{port}/"), &trusting)
        .await
        .unwrap_err();
    assert!(is_handshake(&error), "{error}");

    let error = get(&format!("https://localhost:{port}/"), &once())
        .await
        .unwrap_err();
    let said = chain(&error).to_string();
    assert!(
        said.contains(
            "there is no certificate authority to trust: /nonexistent/bundle.pem is missing"
        ),
        "{said}"
    );
}

#[tokio::test]
async fn https_does_not_become_http() {
    let (port, pem) = tls_server(vec![redirect("http://127.0.0.1:1/")]).await;
    let bundle = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(bundle.path(), pem).unwrap();
    let trusting = FetchPolicy {
        ca_bundle: bundle.path().into(),
        ..once()
    };
    let error = get(&format!("https://localhost:{port}/"), &trusting)
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            FetchError::Http {
                source: HttpError::Redirection { .. },
                ..
            }
        ),
        "{error}"
    );
}
