//! Certificates of a fleet without a control plane: a machine's request is signed by a person (`fleet sign`), and the authority of several
//! machines is replaced by another one (`fleet rotate`).

mod power_cuts;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, ensure};
use instar_api::instar::node_certificate_service_client::NodeCertificateServiceClient;
use instar_api::instar::{GrantCertificateRequest, ShowCertificateRequest};
use instar_api::machine::machine_service_client::MachineServiceClient;
use instar_pki::{
    CertificateAuthority, PrivateKey, ServerRequest, SubjectName, certificate_to_pem,
    request_for_server,
};
use instar_qemu::{DiskFormat, create_blank_disk};
use instar_tests::{
    Identity, ImageUnderTest, Instarctl, MachineConfig, Node, Outcome, Said, Scratch, Test,
    chapters, fleet_file, tests,
};
use serde_json::Value;
use tonic::Code;
use tonic::transport::Channel;

use crate::PATIENCE;

/// The memory of a machine.
const MEMORY_MIB: u32 = 384;
/// `instarctl`'s exit codes.
const REFUSED: i32 = 5;
const TIMED_OUT: i32 = 7;
const DAY: Duration = Duration::from_secs(24 * 3600);

pub(crate) fn tests() -> Vec<Test> {
    use power_cuts::a_rotation_goes_on_after_power_cuts;
    tests![
        a_person_signs_the_request_of_a_machine,
        the_authority_of_a_fleet_is_replaced,
        a_rotation_goes_on_after_power_cuts,
    ]
}

/// A config of this authority without its key.
fn keyless(authority: &Identity, name: &str) -> MachineConfig {
    let config = MachineConfig::new(authority).to_yaml();
    let lines = config.lines().filter(|line| !line.contains(" key: "));
    let config: String = lines.map(|line| format!("{line}\n")).collect();
    MachineConfig::from_yaml(&config.replace("controlplane", "worker")).hostname(name)
}

/// Writes an authority and its key, as `fleet sign` reads them.
fn authority_file(scratch: &Scratch, name: &str, authority: &Identity) -> Result<String> {
    let pem = authority.authority_certificate() + &authority.authority_key();
    Ok(scratch.write(name, pem)?.display().to_string())
}

async fn is_verified(node: &Node, who: &Identity) -> Outcome {
    let channel = node.way_in(who)?.connect().await?;
    MachineServiceClient::new(channel).version(()).await?;
    Ok(())
}

/// A machine without its authority's key, and the person who signs.
struct Signing {
    node: Node,
    client: Instarctl,
    authority: Identity,
    file: String,
    config: String,
}

impl Signing {
    fn begin(scratch: &Scratch) -> Result<Self> {
        let authority = Identity::administrator()?;
        let config = keyless(&authority, "lamp-1").install_disk("/dev/vda");
        let config = scratch.write("lamp-1.yaml", config.to_yaml())?;
        let node = in_maintenance_mode(scratch, authority.twin()?)?;
        Ok(Self {
            client: Instarctl::of(&node, scratch)?,
            file: authority_file(scratch, "authority.pem", &authority)?,
            config: config.display().to_string(),
            node,
            authority,
        })
    }

    async fn sign(&self, authority: &str, more: &[&str]) -> Result<Said> {
        let sign = ["fleet", "sign", "--authority", authority];
        let said = self.client.run(&[&sign[..], more].concat()).await?;
        println!("{}{}", said.output, said.complaint);
        Ok(said)
    }

    async fn sign_in_maintenance(&self, more: &[&str]) -> Result<Said> {
        let insecure = ["--insecure", "-n", self.client.endpoint()];
        self.sign(&self.file, &[&insecure[..], more].concat()).await
    }
}

fn in_maintenance_mode(scratch: &Scratch, identity: Identity) -> Result<Node> {
    let disk = scratch.join("disk.img");
    create_blank_disk(&disk, DiskFormat::Raw, 2 << 30)?;
    let node = Node::plan(scratch, &ImageUnderTest::first()?)
        .disk(&disk)
        .without_config(identity)
        .start()?;
    node.wait_for_line("the API answers on port", PATIENCE)?;
    Ok(node)
}

