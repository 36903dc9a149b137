//! Another machine config for a machine that runs: what is taken over live, what waits, what is taken back.

use std::time::Duration;

use anyhow::ensure;
use instar_tests::{
    Greeter, ImageUnderTest, Instarctl, Node, Outcome, Registry, Scratch, Test, push_greeter, tests,
};

use crate::PATIENCE;

const FIRST_PORT: u16 = 8080;
const SECOND_PORT: u16 = 8081;

pub(crate) fn tests() -> Vec<Test> {
    tests![is_changed_while_the_machine_runs]
}

/// One boot for all: each step begins where the one before ended.
async fn is_changed_while_the_machine_runs(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    push_greeter(&registry)?;
    let host = registry.host_for_guest();
    let image = format!("{host}/greeter:v1");
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .blank_disk()?
        .forward(FIRST_PORT)
        .forward(SECOND_PORT)
        .configure({
            let (image, host) = (image.clone(), host.clone());
            move |config| {
                config
                    .install_disk("/dev/vda")
                    .registry(&host)
                    .greeter_at("first", &image, FIRST_PORT, "")
            }
        })
        .boot()
        .await?;
    node.wait_until_ready(PATIENCE).await?;
    let config = node.config().to_owned();
    let client = Instarctl::of(&node, &scratch)?;
    let apply = async |yaml: &str, more: &[&str]| {
        let file = scratch.write("next.yaml", yaml)?;
        let file = file.display().to_string();
        client
            .run(&[&["apply-config", "--file", &file], more].concat())
            .await
    };

    // Bad input changes nothing.
    let said = apply(&config.replace("hostname:", "hostnam:"), &[]).await?;
    ensure!(
        said.code != Some(0) && said.complaint.contains("hostnam"),
        "{said:?}"
    );
    let renamed = config.replace("hostname: node", "hostname: renamed");
    let said = apply(&renamed, &["--dry-run"]).await?;
    ensure!(
        said.output.contains("nothing was changed")
            && said.output.contains("the host name")
            && said
                .output
                .contains("-hostname: node\n+hostname: renamed\n"),
        "{said:?}"
    );
    ensure!(node.hostname().await? == "node");
    let said = apply(
        &config.replace("/dev/vda", "/dev/vdb"),
        &["--mode", "no-reboot"],
    )
    .await?;
    ensure!(
        said.code != Some(0) && said.complaint.contains("this takes a reboot: the disk"),
        "{said:?}"
    );

    // Where images come from is read at the next pull, while everything runs.
    let elsewhere = "mirrored.example/greeter:v1";
    let pid = node.service_pid("first").await?;
    let mirrored = |endpoint: &str| {
        format!(
            "{config}---\napiVersion: v1alpha1\nkind: RegistryMirrorConfig\nname: mirrored.example\nendpoints:\n  - url: http://{endpoint}\nskipFallback: true\n"
        )
    };
    // Nobody listens there.
    let said = apply(&mirrored("127.0.0.1:9"), &["--mode", "no-reboot"]).await?;
    ensure!(
        said.code == Some(0) && said.output.contains("taken over now: registries"),
        "{said:?}"
    );
    let said = client.run(&["image", "pull", elsewhere]).await?;
    ensure!(said.code != Some(0), "{said:?}");
    let said = apply(&mirrored(&host), &[]).await?;
    ensure!(
        said.output
            .contains("Applied without a reboot: taken over now: registries."),
        "{said:?}"
    );
    let said = client.run(&["image", "pull", elsewhere]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    ensure!(
        node.service_pid("first").await? == pid,
        "the container was started again"
    );

    // Tried, and taken back by itself.
    let said = apply(&renamed, &["--mode", "try", "--timeout", "3s"]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    node.wait_until("it has its new name", PATIENCE, async || {
        ensure!(node.hostname().await? == "renamed");
        Ok(())
    })
    .await?;
    node.wait_until("it has its old name again", PATIENCE, async || {
        ensure!(node.hostname().await? == "node");
        Ok(())
    })
    .await?;

    // Tried, and confirmed.
    apply(&renamed, &["--mode", "try", "--timeout", "3s"]).await?;
    let said = apply(&renamed, &[]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    tokio::time::sleep(Duration::from_secs(4)).await;
    ensure!(
        node.hostname().await? == "renamed",
        "a confirmed trial was taken back"
    );

    // A container more; the other one is not touched. Then the first one goes.
    let (first, second) = (
        Greeter::at(&node, FIRST_PORT)?,
        Greeter::at(&node, SECOND_PORT)?,
    );
    first.greets()?;
    let pid = node.service_pid("first").await?;
    let more = format!(
        "{renamed}---\napiVersion: v1alpha1\nkind: ContainerConfig\nname: second\nimage: {image}\nargs: [\"{SECOND_PORT}\"]\nnetwork: {{mode: host}}\n"
    );
    let said = apply(&more, &[]).await?;
    ensure!(
        said.output.contains("containers started: second"),
        "{said:?}"
    );
    node.wait_until("the second container answers", PATIENCE, async || {
        second.greets()
    })
    .await?;
    first.greets()?;
    ensure!(
        node.service_pid("first").await? == pid,
        "the first container was started again"
    );
    let said = apply(&more.replace("name: first", "name: third"), &[]).await?;
    ensure!(
        said.output.contains("containers removed: first"),
        "{said:?}"
    );

    // Kept for the next boot.
    let staged = more.replace("hostname: renamed", "hostname: staged");
    let said = apply(&staged, &["--mode", "staged"]).await?;
    ensure!(
        said.output.contains("Kept for the next reboot") && said.output.contains("fw_cfg"),
        "{said:?}"
    );
    ensure!(node.hostname().await? == "renamed");
    Ok(())
}
