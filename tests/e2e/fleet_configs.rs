//! A change of machine configs over a fleet with `instarctl fleet apply`.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use instar_pki::Role;
use instar_tests::{
    Identity, ImageUnderTest, Instarctl, MachineConfig, Node, Outcome, Said, Scratch, Test,
    chapters, fleet_file, tests,
};
use serde_json::Value;

use crate::PATIENCE;

const MEMORY_MIB: u32 = 384;
const NAMES: [&str; 3] = ["lamp-1", "lamp-2", "lamp-3"];
const LIFETIME: Duration = Duration::from_secs(1200);
/// `instarctl`'s exit codes.
const REFUSED: i32 = 5;
const ROLLED_BACK: i32 = 6;

/// A change that is in force at once.
const GOOD: &str = "machine: {sysctls: {vm.swappiness: \"42\"}}";
/// With it a machine has an address that nobody reaches, and no other.
const CUT_OFF: &str =
    "apiVersion: v1alpha1\nkind: LinkConfig\nname: eth0\naddresses: [{address: 192.0.2.9/24}]\n";
/// With it a machine is never ready: nobody has the image.
const NEVER_READY: &str =
    "apiVersion: v1alpha1\nkind: ContainerConfig\nname: web\nimage: 127.0.0.1:9/web:v1\n";
/// The same disk by other words, which only a boot reads.
const OTHER_WORDS: &str = "apiVersion: v1alpha1\nkind: UnattendedInstallConfig\nprovisioning:\n  diskSelector:\n    match: disk.dev_path == \"/dev/vda\" && true\n";

const FILE: &str = "apiVersion: v1alpha1\nkind: EtcFileConfig\nname: issue\n";

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_change_goes_from_machine_to_machine,
        a_change_that_only_a_boot_applies_takes_a_reboot,
    ]
}

/// Machines, and the command with its folder.
struct Fleet {
    nodes: Vec<Node>,
    client: Instarctl,
    file: String,
    state: String,
}

async fn a_change_goes_from_machine_to_machine(scratch: Scratch) -> Outcome {
    let fleet = Fleet::boot(&scratch).await?;
    chapters![
        a_dry_run_changes_nothing(&fleet),
        a_change_that_a_machine_refuses_begins_nowhere(&fleet),
        a_command_that_is_killed_goes_on(&fleet),
        the_same_change_is_there_already(&fleet),
        a_machine_that_is_cut_off_comes_back_by_itself(&fleet),
        a_machine_that_is_not_ready_goes_back_at_once(&fleet),
        the_first_change_is_taken_back(&fleet),
        a_folder_has_a_whole_config_for_each_machine(&fleet, &scratch),
    ]
    .await
}

impl Fleet {
    async fn boot(scratch: &Scratch) -> anyhow::Result<Self> {
        let authority = Identity::administrator()?;
        let mut nodes = Vec::new();
        for name in NAMES {
            nodes.push(machine(scratch, name, &authority)?);
        }
        for node in &nodes {
            node.wait_until_ready(PATIENCE * 3).await?;
        }
        Self::of(scratch, nodes)
    }

    fn of(scratch: &Scratch, nodes: Vec<Node>) -> anyhow::Result<Self> {
        let first = nodes.first().context("no machine")?;
        let addresses: Result<Vec<_>, _> = nodes.iter().map(Node::endpoint).collect();
        let file = fleet_file(scratch, NAMES.iter().zip(addresses?))?;
        Ok(Self {
            client: Instarctl::of(first, scratch)?,
            file: file.display().to_string(),
            state: scratch.join("fleet").display().to_string(),
            nodes,
        })
    }

