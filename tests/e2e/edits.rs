//! `instarctl patch` and `edit`: parts of a machine config changed, the rest as it was written.

use std::cell::RefCell;

use anyhow::{Context as _, ensure};
use instar_tests::{
    ImageUnderTest, Instarctl, Node, Outcome, Release, Scratch, Talosctl, Test, tests,
};

use crate::PATIENCE;

const SIZE: (u16, u16) = (160, 50);

/// Of a kind that Talos does not have.
const GATE: &str =
    "apiVersion: instar.dev/v1alpha1\nkind: UpgradeGateConfig\ntimeout: 90s # long enough\n";

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
            .document(GATE)
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

    // Talos's own client does it too, in either release, and leaves what it is not shown.
    let mut called = "edited".to_owned();
    for (release, next) in [(Release::V1_13, "older"), (Release::V1_14, "newer")] {
        let talosctl = Talosctl::of(&node, release).await?;
        let said = talosctl.run("health --wait-timeout 60").await;
        ensure!(said.code == Some(0), "{said:?}");
        let whole = config().await?;
        let shown = whole.replace(&format!("---\n{GATE}"), "");
        ensure!(shown != whole, "{whole}");
        let said = talosctl.run_with("edit mc", &shown).await;
        ensure!(said.output == "no changes\n", "{said:?}");
        for command in ["edit mc", "patch mc"] {
            let (from, to) = (called.clone(), format!("{next}-{}", &command[..4]));
            let said = talosctl.run_with(command, &shown.replace(&from, &to)).await;
            ensure!(
                said.code == Some(0) && said.complaint.contains("WARNING: UpgradeGateConfig: "),
                "{said:?}"
            );
            is_called(&node, &to).await?;
            ensure!(config().await? == whole.replace(&from, &to));
            let back = talosctl.run_with(command, &shown).await;
            ensure!(back.code == Some(0), "{back:?}");
            is_called(&node, &from).await?;
        }
        let said = client
            .run(&["patch", "mc", "-p", &hostname.replace("patched", next)])
            .await?;
        ensure!(said.code == Some(0), "{said:?}");
        called = next.to_owned();
        is_called(&node, &called).await?;
    }

    // Settings that nothing applies yet need no reboot, and so no disk either.
    for (mode, value) in [("no-reboot", "1"), ("auto", "2")] {
        let token = format!("machine: {{token: abcde{value}.0123456789abcdef}}");
        let said = client
            .run(&["patch", "mc", "-p", &token, "--mode", mode])
            .await?;
        ensure!(
            said.code == Some(0)
                && said.output.contains("kept, not served yet: the token")
                && said.output.contains("machine.token"),
            "{said:?}"
        );
    }
    Ok(())
}
