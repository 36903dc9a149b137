//! `config new`: a client configuration from the node's authority.

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use instar_api::machine::GenerateClientConfigurationRequest;
use instar_client::Failure;

use crate::cli::Global;
use crate::output::print_bytes;
use crate::{private_file, target};

pub(super) async fn run(
    global: &Global,
    file: &Path,
    roles: Vec<String>,
    lifetime: Duration,
    force: bool,
) -> Result<(), Failure> {
    let is_stdout = file == Path::new("-");
    if !is_stdout {
        private_file::check_free(file, force)?;
    }
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
    if is_stdout {
        return print_bytes(&made.talosconfig);
    }
    let written = private_file::create(file, force)?.write_all(&made.talosconfig);
    written.map_err(|error| Failure::io(format!("cannot write {}", file.display()), error))?;
    global.output.show(
        || format!("wrote {}", file.display()),
        || serde_json::json!({ "node": node.name(), "file": file }),
    )
}
