//! `instarctl patch` and `edit`: parts of a machine config changed, the rest as it was written.

use std::cell::RefCell;

use anyhow::{Context as _, ensure};
use instar_tests::{ImageUnderTest, Instarctl, Node, Outcome, Scratch, Test, tests};

use crate::PATIENCE;

const SIZE: (u16, u16) = (160, 50);

pub(crate) fn tests() -> Vec<Test> {
    tests![change_what_they_name_and_keep_the_rest]
}

/// Names are changed by whoever has the network, after the config was taken.
async fn is_called(node: &Node, name: &str) -> Outcome {
    node.wait_until("it has another name", PATIENCE, async || {
        let called = node.hostname().await?;
        ensure!(called == name, "it is called {called}");
        Ok(())
    })
    .await
}

async fn change_what_they_name_and_keep_the_rest(scratch: Scratch) -> Outcome {
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .configure(|config| {
            config.document(
                "# of the cellar\napiVersion: v1alpha1\nkind: TimeSyncConfig\nenabled: false # no server there\n",
            )
        })
        .boot()
        .await?;
    node.wait_until_ready(PATIENCE).await?;
    let client = Instarctl::of(&node, &scratch)?;
    let config = async || -> anyhow::Result<String> {
        let said = client.run(&["get", "mc", "v1alpha1", "-o", "json"]).await?;
        let said: serde_json::Value = serde_json::from_str(&said.output).context(said.complaint)?;
        Ok(said["spec"].as_str().context("no text")?.to_owned())
    };
    let before = config().await?;
    ensure!(before.contains("# of the cellar"), "{before}");

    // Two patches at once, one from a file, of two documents.
    let file = scratch.write(
        "names.yaml",
        "machine: {certSANs: [lamp.example]}
",
    )?;
    let file = format!("@{}", file.display());
    let hostname = "apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: patched\n";
    let patch = ["patch", "mc", "--patch", &file, "-p", hostname];
    let said = client.run(&[&patch[..], &["--dry-run"]].concat()).await?;
    ensure!(
        said.code == Some(0) && said.output.contains("+hostname: patched"),
        "{said:?}"
    );
    ensure!(config().await? == before, "a dry run changed it");
    let said = client.run(&patch).await?;
    ensure!(said.code == Some(0), "{said:?}");
    is_called(&node, "patched").await?;
    let after = config().await?;
    let expected = before
        .replace("hostname: node", "hostname: patched")
        .replace("    - 127.0.0.1\n", "    - 127.0.0.1\n    - lamp.example\n");
    ensure!(after == expected, "{after}");
    // A list would grow again, a value is there already.
    let said = client.run(&["patch", "mc", "-p", hostname]).await?;
    ensure!(
        said.code == Some(0) && said.output.contains("nothing applied"),
        "{said:?}"
    );

    // Operations, of which one that fails takes the others with it.
    let operations = |last: &str| {
        format!(
            "[{{op: test, path: /machine/certSANs/1, value: lamp.example}}, {{op: replace, path: /machine/certSANs/1, value: fan.example}}, {last}]"
        )
    };
    let failing = operations("{op: remove, path: /machine/nowhere}");
    let said = client.run(&["patch", "mc", "-p", &failing]).await?;
    ensure!(
        said.code == Some(2)
            && said
                .complaint
                .contains("operation 3 (remove \"/machine/nowhere\")"),
        "{said:?}"
    );
    ensure!(config().await? == after, "a patch that failed changed it");
    let good = operations("{op: add, path: /machine/certSANs/-, value: oven.example}");
    let said = client.run(&["patch", "mc", "-p", &good]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    let before = after;
    let after = config().await?;
    ensure!(
        after
            == before.replace(
                "    - lamp.example\n",
                "    - fan.example\n    - oven.example\n"
            ),
        "{after}"
    );

    // What the node does not know is its word, and changes nothing.
    let said = client
        .run(&["patch", "mc", "-p", "machine: {nonsense: 1}"])
        .await?;
    ensure!(
        said.code == Some(5) && said.complaint.contains("nonsense"),
        "{said:?}"
    );
    ensure!(config().await? == after, "a refused patch changed it");

    // The same by hand.
    let temporary = scratch.below("edited")?;
    let files = temporary.path().display().to_string();
    let edit = async |editor: &str| -> anyhow::Result<(u32, String)> {
        let variables = [
            ("EDITOR", editor),
            ("PATH", "/usr/bin:/bin"),
            ("TERM", "xterm"),
            ("TMPDIR", &files),
        ];
        let terminal = client.on_terminal(&["edit", "mc"], &variables, SIZE)?;
        let terminal = RefCell::new(terminal);
        let code = node
            .wait_until("the editor's work is done", PATIENCE, async || {
                terminal.borrow_mut().ended()
            })
            .await?;
        let screen = terminal.borrow().screen();
        Ok((code, screen))
    };
    let left = || std::fs::read_dir(temporary.path()).map(Iterator::count);
    let (code, screen) = edit("true").await?;
    ensure!(
        code == 0 && screen.contains("nothing applied"),
        "{code}: {screen}"
    );
    let (code, screen) = edit("sed -i s/patched/edited/").await?;
    ensure!(code == 0, "{code}: {screen}");
    is_called(&node, "edited").await?;
    ensure!(config().await? == after.replace("patched", "edited"));
    let (code, screen) = edit("false").await?;
    ensure!(
        code == 1 && screen.contains("nothing was applied"),
        "{code}: {screen}"
    );
    ensure!(left()? == 0, "files with secrets were left");
    let (code, screen) = edit("sed -i s/hostname:/hostnam:/").await?;
    ensure!(
        code == 5 && screen.contains("apply-config --file"),
        "{code}: {screen}"
    );
    ensure!(left()? == 1, "what was written is lost");
    ensure!(node.hostname().await? == "edited");
    Ok(())
}
