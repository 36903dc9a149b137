//! Checks which servers get the credentials of a registry.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;

use instar_base::error_chain::chain;
use instar_values::{ImageReference, RegistryAuth, Secret};

use super::pulling::puller;
use super::registry::mirrored;
use crate::Registries;

/// A server that answers every request by a function and records it, headers included.
pub(super) fn scripted(
    answer: impl Fn(&str, &str) -> String + Send + 'static,
) -> (String, Arc<std::sync::Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let requests = Arc::new(std::sync::Mutex::new(Vec::new()));
    let (seen, own) = (Arc::clone(&requests), host.clone());
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let mut request = Vec::new();
            let mut byte = [0];
            while !request.ends_with(b"\r\n\r\n") && client.read(&mut byte).unwrap() == 1 {
                request.push(byte[0]);
            }
            let request = String::from_utf8(request).unwrap();
            let head = answer(&own, request.split(' ').nth(1).unwrap());
            seen.lock().unwrap().push(request);
            write!(client, "HTTP/1.1 {head}\r\nConnection: close\r\n\r\n").unwrap();
        }
    });
    (host, requests)
}

#[tokio::test]
async fn credentials_are_for_the_endpoint_alone() {
    // The server that the endpoint redirects to asks for a token, from itself, and for a password.
    for scheme in ["Bearer", "Basic"] {
        let (thief, asked) = scripted(move |own, _| {
            let challenge = format!("{scheme} realm=\"http://{own}/token\"");
            format!("401 Unauthorized\r\nContent-Length: 0\r\nWWW-Authenticate: {challenge}")
        });
        let to = thief.clone();
        let (endpoint, at_endpoint) = scripted(move |_, target| match target {
            "/v2/app/manifests/basic?ns=r.example" => {
                "401 Unauthorized\r\nContent-Length: 0\r\nWWW-Authenticate: Basic realm=\"x\""
                    .to_owned()
            }
            _ => format!(
                "307 Temporary Redirect\r\nContent-Length: 0\r\nLocation: http://{to}/there"
            ),
        });
        for auth in [
            RegistryAuth::Password {
                username: "bob".into(),
                password: Secret::new("hunter2"),
            },
            RegistryAuth::IdentityToken(Secret::new("hunter2")),
        ] {
            let settings = Registries {
                auth: [(endpoint.clone(), auth.clone()), (thief.clone(), auth)].into(),
                ..mirrored("r.example", &[&format!("http://{endpoint}")])
            };
            let puller = puller(settings);
            let resolve = async |tag: &str| {
                let reference: ImageReference = format!("r.example/app:{tag}").parse().unwrap();
                puller.resolve(&reference).await.unwrap_err()
            };
            let error = resolve("v1").await;
            assert!(!error.is_unreachable());
            let said = chain(&error);
            assert!(
                said.contains(&format!("it redirects to {thief}, which refuses access")),
                "{said}"
            );
            // The endpoint itself may ask for them.
            resolve("basic").await;
        }
        let asked = asked.lock().unwrap();
        assert!(!asked.is_empty());
        for request in asked.iter() {
            assert!(
                request.starts_with("GET /there ") && !request.contains("uthorization"),
                "{request}"
            );
        }
        let at_endpoint = at_endpoint.lock().unwrap();
        assert!(
            at_endpoint
                .iter()
                .any(|request| request.to_lowercase().contains("authorization: basic "))
        );
    }
}
