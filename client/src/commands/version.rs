//! `version`: the versions of the client and of the nodes.

use instar_client::Failure;
use serde_json::json;

use crate::cli::Global;
use crate::target;

const CLIENT: &str = concat!("v", env!("CARGO_PKG_VERSION"));

pub(super) async fn run(global: &Global) -> Result<(), Failure> {
    for node in target::all(global).await? {
        let version = node.version().await?;
        let info = version.version.unwrap_or_default();
        let platform = version.platform.unwrap_or_default();
        global.output.show(
            || {
                let mut text = format!(
                    "client  {CLIENT}\nnode    {}  {}/{}  {}",
                    info.tag,
                    info.os,
                    info.arch,
                    node.name()
                );
                if !platform.name.is_empty() {
                    text.push_str(&format!("  {} ({})", platform.name, platform.mode));
                }
                text
            },
            || {
                json!({
                    "client": CLIENT,
                    "node": node.name(),
                    "version": info.tag,
                    "sha": info.sha,
                    "built": info.built,
                    "os": info.os,
                    "arch": info.arch,
                    "platform": platform.name,
                    "mode": platform.mode,
                    "rbac": version.features.is_some_and(|features| features.rbac),
                })
            },
        )?;
    }
    Ok(())
}