    /// The arguments of `apply`.
    fn arguments<'a>(&'a self, patch: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        let what = ["fleet", "apply", "--patch", patch, "--fleet", &self.file];
        let how = ["--state", &self.state, "--try-for", trial_of(patch)];
        [&what[..], &how, more].concat()
    }

    async fn apply(&self, patch: &str, more: &[&str]) -> anyhow::Result<Said> {
        let said = self.client.run(&self.arguments(patch, more)).await?;
        println!("{}{}", said.output, said.complaint);
        Ok(said)
    }

    /// The steps of the machines, in their order.
    async fn steps(&self) -> anyhow::Result<Vec<String>> {
        let status = ["fleet", "status", "--state", &self.state, "-o", "json"];
        let said = self.client.run(&status).await?;
        let status: Value = serde_json::from_str(&said.output)?;
        let nodes = status["nodes"].as_array().context("no nodes")?.iter();
        let steps = nodes.map(|node| node["step"].as_str().unwrap_or_default().to_owned());
        Ok(steps.collect())
    }

    /// Whether the config that each machine keeps, and the one in force, has these words.
    async fn all_have(&self, words: &str, expected: bool) -> Outcome {
        for (name, node) in NAMES.iter().zip(&self.nodes) {
            for id in ["v1alpha1", "persistent"] {
                let endpoint = node.endpoint()?;
                let get = ["-e", &endpoint, "get", "mc", id, "-o", "yaml"];
                let said = self.client.run_elsewhere(&get).await?;
                ensure!(said.code == Some(0), "{said:?}");
                let has = said.output.contains(words);
                ensure!(has == expected, "{name}, {id}: {}", said.output);
            }
        }
        Ok(())
    }
}

/// The trial of a config that cuts a machine off is short: the test waits for its end. Another one has time on a busy host.
fn trial_of(patch: &str) -> &'static str {
    match patch {
        CUT_OFF => "40s",
        _ => "90s",
    }
}

fn machine(scratch: &Scratch, name: &str, authority: &Identity) -> anyhow::Result<Node> {
    let config = MachineConfig::new(authority).hostname(name).to_yaml();
    Node::plan(scratch, &ImageUnderTest::first()?)
        .name(name)
        .memory_mib(MEMORY_MIB)
        .config(config, authority.with_role(Role::Admin)?)
        .spec(|spec| spec.deadline(LIFETIME))
        .start()
}

