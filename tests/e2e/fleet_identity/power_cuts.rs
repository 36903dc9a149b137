//! A rotation over machines whose power is cut in the middle of each of its steps. The command is killed with them, as where a whole site goes dark,
//! and the same command goes on when they are back.

use anyhow::{Context as _, Result, ensure};
use instar_pki::Role;
use instar_tests::{
    Identity, ImageUnderTest, Instarctl, MachineConfig, Node, Outcome, Scratch, chapters,
};

use super::{
    Fleet, MEMORY_MIB, NAMES, keyless, the_machine_without_a_key_is_signed_for,
    the_new_authority_signs_from_now_on, the_old_client_is_refused_and_the_new_one_is_not,
};
use crate::PATIENCE;

/// The line of the command at which the power is cut, and the machine that loses it: the next one that is changed, or the one that just was.
const CUTS: [(&str, usize); 6] = [
    ("lamp-1: accepts the new authority", 1),
    ("client configuration: has a certificate", 0),
    ("lamp-1: belongs to the new authority", 1),
    ("lamp-2: belongs to the new authority", 1),
    ("lamp-2: has its certificate", 1),
    ("lamp-1: accepts the old authority no more", 0),
];
/// Cuts that must have happened: a machine that was changed and then lost its power spares the command the line of the next one.
const AT_LEAST: usize = 4;

pub(super) async fn a_rotation_goes_on_after_power_cuts(scratch: Scratch) -> Outcome {
    let fleet = boot(&scratch).await?;
    chapters![
        the_machine_without_a_key_is_signed_for(&fleet, &scratch),
        the_secrets_are_those_of_the_fleet(&fleet, &scratch),
    ]
    .await?;
    let fleet = every_step_is_cut(fleet).await?;
    chapters![
        the_same_command_comes_to_its_end(&fleet),
        the_old_client_is_refused_and_the_new_one_is_not(&fleet),
        the_new_authority_signs_from_now_on(&fleet),
    ]
    .await
}

/// Machines with a disk. Their configs are there alone: one that comes with each boot would have the old authority again.
async fn boot(scratch: &Scratch) -> Result<Fleet> {
    let old = Identity::administrator()?;
    let with_key = MachineConfig::new(&old).hostname(NAMES[0]);
    let without = keyless(&old, NAMES[1]);
    let first = install(scratch, NAMES[0], with_key, &old).await?;
    let second = install(scratch, NAMES[1], without, &old).await?;
    Fleet::of(scratch, old, [first, second], &[])
}

async fn install(
    scratch: &Scratch,
    name: &str,
    config: MachineConfig,
    old: &Identity,
) -> Result<Node> {
    let config = config.install_disk("/dev/vda").to_yaml();
    let config = scratch.write(&format!("{name}.yaml"), config)?;
    let node = Node::plan(scratch, &ImageUnderTest::first()?)
        .name(name)
        .memory_mib(MEMORY_MIB)
        .blank_disk()?
        .without_config(old.with_role(Role::Admin)?.believing_any_node())
        .start()?;
    let (client, file) = (Instarctl::of(&node, scratch)?, config.display().to_string());
    client.bring_first_config(&node, &file, PATIENCE).await?;
    node.wait_until_ready(PATIENCE).await?;
    Ok(node)
}

async fn the_secrets_are_those_of_the_fleet(fleet: &Fleet, scratch: &Scratch) -> Outcome {
    fleet.gen_their_secrets(scratch).await
}

/// At each moment the client configuration reaches all machines that are up.
async fn every_step_is_cut(mut fleet: Fleet) -> Result<Fleet> {
    let (mut next, mut cuts) = (0, 0);
    while next < CUTS.len()
        && let Some(seen) = comes_to_a_cut(&fleet, next)?
    {
        fleet = cut(fleet, CUTS[seen].1).await?;
        (next, cuts) = (seen + 1, cuts + 1);
    }
    ensure!(cuts >= AT_LEAST, "{cuts} cuts, and the rotation has ended");
    Ok(fleet)
}

/// Runs the command until it tells one of the lines from this one on, and kills it; returns which line that was. None if it has come to its end.
fn comes_to_a_cut(fleet: &Fleet, from: usize) -> Result<Option<usize>> {
    let of_line = |line: &str| {
        let mut lines = CUTS.iter().enumerate().skip(from);
        lines.find(|(_, (begin, _))| line.starts_with(begin))
    };
    let mut rotation = fleet.client.follow(&fleet.arguments(&[]))?;
    let is_meant = |line: &str| of_line(line).is_some() || line.starts_with("rotated: ");
    let line = rotation.wait_for("the next step", PATIENCE, is_meant)?;
    println!("{line}");
    Ok(of_line(&line).map(|(number, _)| number))
}

async fn cut(fleet: Fleet, machine: usize) -> Result<Fleet> {
    let [first, second] = fleet.nodes;
    let nodes = match machine {
        0 => [first.turn_off_and_on()?, second],
        _ => [first, second.turn_off_and_on()?],
    };
    let fleet = Fleet { nodes, ..fleet };
    let node = fleet.nodes.get(machine).context("no machine")?;
    let reached = async || fleet.reaches_both().await;
    let what = "both are reached";
    node.wait_until(what, PATIENCE, reached).await?;
    Ok(fleet)
}

async fn the_same_command_comes_to_its_end(fleet: &Fleet) -> Outcome {
    let said = fleet.rotate(&[]).await?;
    ensure!(said.code == Some(0), "{said:#?}");
    ensure!(said.output.contains("rotated: "), "{said:#?}");
    ensure!(!said.output.contains("left with"), "{said:#?}");
    fleet.reaches_both().await
}