async fn a_person_signs_the_request_of_a_machine(scratch: Scratch) -> Outcome {
    let signing = Signing::begin(&scratch)?;
    chapters![
        nothing_is_signed_before_the_fingerprint_is_compared(&signing),
        certificate_and_config_are_handed_over_together(&signing),
        it_is_shown_who_signed_and_until_when(&signing),
        a_foreign_authority_is_refused(&signing, &scratch),
        what_is_for_another_machine_is_refused(&signing),
        the_next_one_takes_its_place_and_its_end_is_announced(&signing),
    ]
    .await?;
    it_is_kept_over_a_power_cut(signing).await
}

async fn nothing_is_signed_before_the_fingerprint_is_compared(signing: &Signing) -> Outcome {
    let said = signing.sign_in_maintenance(&[]).await?;
    ensure!(said.code == Some(REFUSED), "{said:#?}");
    let shown = signing.node.fingerprint_on_console()?;
    ensure!(said.complaint.contains(&shown), "{said:#?}");
    let wrong = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    let wrong = ["--cert-fingerprint", wrong];
    let said = signing.sign_in_maintenance(&wrong).await?;
    ensure!(said.code != Some(0), "{said:#?}");
    Ok(())
}

async fn certificate_and_config_are_handed_over_together(signing: &Signing) -> Outcome {
    let fingerprint = signing.node.fingerprint_on_console()?;
    let confirmed = ["--cert-fingerprint", &fingerprint, "--name", "lamp-1"];
    let with_config = [&confirmed[..], &["--apply", &signing.config]].concat();
    let said = signing.sign_in_maintenance(&with_config).await?;
    ensure!(said.code == Some(0), "{said:#?}");
    let verified = async || is_verified(&signing.node, &signing.authority).await;
    let what = "clients can verify it";
    signing.node.wait_until(what, PATIENCE, verified).await?;
    let names = instar_pki::server_names(&signing.node.shown_certificate().await?)?;
    ensure!(names.contains(&"lamp-1".into()), "{names:?}");
    signing.node.wait_until_ready(PATIENCE).await
}

async fn it_is_shown_who_signed_and_until_when(signing: &Signing) -> Outcome {
    let said = signing.client.run(&["get", "certificates", "-o", "json"]);
    let said = said.await?;
    ensure!(said.code == Some(0), "{said:#?}");
    let shown: Value = serde_json::from_str(&said.output)?;
    let spec = &shown["spec"];
    ensure!(spec["issuedBy"] == "person", "{shown:#}");
    ensure!(spec["daysLeft"] == 364, "{shown:#}");
    Ok(())
}

async fn a_foreign_authority_is_refused(signing: &Signing, scratch: &Scratch) -> Outcome {
    let before = signing.node.shown_certificate().await?;
    let foreign = authority_file(scratch, "foreign.pem", &Identity::administrator()?)?;
    let said = signing.sign(&foreign, &[]).await?;
    ensure!(said.code == Some(REFUSED), "{said:#?}");
    ensure!(
        said.complaint.contains("no authority of this machine"),
        "{said:#?}"
    );
    ensure!(
        signing.node.shown_certificate().await? == before,
        "another one"
    );
    Ok(())
}

type Api = NodeCertificateServiceClient<Channel>;

/// A certificate by the right authority.
fn signed(signing: &Signing, request: &str, names: &[&str]) -> Result<String> {
    let ours = &signing.authority;
    let pem = (ours.authority_certificate(), ours.authority_key());
    let authority = CertificateAuthority::from_pem(&pem.0, &pem.1)?;
    let mut request = ServerRequest::from_pem(request)?;
    request
        .names
        .extend(names.iter().map(|name| SubjectName::from(*name)));
    let signed = authority.sign_server(&request, SystemTime::now(), DAY)?;
    Ok(certificate_to_pem(&signed))
}

async fn what_is_for_another_machine_is_refused(signing: &Signing) -> Outcome {
    let before = signing.node.shown_certificate().await?;
    let mut api = NodeCertificateServiceClient::new(signing.node.channel().await?);
    let shown = api.show(ShowCertificateRequest {}).await?.into_inner();
    let other_name = signed(signing, &shown.csr, &["lamp-9"])?;
    is_refused(&mut api, other_name, "is for lamp-9").await?;
    let other_key = request_for_server(&PrivateKey::generate()?, &["lamp-1".into()])?;
    let other_key = signed(signing, &other_key, &[])?;
    is_refused(&mut api, other_key, "is for a key with the fingerprint").await?;
    let after = signing.node.shown_certificate().await?;
    ensure!(after == before, "another one");
    Ok(())
}