async fn a_dry_run_changes_nothing(fleet: &Fleet) -> Outcome {
    let said = fleet.apply(GOOD, &["--dry-run", "--canary", "1"]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    for words in ["begins now", "waits for lamp-1", "vm.swappiness"] {
        ensure!(said.output.contains(words), "{said:?}");
    }
    fleet.all_have("swappiness", false).await
}

async fn a_change_that_a_machine_refuses_begins_nowhere(fleet: &Fleet) -> Outcome {
    let said = fleet.apply("machine: {sysctls: 7}", &[]).await?;
    ensure!(said.code == Some(REFUSED), "{said:?}");
    ensure!(
        said.complaint.contains("nothing was begun: lamp-1"),
        "{said:?}"
    );
    fleet.all_have("sysctls", false).await
}

/// Killed while the first machine tries its config; that machine has gone back meanwhile, and tries it again.
async fn a_command_that_is_killed_goes_on(fleet: &Fleet) -> Outcome {
    let arguments = fleet.arguments(GOOD, &["--canary", "1", "--steady", "15s"]);
    let mut apply = fleet.client.follow(&arguments)?;
    let tries = |line: &str| line.contains("lamp-1") && line.contains("begins now");
    apply.wait_for("the first machine's turn", PATIENCE, tries)?;
    drop(apply);
    let said = fleet
        .apply(GOOD, &["--canary", "1", "--steady", "15s"])
        .await?;
    ensure!(said.code == Some(0), "{said:?}");
    ensure!(
        said.complaint.contains("goes on with the rollout"),
        "{said:?}"
    );
    ensure!(fleet.steps().await? == ["updated"; 3]);
    fleet.all_have("vm.swappiness: '42'", true).await
}

async fn the_same_change_is_there_already(fleet: &Fleet) -> Outcome {
    let said = fleet.apply(GOOD, &["--dry-run"]).await?;
    ensure!(
        said.output.matches("has the change").count() == 3,
        "{said:?}"
    );
    Ok(())
}

async fn a_machine_that_is_cut_off_comes_back_by_itself(fleet: &Fleet) -> Outcome {
    let said = fleet.apply(CUT_OFF, &["--roll-back"]).await?;
    ensure!(said.code == Some(ROLLED_BACK), "{said:?}");
    let words = "it goes back to its previous config by itself";
    ensure!(said.complaint.contains(words), "{said:?}");
    let steps = fleet.steps().await?;
    ensure!(steps == ["failed", "waiting", "waiting"], "{steps:?}");
    let first = fleet.nodes.first().context("no machine")?;
    first.wait_until_ready(PATIENCE).await?;
    fleet.all_have("192.0.2.9", false).await
}

async fn a_machine_that_is_not_ready_goes_back_at_once(fleet: &Fleet) -> Outcome {
    let said = fleet.apply(NEVER_READY, &[]).await?;
    ensure!(said.code == Some(1), "{said:?}");
    let words = "it has its previous config again";
    ensure!(said.complaint.contains(words), "{said:?}");
    ensure!(said.complaint.contains("web"), "{said:?}");
    fleet.all_have("ContainerConfig", false).await
}

async fn the_first_change_is_taken_back(fleet: &Fleet) -> Outcome {
    let other = GOOD.replace("42", "43");
    let said = fleet.apply(&other, &[]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    let back = ["fleet", "rollback", "--state", &fleet.state];
    let said = fleet.client.run(&back).await?;
    ensure!(said.code == Some(ROLLED_BACK), "{said:?}");
    ensure!(fleet.steps().await? == ["went back"; 3]);
    fleet.all_have("vm.swappiness: '42'", true).await
}

/// The configs of the beginning with a file below /etc, without the changes since.
async fn a_folder_has_a_whole_config_for_each_machine(fleet: &Fleet, scratch: &Scratch) -> Outcome {
    let folder = scratch.join("configs");
    std::fs::create_dir(&folder)?;
    for (name, node) in NAMES.iter().zip(&fleet.nodes) {
        let config = format!("{}---\n{FILE}", node.config());
        std::fs::write(folder.join(format!("{name}.yaml")), config)?;
    }
    let folder = folder.display().to_string();
    let whole = ["fleet", "apply", "--configs", &folder, "--at-once", "3"];
    let of = ["--fleet", &fleet.file, "--state", &fleet.state];
    let said = fleet.client.run(&[&whole[..], &of].concat()).await?;
    ensure!(said.code == Some(0), "{said:?}");
    fleet.all_have("kind: EtcFileConfig", true).await?;
    fleet.all_have("swappiness", false).await
}

async fn a_change_that_only_a_boot_applies_takes_a_reboot(scratch: Scratch) -> Outcome {
    let node = machine_with_a_disk(&scratch).await?;
    let fleet = Fleet::of(&scratch, vec![node])?;
    chapters![
        it_is_refused_where_no_reboot_is_allowed(&fleet),
        the_machine_reboots_and_keeps_it(&fleet),
    ]
    .await
}

/// Its config is on its disk, and nowhere else.
async fn machine_with_a_disk(scratch: &Scratch) -> anyhow::Result<Node> {
    let authority = Identity::administrator()?;
    let node = Node::plan(scratch, &ImageUnderTest::first()?)
        .blank_disk()?
        .without_config(authority.with_role(Role::Admin)?)
        .spec(|spec| spec.deadline(LIFETIME))
        .start()?;
    let config = MachineConfig::new(&authority).hostname(NAMES[0]);
    let config = config.install_disk("/dev/vda").to_yaml();
    let file = scratch.write("first.yaml", config)?.display().to_string();
    let client = Instarctl::of(&node, scratch)?;
    client.bring_first_config(&node, &file, PATIENCE).await?;
    node.wait_until_ready(PATIENCE).await?;
    Ok(node)
}

async fn it_is_refused_where_no_reboot_is_allowed(fleet: &Fleet) -> Outcome {
    let said = fleet.apply(OTHER_WORDS, &["--no-reboot"]).await?;
    ensure!(said.code == Some(REFUSED), "{said:?}");
    ensure!(
        said.complaint.contains("it would have to reboot"),
        "{said:?}"
    );
    fleet.all_have("&& true", false).await
}

async fn the_machine_reboots_and_keeps_it(fleet: &Fleet) -> Outcome {
    let first = fleet.nodes.first().context("no machine")?;
    let before = first.kernel_boot_id().await?;
    let said = fleet.apply(OTHER_WORDS, &[]).await?;
    ensure!(said.code == Some(0), "{said:?}");
    ensure!(fleet.steps().await? == ["updated"]);
    ensure!(first.kernel_boot_id().await? != before, "it did not reboot");
    fleet.all_have("&& true", true).await
}
