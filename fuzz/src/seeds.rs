//! Seeds of each decoder: small valid inputs, one for every case that it distinguishes.

use instar_api::machine as wire;
use machined::decoders;
use prost::Message;

/// A request for a certificate, as workers send it.
pub(crate) fn certificate_requests() -> Vec<Vec<u8>> {
    let key = instar_pki::PrivateKey::generate();
    let names = ["10.0.0.7".into(), "worker-1".into()];
    let request = key.and_then(|key| instar_pki::request_for_server(&key, &names));
    request.into_iter().map(String::into_bytes).collect()
}

/// Some requests with fields, and each request without any.
pub(crate) fn api_requests() -> Vec<Vec<u8>> {
    let apply = wire::ApplyConfigurationRequest {
        data: b"machine: {}".to_vec(),
        mode: 1,
        dry_run: true,
        ..Default::default()
    };
    let upgrade = wire::UpgradeRequest {
        image: "10.0.0.1:5000/instar/installer:v0.2.0".to_owned(),
        force: true,
        ..Default::default()
    };
    let reset = wire::ResetRequest {
        graceful: true,
        system_partitions_to_wipe: vec![wire::ResetPartitionSpec {
            label: "EPHEMERAL".to_owned(),
            wipe: true,
        }],
        ..Default::default()
    };
    let list = wire::ListRequest {
        root: "/etc".to_owned(),
        recurse: true,
        types: vec![0, 1, 2],
        ..Default::default()
    };
    let netstat = wire::NetstatRequest::default();
    let capture = wire::PacketCaptureRequest {
        interface: "eth0".to_owned(),
        bpf_filter: vec![wire::BpfInstruction {
            op: 6,
            k: 0x0004_0000,
            ..Default::default()
        }],
        ..Default::default()
    };
    let filled = [
        decoders::api_request_input(&apply),
        decoders::api_request_input(&upgrade),
        decoders::api_request_input(&reset),
        decoders::api_request_input(&list),
        decoders::api_request_input(&netstat),
        decoders::api_request_input(&capture),
    ];
    let empty = (0..decoders::api_request_messages()).map(|number| vec![number]);
    filled.into_iter().flatten().chain(empty).collect()
}

/// Both shapes, and every document that is served.
pub(crate) fn machine_configs() -> Vec<Vec<u8>> {
    vec![
        b"version: v1alpha1\nmachine:\n  type: worker\n  install: {disk: /dev/vda, wipe: false}\n  network:\n    hostname: n1\n    interfaces:\n    - {interface: eth0, addresses: [10.0.0.2/24], routes: [{network: 0.0.0.0/0, gateway: 10.0.0.1}]}\n  time: {servers: [time.example.org]}\n".to_vec(),
        b"apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: n1\n---\napiVersion: v1alpha1\nkind: ContainerConfig\nname: web\nimage: a/b:c\nmounts:\n  - hostPath: {source: /var, destination: /data}\n---\napiVersion: v1alpha1\nkind: VolumeConfig\nname: EPHEMERAL\nprovisioning: {diskSelector: {match: \"disk.size > 10u * GB\"}, minSize: 1GB}\n".to_vec(),
        b"a: &a [x]\nb: *a\nc: !!str 1\nd: |\n  text\n".to_vec(),
    ]
}

pub(crate) fn image_manifests() -> Vec<Vec<u8>> {
    const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    let descriptor = |kind: &str| {
        format!(
            r#"{{"mediaType":"application/vnd.oci.image.{kind}","digest":"{DIGEST}","size":12}}"#
        )
    };
    let index = format!(
        r#"{{"schemaVersion":2,"manifests":[{{"digest":"{DIGEST}","size":1,"platform":{{"os":"linux","architecture":"amd64","variant":"v1"}}}}]}}"#
    );
    let image = format!(
        r#"{{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{},"layers":[{},{}]}}"#,
        descriptor("config.v1+json"),
        descriptor("layer.v1.tar+gzip"),
        descriptor("layer.v1.tar+zstd"),
    );
    let labels = format!(
        r#"{{"dev.instar.version":"v0.2.0","dev.instar.protocol":"1","dev.instar.architecture":"amd64","dev.instar.kernel.blake3":"{0}","dev.instar.init.blake3":"{0}","dev.instar.rootfs.blake3":"{0}","dev.instar.rootfs.bytes":"4096","dev.instar.floor":"v0.1.0","dev.instar.upgrades-from":">=v0.1.0 <v0.2.0 || v0.2.0"}}"#,
        "00".repeat(32)
    );
    let config = format!(
        r#"{{"os":"linux","architecture":"amd64","created":"2026-01-01T00:00:00Z","config":{{"User":"1:1","Env":["A=b"],"Entrypoint":["/x"],"Cmd":["y"],"Labels":{labels}}},"rootfs":{{"type":"layers","diff_ids":["{DIGEST}","{DIGEST}"]}}}}"#
    );
    vec![
        index.into_bytes(),
        format!("{image}\n{config}").into_bytes(),
    ]
}

