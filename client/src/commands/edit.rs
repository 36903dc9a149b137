//! `edit`: changes a node's machine config in an editor.

use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use instar_client::{Failure, FailureKind};
use tokio::signal::unix::{SignalKind, signal};

use super::apply_config::apply;
use super::patch::{nothing_applied, read_config};
use crate::cli::{Edit, Global};
use crate::each_node::each_node;

/// The editor that every system has.
const USUAL_EDITOR: &str = "vi";

pub(super) async fn run(global: &Global, arguments: &Edit) -> Result<(), Failure> {
    let editor = editor(|name| std::env::var_os(name));
    let mut was_interrupted = false;
    each_node(global, async |node| {
        // Ctrl-C ends an editor and asks for no other one.
        if was_interrupted {
            return Err(Failure::new(
                FailureKind::Failed,
                "not edited: the command was interrupted",
            ));
        }
        let config = read_config(node, &arguments.which.id).await?;
        // Readable for its owner alone: the config holds the authority's key.
        let file = tempfile::Builder::new()
            .prefix("instarctl-edit-")
            .suffix(".yaml")
            .tempfile()
            .and_then(|mut file| file.write_all(config.as_bytes()).map(|()| file))
            .map_err(|error| Failure::io("cannot write a file to edit", error))?;
        // Ctrl-C is meant for the editor, which shares the terminal with us: if it ended us, a file with secrets would be left, and the
        // change lost.
        let _for_the_editor = [SignalKind::interrupt(), SignalKind::quit()].map(signal);
        open(&editor, file.path())?;
        // Read by its path: many editors replace the file by a new one.
        let edited = std::fs::read(file.path())
            .map_err(|error| Failure::io("cannot read the file that was edited", error))?;
        if edited == config.as_bytes() || edited.trim_ascii().is_empty() {
            nothing_applied(global, node)?;
            return Ok(());
        }
        let applied = tokio::select! {
            applied = apply(global, node, edited, arguments.how) => applied,
            () = interrupted() => {
                was_interrupted = true;
                Err(Failure::new(FailureKind::Failed, "interrupted; the node may have taken the config"))
            }
        };
        if let Err(failure) = applied {
            let path = file.into_temp_path();
            let kept = path.keep().map_err(|error| {
                Failure::io("cannot keep the file that was edited", error.error)
            })?;
            return Err(failure.advise(format!(
                "what you wrote is in {} (it holds secrets): mend it, and give it to the node with apply-config --file",
                kept.display()
            )));
        }
        Ok(())
    })
    .await
}

/// Returns at the first Ctrl-C from now on.
async fn interrupted() {
    match signal(SignalKind::interrupt()) {
        Ok(mut interrupts) => drop(interrupts.recv().await),
        Err(_) => std::future::pending().await,
    }
}

/// The user's editor, as a shell would choose it.
fn editor(variable: impl Fn(&str) -> Option<OsString>) -> OsString {
    ["VISUAL", "EDITOR"]
        .into_iter()
        .filter_map(variable)
        .find(|value| !value.is_empty())
        .unwrap_or_else(|| USUAL_EDITOR.into())
}

/// Opens the file in the editor and waits for its end. The editor may be several words, which the shell splits.
fn open(editor: &OsStr, file: &Path) -> Result<(), Failure> {
    let mut line = editor.to_owned();
    line.push(" \"$1\"");
    let name = editor.to_string_lossy();
    let status = Command::new("sh")
        .arg("-c")
        .arg(line)
        .arg("sh")
        .arg(file)
        .status()
        .map_err(|error| Failure::io(format!("cannot run the editor {name}"), error))?;
    if status.success() {
        return Ok(());
    }
    Err(Failure::new(
        FailureKind::Failed,
        format!("the editor {name} ended with {status}"),
    )
    .advise("nothing was applied; name another editor in $VISUAL or $EDITOR"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_editor_is_the_users() {
        let of = |visual: Option<&str>, editor_: Option<&str>| {
            editor(|name| {
                let value = if name == "VISUAL" { visual } else { editor_ };
                value.map(OsString::from)
            })
        };
        assert_eq!(of(Some("code --wait"), Some("ed")), "code --wait");
        assert_eq!(of(Some(""), Some("ed")), "ed");
        assert_eq!(of(None, None), "vi");
    }

    #[test]
    fn an_editor_has_words_and_may_fail() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("with space.yaml");
        std::fs::write(&file, "a: 1\n").unwrap();
        open(OsStr::new("sed -i s/1/2/"), &file).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "a: 2\n");
        assert!(open(OsStr::new("false"), &file).is_err());
        assert!(open(OsStr::new("/no/such/editor"), &file).is_err());
    }
}
