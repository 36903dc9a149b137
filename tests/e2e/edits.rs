//! `instarctl patch` and `edit`: parts of a machine config change, and the rest keeps its text.

use std::cell::RefCell;

use anyhow::{Context as _, Result, ensure};
use instar_tests::{
    ImageUnderTest, Instarctl, Node, Outcome, Release, Said, Scratch, Talosctl, Test, chapters,
    tests,
};

use crate::PATIENCE;

const SIZE: (u16, u16) = (160, 50);

/// A document with comments, which stay.
const TIME: &str = "# of the cellar\napiVersion: v1alpha1\nkind: TimeSyncConfig\nenabled: false # no server there\n";
/// A patch of one document.
const HOSTNAME: &str = "apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: patched\n";

/// A document of a kind that Talos does not have.
const GATE: &str =
    "apiVersion: instar.dev/v1alpha1\nkind: UpgradeGateConfig\ntimeout: 90s # long enough\n";

pub(crate) fn tests() -> Vec<Test> {
    tests![edits_and_patches_change_what_they_name_and_keep_the_rest]
}

async fn edits_and_patches_change_what_they_name_and_keep_the_rest(scratch: Scratch) -> Outcome {
    let story = Story::begin(&scratch).await?;
    let editor = Editor::of(&story)?;
    chapters![
        patches_change_what_they_name(&story),
        operations_are_done_all_or_none(&story),
        edits_change_what_the_editor_changes(&editor),
        talosctl_leaves_what_it_is_not_shown(&story, Release::V1_13, "edited", "older"),
        talosctl_leaves_what_it_is_not_shown(&story, Release::V1_14, "older", "newer"),
    ]
    .await
}

async fn patches_change_what_they_name(story: &Story<'_>) -> Outcome {
    let names = "machine: {certSANs: [lamp.example]}\n";
    let names = story.scratch.write("names.yaml", names)?;
    let names = format!("@{}", names.display());
    let two = ["patch", "mc", "--patch", &names, "-p", HOSTNAME];
    chapters![
        a_dry_run_shows_the_change_and_makes_none(story, &two),
        two_patches_at_once_change_two_documents(story, &two),
        a_patch_of_what_is_there_applies_nothing(story),
        the_same_patch_again_keeps_what_it_tried(story),
        a_key_that_the_node_does_not_know_changes_nothing(story),
    ]
    .await
}

async fn operations_are_done_all_or_none(story: &Story<'_>) -> Outcome {
    chapters![
        an_operation_that_fails_takes_the_others_with_it(story),
        operations_on_a_list_change_that_list(story),
    ]
    .await
}

async fn edits_change_what_the_editor_changes(editor: &Editor<'_>) -> Outcome {
    chapters![
        an_editor_that_changes_nothing_applies_nothing(editor),
        an_edit_is_applied(editor),
        an_editor_that_fails_leaves_no_files(editor),
        an_edit_that_is_refused_is_not_lost(editor),
    ]
    .await
}

/// talosctl edits and patches the node's name, and keeps the documents that it is not shown.
async fn talosctl_leaves_what_it_is_not_shown(
    story: &Story<'_>,
    release: Release,
    name: &str,
    next: &str,
) -> Outcome {
    let talosctl = Talosctl::of(&story.node, release).await?;
    let (edited, patched) = (format!("{next}-edited"), format!("{next}-patched"));
    chapters![
        talosctl_is_shown_no_document_of_ours(story, &talosctl),
        talosctl_renames_and_keeps_the_rest(story, &talosctl, "edit mc", (name, &edited)),
        talosctl_renames_and_keeps_the_rest(story, &talosctl, "patch mc", (name, &patched)),
        a_name_is_patched_once_more(story, next),
    ]
    .await
}

/// A node whose config has a comment, and a document of a kind that Talos does not have.
struct Story<'a> {
    scratch: &'a Scratch,
    node: Node,
    client: Instarctl,
}

impl<'a> Story<'a> {
    async fn begin(scratch: &'a Scratch) -> Result<Self> {
        let node = Node::plan(scratch, &ImageUnderTest::first()?)
            .configure(|config| config.document(TIME).document(GATE))
            .boot()
            .await?;
        node.wait_until_ready(PATIENCE).await?;
        Ok(Self {
            scratch,
            client: Instarctl::of(&node, scratch)?,
            node,
        })
    }

    /// The config in force.
    async fn config(&self) -> Result<String> {
        let get = ["get", "mc", "v1alpha1", "-o", "json"];
        let said = self.client.run(&get).await?;
        let said: serde_json::Value = serde_json::from_str(&said.output).context(said.complaint)?;
        Ok(said["spec"].as_str().context("no text")?.to_owned())
    }

