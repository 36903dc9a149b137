//! Compiles `proto/` without protoc: protox parses, tonic-prost-build writes the messages, clients and servers.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use prost::Message;
use prost_types::{FileDescriptorSet, MethodDescriptorProto};

/// Every file with a service or a package of its own; imports are included.
const FILES: [&str; 28] = [
    "machine/machine.proto",
    "machine/lifecycle.proto",
    "machine/storage.proto",
    "storage/storage.proto",
    "security/security.proto",
    "time/time.proto",
    "cluster/cluster.proto",
    "inspect/inspect.proto",
    "instar/bundle.proto",
    "instar/image_pins.proto",
    "instar/image_updates.proto",
    "instar/metrics.proto",
    "instar/node_certificate.proto",
    "instar/temporary_registry.proto",
    "instar/upgrade.proto",
    "instar/upgrade_follow.proto",
    "cosi/resource/state.proto",
    "cosi/resource/meta.proto",
    "resource/definitions/block.proto",
    "resource/definitions/cluster.proto",
    "resource/definitions/config.proto",
    "resource/definitions/hardware.proto",
    "resource/definitions/instar.proto",
    "resource/definitions/network.proto",
    "resource/definitions/runtime.proto",
    "resource/definitions/secrets.proto",
    "resource/definitions/security.proto",
    "resource/definitions/v1alpha1.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(FILES, ["proto"])?;
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    fs::write(
        out.join("descriptors.bin"),
        bare(&descriptors).encode_to_vec(),
    )?;
    fs::write(
        out.join("streaming_methods.rs"),
        format!("&{:?}", methods(&descriptors, |it| it.server_streaming())),
    )?;
    fs::write(
        out.join("upload_methods.rs"),
        format!("&{:?}", methods(&descriptors, |it| it.client_streaming())),
    )?;
    fs::write(out.join("requests.rs"), requests(&descriptors))?;
    tonic_prost_build::configure()
        // A method that a server leaves out returns UNIMPLEMENTED, as the interface demands.
        .generate_default_stubs(true)
        .compile_fds(descriptors)?;
    Ok(())
}

/// The paths of some methods, sorted.
fn methods(
    descriptors: &FileDescriptorSet,
    is_wanted: impl Fn(&MethodDescriptorProto) -> bool,
) -> Vec<String> {
    let mut paths = Vec::new();
    for file in &descriptors.file {
        for service in &file.service {
            let wanted = service.method.iter().filter(|it| is_wanted(it));
            paths.extend(wanted.map(|method| {
                let (package, service) = (file.package(), service.name());
                format!("/{package}.{service}/{}", method.name())
            }));
        }
    }
    paths.sort_unstable();
    paths
}

/// A macro that names the messages of all requests, so that code for each of them needs no list of its own.
fn requests(descriptors: &FileDescriptorSet) -> String {
    let services = descriptors.file.iter().flat_map(|file| &file.service);
    let mut messages: Vec<String> = services
        .flat_map(|service| &service.method)
        .map(|method| method.input_type().trim_start_matches('.'))
        .filter(|name| *name != "google.protobuf.Empty")
        .map(|name| format!("$crate::{}", name.replace('.', "::")))
        .collect();
    messages.sort_unstable();
    messages.dedup();
    let messages = messages.join(", ");
    format!(
        "/// Calls a macro with the types of all requests, sorted, but without `google.protobuf.Empty`.\n\
        #[macro_export]\n\
        macro_rules! with_all_requests {{ ($called:ident) => {{ $called![{messages}] }}; }}\n"
    )
}

/// The descriptors without comments and positions, which is half of the bytes: they go into every machine.
fn bare(descriptors: &FileDescriptorSet) -> FileDescriptorSet {
    let mut bare = descriptors.clone();
    for file in &mut bare.file {
        file.source_code_info = None;
    }
    bare
}
