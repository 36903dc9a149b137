//! The partitions that a reset wipes, and those that it keeps.

use std::path::Path;

use anyhow::{Result, ensure};
use instar_pki::Role;
use instar_qemu::{ConsoleMark, DiskFormat, create_blank_disk};
use instar_tests::{
    Identity, Instarctl, MachineConfig, Node, Outcome, Release, Scratch, Talosctl, chapters,
};

use super::{GIB, plan};
use crate::PATIENCE;

/// A machine whose config is in no firmware: a reset that erases STATE leaves it without one.
struct ResetMachine {
    node: Node,
    client: Instarctl,
    /// The config's file.
    file: String,
    /// The console's end before the last start.
    mark: ConsoleMark,
}

impl ResetMachine {
    fn start(scratch: &Scratch) -> Result<Self> {
        create_blank_disk(&scratch.join("disk.img"), DiskFormat::Raw, GIB)?;
        let identity = Identity::administrator()?;
        let config = MachineConfig::new(&identity).hostname("reset-me");
        let config = config.install_disk("/dev/vda").to_yaml();
        let file = scratch.write("config.yaml", config)?;
        let node = plan(scratch)?.without_config(identity).start()?;
        Ok(Self {
            client: Instarctl::of(&node, scratch)?,
            mark: node.vm().console_mark()?,
            file: file.display().to_string(),
            node,
        })
    }

    /// Applies the config to the machine that waits for one; its /var then is `new)` or `reused)`.
    async fn configure(&mut self, var: &str) -> Outcome {
        let (node, mark) = (&self.node, self.mark);
        for line in [
            "no machine config: maintenance mode",
            "the API answers on port",
        ] {
            node.vm().wait_for_line_after(mark, line, PATIENCE)?;
        }
        node.wait_until("it takes a config", PATIENCE, || self.takes_the_config())
            .await?;
        self.finds_var(var)?;
        node.wait_until_ready(PATIENCE).await?;
        self.mark = node.vm().console_mark()?;
        Ok(())
    }

    async fn takes_the_config(&self) -> Outcome {
        let (address, file) = (self.node.endpoint()?, &self.file);
        let apply = ["apply-config", "--insecure", "-n", &address, "-f", file];
        let said = self.client.run(&apply).await?;
        ensure!(said.code == Some(0), "{said:?}");
        Ok(())
    }

    fn finds_var(&self, state: &str) -> Outcome {
        let line = "/var is the partition /dev/vda3";
        let vm = self.node.vm();
        let line = vm.wait_for_line_after(self.mark, line, PATIENCE)?.text;
        ensure!(line.contains(state), "{line}");
        Ok(())
    }
}

pub(super) async fn a_machine_goes_on_after_a_reset_as_a_new_one(scratch: Scratch) -> Outcome {
    let mut machine = ResetMachine::start(&scratch)?;
    machine.configure("new)").await?;
    chapters![
        a_reset_of_state_leaves_what_is_on_ephemeral(&mut machine),
        a_reset_of_the_disk_leaves_nothing(&mut machine),
        others_do_not_reboot_the_machine(&machine.node),
        after_a_reset_of_ephemeral_the_machine_knows_who_it_is(&machine),
    ]
    .await
}

async fn a_reset_of_state_leaves_what_is_on_ephemeral(machine: &mut ResetMachine) -> Outcome {
    let talosctl = Talosctl::of(&machine.node, Release::V1_13).await?;
    let said = talosctl
        .run("reset --reboot --system-labels-to-wipe STATE")
        .await;
    ensure!(said.code == Some(0), "{said:#?}");
    machine.configure("reused)").await
}

async fn a_reset_of_the_disk_leaves_nothing(machine: &mut ResetMachine) -> Outcome {
    let reset = ["reset", "--reboot", "--graceful=false"];
    let said = machine.client.run(&reset).await?;
    ensure!(said.code == Some(0), "{said:?}");
    machine.configure("new)").await
}

async fn after_a_reset_of_ephemeral_the_machine_knows_who_it_is(machine: &ResetMachine) -> Outcome {
    let node = &machine.node;
    let talosctl = Talosctl::of(node, Release::V1_14).await?;
    let said = talosctl
        .run("reset --reboot --action-first --graceful=false --system-labels-to-wipe EPHEMERAL")
        .await;
    ensure!(said.code == Some(0), "{said:#?}");
    node.wait_for_api(PATIENCE).await?;
    machine.finds_var("new)")?;
    ensure!(node.hostname().await? == "reset-me");
    Ok(())
}