    async fn patch(&self, patch: &str) -> Result<Said> {
        self.client.run(&["patch", "mc", "-p", patch]).await
    }

    /// Waits for this host name: machined's network applies it a moment after the config.
    async fn is_called(&self, name: &str) -> Outcome {
        self.node
            .wait_until("it has another name", PATIENCE, async || {
                let called = self.node.hostname().await?;
                ensure!(called == name, "it is called {called}");
                Ok(())
            })
            .await
    }
}

async fn a_dry_run_shows_the_change_and_makes_none(story: &Story<'_>, patch: &[&str]) -> Outcome {
    let before = story.config().await?;
    ensure!(before.contains("# of the cellar"), "{before}");
    let dry = [patch, &["--dry-run"]].concat();
    let said = story.client.run(&dry).await?;
    ensure!(said.code == Some(0), "{said:?}");
    ensure!(said.output.contains("+hostname: patched"), "{said:?}");
    ensure!(story.config().await? == before, "a dry run changed it");
    Ok(())
}

/// One of the patches is from a file.
async fn two_patches_at_once_change_two_documents(story: &Story<'_>, patch: &[&str]) -> Outcome {
    let before = story.config().await?;
    let said = story.client.run(patch).await?;
    ensure!(said.code == Some(0), "{said:?}");
    story.is_called("patched").await?;
    let after = story.config().await?;
    let expected = before
        .replace("hostname: node", "hostname: patched")
        .replace("    - 127.0.0.1\n", "    - 127.0.0.1\n    - lamp.example\n");
    ensure!(after == expected, "{after}");
    Ok(())
}

/// The patch sets a value: a list would grow again.
async fn a_patch_of_what_is_there_applies_nothing(story: &Story<'_>) -> Outcome {
    let before = story.config().await?;
    let said = story.patch(HOSTNAME).await?;
    ensure!(said.code == Some(0), "{said:?}");
    ensure!(said.output.contains("nothing applied"), "{said:?}");
    let after = story.config().await?;
    ensure!(after == before, "a patch of what is there changed it");
    Ok(())
}

/// It changes nothing of the config in force, which the node would take back.
async fn the_same_patch_again_keeps_what_it_tried(story: &Story<'_>) -> Outcome {
    let before = story.config().await?;
    let tried = HOSTNAME.replace("patched", "tried");
    let trial = ["patch", "mc", "-p", &tried, "--mode", "try"];
    let said = story.client.run(&trial).await?;
    ensure!(said.code == Some(0), "{said:?}");
    for expected in ["Applied without a reboot", "nothing applied"] {
        let said = story.patch(&tried).await?;
        ensure!(said.output.contains(expected), "{said:?}");
    }
    story.patch(HOSTNAME).await?;
    ensure!(story.config().await? == before, "another text came back");
    Ok(())
}

/// Returns a patch of two operations that succeed, and this last one.
fn operations(last: &str) -> String {
    format!(
        "[{{op: test, path: /machine/certSANs/1, value: lamp.example}}, {{op: replace, path: /machine/certSANs/1, value: fan.example}}, {last}]"
    )
}

async fn an_operation_that_fails_takes_the_others_with_it(story: &Story<'_>) -> Outcome {
    let before = story.config().await?;
    let failing = operations("{op: remove, path: /machine/nowhere}");
    let said = story.patch(&failing).await?;
    ensure!(said.code == Some(2), "{said:?}");
    let which = "operation 3 (remove \"/machine/nowhere\")";
    ensure!(said.complaint.contains(which), "{said:?}");
    let after = story.config().await?;
    ensure!(after == before, "a patch that failed changed it");
    Ok(())
}

async fn operations_on_a_list_change_that_list(story: &Story<'_>) -> Outcome {
    let before = story.config().await?;
    let good = operations("{op: add, path: /machine/certSANs/-, value: oven.example}");
    let said = story.patch(&good).await?;
    ensure!(said.code == Some(0), "{said:?}");
    let after = story.config().await?;
    let expected = before.replace(
        "    - lamp.example\n",
        "    - fan.example\n    - oven.example\n",
    );
    ensure!(after == expected, "{after}");
    Ok(())
}

/// The node refuses the config: the client does not check it.
async fn a_key_that_the_node_does_not_know_changes_nothing(story: &Story<'_>) -> Outcome {
    let before = story.config().await?;
    let said = story.patch("machine: {nonsense: 1}").await?;
    ensure!(said.code == Some(5), "{said:?}");
    ensure!(said.complaint.contains("nonsense"), "{said:?}");
    let after = story.config().await?;
    ensure!(after == before, "a refused patch changed it");
    Ok(())
}

/// `instarctl edit` on a terminal, with a folder of its own for its files.
struct Editor<'a> {
    story: &'a Story<'a>,
    files: Scratch,
}