/// A payload, a bundle and a public key, as cosign writes them.
pub(crate) fn image_signatures() -> Vec<Vec<u8>> {
    const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    const KEY: &str = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA+zCq0lw5ya1XIbH77TkE6dMVext7k8NWVFhMhDqECxo=\n-----END PUBLIC KEY-----\n";
    let payload = format!(
        r#"{{"critical":{{"identity":{{"docker-reference":"r.io/a"}},"image":{{"docker-manifest-digest":"{DIGEST}"}},"type":"cosign container image signature"}},"optional":null}}"#
    );
    // The statement: {"_type":"https://in-toto.io/Statement/v1","subject":[],"predicateType":"https://sigstore.dev/cosign/sign/v1"}
    let statement = "eyJfdHlwZSI6Imh0dHBzOi8vaW4tdG90by5pby9TdGF0ZW1lbnQvdjEiLCJzdWJqZWN0IjpbXSwicHJlZGljYXRlVHlwZSI6Imh0dHBzOi8vc2lnc3RvcmUuZGV2L2Nvc2lnbi9zaWduL3YxIn0=";
    let bundle = format!(
        r#"{{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json","verificationMaterial":{{"publicKey":{{"hint":""}}}},"dsseEnvelope":{{"payload":"{statement}","payloadType":"application/vnd.in-toto+json","signatures":[{{"sig":"AAAA"}}]}}}}"#
    );
    vec![payload.into_bytes(), bundle.into_bytes(), KEY.into()]
}

pub(crate) fn image_references() -> Vec<Vec<u8>> {
    let digest = "0".repeat(64);
    [
        "instar/installer:v0.2.0".to_owned(),
        "[fd00::1]:5000/a/b-c__d.e".to_owned(),
        format!("ghcr.io/a/b:c@sha256:{digest}"),
        "localhost/x".to_owned(),
    ]
    .map(String::into_bytes)
    .to_vec()
}

/// Archives with every kind of entry, plain and in frames of zstd, sparse files in their forms, and three that would
/// leave the directory.
pub(crate) fn image_layers() -> Vec<Vec<u8>> {
    use tar::EntryType;
    let everything = archive_of_everything();
    let (first, rest) = everything.split_at(1000);
    let framed = [
        stored_zstd(first),
        b"\x50\x2a\x4d\x18\x01\0\0\0x".to_vec(),
        stored_zstd(rest),
    ];
    let mut in_front = b"2\n5\n3\n90\n4\n".to_vec();
    in_front.resize(512, 0);
    in_front.extend_from_slice(b"content");
    vec![
        framed.concat(),
        everything,
        archive_with_records(&[("size", "3")], b"content"),
        archive_with_records(
            &[("GNU.sparse.size", "100"), ("GNU.sparse.map", "5,3,90,4")],
            b"content",
        ),
        archive_with_records(
            &[
                ("GNU.sparse.major", "1"),
                ("GNU.sparse.minor", "0"),
                ("GNU.sparse.realsize", "100"),
            ],
            &in_front,
        ),
        archive(&[("../sentinel", EntryType::Regular, "")]),
        archive(&[
            ("out", EntryType::Symlink, ".."),
            ("out/sentinel", EntryType::Regular, ""),
            ("hard", EntryType::Link, "../sentinel"),
        ]),
    ]
}

fn archive_of_everything() -> Vec<u8> {
    use tar::EntryType;
    archive(&[
        ("dir", EntryType::Directory, ""),
        ("dir/file", EntryType::Regular, ""),
        ("dir/link", EntryType::Symlink, "file"),
        ("absolute", EntryType::Symlink, "/later/dir"),
        ("absolute/file", EntryType::Regular, ""),
        ("dir/hard", EntryType::Link, "dir/file"),
        ("dir/pipe", EntryType::Fifo, ""),
        ("dev/sda", EntryType::Block, ""),
        ("dir/.wh.file", EntryType::Regular, ""),
        ("dir/.wh..wh..opq", EntryType::Regular, ""),
    ])
}

/// Returns an archive with these names, kinds and link targets, unchanged: a library's own calls would refuse some.
fn archive(entries: &[(&str, tar::EntryType, &str)]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (path, kind, target) in entries {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(*kind);
        header.set_mode(0o644);
        if let Some(field) = header.as_old_mut().name.get_mut(..path.len()) {
            field.copy_from_slice(path.as_bytes());
        }
        let content: &[u8] = if *kind == tar::EntryType::Regular {
            b"content"
        } else {
            b""
        };
        header.set_size(content.len() as u64);
        if !target.is_empty()
            && let Some(field) = header.as_old_mut().linkname.get_mut(..target.len())
        {
            field.copy_from_slice(target.as_bytes());
        }
        header.set_cksum();
        // Writing to memory does not fail.
        let _ = archive.append(&header, content);
    }
    archive.into_inner().unwrap_or_default()
}