async fn is_refused(api: &mut Api, certificate: String, why: &str) -> Outcome {
    let request = GrantCertificateRequest {
        certificate,
        authority: String::new(),
    };
    let refused = api.grant(request).await.err().context("it was taken")?;
    ensure!(refused.code() == Code::InvalidArgument, "{refused}");
    ensure!(refused.message().contains(why), "{refused}");
    Ok(())
}

async fn the_next_one_takes_its_place_and_its_end_is_announced(signing: &Signing) -> Outcome {
    let before = signing.node.shown_certificate().await?;
    let said = signing.sign(&signing.file, &["--valid-for", "20d"]).await?;
    ensure!(said.code == Some(0), "{said:#?}");
    ensure!(!said.output.contains("memory"), "{said:#?}");
    let announced = "the API's certificate ends in 19 days";
    signing.node.wait_for_line(announced, PATIENCE)?;
    let after = signing.node.shown_certificate().await?;
    let fingerprint = instar_pki::public_key_fingerprint;
    ensure!(after != before, "the same certificate");
    ensure!(fingerprint(&after)? == fingerprint(&before)?, "another key");
    Ok(())
}

async fn it_is_kept_over_a_power_cut(signing: Signing) -> Outcome {
    let Signing {
        node, authority, ..
    } = signing;
    let before = node.shown_certificate().await?;
    let node = node.power_cycle().await?;
    let verified = async || is_verified(&node, &authority).await;
    node.wait_until("clients can verify it", PATIENCE, verified)
        .await?;
    ensure!(node.shown_certificate().await? == before, "another one");
    Ok(())
}

/// Machines with the authority's key and without, and a name of one that is off.
struct Fleet {
    nodes: [Node; 2],
    client: Instarctl,
    config: PathBuf,
    old: Identity,
    file: String,
    state: String,
    /// The file of `gen secrets`.
    secrets: String,
}

const NAMES: [&str; 2] = ["lamp-1", "lamp-2"];

impl Fleet {
    /// Two machines, and one at a port where nobody listens.
    async fn boot(scratch: &Scratch) -> Result<Self> {
        let old = Identity::administrator()?;
        let nodes = machines(scratch, &old).await?;
        Self::of(scratch, old, nodes, &[("lamp-3", "127.0.0.1:9")])
    }

    /// The fleet of these machines, and of others by their names and addresses.
    fn of(
        scratch: &Scratch,
        old: Identity,
        nodes: [Node; 2],
        others: &[(&str, &str)],
    ) -> Result<Self> {
        let config = old.client_config(&nodes[0].endpoint()?)?;
        let config = scratch.write("fleet-config", config)?;
        Ok(Self {
            client: Instarctl::of(&nodes[0], scratch)?.with_config(config.clone()),
            file: file_of(scratch, &nodes, others)?,
            state: scratch.join("fleet").display().to_string(),
            secrets: scratch.join("secrets.yaml").display().to_string(),
            nodes,
            config,
            old,
        })
    }