async fn others_do_not_reboot_the_machine(node: &Node) -> Outcome {
    chapters![
        who_may_only_look_does_not_reboot_the_machine(node),
        who_shows_no_certificate_is_not_answered(node),
    ]
    .await
}

async fn who_may_only_look_does_not_reboot_the_machine(node: &Node) -> Outcome {
    let reader = node.identity().with_role(Role::Reader)?;
    let reader = Talosctl::by(node, &reader, Release::V1_14).await?;
    let said = reader.run("reboot").await;
    ensure!(said.code == Some(1), "{said:?}");
    ensure!(said.complaint.contains("not authorized"), "{said:?}");
    Ok(())
}

async fn who_shows_no_certificate_is_not_answered(node: &Node) -> Outcome {
    let said = match Talosctl::insecure(node, Release::V1_13).await {
        Ok(nobody) => nobody.run("version").await.code,
        Err(_) => Some(1),
    };
    ensure!(
        said == Some(1),
        "somebody without a certificate is answered"
    );
    Ok(())
}

/// No wiped data can be read from the disk; the machine waits for a config, as a new one does.
pub(super) async fn the_disk_forgets_what_a_reset_wipes(scratch: Scratch) -> Outcome {
    let disk = scratch.join("disk.img");
    create_blank_disk(&disk, DiskFormat::Raw, GIB)?;
    let plan = plan(&scratch)?.configure(with_the_mark);
    let node = plan.name("first").boot().await?;
    let client = Instarctl::of(&node, &scratch)?;
    chapters![
        the_config_is_on_the_disk(&node, &disk),
        a_partition_of_no_known_name_is_not_wiped(&client),
        state_and_ephemeral_are_wiped(&client, &node),
        the_config_is_not_on_the_disk(&disk),
        without_a_config_the_machine_waits_for_one(&scratch, node.end()),
    ]
    .await
}

/// A name that is only in the config.
const MARK: &str = "a-name-that-is-only-in-the-config";

fn with_the_mark(config: MachineConfig) -> MachineConfig {
    config
        .install_disk("/dev/vda")
        .document(&format!("apiVersion: v1alpha1\nkind: UserVolumeConfig\nname: data\nvolumeType: directory\n# {MARK}\n"))
}

fn holds_the_mark(disk: &Path) -> Result<bool> {
    let bytes = std::fs::read(disk)?;
    Ok(bytes.windows(MARK.len()).any(|it| it == MARK.as_bytes()))
}

async fn the_config_is_on_the_disk(node: &Node, disk: &Path) -> Outcome {
    node.wait_until_ready(PATIENCE).await?;
    let is_there = holds_the_mark(disk)?;
    ensure!(is_there, "the config is not on the disk at all");
    Ok(())
}

async fn a_partition_of_no_known_name_is_not_wiped(client: &Instarctl) -> Outcome {
    let reset = ["reset", "--system-labels-to-wipe", "BOOT"];
    let said = client.run(&reset).await?;
    ensure!(said.code != Some(0), "{said:?}");
    let names = "EFI, STATE and EPHEMERAL";
    ensure!(said.complaint.contains(names), "{said:?}");
    Ok(())
}

async fn state_and_ephemeral_are_wiped(client: &Instarctl, node: &Node) -> Outcome {
    let reset = ["reset", "--system-labels-to-wipe", "STATE,EPHEMERAL"];
    let said = client.run(&reset).await?;
    ensure!(said.code == Some(0), "{said:?}");
    ensure!(node.vm().wait_for_end(PATIENCE)?.is_clean());
    Ok(())
}

async fn the_config_is_not_on_the_disk(disk: &Path) -> Outcome {
    ensure!(!holds_the_mark(disk)?, "the config is still on the disk");
    Ok(())
}

async fn without_a_config_the_machine_waits_for_one(
    scratch: &Scratch,
    identity: Identity,
) -> Outcome {
    let plan = plan(scratch)?.name("second").without_config(identity);
    plan.start()?.wait_for_line("maintenance mode", PATIENCE)?;
    Ok(())
}
