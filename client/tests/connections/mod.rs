//! Whom the client reaches, and whom it trusts.

use super::*;

#[test]
fn sign_asks_each_node_without_a_config() {
    let setup = Setup::new(nothing);
    let nodes = format!("127.0.0.9:1,{}", setup.endpoint());
    let sign = ["fleet", "sign", "--authority", "machine.yaml", "--insecure"];
    setup
        .run(&[&sign[..], &["-n", &nodes]].concat())
        .exits(1)
        .tells("not signed: cannot connect to 127.0.0.9:1")
        .tells("refused the client's certificate")
        .tells("not signed for 127.0.0.9, 127.0.0.1");
}

#[test]
fn nobody_at_the_endpoint() {
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let directory = generate(&format!("127.0.0.1:{port}"));
    run(directory.path(), &["version"])
        .exits(3)
        .tells(&format!("error: cannot connect to 127.0.0.1:{port}: "))
        .tells("port 50000 of the guest is forwarded");
}

#[test]
fn something_else_at_the_endpoint() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let directory = generate(&listener.local_addr().unwrap().to_string());
    std::thread::spawn(move || {
        use std::io::Write;
        for stream in listener.incoming() {
            // The client may have disconnected.
            let _ = stream.unwrap().write_all(b"SSH-2.0-OpenSSH_9.9\r\n");
        }
    });
    run(directory.path(), &["version"])
        .exits(3)
        .tells("is the API of a node and not something else");
}

#[test]
fn node_of_another_authority() {
    let setup = Setup::new(nothing);
    let other = generate("127.0.0.1:1");
    let endpoint =
        String::from_utf8(std::fs::read(setup.directory.path().join("talosconfig")).unwrap())
            .unwrap();
    let endpoint = endpoint
        .lines()
        .find_map(|line| line.trim().strip_prefix("- "))
        .unwrap();
    run(other.path(), &["version", "-e", endpoint.trim_matches('"')])
        .exits(4)
        .tells("belongs to another authority");
}

#[test]
fn node_under_a_name_that_its_certificate_lacks() {
    let setup = Setup::new(nothing);
    let text = std::fs::read_to_string(setup.directory.path().join("talosconfig")).unwrap();
    let port = text
        .lines()
        .find_map(|line| {
            line.rsplit_once(':')?
                .1
                .trim_matches('"')
                .parse::<u16>()
                .ok()
        })
        .unwrap();
    setup
        .run(&["version", "-e", &format!("localhost:{port}")])
        .exits(4)
        .tells("machine.certSANs");
}

#[test]
fn client_certificate_of_another_authority() {
    let setup = Setup::new(nothing);
    // The node's authority, but another client's identity.
    let other = generate("127.0.0.1:1");
    // The key's line and the folded value below it.
    let take = |directory: &Path, key: &str| {
        let text = std::fs::read_to_string(directory.join("talosconfig")).unwrap();
        let indent = |line: &str| line.len() - line.trim_start().len();
        let mut lines = text
            .lines()
            .skip_while(|line| !line.trim().starts_with(key));
        let first = lines.next().unwrap();
        let value = lines.take_while(|line| indent(line) > indent(first));
        [first]
            .into_iter()
            .chain(value)
            .collect::<Vec<_>>()
            .join("\n")
    };
    let text = std::fs::read_to_string(setup.directory.path().join("talosconfig")).unwrap();
    let mut mixed = text.clone();
    for key in ["crt:", "key:"] {
        mixed = mixed.replace(&take(setup.directory.path(), key), &take(other.path(), key));
    }
    assert_ne!(mixed, text);
    std::fs::write(setup.directory.path().join("talosconfig"), mixed).unwrap();
    setup
        .run(&["version"])
        .exits(4)
        .tells("refused the client's certificate");
}

#[test]
fn insecure_takes_any_node_or_the_pinned_one() {
    let setup = Setup::new(nothing);
    // This node asks for a certificate all the same, so the handshake gets that far.
    let endpoint = &setup.endpoint();
    setup
        .run(&["version", "--insecure", "-n", endpoint])
        .exits(4)
        .tells("refused the client's certificate");
    setup
        .run(&[
            "version",
            "--insecure",
            "-n",
            endpoint,
            "--cert-fingerprint",
            "AAAA",
        ])
        .exits(4)
        .tells("has another key");
    setup.run(&["version", "--insecure"]).exits(2);
}
