//! A config that names no card of the machine.

use anyhow::{Result, ensure};
use instar_tests::{
    ImageUnderTest, Instarctl, Node, Outcome, Said, Scratch, Test, chapters, tests,
};

use crate::PATIENCE;

/// A card's name elsewhere; here it is `eth0`.
const ELSEWHERE: &str = "apiVersion: v1alpha1\nkind: DHCPv4Config\nname: enp1s0\n";

pub(crate) fn tests() -> Vec<Test> {
    tests![a_machine_whose_card_has_another_name_can_be_reached_and_mended]
}

async fn a_machine_whose_card_has_another_name_can_be_reached_and_mended(
    scratch: Scratch,
) -> Outcome {
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .configure(|config| config.document(ELSEWHERE))
        .boot()
        .await?;
    let client = Instarctl::of(&node, &scratch)?;
    chapters![
        its_problems_name_both_names(&node, &client),
        another_wrong_name_is_warned_of(&node, &scratch, &client),
        the_right_name_makes_it_ready(&node, &scratch, &client),
    ]
    .await
}

async fn apply(scratch: &Scratch, client: &Instarctl, config: &str, more: &[&str]) -> Result<Said> {
    let file = scratch.write("next.yaml", config)?.display().to_string();
    let command = [&["apply-config", "--file", &file], more].concat();
    client.run(&command).await
}

async fn its_problems_name_both_names(node: &Node, client: &Instarctl) -> Outcome {
    node.wait_until("it says why it is not ready", PATIENCE, async || {
        let said = client.run(&["get", "diagnostics", "-o", "yaml"]).await?;
        let names = ["enp1s0", "eth0"];
        let are_there = names.iter().all(|name| said.output.contains(name));
        ensure!(are_there, "{said:?}");
        Ok(())
    })
    .await
}

/// Before anything changes.
async fn another_wrong_name_is_warned_of(
    node: &Node,
    scratch: &Scratch,
    client: &Instarctl,
) -> Outcome {
    let other = node.config().replace("name: enp1s0", "name: enp2s0");
    let said = apply(scratch, client, &other, &["--dry-run"]).await?;
    let warning = "links that the machine does not have: enp2s0";
    ensure!(said.output.contains(warning), "{said:?}");
    Ok(())
}

async fn the_right_name_makes_it_ready(
    node: &Node,
    scratch: &Scratch,
    client: &Instarctl,
) -> Outcome {
    let mended = node.config().replace("name: enp1s0", "name: eth0");
    let said = apply(scratch, client, &mended, &[]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    node.wait_until_ready(PATIENCE).await
}