    fn arguments<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        let rotate = ["fleet", "rotate", "--fleet", &self.file];
        let files = ["--state", &self.state, "--secrets", &self.secrets];
        [&rotate[..], &files, more].concat()
    }

    async fn rotate(&self, more: &[&str]) -> Result<Said> {
        let said = self.client.run(&self.arguments(more)).await?;
        println!("{}{}", said.output, said.complaint);
        Ok(said)
    }

    /// Signs the request of the machine without the authority's key.
    async fn sign(&self, authority: &str, more: &[&str]) -> Outcome {
        let at = self.nodes[1].endpoint()?;
        let sign = ["fleet", "sign", "--authority", authority, "--endpoints"];
        let said = [&sign[..], &[&at], more].concat();
        let said = self.client.run_elsewhere(&said).await?;
        ensure!(said.code == Some(0), "{said:#?}");
        Ok(())
    }

    async fn gen_secrets(&self, more: &[&str]) -> Outcome {
        let secrets = ["gen", "secrets", "--output-file", &self.secrets];
        let said = self
            .client
            .run_elsewhere(&[&secrets[..], more].concat())
            .await?;
        ensure!(said.code == Some(0), "{said:#?}");
        Ok(())
    }

    /// Makes the file of secrets from the config of a machine.
    async fn gen_their_secrets(&self, scratch: &Scratch) -> Outcome {
        let config = MachineConfig::new(&self.old).to_yaml();
        let config = scratch.write("lamp.yaml", config)?.display().to_string();
        let from = ["--from-controlplane-config", &config];
        self.gen_secrets(&from).await
    }

    async fn reaches_both(&self) -> Outcome {
        let reached = self.is_reached_by(&self.config).await?;
        ensure!(reached == [true; 2], "{reached:?}");
        Ok(())
    }

    /// Whether this client configuration reaches both machines.
    async fn is_reached_by(&self, config: &Path) -> Result<[bool; 2]> {
        let client = self.client.with_config(config.to_path_buf());
        let mut reached = [false; 2];
        for (node, reached) in self.nodes.iter().zip(&mut reached) {
            let version = ["--endpoints", &node.endpoint()?, "version"].map(str::to_owned);
            let version: Vec<&str> = version.iter().map(String::as_str).collect();
            *reached = client.run_elsewhere(&version).await?.code == Some(0);
        }
        Ok(reached)
    }
}

async fn machines(scratch: &Scratch, old: &Identity) -> Result<[Node; 2]> {
    let with_key = MachineConfig::new(old).hostname(NAMES[0]).to_yaml();
    let without = keyless(old, NAMES[1]).to_yaml();
    let first = start(scratch, NAMES[0], with_key, old)?;
    let second = start(scratch, NAMES[1], without, old)?;
    first.wait_for_api(PATIENCE * 2).await?;
    second.wait_for_line("the API answers on port", PATIENCE * 2)?;
    Ok([first, second])
}

fn start(scratch: &Scratch, name: &str, yaml: String, old: &Identity) -> Result<Node> {
    Node::plan(scratch, &ImageUnderTest::first()?)
        .name(name)
        .memory_mib(MEMORY_MIB)
        .config(yaml, old.twin()?)
        .start()
}

fn file_of(
    scratch: &Scratch,
    [first, second]: &[Node; 2],
    others: &[(&str, &str)],
) -> Result<String> {
    let (first, second) = (first.endpoint()?, second.endpoint()?);
    let nodes: [(&str, &str); 2] = [(NAMES[0], &first), (NAMES[1], &second)];
    let nodes = [others, &nodes].concat();
    Ok(fleet_file(scratch, nodes)?.display().to_string())
}

async fn the_authority_of_a_fleet_is_replaced(scratch: Scratch) -> Outcome {
    let fleet = Fleet::boot(&scratch).await?;
    chapters![
        the_machine_without_a_key_is_signed_for(&fleet, &scratch),
        a_plan_changes_nothing(&fleet),
        a_config_that_is_tried_is_not_kept(&fleet),
        secrets_of_another_fleet_are_refused(&fleet, &scratch),
        a_machine_that_is_off_is_waited_for(&fleet),
        it_is_killed_twice_and_every_machine_is_reached(&fleet),
        it_goes_on_to_its_end(&fleet),
        the_old_client_is_refused_and_the_new_one_is_not(&fleet),
        the_new_authority_signs_from_now_on(&fleet),
    ]
    .await
}

async fn the_machine_without_a_key_is_signed_for(fleet: &Fleet, scratch: &Scratch) -> Outcome {
    let file = authority_file(scratch, "old.pem", &fleet.old)?;
    let fingerprint = fleet.nodes[1].fingerprint_on_console()?;
    fleet
        .sign(&file, &["--cert-fingerprint", &fingerprint])
        .await?;
    let reached = async || fleet.reaches_both().await;
    let node = &fleet.nodes[1];
    node.wait_until("both are reached", PATIENCE, reached).await
}

async fn a_plan_changes_nothing(fleet: &Fleet) -> Outcome {
    let before = std::fs::read(&fleet.config)?;
    let said = fleet.rotate(&["--dry-run", "--leave", "lamp-3"]).await?;
    ensure!(said.code == Some(0), "{said:#?}");
    let steps: Vec<&str> = said.output.lines().collect();
    ensure!(steps.len() == 10, "{steps:#?}");
    ensure!(
        steps.contains(&"lamp-2: has its certificate, signed here"),
        "{steps:#?}"
    );
    ensure!(std::fs::read(&fleet.config)? == before, "it was changed");
    Ok(())
}

