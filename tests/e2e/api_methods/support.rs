//! The support bundle: all that a helper needs, in one file.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use instar_tests::{GREETER, Node, Outcome, chapters};
use serde_json::json;

use super::{AskedNode, member, members};

pub(super) async fn support_collects_what_there_is(asked: &AskedNode) -> Outcome {
    chapters![
        var_has_room(asked),
        logs_are_listed(asked),
        no_dependencies_are_told(asked),
        everything_is_in_one_file_and_no_secret(asked),
    ]
    .await
}

async fn var_has_room(asked: &AskedNode) -> Outcome {
    let filesystems = asked.one(&["diskfree"]).await?;
    let var = member(&filesystems["filesystems"], "mounted_on", "/var")?;
    ensure!(var["size"].as_u64() > Some(1 << 30), "{var}");
    ensure!(var["inodes_used"].as_u64() > Some(0), "{var}");
    Ok(())
}

async fn logs_are_listed(asked: &AskedNode) -> Outcome {
    let logs = asked.one(&["logs"]).await?;
    ensure!(members(&logs["logs"]).contains(&json!("apid")), "{logs}");
    Ok(())
}

async fn no_dependencies_are_told(asked: &AskedNode) -> Outcome {
    let edges = asked.one(&["inspect", "dependencies"]).await?;
    ensure!(edges["edges"] == json!([]), "{edges}");
    Ok(())
}

async fn everything_is_in_one_file_and_no_secret(asked: &AskedNode) -> Outcome {
    let file = asked.scratch.join("support.tar.gz");
    let path = file.display().to_string();
    let support = ["support", "--file", &path];
    let said = asked.one(&support).await?;
    ensure!(said["missing"] == json!([]), "{said}");
    asked.refuses(&support, "exists").await?;
    let parts = unpack_texts(&file)?;
    every_part_is_there(&parts)?;
    no_key_is_in(&parts, &asked.node)
}

/// The files of a packed archive, by their paths.
pub(crate) type Texts = BTreeMap<String, String>;

pub(crate) fn unpack_texts(archive: &Path) -> Result<Texts> {
    let packed = flate2::read::GzDecoder::new(std::fs::File::open(archive)?);
    let mut texts = Texts::new();
    for entry in tar::Archive::new(packed).entries()? {
        let mut entry = entry?;
        let mut text = String::new();
        std::io::Read::read_to_string(&mut entry, &mut text)?;
        texts.insert(entry.path()?.display().to_string(), text);
    }
    Ok(texts)
}

/// Parts of a support file, and a word in each.
const SUPPORT_PARTS: [(&str, &str); 7] = [
    ("version.txt", "v0.1.0"),
    ("kernel.log", "machined: booted v0.1.0"),
    ("services.txt", GREETER),
    ("logs/machined.log", "boot"),
    ("events.txt", "SequenceEvent"),
    ("processes.txt", "/usr/sbin/machined"),
    (
        "resources/MachineStatuses.runtime.talos.dev.yaml",
        "stage: running",
    ),
];

fn every_part_is_there(parts: &Texts) -> Outcome {
    for (name, word) in SUPPORT_PARTS {
        let text = parts.get(&format!("127.0.0.1/{name}"));
        let text = text.with_context(|| format!("no {name}: {:?}", parts.keys()))?;
        ensure!(text.contains(word), "no {word} in {name}: {text}");
    }
    Ok(())
}

fn no_key_is_in(parts: &Texts, node: &Node) -> Outcome {
    let identity = node.identity();
    for secret in [identity.authority_key(), identity.key.clone()] {
        let encoded = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, &secret);
        for (name, text) in parts {
            ensure!(!text.contains(&secret), "a key is in {name}");
            ensure!(!text.contains(&encoded), "a key is in {name}");
        }
    }
    Ok(())
}