impl<'a> Editor<'a> {
    fn of(story: &'a Story<'a>) -> Result<Self> {
        Ok(Self {
            story,
            files: story.scratch.below("edited")?,
        })
    }

    /// Edits the config with this program as the editor; returns the exit code, and the screen at the end.
    async fn edit(&self, program: &str) -> Result<(u32, String)> {
        let files = self.files.path().display().to_string();
        let usual = [("PATH", "/usr/bin:/bin"), ("TERM", "xterm")];
        let own = [("EDITOR", program), ("TMPDIR", &files)];
        let variables = [usual, own].concat();
        let Story { node, client, .. } = self.story;
        let terminal = RefCell::new(client.on_terminal(&["edit", "mc"], &variables, SIZE)?);
        let ended = async || terminal.borrow_mut().ended();
        let code = node
            .wait_until("the editor's work is done", PATIENCE, ended)
            .await?;
        let screen = terminal.borrow().screen();
        Ok((code, screen))
    }

    fn files_left(&self) -> Result<usize> {
        Ok(std::fs::read_dir(self.files.path())?.count())
    }
}

async fn an_editor_that_changes_nothing_applies_nothing(editor: &Editor<'_>) -> Outcome {
    let before = editor.story.config().await?;
    let (code, screen) = editor.edit("true").await?;
    ensure!(code == 0, "{code}: {screen}");
    ensure!(screen.contains("nothing applied"), "{screen}");
    let after = editor.story.config().await?;
    ensure!(after == before, "an editor that changes nothing changed it");
    Ok(())
}

async fn an_edit_is_applied(editor: &Editor<'_>) -> Outcome {
    let before = editor.story.config().await?;
    let (code, screen) = editor.edit("sed -i s/patched/edited/").await?;
    ensure!(code == 0, "{code}: {screen}");
    editor.story.is_called("edited").await?;
    let after = editor.story.config().await?;
    ensure!(after == before.replace("patched", "edited"), "{after}");
    Ok(())
}

async fn an_editor_that_fails_leaves_no_files(editor: &Editor<'_>) -> Outcome {
    let (code, screen) = editor.edit("false").await?;
    ensure!(
        code == 1 && screen.contains("nothing was applied"),
        "{code}: {screen}"
    );
    ensure!(editor.files_left()? == 0, "files with secrets were left");
    Ok(())
}

async fn an_edit_that_is_refused_is_not_lost(editor: &Editor<'_>) -> Outcome {
    let (code, screen) = editor.edit("sed -i s/hostname:/hostnam:/").await?;
    ensure!(
        code == 5 && screen.contains("apply-config --file"),
        "{code}: {screen}"
    );
    ensure!(editor.files_left()? == 1, "what was written is lost");
    ensure!(editor.story.node.hostname().await? == "edited");
    Ok(())
}

/// Returns the config without the document of a kind that Talos does not have.
fn as_shown(whole: &str) -> String {
    whole.replace(&format!("---\n{GATE}"), "")
}

async fn talosctl_is_shown_no_document_of_ours(
    story: &Story<'_>,
    talosctl: &Talosctl<'_>,
) -> Outcome {
    let said = talosctl.run("health --wait-timeout 60").await;
    ensure!(said.code == Some(0), "{said:?}");
    let whole = story.config().await?;
    let shown = as_shown(&whole);
    ensure!(shown != whole, "{whole}");
    let said = talosctl.run_with("edit mc", &shown).await;
    ensure!(said.output == "no changes\n", "{said:?}");
    Ok(())
}

/// Renames the node, and renames it back.
async fn talosctl_renames_and_keeps_the_rest(
    story: &Story<'_>,
    talosctl: &Talosctl<'_>,
    command: &str,
    (from, to): (&str, &str),
) -> Outcome {
    let whole = story.config().await?;
    let shown = as_shown(&whole);
    let said = talosctl.run_with(command, &shown.replace(from, to)).await;
    ensure!(said.code == Some(0), "{said:?}");
    let warning = "WARNING: UpgradeGateConfig: ";
    ensure!(said.complaint.contains(warning), "{said:?}");
    story.is_called(to).await?;
    let renamed = story.config().await?;
    ensure!(renamed == whole.replace(from, to), "{renamed}");
    let back = talosctl.run_with(command, &shown).await;
    ensure!(back.code == Some(0), "{back:?}");
    story.is_called(from).await?;
    ensure!(story.config().await? == whole, "it is not as it was");
    Ok(())
}

async fn a_name_is_patched_once_more(story: &Story<'_>, name: &str) -> Outcome {
    let said = story.patch(&HOSTNAME.replace("patched", name)).await?;
    ensure!(said.code == Some(0), "{said:?}");
    story.is_called(name).await
}
