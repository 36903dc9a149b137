#![allow(missing_docs, clippy::unwrap_used)]
use machined::config;
use machined::kubernetes::control_plane::{self, Place};
fn main() {
    let text = std::fs::read(std::env::args().nth(1).unwrap()).unwrap();
    let parsed = match config::parse(&text) {
        Ok(p) => p,
        Err(e) => panic!("{e}"),
    };
    for w in &parsed.warnings {
        println!("warning: {w}");
    }
    let kubernetes = parsed.config.kubernetes.unwrap();
    let plane = kubernetes.control_plane.as_deref().unwrap();
    let _ = control_plane::begin();
    let place = Place {
        node: "cp-1".into(),
        domain: "cluster.local".into(),
        addresses: vec!["127.0.0.1".parse().unwrap()],
    };
    std::fs::create_dir_all("/var/lib/instar/kubernetes/etc/manifests").unwrap();
    control_plane::write(&kubernetes, plane, &place, "v1.36.3").unwrap();
    std::fs::create_dir_all("/var/lib/instar/kubernetes/etc/pki").unwrap();
    std::fs::write(
        "/var/lib/instar/kubernetes/etc/pki/ca.crt",
        &kubernetes.cluster.authorities,
    )
    .unwrap();
    std::fs::write(
        "/tmp/b-admin.conf",
        control_plane::administrator(&kubernetes, plane).unwrap(),
    )
    .unwrap();
    let rt = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    if std::env::args().nth(2).is_some() {
        rt.block_on(async {
            println!(
                "apply: {:?}",
                control_plane::apply(&kubernetes, plane, "cp-1").await
            );
            println!(
                "members: {:?}",
                control_plane::etcd::Etcd::connect(plane)
                    .await
                    .unwrap()
                    .members()
                    .await
            );
            println!(
                "snapshot: {:?}",
                control_plane::etcd::keep_snapshot(plane, "a-before-b").await
            );
        });
    }
}
