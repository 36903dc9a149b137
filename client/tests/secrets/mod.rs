//! The secrets of a fleet and of a cluster.

use std::os::unix::fs::PermissionsExt as _;
use std::time::SystemTime;

use super::*;

#[test]
fn secrets_of_a_fleet_are_written_once() {
    let directory = TempDir::new().unwrap();
    let place = directory.path();
    run(place, &["gen", "secrets"]).exits(0);
    let file = place.join("secrets.yaml");
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&file), 0o600);
    let secrets = std::fs::read(&file).unwrap();
    run(place, &["gen", "secrets"]).tells("secrets.yaml exists");
    assert_eq!(std::fs::read(&file).unwrap(), secrets);

    // Machines and clients of one authority, in either order of making them.
    let config = |name: &str, more: &[&str]| {
        let arguments = ["gen", "config", name, "127.0.0.1:1", "--output-dir", name];
        run(place, &[&arguments[..], more].concat())
    };
    for name in ["first", "second"] {
        config(name, &["--with-secrets", "secrets.yaml"]).exits(0);
    }
    let read = |path: &str| std::fs::read_to_string(place.join(path)).unwrap();
    assert_eq!(read("first/machine.yaml"), read("second/machine.yaml"));
    assert_eq!(mode(&place.join("first/machine.yaml")), 0o600);

    // The other way round: the authority of a machine config, and the rest made anew.
    let from = [
        "gen",
        "secrets",
        "--from-controlplane-config",
        "first/machine.yaml",
    ];
    run(
        place,
        &[&from[..], &["--output-file", "again.yaml"]].concat(),
    )
    .exits(0)
    .tells("made anew: cluster.id");
    config("third", &["--with-secrets", "again.yaml"]).exits(0);
    assert_eq!(read("first/machine.yaml"), read("third/machine.yaml"));

    run(place, &["gen", "secrets", "--force"]).exits(0);
    assert_ne!(std::fs::read(&file).unwrap(), secrets);
    config("fourth", &["--with-secrets", "first/talosconfig"]).tells("certs.os");
    assert!(!place.join("fourth/machine.yaml").exists());
}

#[test]
fn secrets_of_a_cluster_of_kubeadm_are_taken_over() {
    let directory = TempDir::new().unwrap();
    let place = directory.path();
    std::fs::create_dir_all(place.join("pki/etcd")).unwrap();
    let write = |name: &str, text: String| std::fs::write(place.join("pki").join(name), text);
    for name in ["ca", "etcd/ca", "front-proxy-ca"] {
        let made = CertificateAuthority::generate_p256(&[], Some(name), SystemTime::now());
        let made = made.unwrap();
        write(&format!("{name}.crt"), made.certificate_pem()).unwrap();
        write(&format!("{name}.key"), made.key_pem()).unwrap();
    }
    let token = "znzio1.1ifu15frz7jd59pv";
    let secrets = |more: &[&str]| {
        let arguments = ["gen", "secrets", "-p", "pki"];
        run(place, &[&arguments[..], more].concat())
    };
    secrets(&["-t", token]).exits(1).tells("pki/sa.key");
    assert!(!place.join("secrets.yaml").exists());
    let key = instar_pki::PrivateKey::generate_p256_sec1().unwrap();
    write("sa.key", key.to_pem()).unwrap();
    secrets(&["-t", "znzio1"]).exits(2).tells("kubeadm token");
    secrets(&["-t", token])
        .exits(0)
        .tells("the Kubernetes PKI lacks, and so made anew: cluster.id");

    let text = std::fs::read_to_string(place.join("secrets.yaml")).unwrap();
    let made: Value = serde_saphyr::from_str(&text).unwrap();
    assert_eq!(made["secrets"]["bootstraptoken"], token);
    let encoded = made["certs"]["k8sserviceaccount"]["key"].as_str().unwrap();
    assert_eq!(
        BASE64_STANDARD.decode(encoded).unwrap(),
        key.to_pem().into_bytes()
    );
    let config = ["gen", "config", "node", "127.0.0.1:1"];
    run(
        place,
        &[&config[..], &["--with-secrets", "secrets.yaml"]].concat(),
    )
    .exits(0);

    // Without the cluster's token there is one that the cluster does not know.
    secrets(&["-f"]).exits(0).tells("secrets.bootstraptoken");
    secrets(&["--from-controlplane-config", "machine.yaml"]).exits(2);
    let only_token = ["gen", "secrets", "--kubernetes-bootstrap-token", token];
    run(place, &only_token).exits(2);
}

#[test]
fn secrets_are_those_of_a_version() {
    let directory = TempDir::new().unwrap();
    let of = |version: &str| {
        let arguments = ["gen", "secrets", "--output-file", "-", "--talos-version"];
        run(directory.path(), &[&arguments[..], &[version]].concat())
    };
    for (version, key) in [
        ("v1.13", "secretboxencryptionsecret"),
        ("v1.2", "aescbcencryptionsecret"),
    ] {
        let made: Value = serde_saphyr::from_str(&of(version).exits(0).out()).unwrap();
        assert!(made["secrets"][key].is_string(), "{version}");
    }
    of("v0.8").exits(2).tells("take v1.0 to v1.14");
    of("newest").exits(2).tells("write it like v1.14");
}
