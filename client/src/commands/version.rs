//! `version`: the versions of the client and of the nodes.

use instar_api::machine::ReleaseInfo;
use instar_client::Failure;
use serde_json::json;

use crate::cli::Global;
use crate::each_node::each_node;

const CLIENT: &str = concat!("v", env!("CARGO_PKG_VERSION"));

pub(super) async fn run(global: &Global) -> Result<(), Failure> {
    each_node(global, async |node| {
        let version = node.version().await?;
        let info = version.version.unwrap_or_default();
        let platform = version.platform.unwrap_or_default();
        // A node of an earlier version tells nothing.
        let release = version.release.as_ref();
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
                text.push_str(&release.map_or_else(String::new, about));
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
                    "image": release.map(|release| &release.image),
                    "digest": release.map(|release| &release.digest),
                    "created": release.map(|release| &release.created),
                    "floor": release.map(|release| &release.floor),
                    "rbac": version.features.is_some_and(|features| features.rbac),
                })
            },
        )?;
        Ok(())
    })
    .await
}

/// Returns the lines about the image that the node's version came from, and about the floor.
fn about(release: &ReleaseInfo) -> String {
    let mut text = match release.digest.as_str() {
        "" => "\nimage   none is known: the version came from a medium".to_owned(),
        digest => format!("\nimage   {}\ndigest  {digest}", release.image),
    };
    for (name, value) in [("created", &release.created), ("floor", &release.floor)] {
        if !value.is_empty() {
            text.push_str(&format!("\n{name:<7} {value}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_is_told_if_it_is_known() {
        let medium = ReleaseInfo::default();
        assert_eq!(
            about(&medium),
            "\nimage   none is known: the version came from a medium"
        );
        let image = ReleaseInfo {
            image: "r.io/installer:v0.2.0".to_owned(),
            digest: "sha256:1".to_owned(),
            created: "2026-11-25T22:00:00Z".to_owned(),
            floor: "v0.1.0".to_owned(),
        };
        assert_eq!(
            about(&image),
            "\nimage   r.io/installer:v0.2.0\ndigest  sha256:1\ncreated 2026-11-25T22:00:00Z\nfloor   v0.1.0"
        );
    }
}