async fn a_config_that_is_tried_is_not_kept(fleet: &Fleet) -> Outcome {
    let patch = "machine: {sysctls: {vm.swappiness: \"42\"}}";
    let tries = ["patch", "mc", "--mode", "try", "--timeout", "20s", "-p"];
    let tried = fleet.client.run(&[&tries[..], &[patch]].concat()).await?;
    ensure!(tried.code == Some(0), "{tried:#?}");
    let plan = ["--dry-run", "--leave", "lamp-3"];
    let said = fleet.rotate(&plan).await?;
    let waits = "then: waits for lamp-1 (its config for the next boot";
    ensure!(said.output.contains(waits), "{said:#?}");
    let over = async || {
        let said = fleet.rotate(&plan).await?;
        ensure!(!said.output.contains("waits for"), "{said:#?}");
        Ok(())
    };
    let what = "the trial is over";
    fleet.nodes[0].wait_until(what, PATIENCE, over).await
}

async fn secrets_of_another_fleet_are_refused(fleet: &Fleet, scratch: &Scratch) -> Outcome {
    fleet.gen_secrets(&[]).await?;
    let said = fleet.rotate(&[]).await?;
    ensure!(said.complaint.contains("another authority"), "{said:#?}");
    std::fs::remove_file(&fleet.secrets)?;
    fleet.gen_their_secrets(scratch).await
}

/// The machines that are up accept the new authority meanwhile, and nothing else happens.
async fn a_machine_that_is_off_is_waited_for(fleet: &Fleet) -> Outcome {
    let said = fleet.rotate(&["--patience", "3s"]).await?;
    ensure!(said.code == Some(TIMED_OUT), "{said:#?}");
    ensure!(said.complaint.contains("lamp-3"), "{said:#?}");
    ensure!(
        said.output.matches("accepts the new authority").count() == 2,
        "{said:#?}"
    );
    ensure!(!said.output.contains("belongs to"), "{said:#?}");
    Ok(())
}

async fn it_is_killed_twice_and_every_machine_is_reached(fleet: &Fleet) -> Outcome {
    let arguments = fleet.arguments(&["--leave", "lamp-3"]);
    for until in ["client configuration: has a", "lamp-1: belongs to"] {
        let mut rotation = fleet.client.follow(&arguments)?;
        let is_meant = |line: &str| line.starts_with(until);
        rotation.wait_for(until, PATIENCE, is_meant)?;
        // Killed.
        drop(rotation);
        let reached = async || fleet.reaches_both().await;
        let what = "both are reached";
        fleet.nodes[0].wait_until(what, PATIENCE, reached).await?;
    }
    Ok(())
}

async fn it_goes_on_to_its_end(fleet: &Fleet) -> Outcome {
    let said = fleet.rotate(&[]).await?;
    ensure!(said.code == Some(0), "{said:#?}");
    ensure!(
        said.complaint.contains("goes on with the rotation"),
        "{said:#?}"
    );
    ensure!(
        said.output.contains("left with the old authority: lamp-3"),
        "{said:#?}"
    );
    Ok(())
}

async fn the_old_client_is_refused_and_the_new_one_is_not(fleet: &Fleet) -> Outcome {
    ensure!(
        fleet.is_reached_by(&fleet.config).await? == [true; 2],
        "the new one is refused"
    );
    let before = PathBuf::from(&fleet.state).join("talosconfig.before");
    let refused = async || {
        let reached = fleet.is_reached_by(&before).await?;
        ensure!(reached == [false; 2], "{reached:?}");
        Ok(())
    };
    let what = "the old one is refused";
    fleet.nodes[0].wait_until(what, PATIENCE, refused).await
}

async fn the_new_authority_signs_from_now_on(fleet: &Fleet) -> Outcome {
    let authority = format!("{}/authority.pem", fleet.state);
    for file in [&authority, &fleet.secrets] {
        fleet.sign(file, &[]).await?;
    }
    fleet.reaches_both().await
}
