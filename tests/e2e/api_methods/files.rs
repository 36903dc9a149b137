//! Files of the node: listed, printed, copied and counted.

use anyhow::{Context as _, ensure};
use instar_tests::{Outcome, chapters};
use serde_json::Value;

use super::AskedNode;

pub(super) async fn its_files_are_shown(asked: &AskedNode) -> Outcome {
    chapters![
        directories_are_listed(asked),
        a_file_is_printed(asked),
        directories_are_copied_whole(asked),
        files_are_copied(asked),
        disk_usage_adds_up(asked),
    ]
    .await
}

async fn directories_are_listed(asked: &AskedNode) -> Outcome {
    let root = asked.names(&["ls", "/"]).await?;
    ensure!(root[0] == ".", "{root:?}");
    for name in ["etc", "proc", "usr", "var"] {
        ensure!(root.iter().any(|other| other == name), "{name}: {root:?}");
    }
    // The name may be shown, the content below it may not.
    let system = asked.names(&["ls", "/system", "--recurse"]).await?;
    ensure!(system == [".", "state"], "{system:?}");
    let links = asked.names(&["ls", "/etc", "--type", "l"]).await?;
    ensure!(links.contains(&"os-release".to_owned()), "{links:?}");
    let said = asked.instarctl.run(&["ls", "-l", "/dev/null"]).await?;
    ensure!(said.output.starts_with("crw"), "{said:?}");
    Ok(())
}

async fn a_file_is_printed(asked: &AskedNode) -> Outcome {
    let release = asked.instarctl.run(&["cat", "/etc/os-release"]).await?;
    ensure!(release.output.contains("ID=instar"), "{release:?}");
    Ok(())
}

async fn directories_are_copied_whole(asked: &AskedNode) -> Outcome {
    asked.greeter.write_to_var("copied")?;
    let target = asked.scratch.join("copied");
    let into = target.to_string_lossy().into_owned();
    asked.lines(&["cp", "/var", &into]).await?;
    let copied = std::fs::read_to_string(target.join("copied"))?;
    ensure!(copied == "written by greeter\n", "{copied}");
    // Whole images, links and owners included, are copied as well.
    ensure!(target.join("lib/instar/images").is_dir());
    // Statistics of the kernel are copied whole, whatever size they report.
    asked.lines(&["cp", "/sys/fs/cgroup", &into]).await?;
    let controllers = std::fs::read_to_string(target.join("cgroup.controllers"))?;
    ensure!(controllers.contains("memory"), "{controllers}");
    Ok(())
}

async fn files_are_copied(asked: &AskedNode) -> Outcome {
    let target = asked.scratch.join("copied");
    let into = target.to_string_lossy().into_owned();
    let file = "/usr/lib/instar/image.json";
    asked.lines(&["cp", file, &into]).await?;
    let copied = std::fs::read_to_string(target.join("image.json"))?;
    ensure!(copied.contains("\"version\":"), "{copied}");
    Ok(())
}

async fn disk_usage_adds_up(asked: &AskedNode) -> Outcome {
    let usage = asked.lines(&["du", "--depth", "1", "/var"]).await?;
    let bytes = |line: &Value| line["bytes"].as_u64().unwrap_or(0);
    let (whole, parts) = usage.split_last().context("du said nothing")?;
    ensure!(whole["name"] == "/var", "{usage:?}");
    ensure!(bytes(whole) > 100_000, "{usage:?}");
    let sum: u64 = parts.iter().map(bytes).sum();
    ensure!(sum <= bytes(whole), "{usage:?}");
    let has_lib = parts.iter().any(|line| line["name"] == "/var/lib");
    ensure!(has_lib, "{usage:?}");
    Ok(())
}