/// Returns an archive of one file with records of pax before it.
fn archive_with_records(records: &[(&str, &str)], content: &[u8]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    let records = records.iter().map(|(key, value)| (*key, value.as_bytes()));
    // Writing to memory does not fail.
    let _ = archive.append_pax_extensions(records);
    let mut header = tar::Header::new_ustar();
    header.set_size(content.len() as u64);
    // Writing to memory does not fail.
    let _ = archive.append_data(&mut header, "file", content);
    archive.into_inner().unwrap_or_default()
}

/// Returns a frame with one uncompressed block, of 256 bytes to 64 KiB.
fn stored_zstd(bytes: &[u8]) -> Vec<u8> {
    let length = bytes.len();
    let size = u16::try_from(length - 256).unwrap_or_default();
    let block = u32::try_from(length << 3 | 1).unwrap_or_default();
    [
        &b"\x28\xb5\x2f\xfd\x60"[..],
        &size.to_le_bytes(),
        &block.to_le_bytes()[..3],
        bytes,
    ]
    .concat()
}

pub(crate) fn registry_challenges() -> Vec<Vec<u8>> {
    vec![
        br#"Bearer realm="https://auth.example.org/token",service="registry",scope="repository:a/b:pull""#
            .to_vec(),
        b"Basic realm=\"a \\\"quoted\\\" one\", Bearer realm=x".to_vec(),
    ]
}

pub(crate) fn dhcp_offers() -> Vec<Vec<u8>> {
    let words: [[u8; 4]; 11] = [
        [10, 0, 2, 15],
        [10, 0, 2, 2],
        [255, 255, 255, 0],
        [0, 0, 14, 16],
        [0, 0, 24, 156],
        [0, 0, 28, 32],
        [10, 0, 2, 2],
        [192, 168, 0, 0],
        [0, 0, 0, 16],
        [10, 0, 2, 3],
        [0, 0, 0, 1],
    ];
    vec![words.concat()]
}

/// Version 4, a server of stratum 2, the present time.
pub(crate) fn time_answers() -> Vec<Vec<u8>> {
    let mut packet = vec![0; 48];
    packet[0] = (4 << 3) | 4;
    packet[1] = 2;
    for stamp in [16, 32, 40] {
        packet[stamp..stamp + 4].copy_from_slice(&0xed00_0000_u32.to_be_bytes());
    }
    vec![packet]
}

pub(crate) fn client_certificates() -> Vec<Vec<u8>> {
    use instar_pki::{CertificateAuthority, Role};
    use std::time::{Duration, SystemTime};
    let now = SystemTime::now();
    let issued = CertificateAuthority::generate(now)
        .and_then(|authority| authority.issue_client(&[Role::Admin], now, Duration::from_secs(60)));
    let der = issued.map(|issued| issued.der().to_vec());
    der.into_iter().collect()
}

pub(crate) fn etcd_snapshots() -> Vec<Vec<u8>> {
    vec![decoders::smallest_etcd_snapshot()]
}

pub(crate) fn ukis() -> Vec<Vec<u8>> {
    vec![instar_pe::smallest()]
}

pub(crate) fn events() -> Vec<Vec<u8>> {
    use instar_api::events::EventPayload;
    let payloads: [EventPayload; 2] = [
        wire::SequenceEvent {
            sequence: "upgrade".to_owned(),
            ..Default::default()
        }
        .into(),
        wire::MachineStatusEvent::default().into(),
    ];
    let event = |payload: EventPayload| wire::Event {
        data: Some(payload.pack()),
        ..Default::default()
    };
    payloads
        .map(|payload| event(payload).encode_to_vec())
        .to_vec()
}

/// A reply and a part of a stream, as another node sends them, in one piece and in many.
pub(crate) fn forwarded_answers() -> Vec<Vec<u8>> {
    let framed = |how: u8, message: Vec<u8>| {
        let length = u32::try_from(message.len()).unwrap_or_default();
        [&[how, 0][..], &length.to_be_bytes(), &message].concat()
    };
    let reply = wire::HostnameResponse {
        messages: vec![wire::Hostname {
            hostname: "other".to_owned(),
            ..Default::default()
        }],
    };
    let part = instar_api::common::Data {
        bytes: b"a line\n".to_vec(),
        ..Default::default()
    };
    vec![
        framed(0xfe, reply.encode_to_vec()),
        framed(0x02, reply.encode_to_vec()),
        framed(0xff, part.encode_to_vec()),
    ]
}
