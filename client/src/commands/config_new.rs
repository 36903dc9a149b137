//! `config new`: a client configuration from the node's authority.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use instar_api::machine::GenerateClientConfigurationRequest;
use instar_client::Failure;

use crate::cli::Global;
use crate::output::print_bytes;
use crate::target;

pub(super) async fn run(
    global: &Global,
    file: &Path,
    roles: Vec<String>,
    lifetime: Duration,
) -> Result<(), Failure> {
    let node = target::one(global).await?;
    let request = GenerateClientConfigurationRequest {
        roles,
        crt_ttl: prost_types::Duration::try_from(lifetime).ok(),
    };
    let reply = node
        .machine()
        .generate_client_configuration(node.request(request))
        .await;
    let reply = reply.map_err(|status| node.explain("makes no client configuration", status))?;
    let made = node.only(reply.into_inner().messages)?;
    if file == Path::new("-") {
        return print_bytes(&made.talosconfig);
    }
    // The file holds a key: only its owner may read it, and it never replaces a file.
    let written = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file)
        .and_then(|mut file| file.write_all(&made.talosconfig));
    written.map_err(|error| Failure::io(format!("cannot write {}", file.display()), error))?;
    global.output.show(
        || format!("wrote {}", file.display()),
        || serde_json::json!({ "node": node.name(), "file": file }),
    )
}
